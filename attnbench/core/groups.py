"""Groups of items with a common key, and words that collections have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def grouped(things: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return key -> the things with that key, both in the order in which they first appear."""
    found: dict[K, list[T]] = {}
    for thing in things:
        found.setdefault(key(thing), []).append(thing)
    return found


def in_common(some: Sequence[Collection[str]], every: Iterable[Collection[str]]) -> tuple[list[str], int]:
    """Return the words that all of `some` have, and how many collections of `every` have all these words.

    The words are in the order of the first of `some`. A word is left out if the number stays the same without it; the
    last words are tried first.
    """
    words = [word for word in next(iter(some), ()) if all(word in one for one in some)]
    others = [{*one} for one in every]
    alike = sum(one.issuperset(words) for one in others)
    for word in words[::-1]:
        fewer = [other for other in words if other != word]
        if sum(one.issuperset(fewer) for one in others) == alike:
            words = fewer
    return words, alike
