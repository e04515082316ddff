"""The noise of a cell between rounds, from its few rounds and from what all cells say of noise together.

Five rounds a side know a cell's variance with 8 degrees of freedom only, two rounds with 2. The cells of one metric
are alike enough to help: their variances are taken as draws from

    sigma^2 ~ d0 s0^2 / chi2(d0)

(a scaled inverse chi-squared distribution), d0 and s0^2 are fitted to the variances s^2 that were seen, each with its
d degrees of freedom, and each cell gets the mean of its own and the common variance,

    (d0 s0^2 + d s^2) / (d0 + d)    with d0 + d degrees of freedom,

with which its t statistic is again Student's. Cells that differ much in noise give a small d0, and then count for
themselves; cells that are alike give a large one. Smyth, "Linear Models and Empirical Bayes Methods for Assessing
Differential Expression in Microarray Experiments", Statistical Applications in Genetics and Molecular Biology 3(1),
2004, sections 3 and 6.2 (limma).

With one round a side no cell has a variance. What stands in for it is how differently the cells changed: the normal
spread (1.4826 times the median absolute deviation) of their log ratios, with 3 degrees of freedom because cells differ
in noise. On an H200, 307 cells of two runs spread by 0.21 %, and the worst of 307 draws from this distribution would be
near 1.8 %; it was 2.1 % (docs/gate.md). Real changes widen it, so it errs on the safe side, but a disturbance that hits
one cell alone cannot be told from a change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnbench.core import stats

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from attnbench.results.arrays import Floats

MIN_CELLS = 20  # fewer say too little of their common noise
MAX_FREEDOM = 50.0  # of the prior: more is a claim that no so small a sample supports
STAND_IN_FREEDOM = 3.0
TIE = 1e-20  # variances of logarithms below are rounding, not noise


@dataclass(frozen=True)
class Prior:
    """What the cells say together of the variance of one round's logarithm."""

    variance: float = 0.0
    freedom: float = 0.0  # 0: they say nothing


def prior(variances: ArrayLike, freedoms: ArrayLike) -> Prior:
    """Fitted to the variances seen, each with its degrees of freedom, by the moments of their logarithms.

    Variances that are 0 (values that tie) have no logarithm and are left out: without them the fit is the larger, the
    safe side. Where they are the rule the metric has no noise, or a coarse clock, and the cells say nothing.
    """
    import numpy as np
    from scipy import special  # type: ignore[import-untyped]

    variances, freedoms = np.asarray(variances, float), np.asarray(freedoms, float)
    usable = (freedoms > 0) & (variances > TIE)
    if usable.sum() < max(MIN_CELLS, (freedoms > 0).sum() / 2):
        return Prior()
    halves = freedoms[usable] / 2
    logs = np.log(variances[usable]) - special.digamma(halves) + np.log(halves)
    mean = float(logs.mean())
    excess = float(logs.var(ddof=1) - special.polygamma(1, halves).mean())
    half = min(_inverse_trigamma(excess) if excess > 0 else math.inf, MAX_FREEDOM / 2)
    return Prior(math.exp(mean + float(special.digamma(half)) - math.log(half)), 2 * half)


def stand_in(changes: Sequence[float], weights: Sequence[float]) -> Prior:
    """For cells of one round a side: log ratios, and for each 1 / n + 1 / m of its rounds."""
    if len(changes) < MIN_CELLS:
        return Prior()
    middle = stats.median(changes)
    spread = 1.4826 * stats.median([abs(c - middle) / math.sqrt(w) for c, w in zip(changes, weights, strict=True)])
    return Prior(spread**2, STAND_IN_FREEDOM) if spread**2 > TIE else Prior()


def moderated(variance: Floats, freedom: Floats, known: Prior) -> tuple[Floats, Floats]:
    """(variances, degrees of freedom) of cells, each one's own joined with the common; 0 where there is neither."""
    import numpy as np

    total = known.freedom + freedom
    joined = known.freedom * known.variance + freedom * variance
    return np.divide(joined, total, out=np.zeros_like(total), where=total > 0), total


def _inverse_trigamma(value: float) -> float:
    """x > 0 with trigamma(x) = value, by Newton's method on 1 / trigamma, which is convex and nearly linear (Smyth)."""
    from scipy import special

    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(special.polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(special.polygamma(2, x))
        x += step
        if -step / x < 1e-8:
            break
    return x
