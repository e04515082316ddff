"""Rounds in which something else disturbed many cells, which a reader is told of first (docs/gate.md).

A value lies apart where it is further from the median of its cell's rounds than half the cell's margin. If the rounds
of a run are alike, such values fall on them by chance: of k in n rounds, one round has Binomial(k, 1/n). A round that
has more, with a probability below CHANCE for all rounds of the run together (Bonferroni), was disturbed. None is left
out: a build that is slow in some of its processes would pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from scipy import special  # type: ignore[import-untyped]

from attnbench.core import stats

CHANCE = 0.001
MIN_ROUNDS = 3  # of two rounds that differ none is the disturbed one


def disturbed_rounds(cells: Sequence[Mapping[int, float]], margins: Sequence[float]) -> dict[int, int]:
    """Return round -> in how many cells it lies apart, of the disturbed rounds of one run.

    `cells`: the logarithms of one metric by round, of each cell; `margins`: of each cell, relative. Where half of the
    rounds or more would be disturbed, none is.
    """
    apart: Counter[int] = Counter()
    for values, margin in zip(cells, margins, strict=True):
        if len(values) >= MIN_ROUNDS:
            middle = stats.median([*values.values()])
            apart.update(n for n, value in values.items() if abs(value - middle) > margin / 2)
    if not apart:
        return {}
    rounds = len({n for values in cells for n in values})
    found = {
        n: number
        for n, number in sorted(apart.items())
        if special.bdtrc(number - 1, apart.total(), 1 / rounds) <= CHANCE / rounds
    }
    return found if 2 * len(found) < rounds else {}
