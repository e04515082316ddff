"""Sequences whose items are made when they are asked for: columns outside, objects inside."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TypeVar, overload

T = TypeVar("T")


class Made(Sequence[T]):
    """Equal to every sequence of equal items."""

    @abstractmethod
    def make(self, place: int) -> T:
        """The item at a place from 0 to len - 1."""

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[T, ...]: ...
    def __getitem__(self, place: int | slice) -> T | tuple[T, ...]:
        chosen = range(len(self))[place]
        return tuple(map(self.make, chosen)) if isinstance(chosen, range) else self.make(chosen)

    def __iter__(self) -> Iterator[T]:
        return map(self.make, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(operator.eq, self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))
