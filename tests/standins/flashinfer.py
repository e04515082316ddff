"""Stand-in for FlashInfer 0.6.13: single prefill, its wrappers, and the functions of TensorRT-LLM's kernels."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from standins import function, modules
from standins.attend import alibi_slopes, append_paged, attend, attend_paged, attend_varlen, check, check_half

VERSIONS = {"flashinfer-python": "0.6.13"}
DECLARATIONS = {"fa2": "struct AttentionSink { /* fa2 */ };", "fa3": "struct AttentionSink { /* fa3 */ };"}
ROPE = "rope_scale=None, rope_theta=None"
DTYPES = 'q_data_type="float16", kv_data_type=None'


def _options(of: Any, heads: int, backend: str, causal: bool) -> dict[str, Any]:
    """Return the options of `attend`. ALiBi has FlashInfer's slopes, and only in fa2's kernels."""
    found: dict[str, Any] = {"scale": of.sm_scale, "softcap": of.logits_soft_cap or 0.0, "right": 0 if causal else None}
    found["left"] = None if of.window_left < 0 else of.window_left
    if of.pos_encoding_mode == "ALIBI":
        check(backend in ("auto", "fa2"), "ALiBi is in fa2's kernels")
        found |= {"slopes": alibi_slopes(heads), "signed": True}
    return found


def _single(of: Any) -> Tensor:
    check_half(of.q, of.k, of.v)
    check(of.backend in ("auto", "fa2", "fa3") and of.q.ndim == 3, "[tokens, num_heads, head_dim]")
    return attend(of.q[None], of.k[None], of.v[None], **_options(of, of.q.shape[1], of.backend, of.causal))[0][0]


single_prefill_with_kv_cache = function(
    "q, k, v, scale_q=None, scale_k=None, scale_v=None, o_dtype=None, custom_mask=None, packed_custom_mask=None, "
    'causal=False, kv_layout="NHD", pos_encoding_mode="NONE", use_fp16_qk_reduction=False, sm_scale=None, '
    f'window_left=-1, logits_soft_cap=None, {ROPE}, backend="auto", return_lse=False, kv_cache_sf=None, k_scale=None, '
    "v_scale=None",
    _single,
)


class _Wrapper:
    """Base of the wrappers. With `jit_args` the kernels have a sink, and run() takes it and the scale."""

    def _make(self, backend: str, jit_args: Any = None, jit_kwargs: Any = None) -> None:
        self.backend, self.variant, self.compiled = backend, jit_args, jit_kwargs
        if jit_args is not None:
            check(jit_args[-1] == DECLARATIONS.get(backend), "backend should not be auto when jit_args is provided")
            check(all(str(d) in jit_args[0] for d in jit_args[5:7]), "a module of another head dim has this name")

    def _plan(self, of: Any, sizes: tuple[tuple[int, int], ...], causal: bool) -> None:
        """Keep the options of a plan: `sizes` are the heads and head dims of q, k and v."""
        self.sizes, self.dtypes = sizes, (of.q_data_type, of.kv_data_type)
        self.options = _options(of, of.num_qo_heads, self.backend, causal)
        if self.variant is not None:
            check(self.variant[1:7] == [*[of.q_data_type] * 3, torch.int32, sizes[0][1], sizes[2][1]], "compiled")
            check(self.compiled == {"use_sliding_window": of.window_left >= 0}, "not what was compiled")
            check(not self.options["softcap"] and "slopes" not in self.options, "the variant has neither")

    def _given(self, q: Tensor, k: Tensor, v: Tensor, args: tuple[Any, ...]) -> dict[str, Any]:
        """Check the arguments of run() against the plan, and return the options; a sink comes with the scale."""
        check((q.dtype, k.dtype) == self.dtypes, "The dtype of q does not match the q_data_type specified in plan")
        check(tuple(tuple(t.shape[-2:]) for t in (q, k, v)) == self.sizes, "not what was planned")
        check(len(args) == (0 if self.variant is None else 2), "additional arguments")
        return self.options | dict(zip(("sink", "scale"), args, strict=False))


def _make_ragged(of: Any) -> None:
    check(of.backend in ("auto", "fa2", "fa3", "cudnn") and of.kv_layout == "NHD", "backend, layout")
    of.self._make(of.backend, of.jit_args, of.jit_kwargs)


def _plan_ragged(of: Any) -> None:
    check(of.qo_indptr.device.type == "cpu", "offsets on the device are copied back, which waits")
    d, d_v = of.head_dim_qk, of.head_dim_vo or of.head_dim_qk
    sizes = ((of.num_qo_heads, d), (of.num_kv_heads, d), (of.num_kv_heads, d_v))
    of.self.starts = (of.qo_indptr, of.kv_indptr)
    if of.self.backend == "cudnn":  # its offsets count elements
        q, k, v = (heads * dim for heads, dim in sizes)
        of.self.starts = (of.qo_indptr // q, of.kv_indptr // k)
        check(torch.equal(of.v_indptr // v, of.self.starts[1]), "offsets do not agree")
        check(torch.equal(of.o_indptr // (of.num_qo_heads * d_v), of.self.starts[0]), "offsets do not agree")
        lengths = (of.seq_lens_q, of.seq_lens), (of.max_token_per_sequence, of.max_sequence_kv)
        for starts, each, longest in zip(of.self.starts, *lengths, strict=True):
            check(each.flatten().tolist() == starts.diff().tolist() and int(each.max()) == longest, "lengths")
    of.self._plan(of, sizes, of.causal)


def _run_ragged(of: Any) -> Tensor:
    options = of.self._given(of.q, of.k, of.v, of.args)
    longest = (int(starts.diff().max()) for starts in of.self.starts)
    return attend_varlen(of.q, of.k, of.v, *of.self.starts, *longest, **options)


class BatchPrefillWithRaggedKVCacheWrapper(_Wrapper):
    __init__ = function(
        'self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, qo_indptr_buf=None, kv_indptr_buf=None, '
        'custom_mask_buf=None, mask_indptr_buf=None, backend="auto", jit_args=None, jit_kwargs=None',
        _make_ragged,
    )
    plan = function(
        "self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo=None, custom_mask=None, "
        'packed_custom_mask=None, causal=False, pos_encoding_mode="NONE", use_fp16_qk_reduction=False, window_left=-1, '
        f"logits_soft_cap=None, sm_scale=None, {ROPE}, {DTYPES}, o_data_type=None, non_blocking=True, "
        "prefix_len_ptr=None, token_pos_in_items_ptr=None, token_pos_in_items_len=0, max_item_len_ptr=None, "
        "fixed_split_size=None, disable_split_kv=False, seq_lens=None, seq_lens_q=None, max_token_per_sequence=None, "
        "max_sequence_kv=None, v_indptr=None, o_indptr=None",
        _plan_ragged,
    )
    run = function("self, q, k, v, *args", _run_ragged)


def _table(indptr: Tensor, indices: Tensor) -> Tensor:
    """Return a page table, in which entries beyond a sequence name a page that does not exist."""
    check(indptr.dtype == torch.int32 == indices.dtype and indptr.device.type == "cpu", "int32 offsets on the host")
    rows = [row.to(indices.device) for row in indices.split(indptr.diff().tolist())]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=2**30)


def _lengths(indptr: Tensor, last_page_len: Tensor, page_size: int) -> Tensor:
    check(last_page_len.dtype == torch.int32, "int32 lengths")
    return (indptr.diff() - 1) * page_size + last_page_len


class _Paged(_Wrapper):
    """Base of the wrappers for decoding and for prefill."""

    def _plan_pages(self, of: Any, pages: tuple[Tensor, Tensor, Tensor], starts: Tensor, d: int, causal: bool) -> None:
        check(self.backend != "fa3" or of.kv_data_type == of.q_data_type, "fa3 needs fp8 queries for an fp8 cache")
        self.table, self.lengths = _table(*pages[:2]), _lengths(pages[0], pages[2], of.page_size)
        self.starts, self.page_size = starts, of.page_size
        self._plan(of, ((of.num_qo_heads, d), *[(of.num_kv_heads, d)] * 2), causal)

    def run(
        self,
        q: Tensor,
        caches: tuple[Tensor, Tensor],
        *args: Any,
        k_scale: float = 1,
        v_scale: float = 1,
        lse: list[Tensor] | None = None,  # gets the log-sum-exps of the queries, (total, nheads)
    ) -> Tensor:
        check(caches[0].stride() == caches[1].stride() and caches[0].shape[1] == self.page_size, "k/v strides differs")
        options = self._given(q, *caches, args)
        options["scale"] *= k_scale
        return attend_paged(q, *caches, self.table, self.lengths, starts_q=self.starts, lse=lse, **options) * v_scale


def _make_decode(of: Any) -> None:
    check(of.kv_layout == "NHD" and not of.float_workspace_buffer.any(), "Must be initialized to 0 for its first use.")
    of.self.use_tensor_cores = of.use_tensor_cores
    of.self._make(of.backend, of.jit_args)


def _plan_decode(of: Any) -> None:
    check(of.self.use_tensor_cores or of.num_qo_heads // of.num_kv_heads in (1, 2, 3, 4, 8), "Unsupported group_size")
    pages, starts = (of.indptr, of.indices, of.last_page_len), torch.arange(len(of.indptr), dtype=torch.int32)
    of.self._plan_pages(of, pages, starts, of.head_dim, causal=False)


class BatchDecodeWithPagedKVCacheWrapper(_Paged):
    __init__ = function(
        'self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, use_tensor_cores=False, '
        "paged_kv_indptr_buffer=None, paged_kv_indices_buffer=None, paged_kv_last_page_len_buffer=None, "
        'backend="auto", jit_args=None',
        _make_decode,
    )
    plan = function(
        "self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, "
        f'pos_encoding_mode="NONE", window_left=-1, logits_soft_cap=None, {DTYPES}, o_data_type=None, data_type=None, '
        "sm_scale=None",
        _plan_decode,
    )


def _plan_prefill(of: Any) -> None:
    pages = (of.paged_kv_indptr, of.paged_kv_indices, of.paged_kv_last_page_len)
    of.self._plan_pages(of, pages, of.qo_indptr, of.head_dim_qk, of.causal)


class BatchPrefillWithPagedKVCacheWrapper(_Paged):
    __init__ = function(
        'self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, qo_indptr_buf=None, '
        "paged_kv_indptr_buf=None, paged_kv_indices_buf=None, paged_kv_last_page_len_buf=None, custom_mask_buf=None, "
        'mask_indptr_buf=None, backend="auto", jit_args=None, jit_kwargs=None',
        _make_ragged,
    )
    plan = function(
        "self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads, "
        "head_dim_qk, page_size, head_dim_vo=None, custom_mask=None, packed_custom_mask=None, causal=False, "
        'pos_encoding_mode="NONE", use_fp16_qk_reduction=False, sm_scale=None, window_left=-1, logits_soft_cap=None, '
        f"{ROPE}, {DTYPES}",
        _plan_prefill,
    )


class MultiLevelCascadeAttentionWrapper:
    """A prefill wrapper for each level; the results are merged by their log-sum-exps. Only the last level is causal."""

    def __init__(self, num_levels: int, float_workspace_buffer: Tensor, kv_layout: str = "NHD") -> None:
        made = (BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout) for _ in range(num_levels))
        self.levels = [*made]

    def _plan(of: Any) -> None:  # noqa: N805
        check(of.window_left < 0 and of.pos_encoding_mode == "NONE", "positions are counted within a level")
        levels = zip(
            *(of.self.levels, of.qo_indptr_arr, of.paged_kv_indptr_arr),
            *(of.paged_kv_indices_arr, of.paged_kv_last_page_len),
            strict=True,
        )
        for level, *arrays in levels:
            level.plan(
                *(*arrays, of.num_qo_heads, of.num_kv_heads, of.head_dim, of.page_size),
                causal=of.causal and level is of.self.levels[-1],
                sm_scale=of.sm_scale,
                logits_soft_cap=of.logits_soft_cap,
                q_data_type=of.q_data_type,
                kv_data_type=of.kv_data_type,
            )

    plan = function(
        "self, qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len, num_qo_heads, "
        'num_kv_heads, head_dim, page_size, causal=False, pos_encoding_mode="NONE", use_fp16_qk_reduction=False, '
        f"sm_scale=None, window_left=-1, logits_soft_cap=None, {ROPE}, {DTYPES}",
        _plan,
    )

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        of_levels: list[Tensor] = []
        outs = [level.run(q, paged_kv_cache, lse=of_levels) for level in self.levels]
        weights = torch.softmax(torch.stack(of_levels), 0)[..., None]
        return (weights * torch.stack(outs).float()).sum(0).to(q.dtype)


class BatchMLAPagedAttentionWrapper:
    def __init__(self, float_workspace_buffer: Tensor, *, backend: str = "auto") -> None:
        check(backend in ("auto", "fa2", "fa3"), "backend")

    def _plan(of: Any) -> None:  # noqa: N805
        check(of.q_data_type == of.kv_data_type, "one dtype")
        of.self.table, of.self.planned = _table(of.kv_indptr, of.kv_indices), of

    plan = function(
        "self, qo_indptr, kv_indptr, kv_indices, kv_len_arr, num_heads, head_dim_ckv, head_dim_kpe, page_size, causal, "
        "sm_scale, q_data_type, kv_data_type, use_profiler=False",
        _plan,
    )

    def run(self, q_nope: Tensor, q_pe: Tensor, ckv_cache: Tensor, kpe_cache: Tensor) -> Tensor:
        of = self.planned
        dims = (of.head_dim_ckv, of.head_dim_kpe)
        check((q_nope.shape[-1], q_pe.shape[-1]) == (ckv_cache.shape[-1], kpe_cache.shape[-1]) == dims, "head dims")
        check(q_nope.shape[1] == of.num_heads and ckv_cache.shape[1] == of.page_size, "not what was planned")
        k, v = torch.cat([ckv_cache, kpe_cache], -1)[:, :, None], ckv_cache[:, :, None]
        options = {"starts_q": of.qo_indptr, "scale": of.sm_scale, "right": 0 if of.causal else None}
        return attend_paged(torch.cat([q_nope, q_pe], -1), k, v, self.table, of.kv_len_arr, **options)


def _append(of: Any) -> None:
    check(of.batch_indices.dtype == torch.int32 == of.positions.dtype, "int32 positions")
    k, v = of.paged_kv_cache
    starts = [0, *of.batch_indices.bincount().cumsum(0).tolist()]
    lengths = _lengths(of.kv_indptr, of.kv_last_page_len, k.shape[1])  # lengths after the call
    first = lengths - torch.tensor(starts).diff()
    for begin, (a, b) in zip(first.tolist(), itertools.pairwise(starts), strict=True):
        check(of.positions[a:b].tolist() == [*range(begin, begin + b - a)], "positions follow each other to the last")
    append_paged(k, v, of.append_key, of.append_value, _table(of.kv_indptr, of.kv_indices), first, starts)


append_paged_kv_cache = function(
    "append_key, append_value, batch_indices, positions, paged_kv_cache, kv_indices, kv_indptr, kv_last_page_len, "
    'kv_layout="NHD"',
    _append,
)


def _trtllm(of: Any, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    check(not of.workspace_buffer.any(), "The workspace buffer. Must be initialized to 0 for its first use.")
    starts, longest = (of.cum_seq_lens_q, of.cum_seq_lens_kv), (of.max_q_len, of.max_kv_len)
    check(torch.equal(of.seq_lens, starts[1].diff()) and of.batch_size == len(of.seq_lens), "seq_lens")
    options |= {"scale": of.bmm1_scale * of.bmm2_scale, "left": None if of.window_left < 0 else of.window_left}
    return attend_varlen(q, k, v, *starts, *longest, **options)


def _fmha_v2(of: Any) -> Tensor:
    check(of.input_layout == "SEPARATE_Q_K_V", "layout")
    check((of.window_left >= 0) == (of.mask_mode == "sliding_window"), "window_left is effective in that mask_mode")
    right = {"padding": None, "causal": 0, "sliding_window": 0}[of.mask_mode]
    return _trtllm(of, *of.qkv, right=right, sink=of.sinks)


def _trtllm_gen(of: Any) -> Tensor:
    return _trtllm(of, of.query, of.key, of.value, right=0 if of.is_causal else None, sink=of.attention_sinks)


def _plan_sparse(of: Any) -> None:
    edges, blocks, rows, columns = of.indptr.tolist(), of.indices.tolist(), of.R, of.C
    check(of.indptr.dtype == of.indices.dtype == torch.int32, "int32 blocks")
    check(of.N % columns == 0 and len(edges) == -(-of.M // rows) + 1, "MB = ceil_div(M, R)")
    check(of.mask is None or (of.mask.shape == (len(blocks), rows, columns)), "mask (nnz, R, C)")
    check(of.mask is None or of.self.backend != "fa3", "fa3 has no custom mask")
    of.self.hidden, of.self.planned = torch.ones(of.M, of.N, dtype=torch.bool), of
    for row, (a, b) in enumerate(itertools.pairwise(edges)):
        for at in range(a, b):
            tile = of.self.hidden[row * rows : (row + 1) * rows, blocks[at] * columns : (blocks[at] + 1) * columns]
            tile[:] = False if of.mask is None else ~of.mask[at, : len(tile)]


class BlockSparseAttentionWrapper:
    """Attention with a BSR matrix, whose listed blocks are seen whole or by a mask of their pairs."""

    def __init__(self, float_workspace_buffer: Tensor, backend: str = "auto") -> None:
        self.backend = backend

    plan = function(
        "self, indptr, indices, M, N, R, C, num_qo_heads, num_kv_heads, head_dim, mask=None, packed_mask=None, "
        'causal=False, pos_encoding_mode="NONE", use_fp16_qk_reduction=False, logits_soft_cap=None, sm_scale=None, '
        f'{ROPE}, {DTYPES}, o_data_type="float16", non_blocking=True',
        _plan_sparse,
    )

    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        of = self.planned
        check(q.shape == (of.M, of.num_qo_heads, of.head_dim), "not what was planned")
        check(k.shape == v.shape == (of.N, of.num_kv_heads, of.head_dim), "not what was planned")
        check((of.q_data_type, of.kv_data_type, of.o_data_type) == (q.dtype, k.dtype, q.dtype), "dtypes of the plan")
        options = {"scale": of.sm_scale, "softcap": of.logits_soft_cap or 0.0}
        hide = lambda scores: scores.masked_fill(self.hidden, float("-inf"))  # noqa: E731
        return attend(q[None], k[None], v[None], change=hide, **options)[0][0]


def version_0_6_13() -> dict[str, ModuleType]:
    wrappers = (
        BatchPrefillWithRaggedKVCacheWrapper,
        BatchPrefillWithPagedKVCacheWrapper,
        BatchDecodeWithPagedKVCacheWrapper,
        MultiLevelCascadeAttentionWrapper,
    )
    functions = {
        "trtllm_fmha_v2_prefill": function(
            "qkv, input_layout, workspace_buffer, seq_lens, max_q_len, max_kv_len, bmm1_scale, bmm2_scale, batch_size, "
            "cum_seq_lens_q, cum_seq_lens_kv, block_tables=None, out=None, out_dtype=None, sinks=None, "
            'pos_encoding_mode=None, logits_soft_cap_scale=None, mask_mode="causal", window_left=-1, '
            "chunked_attention_size=0, save_softmax_stats=False, skip_softmax_threshold_scale_factor=0",
            _fmha_v2,
        ),
        "trtllm_ragged_attention_deepseek": function(
            "query, key, value, workspace_buffer, seq_lens, max_q_len, max_kv_len, bmm1_scale, bmm2_scale, o_sf_scale, "
            "batch_size, window_left, cum_seq_lens_q, cum_seq_lens_kv, enable_pdl, is_causal, return_lse, "
            "attention_sinks=None, skip_softmax_threshold_scale_factor=None, out=None, lse=None, "
            'sage_attn_sfs=(None,) * 4, num_elts_per_sage_attn_blk=(0,) * 4, backend="trtllm-gen"',
            _trtllm_gen,
        ),
    }
    top = {
        "single_prefill_with_kv_cache": single_prefill_with_kv_cache,
        "append_paged_kv_cache": append_paged_kv_cache,
        **{wrapper.__name__: wrapper for wrapper in wrappers},
    }
    return modules(
        {
            "flashinfer": top,
            "flashinfer.prefill": functions,
            "flashinfer.mla": {"BatchMLAPagedAttentionWrapper": BatchMLAPagedAttentionWrapper},
            "flashinfer.sparse": {"BlockSparseAttentionWrapper": BlockSparseAttentionWrapper},
            "flashinfer.utils": {"determine_attention_backend": lambda *_: "fa3"},  # as on a Hopper GPU
            "flashinfer.jit.attention.variants": {"attention_sink_decl": DECLARATIONS},
        }
    )
