"""Samples among which neighbours are equal, as NVML's readings are, in a quarter of the memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import overload


class Repeated(Sequence[float]):
    """A sequence of (value, times) pairs as the samples that they stand for."""

    __slots__ = ("_runs",)

    def __init__(self, runs: Sequence[tuple[float, int]]) -> None:
        """Take the pairs, each with 1 time or more."""
        self._runs = array("d", chain.from_iterable(runs))  # one array: two of few numbers take more memory

    def __len__(self) -> int:
        return sum(map(int, self._runs[1::2]))

    def __iter__(self) -> Iterator[float]:
        return chain.from_iterable(map(repeat, self._runs[::2], map(int, self._runs[1::2])))

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[float]: ...
    def __getitem__(self, index: int | slice) -> float | Sequence[float]:
        return (*self,)[index]
