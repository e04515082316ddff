"""The inputs of a case: seeded random tensors. One case and seed give the same values in every worker of a machine."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING

from attnbench.core.backend import Inputs, torch_dtype
from attnbench.core.case import Case
from attnbench.core.layouts import find_packed, lay_out

if TYPE_CHECKING:
    from torch import Tensor


def make(case: Case, device: str, seed: int) -> Inputs:
    """Return standard normal inputs of a case on `device`; dout only where the case has a backward.

    Forward and backward of one shape and dtype get the same q, k and v, in whatever layout. Zeros would draw less power
    and run faster.
    """
    import torch

    s = case.shape
    text = json.dumps([dataclasses.asdict(s), case.dtype, seed], sort_keys=True)
    generator = torch.Generator(device).manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big"))

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=device, dtype=torch_dtype(case))

    given = Inputs(
        q=normal(s.batch, s.seqlen_q, s.nheads, s.headdim),
        k=normal(s.batch, s.seqlen_k, s.nheads_k, s.headdim),
        v=normal(s.batch, s.seqlen_k, s.nheads_k, s.headdim_v),
        dout=normal(s.batch, s.seqlen_q, s.nheads, s.headdim_v) if case.has_backward else None,
    )
    return lay_out(case.layout, given)


def clone(given: Inputs) -> Inputs:
    """Return a copy with the same values and strides in other memory."""
    copy = Inputs(*(None if t is None else t.clone() for t in (given.q, given.k, given.v, given.dout)))  # type: ignore[arg-type]
    return copy if find_packed(given) is None else lay_out("packed", copy)


def first_changed(given: Inputs, fresh: Inputs) -> str | None:
    """Return the name of the first tensor whose values differ from those in `fresh`; None where all are equal."""
    pairs = ((name, tensor, getattr(fresh, name)) for name, tensor in vars(given).items() if tensor is not None)
    return next((name for name, tensor, expected in pairs if not bool((tensor == expected).all())), None)


def find_flaw(given: Inputs) -> str | None:
    """Return why these inputs must not be timed, in one line; None where nothing is wrong.

    Looks at some ten thousand values of each tensor. Zeros and constants draw less power and run up to 13 % faster;
    results of inputs that are not finite cannot be compared with a reference.
    """
    for name, tensor in vars(given).items():
        if tensor is None:
            continue
        some = tensor.flatten()[:: max(1, tensor.numel() // 2**14)].float()
        if not bool(some.isfinite().all()):
            return f"inputs: {name} has values that are not finite"
        if some.numel() > 16 and float(some.std()) < 0.5:
            return f"inputs: {name} hardly varies (standard deviation {float(some.std()):.2g}, 1 expected)"
        if (zeros := float((some == 0).float().mean())) > 0.01:
            return f"inputs: {name} is {zeros:.0%} zeros"
    return None
