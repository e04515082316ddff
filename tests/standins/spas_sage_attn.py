"""Stand-in for SpargeAttn 0.1.0 on Hopper: attention in int8 and e4m3 to blocks of keys."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from standins import function, modules, sageattention
from standins.attend import check_half

MAP = (
    "q, k, km=None, is_causal=False, BLKQ=128, BLKK=64, simthreshd1=0.1, cdfthreshd=0.9, topk=None, is_sparse=True, "
    "return_lut=False, attention_sink=False"
)
ATTEND = (
    "q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, smooth_k=True, simthreshd1=-0.1, "
    'cdfthreshd=None, topk=0.5, pvthreshd=50, attention_sink=False, tensor_layout="HND", output_dtype=None, '
    "return_sparsity=False"
)


def block_map(of: Any) -> tuple[Tensor, ...]:
    """Return the table of blocks (batch, nheads, query blocks, key blocks), their number, and q and k in int8.

    A row of the table has the first block, then the distances from one to the next, then zeros.
    """
    assert (of.BLKQ, of.BLKK, of.cdfthreshd, of.return_lut) == (64, 128, None, True)

    def means(t: Tensor, block: int) -> tuple[Tensor, Tensor]:
        """Return means, in the tensor's dtype, and whether the tokens of each block are like one another."""
        parts = [part.float() for part in t.split(block, dim=2)]
        cosines = [
            (units @ units.mT).mean((-2, -1)) for units in (part / part.norm(dim=-1, keepdim=True) for part in parts)
        ]
        filled = torch.tensor([part.shape[2] == block for part in parts])  # the rest of a block has no direction
        alike = (torch.stack(cosines, dim=2) > of.simthreshd1) & filled
        return torch.stack([part.mean(2) for part in parts], dim=2).to(t.dtype), alike

    (of_q, q_alike), (of_k, k_alike) = means(of.q, 64), means(of.k - of.km, 128)
    scores = (of_q @ of_k.mT * of.q.shape[-1] ** -0.5).masked_fill(~k_alike[:, :, None], -torch.inf)
    rows, blocks = (torch.arange(n) for n in scores.shape[-2:])
    visible = (blocks < (rows[:, None] + 1) * 0.5) | (not of.is_causal)
    order = scores.masked_fill(~visible, -torch.inf).softmax(-1).argsort(-1, descending=True)
    kept = torch.zeros_like(scores, dtype=torch.bool)
    kept.scatter_(-1, order[..., : max(1, int(of.topk * len(blocks)))], True)
    kept = (kept | ~k_alike[:, :, None] | ~q_alike[..., None]) & visible
    number = kept.sum(-1, dtype=torch.int32)
    at = torch.where(kept, blocks, len(blocks)).sort(-1).values
    table = at.diff(dim=-1, prepend=torch.zeros_like(at[..., :1])) * (blocks < number[..., None])
    parts = [
        (t, sageattention._int8(t.transpose(1, 2), n).transpose(1, 2)) for t, n in ((of.q, 64), (of.k - of.km, 128))
    ]
    return (table.int(), number, *itertools.chain(*parts))


def _attend(of: Any) -> Tensor:
    check_half(of.q, of.k, of.v)
    assert of.tensor_layout == "HND"
    assert of.q.shape[1] == of.k.shape[1]
    assert of.q.shape[2] >= 128, "seq_len should be not less than 128."
    assert of.q.shape[-1] in (64, 128)
    select = sys.modules["spas_sage_attn.core"].get_block_map_meansim_fuse_quant
    table, number, _, q, _, k = select(
        of.q, of.k, of.k.mean(dim=-2, keepdim=True), of.is_causal, BLKQ=64, BLKK=128, simthreshd1=of.simthreshd1,
        cdfthreshd=None, topk=of.topk, return_lut=True,
    )  # fmt: skip
    used = torch.arange(table.shape[-1]) < number[..., None]
    kept = torch.zeros(*table.shape[:-1], table.shape[-1] + 1, dtype=torch.bool)
    kept.scatter_(-1, torch.where(used, table.cumsum(-1), table.shape[-1]), True)
    q, k, v = (t.transpose(1, 2) for t in (q, k, of.v.half()))
    seen = kept[..., :-1].repeat_interleave(64, dim=2)[:, :, : q.shape[1]]
    values, scale = sageattention.columns(v, 2.25)
    out = sageattention.online(q, k, values, of.scale or q.shape[-1] ** -0.5, False, seen) * scale  # never causal
    return out.transpose(1, 2).to(of.q.dtype)


def version_0_1(select: Callable[[Any], Any] = block_map) -> dict[str, ModuleType]:
    names = {
        "spas_sage2_attn_meansim_topk_cuda": function(ATTEND, _attend),
        "get_block_map_meansim_fuse_quant": function(MAP, select),
    }
    return modules({"spas_sage_attn": {"spas_sage2_attn_meansim_topk_cuda": None}, "spas_sage_attn.core": names})
