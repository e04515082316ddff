"""Stand-in for FlashInfer 0.6.13: single prefill, the ragged wrapper, and the functions of TensorRT-LLM's kernels."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from standins import module
from standins.attend import append_paged, attend, attend_paged, check, check_half

VERSIONS = {"flashinfer-python": "0.6.13"}
HEADDIMS = {(64, 64), (128, 128), (256, 256), (192, 128)}


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    check_half(q, k, v)
    check(q.ndim == k.ndim == v.ndim == 3, "[tokens, num_heads, head_dim]")
    check((q.shape[-1], v.shape[-1]) in HEADDIMS, f"Unsupported head_dim: {q.shape[-1]}, {v.shape[-1]}")


def single_prefill_with_kv_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale_q: Tensor | None = None,
    scale_k: Tensor | None = None,
    scale_v: Tensor | None = None,
    o_dtype: torch.dtype | None = None,
    custom_mask: Tensor | None = None,
    packed_custom_mask: Tensor | None = None,
    causal: bool = False,
    kv_layout: str = "NHD",
    pos_encoding_mode: str = "NONE",
    use_fp16_qk_reduction: bool = False,
    sm_scale: float | None = None,
    window_left: int = -1,
    logits_soft_cap: float | None = None,
    rope_scale: float | None = None,
    rope_theta: float | None = None,
    backend: str = "auto",
    return_lse: bool = False,
    kv_cache_sf: Any = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
) -> Tensor:
    assert backend in ("auto", "fa2", "fa3")
    assert sm_scale is not None
    _check(q, k, v)
    left = None if window_left < 0 else window_left
    cap = logits_soft_cap or 0.0
    options: dict[str, Any] = {"left": left, "right": 0 if causal else None, "softcap": cap}
    options |= _alibi(pos_encoding_mode, q.shape[1], backend)
    return attend(q[None], k[None], v[None], scale=sm_scale, **options)[0][0]


def _alibi(pos_encoding_mode: str, heads: int, backend: str) -> dict[str, Any]:
    """Return the options of ALiBi: FlashInfer's slopes (utils.py: get_alibi_slopes), in fa2's kernels alone."""
    assert pos_encoding_mode in ("NONE", "ALIBI")
    if pos_encoding_mode == "NONE":
        return {}
    assert backend in ("auto", "fa2")
    n = 2 ** math.floor(math.log2(heads))
    slopes = [*(2.0 ** (-8.0 * i / n) for i in range(1, 1 + n))]
    slopes += [2.0 ** (-4.0 * i / n) for i in range(1, 1 + 2 * (heads - n), 2)]
    return {"slopes": torch.tensor(slopes), "signed": True}


DECLARATIONS = {"fa2": "struct AttentionSink { /* fa2 */ };", "fa3": "struct AttentionSink { /* fa3 */ };"}


class _Variant:
    """The kernels of a prefill wrapper: with `jit_args` those with a sink, whose run() takes it and the scale."""

    def __init__(self, backend: str, jit_args: Any, jit_kwargs: Any) -> None:
        self.arguments, self.options = jit_args, jit_kwargs
        if jit_args is not None:
            check(backend in DECLARATIONS, "backend should not be auto when jit_args is provided")
            self.dtype, self.dims = jit_args[1], tuple(jit_args[5:7])
            check(jit_args[2:5] == [self.dtype, self.dtype, torch.int32], "dtypes")
            more = [["sink"], ["float"], ["sm_scale"], ["double"], "AttentionSink", DECLARATIONS[backend]]
            check(jit_args[7:] == more, "not the variant with a sink")
            check(all(str(d) in jit_args[0] for d in self.dims), "a module of another head dim has this name")

    def planned(self, dtype: object, dims: tuple[int, int], options: dict[str, Any]) -> None:
        if self.arguments is not None:
            check((dtype, dims) == (self.dtype, self.dims), "not what was compiled")
            check(self.options == {"use_sliding_window": options["left"] is not None}, "not what was compiled")
            check(not options["softcap"] and "slopes" not in options, "the variant has no softcap and no ALiBi")

    def of(self, args: tuple[Any, ...], scale: float) -> dict[str, Any]:
        """Return the options that run() is given; the scale of the plan has no effect."""
        if self.arguments is None:
            check(not args, "additional arguments")
            return {"scale": scale}
        sink, scale = args
        check(sink.dtype == torch.float32, "sink is float")
        return {"sink": sink, "scale": scale}


def _lengths(starts: list[int], seq_lens: Tensor) -> list[int]:
    """Return the length of each sequence, which the offsets and the tensor of lengths must agree on."""
    found: list[int] = seq_lens.flatten().tolist()
    check(seq_lens.dtype == torch.int32, "int32 lengths")
    check(found == [b - a for a, b in itertools.pairwise(starts)], "lengths and offsets do not agree")
    return found


def _ragged(q: Tensor, k: Tensor, v: Tensor, rows: list[int], keys: list[int], **options: Any) -> Tensor:
    outs = []
    for b in range(len(rows) - 1):
        mine, theirs = slice(rows[b], rows[b + 1]), slice(keys[b], keys[b + 1])
        outs.append(attend(q[None, mine], k[None, theirs], v[None, theirs], **options)[0][0])
    return torch.cat(outs)


class BatchPrefillWithRaggedKVCacheWrapper:
    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: Tensor | None = None,
        kv_indptr_buf: Tensor | None = None,
        custom_mask_buf: Tensor | None = None,
        mask_indptr_buf: Tensor | None = None,
        backend: str = "auto",
        jit_args: Any = None,
        jit_kwargs: Any = None,
    ) -> None:
        assert backend in ("auto", "fa2", "fa3", "cudnn", "cutlass", "cute-dsl")
        assert kv_layout == "NHD"
        assert float_workspace_buffer.dtype == torch.uint8
        self.backend, self.variant = backend, _Variant(backend, jit_args, jit_kwargs)

    def plan(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        head_dim_vo: int | None = None,
        custom_mask: Tensor | None = None,
        packed_custom_mask: Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
        o_data_type: str | torch.dtype | None = None,
        non_blocking: bool = True,
        prefix_len_ptr: Tensor | None = None,
        token_pos_in_items_ptr: Tensor | None = None,
        token_pos_in_items_len: int = 0,
        max_item_len_ptr: Tensor | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        seq_lens: Tensor | None = None,
        seq_lens_q: Tensor | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        v_indptr: Tensor | None = None,
        o_indptr: Tensor | None = None,
    ) -> None:
        assert sm_scale is not None
        check(qo_indptr.dtype == torch.int32 == kv_indptr.dtype, "int32 offsets")
        check(qo_indptr.device.type == "cpu", "offsets on the device are copied back, which waits")
        self.dtypes = (q_data_type, kv_data_type)
        d, d_v = head_dim_qk, head_dim_vo or head_dim_qk
        self.heads = ((num_qo_heads, d), (num_kv_heads, d), (num_kv_heads, d_v))
        self.starts = [t.tolist() for t in (qo_indptr, kv_indptr)]
        self.last = self.starts[0][-1]
        if self.backend == "cudnn":  # its offsets count elements
            assert v_indptr is not None
            assert o_indptr is not None
            assert seq_lens is not None
            assert seq_lens_q is not None
            per_token = (num_qo_heads * d, num_kv_heads * d, num_kv_heads * d_v, num_qo_heads * d_v)
            offsets = (qo_indptr, kv_indptr, v_indptr, o_indptr)
            q, k, v, o = ((t // n).tolist() for t, n in zip(offsets, per_token, strict=True))
            check(q == o and k == v, "offsets do not agree")
            check(max(_lengths(q, seq_lens_q)) == max_token_per_sequence, "max_token_per_sequence")
            check(max(_lengths(k, seq_lens)) == max_sequence_kv, "max_sequence_kv")
            self.starts = [q, k]
        left, cap = None if window_left < 0 else window_left, logits_soft_cap or 0.0
        self.scale = sm_scale
        self.options = {"left": left, "right": 0 if causal else None, "softcap": cap}
        self.options |= _alibi(pos_encoding_mode, num_qo_heads, self.backend)
        self.variant.planned(q_data_type, (d, d_v), self.options)

    def run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *args: Any,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        o_scale: float | None = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
        kv_cache_sf: Any = None,
    ) -> Tensor:
        _check(q, k, v)
        check((q.dtype, k.dtype) == self.dtypes, "The dtype of q does not match the q_data_type specified in plan")
        check(tuple(t.shape[1:] for t in (q, k, v)) == self.heads, "not what was planned")
        check(self.last == (q.numel() if self.backend == "cudnn" else q.shape[0]), "qo_indptr[-1]")
        return _ragged(q, k, v, *self.starts, **self.options, **self.variant.of(args, self.scale))


def _table(indptr: Tensor, indices: Tensor) -> Tensor:
    """Return a page table; what lies beyond a sequence names a page that does not exist."""
    check(indptr.dtype == torch.int32 == indices.dtype, "int32 pages")
    check(indptr.device.type == "cpu", "offsets on the device are copied back, which waits")
    edges = indptr.tolist()
    check(edges[0] == 0 and edges[-1] == len(indices), "indptr[-1]")
    found = torch.full((len(edges) - 1, int(indptr.diff().max())), 2**30, dtype=torch.int32)
    for row, (a, b) in zip(found, itertools.pairwise(edges), strict=True):
        row[: b - a] = indices[a:b]
    return found


def _kv_lengths(indptr: Tensor, last_page_len: Tensor, page_size: int) -> Tensor:
    check(last_page_len.dtype == torch.int32, "int32 lengths")
    check(bool(((last_page_len > 0) & (last_page_len <= page_size)).all()), "last_page_len")
    return (indptr.diff() - 1) * page_size + last_page_len


class _Paged:
    """What the wrappers for decoding and for prefill share."""

    backend: str
    variant: _Variant

    def _planned(
        self,
        qo_indptr: Tensor,
        pages: tuple[Tensor, Tensor, Tensor],
        sizes: tuple[int, int, int, int],
        dtypes: tuple[object, object],
        scale: float | None,
        causal: bool,
        window_left: int,
        logits_soft_cap: float | None,
        pos_encoding_mode: str,
    ) -> None:
        assert scale is not None
        self.starts_q, self.sizes, self.dtypes = qo_indptr, sizes, dtypes
        self.table, self.lengths = _table(pages[0], pages[1]), _kv_lengths(pages[0], pages[2], sizes[3])
        left, cap = None if window_left < 0 else window_left, logits_soft_cap or 0.0
        self.options: dict[str, Any] = {"left": left, "right": 0 if causal else None, "softcap": cap}
        self.options |= _alibi(pos_encoding_mode, sizes[0], self.backend)
        self.scale = scale
        self.variant.planned(dtypes[0], (sizes[2], sizes[2]), self.options)

    def run(
        self,
        q: Tensor,
        paged_kv_cache: tuple[Tensor, Tensor],
        *args: Any,
        k_scale: float | None = None,
        v_scale: float | None = None,
    ) -> Tensor:
        k, v = paged_kv_cache
        heads, heads_k, d, page_size = self.sizes
        check((q.dtype, k.dtype) == self.dtypes, "The dtype of q does not match the q_data_type specified in plan")
        check(k.stride() == v.stride(), "k/v strides differs")
        check(q.shape[1:] == (heads, d) and k.shape[1:] == (page_size, heads_k, d), "not what was planned")
        check(len(q) == int(self.starts_q[-1]), "qo_indptr[-1]")
        check((d, d) in HEADDIMS, f"Unsupported head_dim: {d}")
        assert k_scale is None or isinstance(k_scale, float)
        options = self.options | self.variant.of(args, self.scale * (k_scale or 1.0))
        out = attend_paged(q, k, v, self.table, self.lengths, starts_q=self.starts_q, dtype=q.dtype, **options)
        return out if v_scale is None else out * v_scale


class BatchDecodeWithPagedKVCacheWrapper(_Paged):
    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
        backend: str = "auto",
        jit_args: Any = None,
    ) -> None:
        assert backend in ("auto", "fa2", "fa3", "trtllm-gen", "cute-dsl")
        assert kv_layout == "NHD"
        check(not float_workspace_buffer.any(), "Must be initialized to 0 for its first use.")
        self.use_tensor_cores, self.backend, self.variant = use_tensor_cores, backend, _Variant(backend, jit_args, None)

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: str | torch.dtype | None = "float16",
        kv_data_type: str | torch.dtype | None = None,
        o_data_type: str | torch.dtype | None = None,
        data_type: str | torch.dtype | None = None,
        sm_scale: float | None = None,
    ) -> None:
        group = num_qo_heads // num_kv_heads
        check(self.use_tensor_cores or group in (1, 2, 3, 4, 8), f"Unsupported group_size: {group}")
        check(self.backend != "fa3" or kv_data_type == q_data_type, "fa3 needs fp8 queries for an fp8 cache")
        queries = torch.arange(len(indptr), dtype=torch.int32)
        sizes = (num_qo_heads, num_kv_heads, head_dim, page_size)
        pages, dtypes = (indptr, indices, last_page_len), (q_data_type, kv_data_type)
        self._planned(queries, pages, sizes, dtypes, sm_scale, False, window_left, logits_soft_cap, pos_encoding_mode)


class BatchPrefillWithPagedKVCacheWrapper(_Paged):
    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: Tensor | None = None,
        paged_kv_indptr_buf: Tensor | None = None,
        paged_kv_indices_buf: Tensor | None = None,
        paged_kv_last_page_len_buf: Tensor | None = None,
        custom_mask_buf: Tensor | None = None,
        mask_indptr_buf: Tensor | None = None,
        backend: str = "auto",
        jit_args: Any = None,
        jit_kwargs: Any = None,
    ) -> None:
        assert backend in ("auto", "fa2", "fa3", "cudnn", "trtllm-gen")
        assert kv_layout == "NHD"
        self.backend, self.variant = backend, _Variant(backend, jit_args, jit_kwargs)

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: Tensor | None = None,
        packed_custom_mask: Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
    ) -> None:
        check(self.backend != "fa3" or kv_data_type == q_data_type, "fa3 needs fp8 queries for an fp8 cache")
        check(qo_indptr.dtype == torch.int32, "int32 offsets")
        check(qo_indptr.device.type == "cpu", "offsets on the device are copied back, which waits")
        sizes = (num_qo_heads, num_kv_heads, head_dim_qk, page_size)
        pages, dtypes = (paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len), (q_data_type, kv_data_type)
        self._planned(
            qo_indptr, pages, sizes, dtypes, sm_scale, causal, window_left, logits_soft_cap, pos_encoding_mode
        )


class BatchMLAPagedAttentionWrapper:
    def __init__(
        self,
        float_workspace_buffer: Tensor,
        use_cuda_graph: bool = False,
        qo_indptr: Tensor | None = None,
        kv_indptr: Tensor | None = None,
        kv_indices: Tensor | None = None,
        kv_len_arr: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        assert backend in ("auto", "fa2", "fa3", "cutlass")

    def plan(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        kv_indices: Tensor,
        kv_len_arr: Tensor,
        num_heads: int,
        head_dim_ckv: int,
        head_dim_kpe: int,
        page_size: int,
        causal: bool,
        sm_scale: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        use_profiler: bool = False,
    ) -> None:
        check(q_data_type == kv_data_type, "one dtype")
        self.starts_q, self.table, self.lengths = qo_indptr, _table(kv_indptr, kv_indices), kv_len_arr
        self.sizes = (num_heads, head_dim_ckv, head_dim_kpe, page_size)
        self.options = {"scale": sm_scale, "right": 0 if causal else None}

    def run(self, q_nope: Tensor, q_pe: Tensor, ckv_cache: Tensor, kpe_cache: Tensor) -> Tensor:
        heads, ckv, kpe, page_size = self.sizes
        check((ckv, kpe) == (512, 64), "head_dim_ckv, head_dim_kpe")
        check(q_nope.shape[1:] == (heads, ckv) and q_pe.shape[1:] == (heads, kpe), "queries")
        check(ckv_cache.shape[1:] == (page_size, ckv) and kpe_cache.shape[1:] == (page_size, kpe), "caches")
        check(all(t.stride(-1) == 1 for t in (q_nope, q_pe, ckv_cache, kpe_cache)), "the last dimension is contiguous")
        k, v = torch.cat([ckv_cache, kpe_cache], -1)[:, :, None], ckv_cache[:, :, None]
        q = torch.cat([q_nope, q_pe], -1)
        return attend_paged(q, k, v, self.table, self.lengths, starts_q=self.starts_q, **self.options)


def append_paged_kv_cache(
    append_key: Tensor,
    append_value: Tensor,
    batch_indices: Tensor,
    positions: Tensor,
    paged_kv_cache: tuple[Tensor, Tensor],
    kv_indices: Tensor,
    kv_indptr: Tensor,
    kv_last_page_len: Tensor,
    kv_layout: str = "NHD",
) -> None:
    check(batch_indices.dtype == torch.int32 == positions.dtype, "int32 positions")
    k, v = paged_kv_cache
    starts = [0, *batch_indices.bincount().cumsum(0).tolist()]
    check(bool((batch_indices.diff() >= 0).all()), "sequence by sequence")
    first = positions[starts[:-1]]
    for begin, (a, b) in zip(first.tolist(), itertools.pairwise(starts), strict=True):
        check(positions[a:b].tolist() == [*range(begin, begin + b - a)], "positions follow each other")
    lengths = _kv_lengths(kv_indptr, kv_last_page_len, k.shape[1])
    check(bool((positions < lengths[batch_indices]).all()), "last_page_len is that after the call")
    append_paged(k, v, append_key, append_value, _table(kv_indptr, kv_indices), first, starts)


def trtllm_fmha_v2_prefill(
    qkv: tuple[Tensor, Tensor, Tensor],
    input_layout: str,
    workspace_buffer: Tensor,
    seq_lens: Tensor,
    max_q_len: int,
    max_kv_len: int,
    bmm1_scale: float,
    bmm2_scale: float,
    batch_size: int,
    cum_seq_lens_q: Tensor,
    cum_seq_lens_kv: Tensor,
    block_tables: Tensor | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    sinks: Tensor | None = None,
    pos_encoding_mode: str | None = None,
    logits_soft_cap_scale: float | None = None,
    mask_mode: str = "causal",
    window_left: int = -1,
    chunked_attention_size: int = 0,
    save_softmax_stats: bool = False,
    skip_softmax_threshold_scale_factor: float = 0,
) -> Tensor:
    assert input_layout == "SEPARATE_Q_K_V"
    assert mask_mode in ("causal", "padding", "sliding_window")
    _check(*qkv)
    if (window_left >= 0) != (mask_mode == "sliding_window"):
        raise ValueError("window_left is effective when mask_mode is sliding_window")
    check(not workspace_buffer.any(), "The workspace buffer. Must be initialized to 0 for its first use.")
    check(qkv[0].shape[-1] == qkv[2].shape[-1], "head_dim_v")
    left, right = None if window_left < 0 else window_left, None if mask_mode == "padding" else 0
    starts = (cum_seq_lens_q.tolist(), cum_seq_lens_kv.tolist())
    check(max(_lengths(starts[1], seq_lens)) == max_kv_len, "max_kv_len")
    check(sinks is None or sinks.dtype == torch.float32, "sinks are float")
    return _ragged(*qkv, *starts, scale=bmm1_scale * bmm2_scale, left=left, right=right, sink=sinks)


def trtllm_ragged_attention_deepseek(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    workspace_buffer: Tensor,
    seq_lens: Tensor,
    max_q_len: int,
    max_kv_len: int,
    bmm1_scale: float,
    bmm2_scale: float,
    o_sf_scale: float,
    batch_size: int,
    window_left: int,
    cum_seq_lens_q: Tensor,
    cum_seq_lens_kv: Tensor,
    enable_pdl: bool | None,
    is_causal: bool,
    return_lse: bool,
    attention_sinks: Tensor | None = None,
    skip_softmax_threshold_scale_factor: float | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    sage_attn_sfs: Any = (None, None, None, None),
    num_elts_per_sage_attn_blk: tuple[int, int, int, int] = (0, 0, 0, 0),
    backend: str = "trtllm-gen",
) -> Tensor:
    _check(query, key, value)
    dims = (query.shape[2], key.shape[2], value.shape[2])
    assert dims in ((192, 192, 128), (128, 128, 128), (256, 256, 256)), f"Unsupported head dimensions: {dims}"
    left, right = None if window_left < 0 else window_left, 0 if is_causal else None
    starts = (cum_seq_lens_q.tolist(), cum_seq_lens_kv.tolist())
    check(max(_lengths(starts[1], seq_lens)) == max_kv_len, "max_kv_len")
    check(attention_sinks is None or attention_sinks.dtype == torch.float32, "sinks are float")
    options: dict[str, Any] = {"left": left, "right": right, "sink": attention_sinks}
    return _ragged(query, key, value, *starts, scale=bmm1_scale * bmm2_scale, **options)


class BlockSparseAttentionWrapper:
    """Attention with a matrix in BSR, whose listed blocks are seen whole or as far as a mask of their pairs says."""

    def __init__(self, float_workspace_buffer: Tensor, backend: str = "auto") -> None:
        assert backend in ("auto", "fa2", "fa3")
        assert float_workspace_buffer.dtype == torch.uint8
        self.backend = backend

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        M: int,  # noqa: N803
        N: int,  # noqa: N803
        R: int,  # noqa: N803
        C: int,  # noqa: N803
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        mask: Tensor | None = None,
        packed_mask: Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
        o_data_type: str | torch.dtype = "float16",
        non_blocking: bool = True,
    ) -> None:
        assert sm_scale is not None
        assert packed_mask is None, "its offsets would count pairs, and the kernels read bytes"
        assert not causal
        assert pos_encoding_mode == "NONE"
        check(indptr.dtype == indices.dtype == torch.int32, "int32 blocks")
        check(N % C == 0, "N should be divisible by C")
        edges, blocks = indptr.tolist(), indices.tolist()
        check(len(edges) == -(-M // R) + 1, "MB = ceil_div(M, R)")
        check(edges[0] == 0 and edges[-1] == len(blocks), "indptr[-1]")
        check(all(0 <= block < N // C for block in blocks), "indices out of bound")
        check(mask is None or (mask.shape == (len(blocks), R, C) and mask.dtype == torch.bool), "mask (nnz, R, C)")
        check(mask is None or self.backend != "fa3", "fa3 has no custom mask")
        check(mask is not None or R * (num_qo_heads // num_kv_heads) >= 4, "its decode kernels have other names")
        self.visible = torch.zeros(M, N, dtype=torch.bool)
        for row, (a, b) in enumerate(itertools.pairwise(edges)):
            check(len({*blocks[a:b]}) == b - a, "a block twice")
            for at in range(a, b):
                tile = self.visible[row * R : (row + 1) * R, blocks[at] * C : (blocks[at] + 1) * C]
                tile[:] = True if mask is None else mask[at, : len(tile)]
        self.sizes = (M, N, num_qo_heads, num_kv_heads, head_dim)
        self.dtypes = (q_data_type, kv_data_type, o_data_type)
        self.options: dict[str, Any] = {"scale": sm_scale, "softcap": logits_soft_cap or 0.0}

    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        _check(q, k, v)
        m, n, heads, heads_k, d = self.sizes
        check(q.shape == (m, heads, d) and k.shape == v.shape == (n, heads_k, d), "not what was planned")
        check(self.dtypes == (q.dtype, k.dtype, q.dtype), "dtypes of the plan")
        check(q.is_contiguous() and k.is_contiguous() and v.is_contiguous(), "contiguous")
        return attend(q[None], k[None], v[None], visible=self.visible, **self.options)[0][0]


def determine_attention_backend(
    device: torch.device,
    pos_encoding_mode: int,
    use_fp16_qk_reductions: bool,
    use_custom_mask: bool,
    dtype_q: torch.dtype,
    dtype_kv: torch.dtype,
) -> str:
    """Return what FlashInfer chooses on a Hopper GPU."""
    return "fa2" if pos_encoding_mode or use_fp16_qk_reductions or use_custom_mask else "fa3"


def version_0_6_13() -> dict[str, Any]:
    prefill = module(
        "flashinfer.prefill",
        trtllm_fmha_v2_prefill=trtllm_fmha_v2_prefill,
        trtllm_ragged_attention_deepseek=trtllm_ragged_attention_deepseek,
    )
    top = module(
        "flashinfer",
        single_prefill_with_kv_cache=single_prefill_with_kv_cache,
        BatchPrefillWithRaggedKVCacheWrapper=BatchPrefillWithRaggedKVCacheWrapper,
        BatchPrefillWithPagedKVCacheWrapper=BatchPrefillWithPagedKVCacheWrapper,
        BatchDecodeWithPagedKVCacheWrapper=BatchDecodeWithPagedKVCacheWrapper,
        append_paged_kv_cache=append_paged_kv_cache,
    )
    mla = module("flashinfer.mla", BatchMLAPagedAttentionWrapper=BatchMLAPagedAttentionWrapper)
    variants = module("flashinfer.jit.attention.variants", attention_sink_decl=DECLARATIONS)
    utils = module("flashinfer.utils", determine_attention_backend=determine_attention_backend)
    sparse = module("flashinfer.sparse", BlockSparseAttentionWrapper=BlockSparseAttentionWrapper)
    packages = (module("flashinfer.jit"), module("flashinfer.jit.attention"))
    return {made.__name__: made for made in (top, prefill, mla, sparse, utils, *packages, variants)}
