"""Where the level of a series changes.

**The search** is ruptures': PELT (Killick, Fearnhead and Eckley, "Optimal detection of changepoints with a linear
computational cost", JASA 107, 2012) finds the steps that lower the squared error of the logarithms most, each step
costing a penalty. A level lasts for LEAST runs or longer: what one run shows and the next does not is no change.

**The noise** is what runs differ by, not rounds: half the variance of the differences between runs that follow each
other, from their median absolute deviation, so that steps and a creep are not taken for it. That is little for a short
series, so it is moderated (results/noise.py) by that of the median cell of the unit, which is at least what the runs'
own uncertainty says (results/uncertainty.py): runs may differ as a whole, and what one unit's cells have in common
shows it. For the search a value that is further than three standard deviations from the median of the seven runs around
it is cut to that (Hampel's filter), so that one bad run is not two steps. Levels are medians of what was measured.

**The penalty** is the square of Student's t, at FALSE_ALARM over all cells and all places of a step (Bonferroni).

**A creep** is a series that a straight line over the runs describes better than steps, by the Bayesian information
criterion (a step costs two parameters, a line one). The line is that of Theil and Sen, from medians of slopes, and no
error counts as more than three standard deviations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from attnbench.core import stats
from attnbench.core.errors import UserError
from attnbench.results.noise import Prior, moderated
from attnbench.results.uncertainty import FREEDOM, MEDIAN, NORMAL

if TYPE_CHECKING:
    from attnbench.results.noise import Floats

LEAST = 3  # runs of a level
MIN_RUNS = 2 * LEAST
FALSE_ALARM = 0.01  # of a history without changes, all its cells together
LEAST_NOISE = 1e-4  # relative: a clock's resolution, and all that a simulated device has
_FREEDOM = 0.25  # degrees of freedom of the noise a difference: a median deviation of dependent values tells little
_NEAR = 7  # runs, for the median around a run
_FAR = 3.0  # standard deviations


@dataclass(frozen=True)
class Change:
    """A change of level, relative to the level before it."""

    at: int  # the first run after it
    change: float
    half: float  # half the 95 % interval of `change`


@dataclass(frozen=True)
class Levels:
    """What a series does."""

    runs: int
    starts: tuple[int, ...]  # of the levels: 0, then the runs of `changes`
    levels: tuple[float, ...]  # in seconds
    changes: tuple[Change, ...]
    half: float  # half the 95 % interval between the first level and the last, a logarithm
    creep: float | None  # by which factor less 1 it changes a run, where that describes it better than steps
    detectable: float  # the step in the middle of the runs that is found in 95 % of series

    @property
    def total(self) -> float:
        """The change from the first level to the last, or over the whole creep."""
        if self.creep is not None:
            return float((1 + self.creep) ** (self.runs - 1)) - 1
        return self.levels[-1] / self.levels[0] - 1

    @property
    def came_back(self) -> bool:
        """Whether it changed, and its last level is not shown to differ from its first."""
        return bool(self.changes) and self.creep is None and abs(math.log1p(self.total)) <= self.half


def levels(seconds: Sequence[float], prior: Prior, cells: int) -> Levels | None:
    """Return the levels of a series of MIN_RUNS runs or more, one of `cells` in a history; None of a shorter one.

    `prior` is what the noise of its unit's cells has in common. Raises UserError without ruptures.
    """
    if len(seconds) < MIN_RUNS:
        return None
    import numpy as np
    from scipy import stats as distributions  # type: ignore[import-untyped]

    try:
        import ruptures
    except ImportError as error:
        raise UserError(f"history needs ruptures ({error}): pip install 'attnbench[history]'") from None
    variance, freedom = moderated(own_variance(seconds), _FREEDOM * (len(seconds) - 1), prior)
    noise = max(math.sqrt(variance), LEAST_NOISE)
    scaled = np.log(seconds) / noise
    near = [stats.median(scaled[max(0, i - _NEAR // 2) : i + _NEAR // 2 + 1].tolist()) for i in range(len(scaled))]
    cut = np.clip(scaled, np.subtract(near, _FAR), np.add(near, _FAR))
    critical = float(distributions.t.isf(FALSE_ALARM / (2 * cells * len(scaled)), freedom))
    ends = ruptures.Pelt(model="l2", min_size=LEAST, jump=1).fit(cut[:, None]).predict(pen=critical**2)
    starts = [0, *ends[:-1]]
    parts = [scaled[start:end] for start, end in zip(starts, ends, strict=True)]
    middles = [float(np.median(part)) for part in parts]
    quantile = float(distributions.t.isf(0.025, freedom))

    def half(before: int, after: int) -> float:
        return quantile * noise * MEDIAN * math.sqrt(1 / len(parts[before]) + 1 / len(parts[after]))

    changes = [
        Change(starts[i], math.expm1(noise * (middles[i] - middles[i - 1])), half(i - 1, i))
        for i in range(1, len(parts))
    ]
    left = sum(_error(part - middle) for part, middle in zip(parts, middles, strict=True))
    creep = _creep(scaled, left, len(changes))
    return Levels(
        len(scaled),
        tuple(starts),
        tuple(math.exp(noise * middle) for middle in middles),
        tuple(changes),
        half(0, -1),
        None if creep is None else math.expm1(creep * noise),
        math.expm1((critical + 1.645) * noise * 2 / math.sqrt(len(scaled))),
    )


def prior_of(cells: Sequence[Sequence[float]], halves: Sequence[float | None]) -> Prior:
    """Return what the noise of a unit's cells has in common: that of the median cell, from the seconds of each.

    `halves` are the uncertainties of the runs' figures: half the 95 % interval, relative.
    """
    known = [half for half in halves if half]
    least = (stats.median(known) / NORMAL) ** 2 if known else 0.0
    own = [own_variance(seconds) for seconds in cells if len(seconds) >= MIN_RUNS]
    return Prior(max(least, stats.median(own) if own else 0.0), FREEDOM)


def own_variance(seconds: Sequence[float]) -> float:
    """Return the variance of one run's logarithm, from what runs that follow each other differ by."""
    differences = [math.log(after / before) for before, after in pairwise(seconds)]
    middle = stats.median(differences)
    return (1.4826 * stats.median([abs(difference - middle) for difference in differences])) ** 2 / 2


def _error(of: Floats) -> float:
    """Return the sum of squared errors, in units of the noise."""
    import numpy as np

    return float((np.clip(of, -_FAR, _FAR) ** 2).sum())


def _creep(scaled: Floats, steps_error: float, steps: int) -> float | None:
    """Return the slope of a line a run, in units of the noise, where it describes a series with steps better."""
    if not steps:
        return None
    import numpy as np
    from scipy import stats as distributions

    runs = np.arange(len(scaled))
    slope, start, *_ = distributions.theilslopes(scaled, runs)
    price = math.log(len(scaled))
    better = _error(scaled - start - slope * runs) + price < steps_error + 2 * steps * price
    return float(slope) if better else None
