"""`sparge`: `sage2` on some blocks of keys (Zhang et al., "SpargeAttention", arXiv 2502.18137).

Checked against the source of 0.1.0 at bfd980b. It is `spas_sage2_attn_meansim_topk_cuda`, the function that its authors
recommend, on Hopper, with its default: for each block of 64 queries half of the blocks of 128 keys, with the highest
scores of block means. All queries and all keys of a block share a scale in int8. v is converted to fp16, and then to
e4m3 with 2.25 as the largest value of a column.

The function does not return its selection, so the backend notes the result of the part that selects. Blocks whose
tokens are unlike are selected, too; with the default limit these are blocks with an end that is not filled, so the
tokens must be whole blocks.

Its causal call selects blocks up to the diagonal, but passes no causal mask to the kernel, so that queries of a block
on the diagonal attend to later keys. This is no approximation of a causal mask, and is refused.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.approximate.base import block_means, in_selected_blocks
from attnbench.backends.approximate.sage import InE4m3, Sage2, in_e4m3, rounded
from attnbench.backends.base import autograd_prepared
from attnbench.backends.shared.libraries import Library
from attnbench.core.backend import Prepared, Workspace
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

BLOCK_Q, BLOCK_K = 64, 128
LEAST_QUERIES = 128
SHARE = 0.5  # of the blocks of keys
MOST = 2.25


class Sparge(InE4m3, Library):
    name = "sparge"
    order = "bhsd"
    what = f"attention in int8 and e4m3 to half of the blocks of {BLOCK_K} keys, those with the largest mean scores"
    module = "spas_sage_attn"
    distributions: ClassVar = ("spas_sage_attn",)
    install = "pip install --no-build-isolation git+https://github.com/thu-ml/SpargeAttn@bfd980b"
    min_version = "0.1.0"
    required_name = "spas_sage2_attn_meansim_topk_cuda"
    forward_kernels = "qk_int8_sv_f8_attn_kernel"
    limits: ClassVar = replace(Sage2.limits, headdim_pairs=((64, 64), (128, 128)), gqa=False)

    def unsupported(self, case: Case, device: Device) -> str | None:
        if reason := super().unsupported(case, device):
            return reason
        s = case.shape
        if case.causal and s.seqlen_q > 1:
            return "its causal call is wrong: queries of a block on the diagonal attend to later keys"
        if s.seqlen_q < LEAST_QUERIES or s.seqlen_q % BLOCK_Q or s.seqlen_k % BLOCK_K:
            return f"needs whole blocks of {BLOCK_Q} queries, two at least, and of {BLOCK_K} keys"
        return None

    def workspace(self, case: Case) -> Workspace:
        s = case.shape
        nbytes = s.batch * s.nheads * (s.seqlen_q + 8 * s.seqlen_k) * s.headdim
        nbytes += 40 * s.batch * s.nheads * (s.seqlen_q // BLOCK_Q) * (s.seqlen_k // BLOCK_K)
        return Workspace(nbytes, "q, k and v in 8 bits, and scores of blocks", passes=2.0)

    def definition(self, case: Case, q: Tensor, k: Tensor, v: Tensor, selected: Tensor | None) -> Tensor:
        q, k = rounded(q, (BLOCK_Q, 1, 1)), rounded(k - k.mean(0), (BLOCK_K, 1, 1))
        return super().definition(case, q, k, in_e4m3(v, MOST), selected)

    def scores(self, case: Case, q: Tensor, k: Tensor) -> Tensor | None:
        of_q, of_k = block_means(q.transpose(0, 1), BLOCK_Q), block_means(k - k.mean(0), BLOCK_K)
        p: Tensor = (of_q @ of_k.mT * case.shape.headdim**-0.5).softmax(dim=-1)
        return p

    def selected_count(self, case: Case) -> int | None:
        return max(1, int(SHARE * (case.shape.seqlen_k // BLOCK_K)))

    def selected_for(self, case: Case, selected: Tensor, head: int) -> Tensor:
        return selected[head]

    def attended(self, case: Case, q: Tensor, k: Tensor, rows: Tensor, selected: Tensor | None) -> Tensor | None:
        assert selected is not None  # (query blocks, kept)
        return in_selected_blocks(selected, rows // BLOCK_Q, len(k), BLOCK_K)

    def selected_indices(self, selected: Tensor) -> Tensor:
        """Return -1 and indices for the library's distances from the block before, which end with zeros."""
        import torch

        none = (selected == 0) & (torch.arange(selected.shape[-1], device=selected.device) > 0)
        return selected.cumsum(-1).masked_fill(none, -1)

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        from spas_sage_attn import core

        last: list[Tensor] = []
        block_map = inspect.unwrap(core.get_block_map_meansim_fuse_quant)

        @functools.wraps(block_map)
        def noted(*args: Any, **options: Any) -> Any:
            found = block_map(*args, **options)
            last[:] = [found[0]]
            return found

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # (batch, nheads, seqlen, headdim)
            core.get_block_map_meansim_fuse_quant = noted
            out: Tensor = core.spas_sage2_attn_meansim_topk_cuda(q, k, v, topk=SHARE, scale=case.softmax_scale)
            return out

        plain = autograd_prepared(case, inputs, call, self.order, strided=True)
        return replace(
            plain,
            launch=lambda: (plain.launch(), last[0]),
            canonical=lambda raw: {**plain.canonical(raw[0]), "selected": raw[1][:, :, None]},
        )
