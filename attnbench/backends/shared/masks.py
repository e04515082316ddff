"""The mask of a case, and the bias of ALiBi, in the forms that libraries take.

Query i sees key j where -left <= j - (i + seqlen_k - seqlen_q) <= right; a side of None has no limit. In a ragged batch
i and j count from the beginning of their sequence, and a query sees keys of its own sequence only.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from attnbench.backends.shared.libraries import flash_workspace
from attnbench.core import masks
from attnbench.core.alibi import alibi_slopes
from attnbench.core.backend import Workspace, cu_seqlens, torch_dtype
from attnbench.core.case import Case
from attnbench.core.pages import count_pages, seqlens_k

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn.attention.flex_attention import BlockMask

BLOCK_Q = 128  # queries of a block of FlexAttention
COMPILED_FROM = 2**30  # pairs from which on the block mask is built compiled: uncompiled it would take 17 GB
CHUNK = 2**24  # pairs that `seen_blocks` computes at a time


def effective_window(case: Case) -> tuple[int | None, int | None]:
    """Return (left, right) of causal and the window together; None for a side without a limit.

    The right side of a single query is None, because its position is the last key's.
    """
    left, right = case.window_size
    if case.shape.seqlen_q == 1:
        return left, None
    return left, 0 if case.causal else right


def flash_window(case: Case) -> tuple[int, int]:
    """Return the window as flash-attn takes it, -1 for a side without a limit, without causal (a separate option)."""
    left, right = case.window_size
    return (-1 if left is None else left, -1 if right is None else right)


def has_mask(case: Case) -> bool:
    """Return whether the mask hides some key from some query."""
    return case.is_ragged or bool(case.mask) or effective_window(case) != (None, None)


def places(case: Case, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return three int32 tensors: each query's sequence, each key's sequence, and each query's position as a key."""
    import torch

    starts_q, starts_k = cu_seqlens(case, device)
    numbers = torch.arange(case.shape.batch, dtype=torch.int32, device=device)
    of_query, of_key = (numbers.repeat_interleave(starts.diff()) for starts in (starts_q, starts_k))
    place = torch.arange(case.extent.seqlen_q, dtype=torch.int32, device=device)
    return of_query, of_key, place + (starts_k - starts_q)[1:].repeat_interleave(starts_q.diff())


def visibility_mask(case: Case, device: torch.device) -> Tensor | None:
    """Return a bool tensor (seqlen_q, seqlen_k), True where a query sees a key; None where there is no mask.

    Its sizes are from `Case.extent`.
    """
    import torch

    if not has_mask(case):
        return None
    left, right = effective_window(case)
    s = case.shape
    if case.is_ragged:
        of_query, of_key, place = (t[:, None] for t in places(case, device))
        seen = of_query == of_key.T
        keys = torch.arange(len(of_key), dtype=torch.int32, device=device)
        if right is not None:
            seen &= keys <= place + right
        if left is not None:
            seen &= keys >= place - left
        return seen
    seen = torch.ones(s.seqlen_q, s.seqlen_k, dtype=torch.bool, device=device)
    middle = s.seqlen_k - s.seqlen_q
    if right is not None:
        seen.tril_(middle + right)
    if left is not None:
        seen.triu_(middle - left)
    if case.mask:
        place = torch.arange(middle, s.seqlen_k, device=device)[:, None]
        keys = torch.arange(s.seqlen_k, device=device)
        seen = masks.sees(masks.find(case.mask), seen, place, keys, masks.kept_blocks(case.mask, s.seqlen_k, device))
    return seen


def mask_plan(case: Case, device: torch.device) -> dict[str, Any]:
    """Return `plan` and `pairs` of a launch that takes `visibility_mask` for a mask by name and computes all pairs."""
    if not case.mask:
        return {}
    every = case.shape.seqlen_q * case.shape.seqlen_k
    return {"plan": functools.partial(visibility_mask, case, device), "pairs": lambda: every}


def slopes(case: Case, device: torch.device) -> Tensor | None:
    """Return ALiBi's slopes, (nheads,) in float32; None for a case without ALiBi."""
    import torch

    return torch.tensor(alibi_slopes(case.shape.nheads), device=device) if case.alibi else None


