"""Paged keys and values: the cache, its page table, and the index of each key in the cache.

A server keeps the keys and values of its sequences in pages of `Case.page_size` tokens (Kwon et al., "PagedAttention",
arXiv 2309.06180). k and v are then caches, (pages, page_size, nheads_k, headdim): key j of sequence i is row j %
page_size of page page_table[i, j // page_size]. Here, as in a server that has run for a while:

- The pages of a sequence lie anywhere in the cache, in no order.
- SPARE of the pages belong to no sequence of the batch, and the rest of a sequence's last page belongs to no key. Both
  hold numbers like all others, so that a kernel which reads them is wrong.
- Entries of the table beyond a sequence's last page name pages of other sequences.

With a `Case.shared_prefix` all rows of the table begin with the same pages, as a server keeps a system prompt once.

torch is imported inside functions only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from attnbench.core import fp8
from attnbench.core.backend import Inputs, cu_seqlens
from attnbench.core.case import Case

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SPARE = 1 / 32  # share of the pages; at least one page


def count_pages(case: Case) -> int:
    """Return the number of pages of the cache of a paged case."""
    return case.used_pages + math.ceil(SPARE * case.used_pages)


def key_dims(case: Case) -> tuple[int, int]:
    """Return the first two sizes of k and v: (pages, page_size), or (batch, seqlen_k) without pages."""
    return (count_pages(case), case.page_size) if case.is_paged else (case.extent.batch, case.extent.seqlen_k)


def with_page_table(case: Case, given: Inputs, seed: int) -> Inputs:
    """Return the inputs with a page table from a seed where the case is paged, else as they are."""
    return replace(given, page_table=make_page_table(case, given.q.device, seed)) if case.is_paged else given


def make_page_table(case: Case, device: torch.device, seed: int) -> Tensor:
    """Return a page table with shuffled pages: (sequences, most pages of a sequence), int32."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    pages, shared = torch.tensor(case.pages), case.shared_pages
    shuffled = torch.randperm(count_pages(case), generator=generator, dtype=torch.int32)
    own = torch.arange(int(pages.max())) < pages[:, None]
    table = shuffled[torch.randint(len(shuffled), own.shape, generator=generator)]
    own[:, :shared] = False
    table[:, :shared] = shuffled[:shared]
    table[own] = shuffled[shared : case.used_pages]
    return table.to(device)


def key_places(case: Case, page_table: Tensor) -> Tensor:
    """Return the index of each key in a cache viewed as (pages * page_size, ...), int64.

    The result has the shape of the keys in contiguous tensors: (batch, seqlen_k), for a ragged batch (1, total_k).
    """
    import torch

    starts = cu_seqlens(case, page_table.device)[1].long()
    of_key = torch.arange(case.shape.batch, device=page_table.device).repeat_interleave(starts.diff())
    key = torch.arange(len(of_key), device=page_table.device) - starts[of_key]
    place = page_table[of_key, key // case.page_size].long() * case.page_size + key % case.page_size
    return place.view(case.extent.batch, case.extent.seqlen_k)


def new_key_places(case: Case, page_table: Tensor) -> Tensor:
    """Return the index in the cache (as `key_places` counts) of the key that belongs to each query.

    The shape is (queries of all sequences, one sequence after the other,).
    """
    import torch

    starts_q, starts_k = (starts.long() for starts in cu_seqlens(case, page_table.device))
    query = torch.arange(int(starts_q[-1]), device=page_table.device)
    return key_places(case, page_table).flatten()[query + (starts_k - starts_q)[1:].repeat_interleave(starts_q.diff())]


def without_new_keys(case: Case, given: Inputs) -> Inputs:
    """Return the inputs before a call that appends: `new_k` and `new_v` are set, the caches lack these keys and values.

    The caches are changed in place: other numbers replace the keys and values of the queries. The inputs of a case that
    does not append are returned as they are.
    """
    if not case.append:
        return given
    assert given.page_table is not None
    places, new = new_key_places(case, given.page_table), []
    for cache in (given.k, given.v):
        rows = gather(cache, places)
        cache.flatten(0, 1)[places] = rows.flip(-1)
        new.append(rows.view(*given.q.shape[:2], *rows.shape[1:]))
    return replace(given, new_k=new[0], new_v=new[1])


def appender(case: Case, given: Inputs) -> Callable[[], None]:
    """Return a function that writes the keys and values of the queries into the caches, by torch.

    It does nothing for a case that does not append.
    """
    if given.page_table is None or given.new_k is None or given.new_v is None:
        return lambda: None
    places = new_key_places(case, given.page_table)
    pairs = [
        (cache.flatten(0, 1), new.flatten(0, 1)) for cache, new in ((given.k, given.new_k), (given.v, given.new_v))
    ]

    def append() -> None:
        for rows, new in pairs:
            rows[places] = new

    return append


@contextmanager
def appended(case: Case, given: Inputs) -> Iterator[None]:
    """In the `with` body the caches hold the queries' keys and values, as after a launch that appends.

    Afterwards the caches have their old contents again. A case that does not append is left as it is.
    """
    if not case.append:
        yield
        return
    assert given.page_table is not None
    places = new_key_places(case, given.page_table)
    before = [gather(cache, places) for cache in (given.k, given.v)]
    appender(case, given)()
    try:
        yield
    finally:
        for cache, rows in zip((given.k, given.v), before, strict=True):
            cache.flatten(0, 1)[places] = rows


def in_cache_dtype(case: Case, given: Inputs) -> Inputs:
    """Return the inputs with caches in the case's cache_dtype, and one factor for each cache."""
    if case.cache_dtype == "same":
        return given
    k, of_k = fp8.quantize(given.k)
    v, of_v = (k[..., : case.shape.headdim_v], of_k) if case.latent else fp8.quantize(given.v)
    return replace(given, k=k, v=v, descale=(float(of_k), float(of_v)))


def gather(cache: Tensor, places: Tensor) -> Tensor:
    """Return the rows of a cache (pages, page_size, ...) with indices `places`, of any shape: (*places.shape, ...)."""
    rows: Tensor = cache.flatten(0, 1)[places]
    return rows


def seqlens_k(case: Case, device: torch.device) -> Tensor:
    """Return the number of keys of each sequence, (sequences,), int32."""
    return cu_seqlens(case, device)[1].diff()


def cached_seqlens(case: Case, device: torch.device) -> Tensor:
    """Return the number of keys of each sequence before a call, which may append to them, (sequences,), int32."""
    starts_q, starts_k = cu_seqlens(case, device)
    return starts_k.diff() - starts_q.diff() if case.append else starts_k.diff()


def queries(case: Case, t: Tensor) -> Tensor:
    """Return q, or the queries' new keys or values, as (sequences, seqlen_q, ...).

    For batches in which each sequence has the same number of queries.
    """
    return t.view(case.shape.batch, case.shape.seqlen_q, *t.shape[2:])
