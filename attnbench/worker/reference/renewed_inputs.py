"""New inputs in place of the old ones, where a launch reads them: its results must follow.

Half of the headdim's columns, drawn for each tensor, change their sign. That is exact in any dtype, keeps
the distribution, makes all scores and sums others than they were, needs to know of a copy's layout only that headdim
comes last, and doing it again undoes it. It goes past autograd's version counter, so a timed backward keeps its graph;
what its forward saved belongs to the old q, k and v, so of a backward alone dout is renewed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnbench.core.backend import Inputs, Prepared
from attnbench.core.case import Case

if TYPE_CHECKING:
    from torch import Tensor

NAMES = ("q", "k", "v", "dout")


class InputRenewal:
    """Of what one prepared launch reads."""

    def __init__(self, case: Case, given: Inputs, prepared: Prepared) -> None:
        names = NAMES if case.has_forward else ("dout",)
        read = {name: prepared.reads.get(name, getattr(given, name)) for name in names}
        self._places: dict[str, Tensor] = {name: t for name, t in read.items() if t is not None}
        self._turn = 0
        self._renewed = False

    def renew(self) -> None:
        """Values that no launch has seen yet."""
        self.restore()
        self._turn += 1
        self._flip(self._places)
        self._renewed = True

    def restore(self) -> None:
        """The values as they were at first."""
        if self._renewed:
            self._flip(self._places)
        self._renewed = False

    def apply_to(self, made: Inputs) -> Inputs:
        """What the launch reads now, given the values as they were at first; these are written over."""
        if self._renewed:
            self._flip({name: getattr(made, name) for name in self._places})
        return made

    def _flip(self, tensors: dict[str, Tensor]) -> None:
        for name, t in tensors.items():
            signs = _signs(t.shape[-1], 1000 * self._turn + NAMES.index(name), t)
            if t.dtype.itemsize == 1:  # torch multiplies no fp8
                t.data.copy_((t.data.float() * signs).to(t.dtype))
            else:
                t.data.mul_(signs.to(t.dtype))


def _signs(n: int, seed: int, like: Tensor) -> Tensor:
    """n times 1 or -1 in float32, half of them -1."""
    import torch

    signs = torch.ones(n)
    signs[torch.randperm(n, generator=torch.Generator().manual_seed(seed))[: (n + 1) // 2]] = -1.0
    return signs.to(like.device)
