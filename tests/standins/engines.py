"""Stand-ins for vllm 0.33.0 and sglang-kernel 0.4.10: packages that cannot be imported, operators of flash-attn 3, and
the module of vLLM's Triton kernel, which imports the engine's modules as the real one does.
"""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, library

from standins import flash_attn, function, modules
from standins.attend import attend_paged, check

VERSIONS = {"vllm": "0.33.0", "sglang-kernel": "0.4.10"}
# The operators of flash-attn 3, with their schemas up to the last arguments of each engine
FWD = (
    "fwd(Tensor{} q, Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v, Tensor{}? out, "
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? seqused_k, "
    "int? max_seqlen_q, int? max_seqlen_k, Tensor? page_table, Tensor? kv_batch_idx, Tensor? leftpad_k, "
    "Tensor? rotary_cos, Tensor? rotary_sin, Tensor? seqlens_rotary, Tensor? q_descale, Tensor? k_descale, "
    "Tensor? v_descale, float{} softmax_scale, bool is_causal, int window_size_left, int window_size_right, "
    "{}float softcap, bool is_rotary_interleaved, Tensor? scheduler_metadata, int num_splits, bool? pack_gqa, "
    "int sm_margin, {})"
)
SCHEDULE = (
    "get_scheduler_metadata(int batch_size, int max_seqlen_q, int max_seqlen_k, int num_heads, int num_heads_k, "
    "int headdim, int headdim_v, ScalarType qkv_dtype, Tensor seqused_k, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
    "Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? leftpad_k, int? page_size, int max_seqlen_k_new, "
    "bool is_causal, int window_size_left, int window_size_right, {}bool has_softcap, int num_splits, bool? pack_gqa, "
    "int sm_margin) -> Tensor"
)
CHUNK = "int attention_chunk, "
OF_VLLM = ("Tensor? s_aux, int cp_world_size, int cp_rank, Tensor? cp_tot_seqused_k", "Tensor[]")
OF_SGLANG = ("Tensor? sinks, Tensor? sparse_mask_fine, bool only_qv", "(Tensor, Tensor, Tensor, Tensor)")
SCHEMAS = {
    "_vllm_fa3_C": (f"{FWD.format('!', '!', '', '', OF_VLLM[0])} -> {OF_VLLM[1]}", SCHEDULE.format("")),
    "sgl_kernel": (f"{FWD.format('', '', '?', CHUNK, OF_SGLANG[0])} -> {OF_SGLANG[1]}", SCHEDULE.format(CHUNK)),
}
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
from standins.engines import unified_attention
init_logger(__name__).debug_once("")
assert not envs.VLLM_BATCH_INVARIANT and tl and triton.cdiv(3, 2) == 2 and current_platform.fp8_dtype().itemsize == 1
assert KVQuantMode.NONE == 0 and KVQuantMode.INT4_PER_TOKEN_HEAD == 4
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the packages in a folder of sys.path; an extension that is loaded defines its operators."""
    for name in ("v1/attention/ops/__init__.py", "v1/attention/__init__.py", "v1/__init__.py"):
        (folder / "vllm" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "vllm" / name).touch()
    (folder / "vllm" / "v1" / "attention" / "ops" / "triton_unified_attention.py").write_text(KERNEL)
    extensions = {
        "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so": "_vllm_fa3_C",
        "sgl_kernel/flash_ops.abi3.so": "sgl_kernel",
    }
    for name in extensions:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
        (folder / name.partition("/")[0] / "__init__.py").write_text("raise RuntimeError('the engine')\n")
    for name, version in VERSIONS.items():
        (folder / f"{name.replace('-', '_')}-{version}.dist-info").mkdir()
        metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
        metadata.write_text(f"Name: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(folder)
    load = lambda path: operators(extensions[Path(path).relative_to(folder).as_posix()])  # noqa: E731
    monkeypatch.setattr(torch.ops, "load_library", load)


def _bound(schema: str, given: tuple[Any, ...]) -> SimpleNamespace:
    names = [part.split()[-1] for part in schema.partition("(")[2].partition(")")[0].split(", ")]
    of = SimpleNamespace(**dict(zip(names, given, strict=True)))
    of.window_size, of.causal = (of.window_size_left, of.window_size_right), of.is_causal
    return of


@functools.cache
def operators(namespace: str) -> library.Library:
    """Define the operators of an engine for a CPU, once in a process, and return the owner of their definitions."""
    schedules: list[dict[str, Any]] = []

    def fwd(*given: Any) -> Any:
        of = _bound(SCHEMAS[namespace][0], given)
        check(of.num_splits == getattr(of, "attention_chunk", 0) == 0, "splits by the schedule")
        others = [torch.empty(0) for _ in range(3)]
        if of.page_table is None:
            check(of.cu_seqlens_q is not None, "This flash attention build only supports varlen")
            return [flash_attn.varlen_3(of), *others]
        of.scheduler_metadata = schedules[int(of.scheduler_metadata)]
        of.k_cache, of.v_cache, of.cache_seqlens, of.qv, of.k, of.v = (
            of.k,
            of.v,
            of.seqused_k,
            of.q_v,
            of.k_new,
            of.v_new,
        )
        check(of.k is None or namespace != "_vllm_fa3_C", "This flash attention build does not support appending KV.")
        return [flash_attn.cached_3(of), *others]

    def schedule(*given: Any) -> Tensor:
        of = _bound(SCHEMAS[namespace][1], given)
        of.num_heads_q, of.num_heads_kv, of.cache_seqlens = of.num_heads, of.num_heads_k, of.seqused_k
        schedules.append(flash_attn.schedule_3(of))
        return torch.tensor(len(schedules) - 1, dtype=torch.int32)

    owner = library.Library(namespace, "DEF")
    for schema, compute in zip(SCHEMAS[namespace], (fwd, schedule), strict=True):
        owner.define(schema)
        owner.impl(schema.partition("(")[0], compute, "CPU")
    return owner


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
            "sgl_kernel.flash_attn": flash_attn.version_3()["flash_attn_interface"].__dict__,
            "vllm.v1.attention.ops.triton_unified_attention": {"unified_attention": unified_attention},
        }
    )
