"""Samples among which neighbours are equal, as NVML's readings are, in a quarter of the memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import overload


class Repeated(Sequence[float]):
    """A sequence of (value, times) pairs as the samples that they stand for."""

    __slots__ = ("_times", "_values")

    def __init__(self, runs: Sequence[tuple[float, int]]) -> None:
        """Take the pairs, each with 1 time or more."""
        self._values = array("d", [value for value, _ in runs])
        self._times = array("l", [times for _, times in runs])

    def __len__(self) -> int:
        return sum(self._times)

    def __iter__(self) -> Iterator[float]:
        return chain.from_iterable(map(repeat, self._values, self._times))

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[float]: ...
    def __getitem__(self, index: int | slice) -> float | Sequence[float]:
        return (*self,)[index]
