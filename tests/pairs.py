"""Choose few combinations that contain each pair of values of two axes, instead of the whole grid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from heapq import heapify, heapreplace
from itertools import combinations, product
from operator import or_
from typing import Any, TypeVar

import pytest

K = TypeVar("K")


def cover(held: Mapping[K, int], cost: Callable[[K], float] = lambda _: 1.0) -> list[K]:
    """Return few and cheap keys of `held`, in their order, whose values together have all bits of all values."""
    keys, chosen = [*held], set()
    left = reduce(or_, held.values(), 0)
    best = [(-held[key].bit_count() / cost(key), place) for place, key in enumerate(keys)]
    heapify(best)
    while left:  # the gain of a key only falls, so few keys must be evaluated again to find the best
        key = keys[best[0][1]]
        now = (-(held[key] & left).bit_count() / cost(key), best[0][1])
        if now == best[0]:
            chosen.add(key)
            left &= ~held[key]
        heapreplace(best, now)
    return [key for key in held if key in chosen]


def pairs(**axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Return a mark that parametrizes a test by few combinations that contain all pairs of values of its axes."""
    values = [[*of_axis] for of_axis in axes.values()]
    bits: dict[Any, int] = {}  # the bit of each pair of places
    held = {
        places: sum(1 << bits.setdefault(pair, len(bits)) for pair in combinations(enumerate(places), 2))
        for places in product(*(range(len(of_axis)) for of_axis in values))
    }
    rows = [[values[axis][place] for axis, place in enumerate(places)] for places in cover(held)]
    return pytest.mark.parametrize(tuple(axes), rows)
