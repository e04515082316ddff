"""Things in groups that are alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def grouped(things: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return key -> the things that have it, in their order; the keys in the order in which they come up."""
    found: dict[K, list[T]] = {}
    for thing in things:
        found.setdefault(key(thing), []).append(thing)
    return found
