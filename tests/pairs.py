"""Parameters of tests that hold each pair of values of two axes, without the whole grid."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product
from typing import Any

import pytest


def pairs(**axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Return a mark that parametrizes a test by few combinations that hold all pairs of values of its axes."""
    values = [[*of_axis] for of_axis in axes.values()]
    grid = [[*enumerate(places)] for places in product(*(range(len(of_axis)) for of_axis in values))]
    missing = {pair for combination in grid for pair in combinations(combination, 2)}
    chosen = []
    while missing:
        best = max(grid, key=lambda combination: len(missing.intersection(combinations(combination, 2))))
        missing.difference_update(combinations(best, 2))
        chosen.append(best)
    return pytest.mark.parametrize(tuple(axes), [[values[axis][place] for axis, place in best] for best in chosen])
