"""The noise of a cell between rounds, its own variance moderated by the common variance, and between runs.

The gate's tests and the uncertainty of a figure (uncertainty.py) use it.

Five rounds a side give a cell's variance only 8 degrees of freedom, two rounds give 2. The cells of one metric are
alike enough to share information: their variances are taken as draws from

    sigma^2 ~ d0 s0^2 / chi2(d0)

(a scaled inverse chi-squared distribution). d0 and s0^2 are fitted to the observed variances s^2, each with its d
degrees of freedom, and each cell gets the mean of its own and the common variance,

    (d0 s0^2 + d s^2) / (d0 + d)    with d0 + d degrees of freedom,

with which its t statistic again has Student's distribution. Where cells differ much in noise, d0 is small, and each
cell counts for itself; where they are alike, d0 is large. Smyth, "Linear Models and Empirical Bayes Methods for
Assessing Differential Expression in Microarray Experiments", Statistical Applications in Genetics and Molecular Biology
3(1), 2004, sections 3 and 6.2 (limma).

With one round a side no cell has a variance. The spread of the cells' changes takes its place: the normal spread
(1.4826 times the median absolute deviation) of their log ratios, with 3 degrees of freedom because cells differ in
noise; or, if larger, the spread at which a tenth of Student's distribution lies as far out as a tenth of the cells. For
two runs on an H200, 90 % of 307 cells are then within their intervals. Real changes widen the spread, so it errs on the
safe side, but a disturbance of one cell alone cannot be distinguished from a change of that cell.

**Between runs** a cell may be off by an amount that all rounds of a run share (another layout of memory, another day),
so that rounds do not show it. The scatter of the changes does, where at least a third of the cells did not change, or
changed alike: the shortest interval that holds a third of the changes is 2 x 0.4307 standard deviations long, and does
not depend on the others (as with half of them: Rousseeuw and Leroy, "A robust scale estimator based on the shortest
half", Statistica Neerlandica 42(2), 1988). The part of this scatter above the errors of these changes is between runs.
It makes cells slower and faster alike; so it is limited to the scatter of changes in the other direction, by their 16 %
quantile (one standard deviation), and is 0 where cells only got slower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from attnbench.core import stats

if TYPE_CHECKING:
    import numpy
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[numpy.float64]

MIN_CELLS = 20  # least number of cells to which a common variance is fitted
MAX_FREEDOM = 50.0  # most degrees of freedom of the prior: samples of this size support no more
SPREAD_FREEDOM = 3.0  # degrees of freedom of prior_from_changes
MIN_SCATTER = 10  # least number of cells whose changes show the difference of runs
SHORTEST = 1.2  # the shortest interval's relative bias times the root of the number of cells (simulated)
CELL_FREEDOM = 0.28  # degrees of freedom of between_runs for each cell (simulated)
TIE = 1e-20  # a variance of logarithms below this is rounding, not noise


@dataclass(frozen=True)
class Prior:
    """The common variance of one round's logarithm in the cells of a metric, with its degrees of freedom.

    0 degrees of freedom mean that nothing is known.
    """

    variance: float = 0.0
    freedom: float = 0.0


def prior_from_variances(variances: ArrayLike, freedoms: ArrayLike, most: float = MAX_FREEDOM) -> Prior:
    """Fit the prior to the cells' variances, each with its degrees of freedom, by the moments of their logarithms.

    It has at most `most` degrees of freedom.

    Variances of 0 (values that tie) have no logarithm and are left out, which makes the fit larger: the safe side.
    Where they are the majority, the metric has no noise, or a coarse clock, and the prior is empty.
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
    half = min(_inverse_trigamma(excess) if excess > 0 else math.inf, most / 2)
    return Prior(math.exp(mean + float(special.digamma(half)) - math.log(half)), 2 * half)


def prior_from_changes(changes: Sequence[float], weights: Sequence[float]) -> Prior:
    """Return the prior of cells with one round a side, from the spread of their log ratios.

    `weights` are 1 / n + 1 / m for each cell, with n and m rounds on its two sides.
    """
    if len(changes) < MIN_CELLS:
        return Prior()
    from scipy import special

    middle = stats.median(changes)
    sizes = [abs(c - middle) / math.sqrt(w) for c, w in zip(changes, weights, strict=True)]
    beyond = float(special.stdtrit(SPREAD_FREEDOM, 0.95))
    spread = max(1.4826 * stats.median(sizes), stats.percentile(sizes, 90) / beyond)
    return Prior(spread**2, SPREAD_FREEDOM) if spread**2 > TIE else Prior()


def between_runs(changes: Floats, variances: Floats) -> tuple[float, float]:
    """Return the variance between two runs beyond the variance of rounds, for slower cells and for faster cells.

    `changes` are logarithms, one per cell; `variances` are the variances of these changes from rounds.
    """
    import numpy as np
    from scipy import special

    cells = len(changes)
    if cells < MIN_SCATTER:
        return 0.0, 0.0
    ordered, third = np.sort(changes), -(-cells // 3)
    lengths = ordered[third:] - ordered[: cells - third]
    first = int(lengths.argmin())
    inside = (changes >= ordered[first]) & (changes <= ordered[first + third])
    expected = float(np.median(variances[inside]))
    of_normal = 2 * float(special.ndtri((1 + third / cells) / 2)) * (1 - SHORTEST / math.sqrt(cells))
    deviation = float(lengths[first]) / of_normal
    low, high = np.quantile(changes, (0.16, 0.84))
    slower, faster = (max(0.0, min(deviation, float(seen))) ** 2 for seen in (-low, high))
    return max(0.0, slower - expected), max(0.0, faster - expected)


N = TypeVar("N", float, "Floats")


def moderated(variance: N, freedom: N, prior: Prior) -> tuple[N, N]:
    """Return a cell's variance joined with the prior, and its degrees of freedom; 0 where nothing is known.

    The first two arguments may be arrays with an entry for each cell.
    """
    total = prior.freedom + freedom
    return (prior.freedom * prior.variance + freedom * variance) / (total + (total == 0)), total


def _inverse_trigamma(value: float) -> float:
    """Return x > 0 with trigamma(x) = value, by Newton's method on 1 / trigamma, which is convex and nearly linear
    (Smyth 2004, appendix)."""
    from scipy import special

    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(special.polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(special.polygamma(2, x))
        x += step
        if -step / x < 1e-8:
            break
    return x
