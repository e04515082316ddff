"""Indexers of sparse attention that are wrong in one way each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from measuring_device import Textbook
from torch import Tensor

from attnbench.core import masks
from attnbench.core.backend import Inputs, Prepared, Signature
from attnbench.core.case import Case
from attnbench.core.machine import Device

BLOCK = 16  # keys of a block of `last_block`


@dataclass(frozen=True)
class Fault:
    """One fault of the selection; without one it is right."""

    left_out: bool = False  # the key with the highest score is left out, for the one after the N-th
    twice: bool = False  # a key is chosen twice
    future: bool = False  # a key after the query is chosen, or in decoding an index beyond the last key
    too_few: bool = False  # one key fewer is chosen
    no_relu: bool = False
    forgotten_weight: bool = False  # the first head has the same weight in all queries
    forgotten_scale: bool = False  # keys in fp8 are not multiplied by their scales
    last_block: bool = False  # the last block of keys is never scored
    last_head: bool = False  # the last head is left out
    rounded: bool = False  # q and k are rounded to e4m3 before the product
    recent: bool = False  # the last N keys are chosen, whatever their scores
    stale_weights: bool = False  # the weights of the first call are used in later ones


@dataclass
class Indexer(Textbook):
    """The definition of core/indexer.py in float32, with a fault."""

    fault: Fault = Fault()
    name = "indexer"
    kinds = ("indexer",)

    def signature(self, case: Case, device: Device) -> Signature:
        return Signature(float32=True)

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        assert inputs.weights is not None
        first = inputs.weights.clone()

        def launch() -> Tensor:
            return _indices(self.fault, case, inputs, first if self.fault.stale_weights else inputs.weights)

        return Prepared(launch, lambda raw: {"indices": raw})


def _indices(fault: Fault, case: Case, inputs: Inputs, weights: Tensor) -> Tensor:
    q, k, chosen = inputs.q.float(), inputs.k.float(), masks.chosen(case.mask)
    if fault.rounded:
        q, k = (t.to(torch.float8_e4m3fn).float() for t in (q, k))
    if inputs.k_scale is not None and not fault.forgotten_scale:
        k = k * inputs.k_scale[..., None]
    if fault.forgotten_weight:
        weights = weights.clone()
        weights[..., 0] = weights.square().mean().sqrt()
    products = torch.einsum("bshd,btd->bsht", q, k)
    products = products if fault.no_relu else products.relu()
    if fault.last_head:
        products[:, :, -1] = 0
    scores = torch.einsum("bsht,bsh->bst", products, weights)
    keys = torch.arange(k.shape[1], device=k.device)
    last = keys[-q.shape[1] :, None]
    if fault.recent:
        scores = scores * 0 + keys
    scores = scores.masked_fill(keys > last, float("-inf"))
    if fault.last_block:
        scores[..., -BLOCK:] = float("-inf")
    highest, at = scores.topk(min(chosen + fault.left_out, k.shape[1]))
    at = at.masked_fill(highest == float("-inf"), -1)
    if fault.left_out:
        at = torch.where(at[..., -1:] >= 0, at[..., 1:], at[..., :-1])[..., :chosen]
    if fault.twice:
        at[..., 1] = at[..., 0]
    if fault.future:
        at[..., 0] = last[:, 0] + 1
    if fault.too_few:
        at[..., 0] = -1
    indices = at.new_full((*at.shape[:2], chosen), -1)
    indices[..., : at.shape[2]] = at
    return indices.int()


def faults() -> dict[str, Fault]:
    """Return the faults by name."""
    return {name: replace(Fault(), **{name: True}) for name in Fault.__dataclass_fields__}
