"""`vllm-fa3` and `sglang-fa3`: the builds of flash-attn 3 in vLLM and SGLang, without the engines.

Checked against the operators of vllm 0.33.0 and sglang-kernel 0.4.10. The extension with the kernels is loaded alone:
no module of the engine is imported, and `pip install --no-deps` beside another torch suffices where the extension fits
it. vLLM's is bound to a major version of CUDA and to torch's stable interface (2.11 and newer), SGLang's to one version
of torch. As in the engines, a dense batch is given as a ragged one. Neither has a backward; vLLM's takes ragged batches
and caches of pages only, and does not append to a cache.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.flash_attn.fa3 import CACHED, FlashAttention3
from attnbench.backends.paste import FLASH, PAGES, PAGES_THD, THD, Paste
from attnbench.backends.shared.libraries import VARLEN
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

# Names of arguments in flash_attn_interface, by those of the operators
SPELLING = {"q_v": "qv", "seqused_k": "cache_seqlens", "is_causal": "causal"}
SIZES = ("batch_size", "max_seqlen_q", "max_seqlen_k", "num_heads", "num_heads_k", "headdim", "cache_seqlens")
# Arguments that must be given and that no case changes. Without splits the kernel chooses their number.
FIXED = {"is_rotary_interleaved": True, "num_splits": 0, "sm_margin": 0, "attention_chunk": 0, "only_qv": False}
FIXED |= {"cp_world_size": 1, "cp_rank": 0}


class Operators:
    """The operators of an extension, with the names and arguments of the module flash_attn_interface."""

    def __init__(self, operators: Any) -> None:
        self._fwd, self._schedule = operators.fwd.default, operators.get_scheduler_metadata.default
        self._names = {
            operator: tuple(SPELLING.get(argument.name, argument.name) for argument in operator._schema.arguments)
            for operator in (self._fwd, self._schedule)
        }

    def _call(self, operator: Any, window_size: tuple[int, int], **given: Any) -> Any:
        given |= {"window_size_left": window_size[0], "window_size_right": window_size[1], **FIXED}
        return operator(*map(given.get, self._names[operator]))

    def flash_attn_varlen_func(self, q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Tensor:
        """Return the output, (total, nheads, headdim of v)."""
        out: Tensor = self._call(self._fwd, q=q, k=k, v=v, **given)[0]
        return out

    def flash_attn_with_kvcache(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        k: Tensor | None = None,
        v: Tensor | None = None,
        **given: Any,
    ) -> Tensor:
        """Return the output over a cache of pages, in the shape of q with the columns of v; k and v are appended."""
        return self.flash_attn_varlen_func(q, k_cache, v_cache, k_new=k, v_new=v, **given)

    def get_scheduler_metadata(self, *sizes: Any, **given: Any) -> Tensor:
        """Return the schedule for a cache of pages; `sizes` are SIZES."""
        found: Tensor = self._call(self._schedule, **dict(zip(SIZES, sizes, strict=True)), **given)
        return found


class OfEngine(FlashAttention3):
    """Base of a build in an engine."""

    operators = ""  # the namespace of its operators in torch.ops
    folder = ""  # the folder of the extension in the package
    required_name = ""
    packs = True

    def load(self) -> Any:
        import torch

        spec = importlib.util.find_spec(self.module)  # imports nothing
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(f"No module named {self.module!r}", name=self.module)
        folder = Path(spec.submodule_search_locations[0], self.folder)
        try:
            torch.ops.load_library(next(folder.glob(f"{self.extension}*"), folder / f"{self.extension}abi3.so"))
        except OSError as error:
            raise error.__cause__ or error from None  # newer torch gives the reason there only
        return Operators(getattr(torch.ops, self.operators))

    def find_left_out(self) -> frozenset[str]:
        return frozenset()  # no file lists them: `limits` has them

    def unsupported(self, case: Case, device: Device) -> str | None:
        if case.dtype == "fp8" and not case.is_paged:
            return "no fp8 outside a cache of pages"
        return super().unsupported(case, device)


class Vllm(OfEngine):
    name = "vllm-fa3"
    paste = Paste(
        ("from vllm.vllm_flash_attn import flash_attn_varlen_func",),
        {
            "ragged": f"{THD}out = flash_attn_varlen_func(\n    q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, "
            "cu_seqlens_k, fa_version=3{options}\n)",
            "paged": f"{PAGES_THD}out = flash_attn_varlen_func(\n    q, k_cache, v_cache, max_seqlen_q, cu_seqlens_q, "
            "max_seqlen_k, seqused_k=seqlens_k,\n    block_table=page_table, fa_version=3{options}\n)",
        },
        **FLASH,
    )
    engine_names: ClassVar = {"vllm": "FLASH_ATTN flash_attn_version=3", "vllm mla": "FLASH_ATTN_MLA"}
    module, folder, extension, operators = "vllm", "vllm_flash_attn", "_vllm_fa3_C.", "_vllm_fa3_C"
    distributions: ClassVar = ("vllm",)
    install = "pip install --no-deps vllm  # its kernels are loaded without the engine"
    limits: ClassVar = replace(FlashAttention3.limits, backward=False, deterministic=False, append=False)


class Sglang(OfEngine):
    name = "sglang-fa3"
    paste = Paste(
        (
            "from sgl_kernel.flash_attn import flash_attn_varlen_func",
            "from sgl_kernel.flash_attn import flash_attn_with_kvcache",
        ),
        {
            "ragged": f"{THD}out = {VARLEN}",
            "paged": f"{PAGES}{CACHED}{{options}}\n)",
            "unlike": f"{PAGES_THD}{CACHED},\n    cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q{{options}}\n)",
        },
        **FLASH,
    )
    engine_names: ClassVar = {"sglang": "fa3", "sglang mla": "fa3"}
    module, extension, operators = "sgl_kernel", "flash_ops.", "sgl_kernel"
    distributions: ClassVar = ("sglang-kernel", "sgl-kernel")
    install = "pip install --no-deps sglang-kernel  # bound to one torch: 0.4.10 to 2.14.1"
    min_version = "0.4.10"
    limits: ClassVar = replace(FlashAttention3.limits, backward=False, deterministic=False)
