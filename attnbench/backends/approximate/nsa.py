"""`nsa`: native sparse attention (Yuan et al., arXiv 2502.11089, section 3), by the kernels of fla-core.

Checked against fla-core 0.6.0.

It has two of the paper's three branches, each with the weight 1/2, the gate of an untrained layer:

- compression: attention to the means of the blocks of 64 keys that lie before the query;
- selection: attention to 16 blocks of keys: the first, the query's own, the one before it, and the blocks of the most
  probability in the compression branch, summed over the query heads of a key head, of which there must be 16 or more.

The third branch, a sliding window, is left out: fla takes it from flash-attn 2. The backend calls the parts of fla's
`parallel_nsa`, in the same order, because `parallel_nsa` does not return the selection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attnbench.backends.approximate.base import Approximate, block_means, in_selected_blocks, selecting_prepared
from attnbench.backends.limits import Limits
from attnbench.backends.shared.libraries import Library
from attnbench.core.backend import Prepared, Workspace
from attnbench.core.case import ITEMSIZE, Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

BLOCK, SELECTED = 64, 16
LEAST_GROUP = 16  # least number of query heads of a key head
GATE = 0.5


def compressed(case: Case, q: Tensor, k: Tensor) -> Tensor:
    """Return the probabilities (seqlen, blocks) of the blocks before each query, for q (seqlen, headdim)."""
    import torch

    scores = q @ block_means(k, BLOCK).T * case.softmax_scale
    whole = (torch.arange(len(q), device=q.device) + 1)[:, None] // BLOCK
    hidden = torch.arange(scores.shape[1], device=q.device) >= whole
    p = torch.softmax(scores.masked_fill(hidden & (whole > 0), float("-inf")), dim=-1)
    return p.masked_fill(whole == 0, 0.0)


class Nsa(Approximate, Library):
    name = "nsa"
    what = f"half attention to {SELECTED} selected blocks of {BLOCK} keys, half to the means of blocks"
    module = "fla.ops.nsa.parallel"
    distributions: ClassVar = ("fla-core", "flash-linear-attention")
    install = "pip install fla-core"
    min_version = "0.6.0"
    starts_compiler = True  # a first forward tunes its kernels for 40 s, a backward for longer
    forward_kernels = "parallel_nsa_fwd_kernel"
    backward_kernels = "parallel_nsa_bwd_kernel"
    limits: ClassVar = Limits(headdim=(16, 256), empty_rows=False)

    def unsupported(self, case: Case, device: Device) -> str | None:
        if reason := super().unsupported(case, device):
            return reason
        s = case.shape
        group = s.nheads // s.nheads_k
        if group < LEAST_GROUP or group & (group - 1):
            return f"its kernels need a power of two of query heads for each key head, at least {LEAST_GROUP}"
        return None if case.causal and s.seqlen_q == s.seqlen_k else "causal, with as many queries as keys"

    def workspace(self, case: Case) -> Workspace:
        s = case.shape
        outs = 2 * s.batch * s.seqlen_q * s.nheads * s.headdim_v * ITEMSIZE[case.dtype]
        return Workspace(outs + 8 * s.batch * s.seqlen_q * s.nheads_k * SELECTED, "both branches", passes=2.0)

    def definition(self, case: Case, q: Tensor, k: Tensor, v: Tensor, selected: Tensor | None) -> Tensor:
        of_means = compressed(case, q, k) @ block_means(v, BLOCK)
        return GATE * super().definition(case, q, k, v, selected) + GATE * of_means

    def scores(self, case: Case, q: Tensor, k: Tensor) -> Tensor | None:
        import torch

        found = torch.zeros((), dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
        for of_head in q.unbind(1):
            found = found + compressed(case, of_head, k)
        block = torch.arange(found.shape[1], device=q.device)
        own = torch.arange(len(q), device=q.device)[:, None] // BLOCK
        always = (block == 0) | (block == own) | (block == own - 1)
        return found.masked_fill(always, float("inf")).masked_fill(block > own, float("-inf"))

    def selected_count(self, case: Case) -> int | None:
        return SELECTED

    def attended(self, case: Case, q: Tensor, k: Tensor, rows: Tensor, selected: Tensor | None) -> Tensor | None:
        import torch

        assert selected is not None  # (seqlen, SELECTED), -1 where there are fewer blocks
        seen = in_selected_blocks(selected, rows, len(k), BLOCK)
        return seen & (torch.arange(len(k), device=k.device) <= rows[..., None])

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        from fla.ops.nsa.compression import parallel_nsa_compression
        from fla.ops.nsa.parallel import ParallelNSAFunction, parallel_nsa_topk
        from fla.ops.utils.pooling import mean_pooling

        tokens, scale = case.shape.seqlen_k, case.softmax_scale

        def call(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:  # (batch, seqlen, nheads, headdim)
            mean_k, mean_v = mean_pooling(k, BLOCK), mean_pooling(v, BLOCK)
            of_means, lse = parallel_nsa_compression(q, mean_k, mean_v, TK=tokens, block_size=BLOCK, scale=scale)
            chosen = parallel_nsa_topk(
                q, mean_k, TK=tokens, lse=lse, block_counts=SELECTED, block_size=BLOCK, scale=scale
            )
            of_blocks = ParallelNSAFunction.apply(q, k, v, chosen, SELECTED, BLOCK, scale, None)
            return GATE * of_blocks + GATE * of_means, chosen.transpose(1, 2)

        return selecting_prepared(case, inputs, call, "bshd")
