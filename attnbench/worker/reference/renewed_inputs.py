"""Changes the inputs of a prepared launch in place, so that a launch which returns earlier results is wrong.

One in 32 columns of headdim, drawn at random, changes its sign; other ones for each tensor, as those of q and of k
would undo each other in the scores. That is exact in any dtype, keeps the
distribution, changes all scores and sums, and is undone by doing it again. It leaves most single elements as they were,
so a launch that looks at a few of them to recognise its inputs is found too. Of a copy's layout it needs to know only
that headdim comes last. It bypasses autograd's version counter, so a timed backward keeps its graph. What the forward
of a timed backward saved belongs to the old q, k and v; so where only the backward is timed, only dout is changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnbench.core.backend import Inputs, Prepared
from attnbench.core.case import Case
from attnbench.worker.reference.row_sample import draw_seed

if TYPE_CHECKING:
    from torch import Tensor

NAMES = ("q", "k", "v", "dout", "new_k", "new_v", "sink")


class InputRenewal:
    """Changes and restores the tensors that one prepared launch reads: the inputs, or the copies that it names.

    The columns follow from `seed`, on which several ranks agree; else the operating system draws one.
    """

    def __init__(self, case: Case, given: Inputs, prepared: Prepared, seed: int | None = None) -> None:
        names = [name for name in NAMES if name in given.values] if case.has_forward else ["dout"]
        self._tensors: dict[str, Tensor] = {name: prepared.reads.get(name, given.values[name]) for name in names}
        self._seed = draw_seed() if seed is None else seed
        self._count = 0
        self._renewed = False

    def renew(self) -> None:
        """Write values that no launch has seen yet."""
        self.restore()
        self._count += 1
        self._flip(self._tensors)
        self._renewed = True

    def restore(self) -> None:
        """Write the original values again."""
        if self._renewed:
            self._flip(self._tensors)
        self._renewed = False

    def apply_to(self, original: Inputs) -> Inputs:
        """Return the inputs that the launch reads now, written over `original`, which holds the original values."""
        if self._renewed:
            self._flip({name: getattr(original, name) for name in self._tensors})
        return original

    def _flip(self, tensors: dict[str, Tensor]) -> None:
        for name, t in tensors.items():
            signs = _signs(t.shape[-1], self._seed, self._count + NAMES.index(name), t)
            if t.dtype.itemsize == 1:  # torch cannot multiply fp8
                t.data.copy_((t.data.float() * signs).to(t.dtype))
            else:
                t.data.mul_(signs.to(t.dtype))


def _signs(n: int, seed: int, count: int, like: Tensor) -> Tensor:
    """Return n values of 1 or -1 in float32, one in 32 of them -1, on the device of `like`; by `count` other ones."""
    import torch

    signs, some = torch.ones(n), (n + 31) // 32
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    signs[order[count * some % n :][:some]] = -1.0
    return signs.to(like.device)
