"""Stand-in for vllm 0.33.0: a package that cannot be imported, its operators of flash-attn 3, and its Triton kernel's
module, which imports the engine's modules as the real one does.
"""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from standins import flash_attn, function, modules
from standins.attend import attend_paged, check

# The operators of the extension _vllm_fa3_C, with their schemas
FWD = (
    "fwd(Tensor! q, Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v, Tensor!? out, "
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? seqused_k, "
    "int? max_seqlen_q, int? max_seqlen_k, Tensor? page_table, Tensor? kv_batch_idx, Tensor? leftpad_k, "
    "Tensor? rotary_cos, Tensor? rotary_sin, Tensor? seqlens_rotary, Tensor? q_descale, Tensor? k_descale, "
    "Tensor? v_descale, float softmax_scale, bool is_causal, int window_size_left, int window_size_right, "
    "float softcap, bool is_rotary_interleaved, Tensor? scheduler_metadata, int num_splits, bool? pack_gqa, "
    "int sm_margin, Tensor? s_aux, int cp_world_size, int cp_rank, Tensor? cp_tot_seqused_k) -> Tensor[]"
)
SCHEDULE = (
    "get_scheduler_metadata(int batch_size, int max_seqlen_q, int max_seqlen_k, int num_heads, int num_heads_k, "
    "int headdim, int headdim_v, ScalarType qkv_dtype, Tensor seqused_k, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
    "Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? leftpad_k, int? page_size, int max_seqlen_k_new, "
    "bool is_causal, int window_size_left, int window_size_right, bool has_softcap, int num_splits, bool? pack_gqa, "
    "int sm_margin) -> Tensor"
)
UNIFIED = (  # the parameters of unified_attention
    "q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal, window_size, "
    "block_table, softcap, q_descale, k_descale, v_descale, seq_threshold_3D=None, num_par_softmax_segments=None, "
    "softmax_segm_output=None, softmax_segm_max=None, softmax_segm_expsum=None, alibi_slopes=None, output_scale=None, "
    "qq_bias=None, sinks=None, mm_prefix_range=None, rswa_prefix_lens=None, rswa_window=None, use_alibi_sqrt=False, "
    "kv_quant_mode=0, k_scale_cache=None, v_scale_cache=None, chunk_lookback=-1, use_td=False, "
    "mm_prefix_clamp_sliding_window=False"
)
VARLEN = (  # the parameters of vllm_flash_attn's flash_attn_varlen_func
    "q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None, seqused_k=None, q_v=None, dropout_p=0.0, "
    "softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, "
    "return_attn_probs=False, block_table=None, return_softmax_lse=False, out=None, scheduler_metadata=None, "
    "q_descale=None, k_descale=None, v_descale=None, num_splits=0, output_scale=None, fa_version=2, s_aux=None"
)
KERNEL = """\
import vllm.envs as envs
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.triton_utils import tl, triton
from vllm.v1.kv_cache_interface import KVQuantMode
from standins.vllm import unified_attention
init_logger(__name__).debug_once("")
assert not envs.VLLM_BATCH_INVARIANT and tl and triton.cdiv(3, 2) == 2 and current_platform.fp8_dtype().itemsize == 1
assert KVQuantMode.NONE == 0 and KVQuantMode.INT4_PER_TOKEN_HEAD == 4
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the package in a folder of sys.path, and return the path of its extension, which is loaded as a no-op."""
    for name in ("vllm_flash_attn/_vllm_fa3_C.abi3.so", "v1/attention/ops/__init__.py", "v1/attention/__init__.py"):
        (folder / "vllm" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "vllm" / name).touch()
    (folder / "vllm" / "v1" / "__init__.py").touch()
    (folder / "vllm" / "v1" / "attention" / "ops" / "triton_unified_attention.py").write_text(KERNEL)
    (folder / "vllm" / "__init__.py").write_text("raise RuntimeError('the engine')\n")
    (folder / "vllm-0.33.0.dist-info").mkdir()
    (folder / "vllm-0.33.0.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 0.33.0\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(torch.ops, "load_library", lambda _: operators())
    return folder / "vllm" / "vllm_flash_attn" / "_vllm_fa3_C.abi3.so"


def _bound(schema: str, given: tuple[Any, ...]) -> SimpleNamespace:
    names = [part.split()[-1] for part in schema.partition("(")[2].partition(")")[0].split(", ")]
    of = SimpleNamespace(**dict(zip(names, given, strict=True)))
    of.window_size, of.causal = (of.window_size_left, of.window_size_right), of.is_causal
    return of


@functools.cache
def operators() -> torch.library.Library:
    """Define the operators for a CPU, once in a process, and return the owner of their definitions."""
    schedules: list[dict[str, Any]] = []

    def fwd(*given: Any) -> list[Tensor]:
        of = _bound(FWD, given)
        check(of.k_new is None, "This flash attention build does not support appending KV.")
        check(of.cp_world_size == 1 and of.num_splits == 0, "one device, and splits by the schedule")
        if of.page_table is None:
            check(of.cu_seqlens_q is not None, "This flash attention build only supports varlen")
            return [flash_attn.varlen_3(of)]
        of.scheduler_metadata = schedules[int(of.scheduler_metadata)]
        of.k_cache, of.v_cache, of.cache_seqlens, of.qv, of.k = of.k, of.v, of.seqused_k, of.q_v, None
        return [flash_attn.cached_3(of)]

    def schedule(*given: Any) -> Tensor:
        of = _bound(SCHEDULE, given)
        of.num_heads_q, of.num_heads_kv, of.cache_seqlens = of.num_heads, of.num_heads_k, of.seqused_k
        schedules.append(flash_attn.schedule_3(of))
        return torch.tensor(len(schedules) - 1, dtype=torch.int32)

    library = torch.library.Library("_vllm_fa3_C", "DEF")
    for schema, compute in ((FWD, fwd), (SCHEDULE, schedule)):
        library.define(schema)
        library.impl(schema.partition("(")[0], compute, "CPU")
    return library


def _unified(of: Any) -> None:
    check(of.window_size[1] <= 0 and (of.causal or of.window_size == (-1, -1)), "a window is causal")
    if of.softmax_segm_max is not None and of.max_seqlen_q <= 8 and len(of.seqused_k) <= of.seq_threshold_3D:
        check(of.softmax_segm_max.shape[0] >= len(of.q), "scratch for split keys")
    band = flash_attn.band(of) | {"sink": of.sinks}
    of.out.copy_(attend_paged(of.q, of.k, of.v, of.block_table, of.seqused_k, starts_q=of.cu_seqlens_q, **band))


unified_attention = function(UNIFIED, _unified)


def _varlen(of: Any) -> Tensor:
    check(of.fa_version == 3, "the build of flash-attn 3")
    if of.block_table is None:
        return flash_attn.varlen_3(of)
    options = {"starts_q": of.cu_seqlens_q, **flash_attn.band(of)}
    return attend_paged(of.q, of.k, of.v, of.block_table, of.seqused_k, **options)


def functions() -> dict[str, ModuleType]:
    """Return the modules with the functions that a person calls in an environment of the engine."""
    return modules(
        {
            "vllm.vllm_flash_attn": {"flash_attn_varlen_func": function(VARLEN, _varlen)},
            "vllm.v1.attention.ops.triton_unified_attention": {"unified_attention": unified_attention},
        }
    )
