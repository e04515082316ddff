"""Functions in CuTe DSL for flash-attn 4's kernels: ALiBi as a `score_mod`, a mask by name as a `mask_mod`.

ALiBi follows score_mod_alibi of flash-attention's tests/cute/score_mod_definitions.py, with given slopes and with
positions of queries counted from the end of the sequence. The library passes arguments by these names.

A mask by name comes with lists of the blocks that a kernel visits: for each block of queries, and in the backward for
each block of keys. One list has the blocks in which every pair is seen, the other the blocks in which some pairs are
seen, for which the kernel calls the `mask_mod`. Lists are ascending: the kernels start from the end, and hide keys
beyond the last in the first block that they visit (block_sparse_utils.py). A call with a `mask_mod` takes neither
causal nor a window, so the `mask_mod` includes them.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnbench.backends.shared.masks import effective_window, seen_blocks
from attnbench.core import masks
from attnbench.core.case import Case

if TYPE_CHECKING:
    import torch
    from torch import Tensor

HOPPER = 9
MARGIN = 2  # blocks that the table of random:P has beyond the last query, for a block that is not full


def block_sizes(case: Case, major: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the queries and keys of a block, forward and backward, on a GPU of this major compute capability.

    They are multiples of the kernels' tiles of queries, and their tiles of keys (interface.py, _tile_size_fwd_sm90,
    _tile_size_bwd_sm90; a tile of queries is two of 128 on Blackwell).
    """
    d, d_v = case.shape.headdim, case.shape.headdim_v
    if major != HOPPER or d <= 128:
        queries = 128 if major == HOPPER else 256
        return (queries, 128), (queries, 128)
    if d <= 192:
        return (128, 128 if d_v <= 128 else 112), (128, 96)
    return (128, 80), (128, 64)


def mask_options(case: Case, device: torch.device) -> dict[str, Any]:
    """Return the arguments of flash_attn_func for a mask by name: lists of blocks, and a table of blocks."""
    import torch

    major = torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else HOPPER
    forward, backward = block_sizes(case, major)
    options: dict[str, Any] = {"block_sparse_tensors": _lists(case, device, forward, by_keys=False)}
    if case.has_backward:
        options["block_sparse_tensors_bwd"] = _lists(case, device, backward, by_keys=True)
    kept = masks.kept_blocks(case.mask, case.shape.seqlen_k, device)
    if kept is not None:
        padded = torch.nn.functional.pad(kept.int(), (0, MARGIN, 0, MARGIN))
        options["aux_tensors"] = [padded]
    return options


def pairs_of_lists(lists: Any) -> int:
    """Return the number of pairs of one head in the visited blocks."""
    pairs: int = math.prod(lists.block_size)
    return int(lists.mask_block_cnt.sum() + lists.full_block_cnt.sum()) * pairs


def _lists(case: Case, device: torch.device, size: tuple[int, int], *, by_keys: bool) -> Any:
    """Return the lists for blocks of queries, or with `by_keys` for blocks of keys, alike in all heads, as int32.

    Blocks with a part beyond the last query or key count as seen in part, as in torch's BlockMask.
    """
    from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch

    s = case.shape
    mask, kept = masks.find(case.mask), masks.kept_blocks(case.mask, s.seqlen_k, device)
    some, whole = seen_blocks(mask, (s.seqlen_q, s.seqlen_k), effective_window(case), size, device, kept)
    if by_keys:
        some, whole = some.T, whole.T
    partial, full = (_listed(blocks) for blocks in (some & ~whole, whole))
    return BlockSparseTensorsTorch(*partial, *full, block_size=size)


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of True blocks in each row, (1, 1, rows), and their indices in order, (1, 1, rows, columns)."""
    order = blocks.int().argsort(dim=1, descending=True, stable=True)
    return blocks.sum(1).int()[None, None], order.int()[None, None].contiguous()


def mask_mod(case: Case) -> Callable[..., Any]:
    """Return the function that is true where a query sees a key. With `random:P` it reads `aux_tensors`.

    The library compiles once for functions of one source that capture values of one `repr`.
    """
    import cutlass
    from cutlass import cute
    from flash_attn.cute import utils

    mask, (left, right) = masks.find(case.mask), effective_window(case)
    shift = case.shape.seqlen_k - case.shape.seqlen_q
    low = -case.shape.seqlen_k if left is None else -left
    high = case.shape.seqlen_k if right is None else right

    @cute.jit
    def sees(b_idx, h_idx, q_idx, kv_idx, seqlen_info, aux_tensors):  # noqa: ARG001
        place = q_idx + shift
        band = (kv_idx - place >= low) & (kv_idx - place <= high)
        return masks.sees(mask, band, place, kv_idx)

    @cute.jit
    def sees_blocks(b_idx, h_idx, q_idx, kv_idx, seqlen_info, aux_tensors):  # noqa: ARG001
        place = q_idx + shift
        band = (kv_idx - place >= low) & (kv_idx - place <= high)
        row, column = place // masks.BLOCK, kv_idx // masks.BLOCK
        return band & (utils.scalar_to_ssa(aux_tensors[-1][row[0], column[0]], cutlass.Int32) != 0)

    found: Callable[..., Any] = sees if mask.kept_blocks(1) is None else sees_blocks
    return found


@functools.cache
def score_mods() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return `score_mod` and `score_mod_bwd`, which take the slopes, (nheads,) in float32, as `aux_tensors`."""
    import cutlass
    from cutlass import cute
    from cutlass._mlir.dialects import math as mlir_math

    @cute.jit
    def subtract_alibi(score, b_idx, h_idx, q_idx, kv_idx, seqlen_info, aux_tensors):  # noqa: ARG001
        """Return a scaled score minus slope * distance. With aux_tensors each call is for one score, hence one head."""
        slope = cute.make_rmem_tensor(1, cutlass.Float32)
        slope[0] = aux_tensors[0][h_idx[0]]
        shift = cute.full_like(q_idx, seqlen_info.seqlen_k - seqlen_info.seqlen_q)
        behind = q_idx + shift - kv_idx
        distance = cute.TensorSSA(mlir_math.absi(behind), behind.shape, behind.dtype)
        return score - slope.load() * distance.to(cutlass.Float32)

    @cute.jit
    def same_gradient(grad, score, b_idx, h_idx, q_idx, kv_idx, seqlen_info, aux_tensors):  # noqa: ARG001
        return grad

    return subtract_alibi, same_gradient
