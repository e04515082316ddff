"""`vllm-fa3`: vLLM's build of flash-attn 3 (vllm-project/flash-attention), without the engine.

Checked against the operators of vllm 0.33.0. Its extension, vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so, is bound to a
major version of CUDA and to torch's stable interface, so it is loaded alone: vllm is not imported, and
`pip install --no-deps vllm` beside another torch suffices. The build has ragged batches and caches of pages only; a
dense batch is given as a ragged one, as in the engine. It has no backward and does not append to a cache.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.flash_attn.fa3 import FlashAttention3
from attnbench.backends.paste import FLASH, PAGES_THD, THD, Paste
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

RAGGED = "q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k"
PAGED = (
    "q, k_cache, v_cache, max_seqlen_q, cu_seqlens_q, max_seqlen_k, seqused_k=seqlens_k,\n    block_table=page_table"
)
CALL = "out = flash_attn_varlen_func(\n    {}, fa_version=3{{options}}\n)"
# The arguments of the operator fwd, in its order; those that a call does not give are None.
ARGUMENTS = (
    *("q", "k", "v", "k_new", "v_new", "qv", "out", "cu_seqlens_q", "cu_seqlens_k", "cu_seqlens_k_new", "seqused_q"),
    *("cache_seqlens", "max_seqlen_q", "max_seqlen_k", "page_table", "kv_batch_idx", "leftpad_k", "rotary_cos"),
    *("rotary_sin", "seqlens_rotary", "q_descale", "k_descale", "v_descale", "softmax_scale", "causal", "left"),
    *("right", "softcap", "is_rotary_interleaved", "scheduler_metadata", "num_splits", "pack_gqa", "sm_margin"),
    *("s_aux", "cp_world_size", "cp_rank", "cp_tot_seqused_k"),
)
FIXED = {"is_rotary_interleaved": True, "num_splits": 0, "sm_margin": 0, "cp_world_size": 1, "cp_rank": 0}


class Operators:
    """The operators of the extension, with the names and arguments of the module flash_attn_interface."""

    def __init__(self, operators: Any) -> None:
        self._operators = operators

    def flash_attn_varlen_func(
        self, q: Tensor, k: Tensor, v: Tensor, *, window_size: tuple[int, int], **given: Any
    ) -> Tensor:
        """Return the output, in the shape of q with the columns of v."""
        given |= {"q": q, "k": k, "v": v, "left": window_size[0], "right": window_size[1], **FIXED}
        out: Tensor = self._operators.fwd(*map(given.get, ARGUMENTS))[0]
        return out

    flash_attn_with_kvcache = flash_attn_varlen_func

    def get_scheduler_metadata(
        self,
        *sizes: Any,
        qkv_dtype: Any,
        headdim_v: int,
        page_size: int,
        max_seqlen_k_new: int,
        causal: bool,
        window_size: tuple[int, int],
        has_softcap: bool,
        cu_seqlens_q: Tensor | None = None,
    ) -> Tensor:
        """Return the schedule for a cache of pages; `sizes` are the six numbers and the lengths in flash-attn's order.

        Without `num_splits`, the kernel chooses it.
        """
        *numbers, cache_seqlens = sizes
        found: Tensor = self._operators.get_scheduler_metadata(
            *(*numbers, headdim_v, qkv_dtype, cache_seqlens, cu_seqlens_q, None, None, None, None),
            *(page_size, max_seqlen_k_new, causal, *window_size, has_softcap, 0, None, 0),
        )
        return found


class FlashAttention3OfVllm(FlashAttention3):
    name = "vllm-fa3"
    paste = Paste(
        ("from vllm.vllm_flash_attn import flash_attn_varlen_func",),
        {"ragged": THD + CALL.format(RAGGED), "paged": PAGES_THD + CALL.format(PAGED)},
        **FLASH,
    )
    module = "vllm"
    distributions: ClassVar = ("vllm",)
    required_name = ""
    install = "pip install --no-deps vllm  # its kernels are loaded without the engine"
    limits: ClassVar = replace(FlashAttention3.limits, backward=False, append=False)
    extension = "_vllm_fa3_C."
    packs = True

    def load(self) -> Any:
        import torch

        spec = importlib.util.find_spec(self.module)  # imports nothing
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(f"No module named {self.module!r}", name=self.module)
        folder = Path(spec.submodule_search_locations[0], "vllm_flash_attn")
        torch.ops.load_library(next(folder.glob(f"{self.extension}*"), folder / f"{self.extension}abi3.so"))
        return Operators(torch.ops._vllm_fa3_C)

    def find_left_out(self) -> frozenset[str]:
        return frozenset()  # no file lists them: `limits` has them

    def unsupported(self, case: Case, device: Device) -> str | None:
        if case.dtype == "fp8" and not case.is_paged:
            return "no fp8 outside a cache of pages"
        return super().unsupported(case, device)
