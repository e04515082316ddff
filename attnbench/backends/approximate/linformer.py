"""`linformer`: softmax over projected keys (Wang et al., "Linformer", arXiv 2006.04768, equation 7).

Keys and values are multiplied by one matrix E (projected, seqlen_k), shared by all heads (the paper's "key-value
sharing"), and attention is computed over the projected ones. E is not learnt: its entries are normal, of variance 1 /
seqlen_k, so that a projected key is as large as a key. A trained model has a smaller error.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from attnbench.backends.approximate.base import KEPT, Approximate, kept_keys
from attnbench.backends.base import autograd_prepared
from attnbench.core.backend import Prepared, torch_dtype
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from attnbench.core.backend import Inputs

SEED = 2006


def projection(case: Case, device: torch.device) -> Tensor:
    """Return E, (projected, seqlen_k), in the dtype of the case."""
    return _projection(kept_keys(case), case.shape.seqlen_k, device).to(torch_dtype(case))


@lru_cache(maxsize=1)
def _projection(projected: int, seqlen_k: int, device: torch.device) -> Tensor:
    import torch

    generator = torch.Generator().manual_seed(SEED)
    e: Tensor = torch.randn(projected, seqlen_k, generator=generator) / seqlen_k**0.5
    return e.to(device)


class Linformer(Approximate):
    name = "linformer"
    order = "bhsd"
    what = f"softmax over random projections of the keys, as many as {KEPT}"

    def unsupported(self, case: Case, device: Device) -> str | None:
        if case.causal:
            return "a projected key is a sum of all keys, so that it has no causal mask"
        return super().unsupported(case, device)

    def definition(self, case: Case, q: Tensor, k: Tensor, v: Tensor, selected: Tensor | None) -> Tensor:
        import torch

        e = projection(case, k.device).to(k.dtype)
        k, v = e @ k, e @ v
        p = torch.softmax(q @ k.T * case.softmax_scale, dim=-1)
        return p @ v

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        from torch.nn.functional import scaled_dot_product_attention

        s, e = case.shape, projection(case, inputs.k.device)

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # (batch, nheads, seqlen, headdim)
            every = e.expand(*k.shape[:2], -1, -1)  # expanded, because torch would copy k and v for a 2-d factor
            rows = q.reshape(s.batch, s.nheads_k, -1, s.headdim)  # no mask, so all query heads of a key head are rows
            out = scaled_dot_product_attention(rows, every @ k, every @ v, scale=case.softmax_scale)
            return out.reshape(*q.shape[:3], s.headdim_v)

        return autograd_prepared(case, inputs, call, self.order, strided=True)
