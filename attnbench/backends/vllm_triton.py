"""`vllm-triton`: vLLM's Triton kernel for a cache of pages (unified_attention), without the engine.

Checked against vllm 0.33.0. Its module imports five modules of the engine, of which it uses a few names. While it is
imported here, small objects stand for these modules, so vllm is not imported, and `pip install --no-deps vllm` beside
another torch suffices. As in the engine, steps of few queries split the keys of a sequence (SEGMENTS), where the batch
alone does not fill the GPU.
"""

from __future__ import annotations

import enum
import functools
import importlib
import importlib.util
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.limits import Limits
from attnbench.backends.paste import FLASH, PAGES_THD, Paste
from attnbench.backends.shared.libraries import Library, installed_version
from attnbench.backends.shared.masks import flash_window
from attnbench.core import pages
from attnbench.core.backend import Prepared, Probe, cu_seqlens
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

MODULE = "vllm.v1.attention.ops.triton_unified_attention"
# Of vllm/v1/attention/backends/triton_attn.py: programs that fill a GPU, parts of the keys, most queries of a sequence
GRID, SEGMENTS, FEW_QUERIES = 128, 16, 8
QUANTIZED = ("NONE", "FP8_PER_TENSOR", "INT8_PER_TOKEN_HEAD", "FP8_PER_TOKEN_HEAD", "INT4_PER_TOKEN_HEAD")


class VllmTriton(Library):
    name = "vllm-triton"
    module = "vllm"
    distributions: ClassVar = ("vllm",)
    uses: ClassVar = ("triton",)
    install = "pip install --no-deps vllm  # its kernels are loaded without the engine"
    limits: ClassVar = Limits(
        headdim=(32, 256), backward=False, window=True, softcap=True, sink=True, ragged=True, page_sizes=(16,)
    )
    compiles = 3.0
    engine_names: ClassVar = {"vllm": "TRITON_ATTN"}
    forward_kernels = "kernel_unified_attention"
    paste = Paste(
        ("from vllm.v1.attention.ops.triton_unified_attention import unified_attention",),
        {
            "paged": PAGES_THD + "options = dict(causal=False, window_size=(-1, -1), softcap=0)\n"
            "options = dict(options{options})\n"
            "# For few queries as measured: seq_threshold_3D, num_par_softmax_segments and softmax_segm_*, too\n"
            "out = q.new_empty(q.shape)\nunified_attention(\n    q, k_cache, v_cache, out, cu_seqlens_q, max_seqlen_q, "
            "seqlens_k, max_seqlen_k, block_table=page_table,\n    q_descale=None, k_descale=None, v_descale=None, "
            "**options\n)"
        },
        **FLASH,
        sink="sinks=sink",
    )

    def load(self) -> Any:
        spec = importlib.util.find_spec(self.module)  # imports nothing
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(f"No module named {self.module!r}", name=self.module)
        return _imported(tuple(spec.submodule_search_locations))

    def probe(self) -> Probe:
        found = super().probe()
        return (
            replace(found, version=f"{found.version}, triton {installed_version(('triton',))}")
            if found.usable
            else found
        )

    def unsupported(self, case: Case, device: Device) -> str | None:
        if reason := super().unsupported(case, device):
            return reason
        if not case.is_paged:
            return "keys and values in a cache of pages only (--page-size)"
        if flash_window(case) != (-1, -1) and not case.causal:
            return "no sliding window without a causal mask"
        return None

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        import torch

        s, device = case.shape, inputs.q.device
        q = inputs.q.flatten(0, 1)
        scratch = functools.partial(torch.empty, dtype=torch.float32, device=device)
        rows = GRID // s.nheads_k
        shape = (rows * (s.seqlen_q if s.seqlen_q <= FEW_QUERIES else 1), s.nheads, SEGMENTS)
        attention = functools.partial(
            self.load().unified_attention,
            **dict.fromkeys(("q_descale", "k_descale", "v_descale")),
            max_seqlen_q=s.seqlen_q,
            max_seqlen_k=s.seqlen_k,
            softmax_scale=case.softmax_scale,
            causal=case.causal,
            window_size=flash_window(case),
            block_table=inputs.page_table,
            softcap=case.softcap,
            sinks=inputs.sink,
            seq_threshold_3D=rows,
            num_par_softmax_segments=SEGMENTS,
            softmax_segm_output=scratch(*shape, 1 << (s.headdim - 1).bit_length()),
            softmax_segm_max=scratch(shape),
            softmax_segm_expsum=scratch(shape),
        )

        def plan() -> dict[str, Any]:
            return {"cu_seqlens_q": cu_seqlens(case, device)[0], "seqused_k": pages.seqlens_k(case, device)}

        lengths = plan()

        def launch() -> Tensor:
            out = torch.empty_like(q)
            attention(q=q, k=inputs.k, v=inputs.v, out=out, **lengths)
            return out

        return Prepared(launch, lambda out: {"out": out.view(inputs.q.shape)}, plan=plan)


@functools.cache
def _imported(folders: tuple[str, ...]) -> ModuleType:
    """Import the kernel's module from the folders of vllm, and forget every module of vllm afterwards."""
    stand_ins: dict[str, dict[str, Any]] = {
        "vllm": {"__path__": [*folders]},
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
        "vllm.logger": {"init_logger": lambda _: SimpleNamespace(debug_once=lambda _: None)},
        "vllm.platforms": {"current_platform": _Platform()},
        "vllm.triton_utils": {
            "triton": importlib.import_module("triton"),
            "tl": importlib.import_module("triton.language"),
        },
        "vllm.v1.kv_cache_interface": {"KVQuantMode": enum.IntEnum("KVQuantMode", QUANTIZED, start=0)},
    }
    before = {name: sys.modules.pop(name) for name in [*sys.modules] if f"{name}.".startswith("vllm.")}
    try:
        for name, contents in stand_ins.items():
            sys.modules[name] = ModuleType(name)
            vars(sys.modules[name]).update(contents)
        return importlib.import_module(MODULE)
    finally:
        for name in [name for name in sys.modules if f"{name}.".startswith("vllm.")]:
            del sys.modules[name]
        sys.modules.update(before)


class _Platform:
    """The part of vLLM's current_platform that the kernel's module uses."""

    def fp8_dtype(self) -> Any:
        import torch

        return torch.float8_e4m3fn

    def is_device_capability_family(self, family: int) -> bool:
        import torch

        return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == family // 10