def seen_blocks(
    mask: masks.Mask,
    lengths: tuple[int, int],
    band: tuple[int | None, int | None],
    sizes: tuple[int, int],
    device: torch.device,
    kept: Tensor | None,
    *,
    beyond: tuple[bool, bool] = (False, False),
) -> tuple[Tensor, Tensor]:
    """Return two bool tensors (blocks of queries, blocks of keys): whether some pair is seen, whether every pair is.

    `lengths`, `sizes` (of a block) and `beyond` are for (queries, keys). `beyond` says whether queries or keys beyond
    the last count as seen in the second tensor. `band` is `effective_window`'s, `kept` is `masks.kept_blocks`'s.
    """
    import torch

    (seqlen_q, seqlen_k), (block_q, block_k), (left, right) = lengths, sizes, band
    columns = -(-seqlen_k // block_k)
    keys = torch.arange(columns * block_k, device=device)
    is_key, at = keys < seqlen_k, keys.clamp(max=seqlen_k - 1)
    every = torch.arange(-(-seqlen_q // block_q) * block_q, device=device)
    some, whole = [], []
    for queries in every.split(max(1, CHUNK // (len(keys) * block_q)) * block_q):
        is_query = (queries < seqlen_q)[:, None]
        place = (queries[:, None] + seqlen_k - seqlen_q).clamp(max=seqlen_k - 1)
        in_band = torch.ones((), dtype=torch.bool, device=device).expand(len(queries), len(keys))
        if right is not None:
            in_band = in_band & (at <= place + right)
        if left is not None:
            in_band = in_band & (at >= place - left)
        seen = masks.sees(mask, in_band, place, at, kept) & is_query & is_key
        hidden = ~seen
        if beyond[0]:
            hidden &= is_query
        if beyond[1]:
            hidden &= is_key
        tiles = (-1, block_q, columns, block_k)
        some.append(seen.view(tiles).any(3).any(1))
        whole.append(~hidden.view(tiles).any(3).any(1))
    found = torch.cat(some)
    return found, torch.cat(whole) & found


def alibi_bias(case: Case, device: torch.device) -> Tensor:
    """Return ALiBi's bias, to subtract from the scores of a dense case: (nheads, seqlen_q, seqlen_k) in its dtype."""
    import torch

    s = case.shape
    place = torch.arange(s.seqlen_k - s.seqlen_q, s.seqlen_k, device=device)[:, None]
    distance = (place - torch.arange(s.seqlen_k, device=device)).abs_()
    of_head = torch.tensor(alibi_slopes(s.nheads), device=device)
    bias: Tensor = (of_head[:, None, None] * distance).to(torch_dtype(case))
    return bias


def block_mask_workspace(case: Case) -> Workspace:
    """Return the workspace of `block_mask`; a fused kernel's where there is no mask, or where it is built compiled."""
    s = case.extent
    if not has_mask(case) or s.seqlen_q * s.seqlen_k > COMPILED_FROM:
        return flash_workspace(case)
    nbytes = (19 if case.mask else 16) * s.seqlen_q * s.seqlen_k  # bytes a pair, counted on a CPU with torch 2.13
    return Workspace(nbytes=nbytes, what="full mask from which the block mask is built")


def block_mask(case: Case, device: torch.device) -> BlockMask | None:
    """Return FlexAttention's mask, which skips the blocks that no query sees; None where there is no mask.

    torch's create_block_mask builds it with 16 bytes for each pair of query and key, or compiled with next to nothing.
    Compilation takes seconds, so only long cases are compiled.
    """
    import torch
    from torch.nn.attention.flex_attention import create_block_mask

    if not has_mask(case):
        return None
    left, right = effective_window(case)
    s = case.extent
    low = -s.seqlen_q - s.seqlen_k if left is None else -left
    high = s.seqlen_q + s.seqlen_k if right is None else right
    middle = s.seqlen_k - s.seqlen_q

    def seen(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:  # noqa: ARG001
        distance = j - i - middle
        return (distance >= low) & (distance <= high)

    if case.mask:
        mask, in_band, blocks = masks.find(case.mask), seen, masks.kept_blocks(case.mask, s.seqlen_k, device)

        def seen_by_name(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
            picked: Tensor = masks.sees(mask, in_band(batch, head, i, j), i + middle, j, blocks)
            return picked

        seen = seen_by_name
    if case.is_ragged:
        of_query, of_key, place = places(case, device)

        def seen_in_sequence(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:  # noqa: ARG001
            distance = j - place[i]
            return (of_query[i] == of_key[j]) & (distance >= low) & (distance <= high)

        seen = seen_in_sequence
    create = create_block_mask
    if s.seqlen_q * s.seqlen_k > COMPILED_FROM:
        create = torch.compile(create_block_mask, dynamic=False)
    return create(seen, None, None, s.seqlen_q, s.seqlen_k, device=torch.device(device))


def pairs_of_blocks(blocks: BlockMask) -> int:
    """Return the number of pairs of one head in the blocks that FlexAttention computes, whole or in part."""
    listed = blocks.kv_num_blocks.sum()
    if blocks.full_kv_num_blocks is not None:
        listed = listed + blocks.full_kv_num_blocks.sum()
    return int(listed) * blocks.BLOCK_SIZE[0] * blocks.BLOCK_SIZE[1]


def paged_block_mask(case: Case, page_table: Tensor) -> BlockMask:
    """Return FlexAttention's mask over the pages of a cache, for sequences with the same number of queries.

    torch's PagedAttention makes it from the mask over the keys of each sequence, in blocks of a page.
    """
    import torch
    from torch.nn.attention.experimental._paged_attention import PagedAttention
    from torch.nn.attention.flex_attention import create_block_mask

    s, device = case.shape, page_table.device
    (left, right), (_, most) = effective_window(case), page_table.shape
    lengths = seqlens_k(case, device)

    def seen(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:  # noqa: ARG001
        distance = j - i - lengths[batch] + s.seqlen_q
        visible = j < lengths[batch]
        if left is not None:
            visible = visible & (distance >= -left)
        return visible if right is None else visible & (distance <= right)

    keys = most * case.page_size
    logical = create_block_mask(
        seen, s.batch, None, s.seqlen_q, keys, device=device, BLOCK_SIZE=(BLOCK_Q, case.page_size)
    )
    cache = PagedAttention(count_pages(case), case.page_size, s.batch, device=str(device))
    pages = torch.tensor(case.pages, device=device)
    sequence, number = (torch.arange(most, device=device) < pages[:, None]).nonzero(as_tuple=True)
    cache.page_table[:, :most] = page_table
    cache.physical_to_logical[sequence, page_table[sequence, number].long()] = number
    return cache.convert_logical_block_mask(logical)


def paged_block_mask_workspace(case: Case) -> Workspace:
    """Return the workspace of `paged_block_mask`: one entry for every page of the cache in each sequence."""
    s, pages = case.shape, count_pages(case)
    rows = -(-s.seqlen_q // BLOCK_Q)
    tables = s.batch * pages * (2 * 8 + 8 * 4 * rows)
    return Workspace(
        nbytes=tables + 16 * s.batch * s.seqlen_q * s.seqlen_k, what="block mask of every page for every sequence"
    )
