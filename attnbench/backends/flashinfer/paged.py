"""FlashInfer over a cache of pages: its wrappers for decoding, for prefill and append, and for latent rows (MLA).

Checked against 0.6.13. Every wrapper takes both caches, a tuple of (pages, page_size, nheads_k, headdim). It takes the
used pages of all sequences in one list, the offset of each sequence in the list, and the number of keys in its last
page. plan() gets offsets and numbers on the host, where a server has them.

Cases of one query a sequence go to the decode wrapper, others to the prefill wrapper; the strides of k and v must
agree. The factor of an fp8 k is part of the scale, and the wrapper multiplies the output by the factor of v. The MLA
wrapper takes the strides of pages and rows (csrc/batch_mla_run.cu), so it gets views of the one cache.

The cascade wrapper (cascade.py) has a prefill wrapper for each of its two levels. The first computes all queries over
the shared prefix as one sequence, without a mask; the second each sequence over its own keys, causal or not. Their
outputs, rounded to the dtype, are merged by their log-sum-exps. plan() takes queries for fp16 unless it gets their
dtype. run() takes no factors of an fp8 cache, and a window or ALiBi would count distances within each level alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnbench.backends.shared.masks import flash_window
from attnbench.core.backend import Prepared, cu_seqlens
from attnbench.core.case import Case

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

WORKSPACE = 128 * 2**20  # bytes, as FlashInfer's documentation recommends
PAGED_HEADDIMS = ((64, 64), (128, 128), (256, 256))
MLA_COLUMNS = (576, 512)  # columns of a row, and of its part v


def prepare_paged(
    case: Case, inputs: Inputs, backend: str, *, tensor_cores: bool = True, cascade: bool = False
) -> Prepared:
    """Return the call of a paged case; `tensor_cores` is the option of the decode wrapper."""
    import torch

    buffer = torch.zeros(WORKSPACE, dtype=torch.uint8, device=inputs.q.device)
    reads: dict[str, Tensor] = {}
    if cascade:
        call, plan = _cascade(case, inputs, buffer)
    elif case.latent:
        call, plan = _latent(case, inputs, buffer, backend)
    elif case.shape.seqlen_q == 1 and not case.sink:
        call, plan = _decode(case, inputs, buffer, backend, tensor_cores)
    else:
        sink = None if inputs.sink is None else inputs.sink.float()
        reads = {} if sink is None else {"sink": sink}
        call, plan = _prefill(case, inputs, buffer, backend, sink)
    plan()
    append = _appender(case, inputs)

    def launch() -> Tensor:
        append()
        return call()

    return Prepared(launch, lambda out: {"out": out.view(*inputs.q.shape[:3], -1)}, plan=plan, reads=reads)


def paged_refusal(case: Case) -> str | None:
    """Return why the wrappers for pages or latent rows, or the kernels with a sink, refuse a case; else None."""
    if case.sink and (case.softcap or case.cache_dtype != "same" or case.latent):
        return "an attention sink goes without softcap, fp8 caches and latent rows"
    if case.latent:
        if not case.is_paged:
            return "latent rows only in a cache of pages"
        if (case.shape.headdim, case.shape.headdim_v) != MLA_COLUMNS:
            return f"latent rows of {MLA_COLUMNS[0]} columns with {MLA_COLUMNS[1]} of v only"
        if case.cache_dtype != "same":
            return "no fp8 of latent rows"
        if case.window_size != (None, None) or case.softcap:
            return "no window and no softcap of latent rows"
        if case.alibi:
            return "no ALiBi of latent rows"
    elif case.is_paged and case.shape.headdim != case.shape.headdim_v:
        return "k and v in a cache of pages must have one headdim"
    return None


Call = tuple[Callable[[], "Tensor"], Callable[[], object]]


def _decode(case: Case, inputs: Inputs, buffer: Tensor, backend: str, tensor_cores: bool) -> Call:
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    wrapper = BatchDecodeWithPagedKVCacheWrapper(buffer, "NHD", use_tensor_cores=tensor_cores, backend=backend)

    def plan() -> None:
        indptr, indices, last = _pages(case, inputs)
        wrapper.plan(indptr, indices, last, head_dim=case.shape.headdim, **_options(case, inputs))

    return _run(wrapper, case, inputs), plan


def _prefill(case: Case, inputs: Inputs, buffer: Tensor, backend: str, sink: Tensor | None) -> Call:
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    options = {"backend": backend} if sink is None else sink_variant(case, inputs, backend)
    wrapper = BatchPrefillWithPagedKVCacheWrapper(buffer, "NHD", **options)

    def plan() -> None:
        queries = host_cu_seqlens(case)[0]
        d = case.shape.headdim
        wrapper.plan(queries, *_pages(case, inputs), head_dim_qk=d, causal=case.causal, **_options(case, inputs))

    return _run(wrapper, case, inputs, sink), plan


def _cascade(case: Case, inputs: Inputs, buffer: Tensor) -> Call:
    import torch
    from flashinfer import MultiLevelCascadeAttentionWrapper

    wrapper = MultiLevelCascadeAttentionWrapper(2, buffer, "NHD")
    shared = case.shared_pages
    assert inputs.page_table is not None
    prefix = inputs.page_table[0, :shared]

    def plan() -> None:
        queries = host_cu_seqlens(case)[0]
        indptr, indices, last = _pages(case, inputs, shared)
        wrapper.plan(
            [queries[[0, -1]], queries],
            [torch.tensor([0, shared], dtype=torch.int32), indptr],
            [prefix, indices],
            [torch.tensor([case.page_size], dtype=torch.int32), last],
            head_dim=case.shape.headdim,
            causal=case.causal,
            **_options(case, inputs),
        )

    return _run(wrapper, case, inputs), plan


def sink_variant(case: Case, inputs: Inputs, backend: str) -> dict[str, Any]:
    """Return the arguments with which a prefill wrapper compiles FlashInfer's kernels with an attention sink.

    They follow BatchAttentionWithAttentionSinkWrapper (attention/_core.py), whose module name lacks the head dim, so
    that one process could not run two head dims. run() takes the sink and the scale after the tensors.
    """
    import torch
    from flashinfer.jit.attention.variants import attention_sink_decl
    from flashinfer.utils import determine_attention_backend

    s, dtype, windowed = case.shape, inputs.q.dtype, flash_window(case)[0] >= 0
    if backend == "auto":
        backend = determine_attention_backend(inputs.q.device, 0, False, False, dtype, dtype)
    name = f"attnbench_sink_{case.dtype}_{s.headdim}_{s.headdim_v}_swa_{windowed}_{backend}"
    arguments = (["sink"], ["float"], ["sm_scale"], ["double"])
    variant = ("AttentionSink", attention_sink_decl[backend])
    return {
        "backend": backend,
        "jit_args": [name, dtype, dtype, dtype, torch.int32, s.headdim, s.headdim_v, *arguments, *variant],
        "jit_kwargs": {"use_sliding_window": windowed},
    }


def _latent(case: Case, inputs: Inputs, buffer: Tensor, backend: str) -> Call:
    from flashinfer.mla import BatchMLAPagedAttentionWrapper

    s = case.shape
    wrapper = BatchMLAPagedAttentionWrapper(buffer, backend=backend)
    rows, cache = inputs.q.flatten(0, 1), inputs.k.squeeze(2)
    operands = [t[..., part] for t in (rows, cache) for part in (slice(s.headdim_v), slice(s.headdim_v, None))]

    def plan() -> None:
        queries, keys = host_cu_seqlens(case)
        indptr, indices, _ = _pages(case, inputs)
        wrapper.plan(
            *(queries, indptr, indices, keys.diff()),
            num_heads=s.nheads,
            head_dim_ckv=s.headdim_v,
            head_dim_kpe=s.headdim - s.headdim_v,
            page_size=case.page_size,
            causal=case.causal,
            sm_scale=case.softmax_scale,
            q_data_type=rows.dtype,
            kv_data_type=cache.dtype,
        )

    return lambda: wrapper.run(*operands), plan


def _run(wrapper: Any, case: Case, inputs: Inputs, sink: Tensor | None = None) -> Callable[[], Tensor]:
    """Return the call of a planned wrapper, with the factors of an fp8 cache."""
    more = () if sink is None else (sink, case.softmax_scale)
    q, caches = inputs.q.flatten(0, 1), (inputs.k, inputs.v)
    factors = {} if case.cache_dtype == "same" else dict(zip(("k_scale", "v_scale"), inputs.descale, strict=True))
    return lambda: wrapper.run(q, caches, *more, **factors)


def _options(case: Case, inputs: Inputs) -> dict[str, Any]:
    """Return the arguments that the plans for decoding and for prefill share."""
    return {
        "num_qo_heads": case.shape.nheads,
        "num_kv_heads": case.shape.nheads_k,
        "page_size": case.page_size,
        **scores_options(case),
        "q_data_type": inputs.q.dtype,
        "kv_data_type": inputs.k.dtype,
    }


def scores_options(case: Case) -> dict[str, Any]:
    """Return the arguments of every plan that concern scores: masks, scale, softcap, ALiBi."""
    return {
        "sm_scale": case.softmax_scale,
        "window_left": flash_window(case)[0],
        "logits_soft_cap": case.softcap or None,
        "pos_encoding_mode": "ALIBI" if case.alibi else "NONE",
    }


def host_cu_seqlens(case: Case) -> tuple[Tensor, Tensor]:
    """Return cu_seqlens_q and cu_seqlens_k of a case on the host."""
    import torch

    return cu_seqlens(case, torch.device("cpu"))


def _pages(case: Case, inputs: Inputs, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return (offsets, pages, keys in the last page) of the sequences, from their page `first`, all int32.

    `offsets` (sequences + 1,) are the indices in `pages` at which sequences begin. The pages are on the device, the
    others on the host.
    """
    import torch

    table = inputs.page_table
    assert table is not None
    counts = torch.tensor(case.pages, dtype=torch.int32) - first
    own = torch.arange(table.shape[1] - first) < counts[:, None]
    indices = table[:, first:].flatten()[own.flatten().nonzero().flatten().to(table.device)]
    indptr = torch.cat([torch.zeros(1, dtype=torch.int32), counts.cumsum(0, dtype=torch.int32)])
    last = host_cu_seqlens(case)[1].diff() - (counts + first - 1) * case.page_size
    return indptr, indices, last


def _appender(case: Case, inputs: Inputs) -> Callable[[], None]:
    """Return a function that writes the new keys and values by append_paged_kv_cache, or does nothing without any."""
    if inputs.new_k is None or inputs.new_v is None:
        return lambda: None
    import torch
    from flashinfer import append_paged_kv_cache

    device = inputs.q.device
    indptr, indices, last = _pages(case, inputs)
    starts_q, starts_k = host_cu_seqlens(case)
    number = starts_q.diff()
    sequence = torch.arange(len(number), dtype=torch.int32).repeat_interleave(number)
    shift = (starts_k.diff() - number - starts_q[:-1]).repeat_interleave(number)
    positions = torch.arange(len(sequence), dtype=torch.int32) + shift
    new = (inputs.new_k.flatten(0, 1), inputs.new_v.flatten(0, 1))
    where = (sequence.to(device), positions.to(device, torch.int32))
    pages = (indices, indptr.to(device), last.to(device))

    def append() -> None:
        append_paged_kv_cache(*new, *where, (inputs.k, inputs.v), *pages)

    return append
