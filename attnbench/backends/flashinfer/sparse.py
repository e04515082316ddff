"""Masks by name in FlashInfer: its wrapper of block-sparse matrices (BSR), with a mask of the pairs in their blocks.

Checked against 0.6.13 (sparse.py). All heads share one matrix, in which the sequences of a batch lie on the diagonal.
The number of keys in a block divides the number of keys of each sequence. Where a block is seen in part, plan() needs
the mask of every listed block, and fa2's kernels run (utils.py, is_fa3_backend_supported). The kernels number keys in
the order of the list, so the options causal and ALiBi cannot be used. The wrapper of variable blocks takes no mask of
pairs.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from attnbench.backends.base import autograd_prepared
from attnbench.backends.shared.masks import visibility_mask
from attnbench.core.backend import Prepared, Unsupported
from attnbench.core.case import Case

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from attnbench.core.backend import Inputs

BLOCK = 128  # most queries and keys of a block
FEW_ROWS = 4  # a block with fewer queries runs the decode kernels, unless it has a mask of pairs


def sparse_refusal(case: Case) -> str | None:
    """Return why a mask by name is refused."""
    if case.shape.headdim != case.shape.headdim_v:
        return "its block-sparse wrapper needs headdim_v equal to headdim"
    if case.sink or case.alibi:
        return f"its block-sparse wrapper has no {'attention sink' if case.sink else 'ALiBi'}"
    return None


def block_size(case: Case) -> tuple[int, int]:
    """Return the queries and keys of a block, such that no block belongs to two sequences."""
    s = case.shape
    return BLOCK if s.batch == 1 else math.gcd(s.seqlen_q, BLOCK), math.gcd(s.seqlen_k, BLOCK)


def block_matrix(case: Case, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return indptr, indices and mask of the matrix of all sequences: (rows + 1,), (blocks,), (blocks, R, C).

    The mask is None where every pair of the listed blocks is seen. Raises Unsupported where int32 cannot number pairs.
    """
    import torch

    s, (rows, columns) = case.shape, block_size(case)
    seen = visibility_mask(case, device)
    assert seen is not None
    missing = -s.seqlen_q % rows
    tiles = torch.nn.functional.pad(seen, (0, 0, 0, missing)).unflatten(0, (-1, rows)).unflatten(2, (-1, columns))
    tiles = tiles.transpose(1, 2)
    some = tiles.any(3).any(2)
    row, column = some.nonzero(as_tuple=True)
    if s.batch * len(row) * rows * columns > torch.iinfo(torch.int32).max:
        raise Unsupported("its int32 offsets of a mask do not reach this far")
    mask = tiles[row, column]
    whole = len(mask) * rows * columns - int((row == len(some) - 1).sum()) * missing * columns
    counts = some.sum(1).repeat(s.batch)
    indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
    first = torch.arange(s.batch, device=device)[:, None] * some.shape[1]
    indices = (first + column).flatten().int()
    if int(mask.sum()) == whole and rows >= FEW_ROWS:
        return indptr, indices, None
    return indptr, indices, mask.repeat(s.batch, 1, 1)


def prepare_sparse(case: Case, inputs: Inputs, buffer: Tensor, backend: str) -> Prepared:
    """Return the call of a case with a mask by name."""
    from flashinfer.sparse import BlockSparseAttentionWrapper

    s, (rows, columns), dtype = case.shape, block_size(case), inputs.q.dtype
    wrapper = BlockSparseAttentionWrapper(buffer, backend=backend)

    def plan() -> int:
        indptr, indices, mask = block_matrix(case, buffer.device)
        wrapper.plan(
            *(indptr, indices, s.batch * s.seqlen_q, s.batch * s.seqlen_k, rows, columns),
            *(s.nheads, s.nheads_k, s.headdim),
            mask=mask,
            sm_scale=case.softmax_scale,
            logits_soft_cap=case.softcap or None,
            q_data_type=dtype,
            kv_data_type=dtype,
            o_data_type=dtype,
        )
        return len(indices) // s.batch * rows * columns

    pairs = plan()
    return autograd_prepared(case, inputs, wrapper.run, "thd", plan=plan, pairs=functools.partial(int, pairs))
