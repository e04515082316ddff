"""Change of a prepared launch's inputs in place, so that a launch which returns earlier results is found to be wrong.

One in 32 columns of headdim, drawn at random, changes its sign. The columns differ between tensors, as changes of the
same columns in q and k would cancel in the scores. The change is exact in any dtype, keeps the distribution, changes
all scores and sums, and is undone by a second change. It leaves most single elements as they were, so that a launch
that recognises its inputs by a few elements is found too. The only condition on a copy's layout is that headdim comes
last; a copy in several tensors has the columns of headdim one after the other. Autograd's version counter is bypassed,
so that a timed backward keeps its graph. The tensors saved by the forward of a timed backward belong to the old q, k
and v; where only the backward is timed, only dout is changed. Gates, beta and scales of keys keep their signs: the
order of their tokens and of their heads is reversed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnbench.core.backend import Inputs, Prepared
from attnbench.core.case import Case

if TYPE_CHECKING:
    from torch import Tensor

NAMES = ("q", "k", "v", "dout", "new_k", "new_v", "sink", "state", "gate", "beta", "weights", "k_scale")
REVERSED = ("gate", "beta", "k_scale")  # inputs that keep their signs: a delta rule is stable, a scale positive


@dataclass(frozen=True)
class Renewal:
    """The columns that change their sign in one renewal, drawn from a seed and the renewal's number, `count`."""

    seed: int
    count: int

    def flip(self, tensors: Mapping[str, Tensor | tuple[Tensor, ...]]) -> None:
        """Change inputs, by name, in place: signs of columns, or the order. A second call undoes the first."""
        import torch

        for name, copy in tensors.items():
            parts = parts_of(copy)
            if name in REVERSED:
                for t in parts:
                    t.data.copy_(t.data.flip(*range(1, min(3, t.dim()))))
                continue
            widths = [t.shape[-1] for t in parts]
            of_all = _signs(sum(widths), self.seed, self.count + NAMES.index(name), parts[0])
            for t, signs in zip(parts, of_all.split(widths), strict=True):
                if t.dtype.itemsize == 1:  # torch has no product for fp8
                    t.data.view(torch.uint8).bitwise_xor_((signs < 0).to(torch.uint8) << 7)
                else:
                    t.data.mul_(signs.to(t.dtype))

    @contextmanager
    def of(self, case: Case, original: Inputs) -> Iterator[Inputs]:
        """Within the block the original inputs have changed values, in the same memory; then they are restored."""
        tensors = {name: original.values[name] for name in renewed(case, original)}
        self.flip(tensors)
        try:
            yield original
        finally:
            self.flip(tensors)


class InputRenewal:
    """The changes of the tensors that one prepared launch reads: the inputs, or the copies that it names.

    The columns follow from `seed`. `now` is the current renewal, None for the original values.
    """

    def __init__(self, case: Case, given: Inputs, prepared: Prepared, seed: int) -> None:
        self._tensors = {name: prepared.reads.get(name, given.values[name]) for name in renewed(case, given)}
        # v of latent rows is a part of k: a launch that reads a copy of it must see the changes of k
        self._v_of_k = None if "v" in given.values else prepared.reads.get("v")
        self._seed = seed
        self._count = 0
        self.now: Renewal | None = None

    def renew(self) -> None:
        """Write values that no launch has read before."""
        self.restore()
        self._count += 1
        self.now = Renewal(self._seed, self._count)
        self._flip(self.now)

    def restore(self) -> None:
        """Write the original values again."""
        if self.now:
            self._flip(self.now)
        self.now = None

    def _flip(self, renewal: Renewal) -> None:
        renewal.flip(self._tensors)
        k, v = self._tensors.get("k"), self._v_of_k
        if k is not None and v is not None:  # a backend with such a copy has each in one tensor
            (whole_k,), (whole_v,) = parts_of(k), parts_of(v)
            whole_v.data.copy_(whole_k.data[..., : whole_v.shape[-1]])

    def apply_to(self, original: Inputs) -> Inputs:
        """Return the inputs that the launch reads now, written over `original`, which holds the original values."""
        if self.now:
            self.now.flip({name: original.values[name] for name in self._tensors})
        return original


def parts_of(copy: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the tensors of a copy of an input, which has its columns in one or several (`Prepared.reads`)."""
    return copy if isinstance(copy, tuple) else (copy,)


def storages_read(given: Inputs, prepared: Prepared) -> set[int]:
    """Return the addresses of the memory of the inputs, and of the copies of them that a launch reads."""
    copies = (t for copy in prepared.reads.values() for t in parts_of(copy))
    return {t.untyped_storage().data_ptr() for t in (*given.values.values(), *copies)}


def renewed(case: Case, given: Inputs) -> list[str]:
    """Return the names of the inputs of a case that are changed."""
    return [name for name in NAMES if name in given.values] if case.has_forward else ["dout"]


def _signs(n: int, seed: int, count: int, like: Tensor) -> Tensor:
    """Return n signs in float32, one in 32 of them -1, on the device of `like`, drawn from `seed` and `count`."""
    import torch

    signs, some = torch.ones(n), (n + 31) // 32
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    signs[order[count * some % n :][:some]] = -1.0
    return signs.to(like.device)
