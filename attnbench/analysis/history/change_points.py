"""Finds where the level of a series changes, by how much, and how sure the place is.

change_tests.py decides beforehand whether the series changed at all.

**The search** is ruptures': PELT (Killick, Fearnhead and Eckley, "Optimal detection of changepoints with a linear
computational cost", JASA 107, 2012) finds the steps that lower the squared error of the logarithms most, each step
costing a penalty. A level lasts for LEAST runs or longer: a value that the next run does not repeat is no change.

**The noise** is between runs, not rounds: half the variance of the differences between successive runs, from their
median absolute deviation, so that steps and a creep do not count as noise. A short series has few differences, so its
variance is moderated (results/noise.py) by the variance of the median cell of the unit, which is at least the runs'
own uncertainty (results/uncertainty.py). Where each run keeps a share rho of the error of the run before, means vary as
if the noise were sqrt(1 + rho) / (1 - rho) times as large. For the search, a value that is further than three standard
deviations from the median of the seven runs around it is cut to that distance (Hampel's filter), so that one bad run is
not two steps. Levels are medians of the measured values.

**The penalty** is the square of Student's t, at FALSE_ALARM over all places of a step in the cell (Bonferroni).

**The place** is the run from which on the level after a step fits better than the level before. All places that fit
nearly as well (SURE) may be the place: the change is between the run before the first of them and the last. Fewer than
LEAST runs at the end are not reported as a level, as they may be bad runs. They are reported as a possible new level
where they are further off than any run of the last level, and beyond Student's t at FALSE_ALARM over all runs of all
cells.

**A creep** is a series that a straight line over the runs describes better than steps, by the Bayesian information
criterion (a step costs two parameters, a line one), and that ends where the steps do. It is the line of Theil and Sen,
from medians of slopes, and no error counts as more than three standard deviations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from scipy import special  # type: ignore[import-untyped]

from attnbench.analysis.history.change_tests import FALSE_ALARM, LEAST, MIN_RUNS
from attnbench.core import stats
from attnbench.core.errors import UserError
from attnbench.results.noise import Prior, moderated
from attnbench.results.uncertainty import FREEDOM, MEDIAN, NORMAL

if TYPE_CHECKING:
    from attnbench.results.noise import Floats

LEAST_NOISE = 1e-4  # relative: a clock's resolution, and all that a simulated device has
SURE = 2 * math.log(2 / 0.01)  # of squared errors in units of the noise: 99 % of places are within it
_FREEDOM = 0.25  # degrees of freedom of the noise a difference: a median deviation of dependent values tells little
_NEAR = 7  # runs, for the median around a run
_FAR = 3.0  # standard deviations


@dataclass(frozen=True)
class Change:
    """A change of level, relative to the level before it."""

    at: int  # the likeliest first run after it
    first: int  # the earliest run that may be the first after it
    last: int  # the latest run that may be the first after it
    change: float


@dataclass(frozen=True)
class Pending:
    """Runs at the end that may have begun a level: too few for a verdict."""

    at: int
    change: float  # relative to the last level


@dataclass(frozen=True)
class Levels:
    """The levels of a series with the changes between them, or its creep."""

    runs: int
    starts: tuple[int, ...]  # of the levels: 0, then the runs of `changes`
    levels: tuple[float, ...]  # in the unit of the metric
    changes: tuple[Change, ...]
    deviation: float  # the standard deviation of a run, a logarithm
    quantile: float  # half the 95 % interval of a level of one run, in units of `deviation`
    creep: float | None  # relative change from run to run, where a line describes the series better than steps
    pending: Pending | None

    def half(self, before: int, after: int) -> float:
        """Return half the 95 % interval between two levels, by their numbers; a logarithm."""
        lengths = [end - start for start, end in pairwise((*self.starts, self.runs))]
        return self.quantile * self.deviation * math.sqrt(1 / lengths[before] + 1 / lengths[after])

    def total(self, since: int = 0) -> float:
        """Return the change from the level of a run to the last level, or over that part of the creep."""
        if self.creep is not None:
            return float((1 + self.creep) ** (self.runs - 1 - since)) - 1
        return self.levels[-1] / self.levels[self.level_of(since)] - 1

    def came_back(self, since: int = 0) -> bool:
        """Return whether it changed since a run, and its last level is not shown to differ from the level then."""
        level = self.level_of(since)
        if self.creep is not None or level == len(self.levels) - 1:
            return False
        return abs(math.log1p(self.total(since))) <= self.half(level, -1)

    def level_of(self, run: int) -> int:
        """Return the number of the level to which a run belongs."""
        return max(i for i, start in enumerate(self.starts) if start <= run)


def levels(
    values: Sequence[float],
    prior: Prior,
    cells: int,
    *,
    changed: bool = True,
    kept: float = 0.0,
    least: float = LEAST_NOISE,
) -> Levels | None:
    """Return the levels of a series of MIN_RUNS runs or more, one of `cells` in a history; None for a shorter series.

    `prior`: the prior of the noise, from the cells of its unit; `least`: the least noise of a run; `kept`: the rho of
    change_tests.py. A series that has not `changed` has one level. Raises UserError without ruptures.
    """
    if len(values) < MIN_RUNS:
        return None
    variance, freedom = moderated(own_variance(values), _FREEDOM * (len(values) - 1), prior)
    noise = max(math.sqrt(variance * (1 + kept)) / (1 - kept), least)
    scaled = np.log(values) / noise
    critical, of_all = (
        float(-special.stdtrit(freedom, FALSE_ALARM / (2 * number * len(scaled)))) for number in (1, cells)
    )
    steps = _found(scaled, critical) if changed else []
    creep = _creep(scaled, [0, *steps])
    starts, places = ([0, *steps], [(step, step) for step in steps]) if creep else _settled(scaled, steps)
    middles = _middles(scaled, starts)
    quantile = float(-special.stdtrit(freedom, 0.025)) * MEDIAN
    start, slope = creep or (middles[-1], 0.0)
    described = start + slope * np.arange(len(scaled), dtype=float)
    changes = [
        Change(start, *place, stats.expm1(noise * (after - before)))
        for start, place, (before, after) in zip(starts[1:], places, pairwise(middles), strict=True)
    ]
    return Levels(
        len(scaled),
        tuple(starts),
        tuple(stats.exp(noise * middle) for middle in middles),
        tuple(changes),
        noise,
        quantile,
        None if creep is None else stats.expm1(slope * noise),
        _pending(scaled, described, starts[-1] if creep is None else 0, of_all, noise),
    )


def prior_of(cells: Sequence[Sequence[float]], halves: Sequence[float | None]) -> Prior:
    """Return the prior of the noise of a unit's cells: the variance of the median cell, from the values of each cell.

    `halves` are the uncertainties of the runs' figures: half the 95 % interval, relative.
    """
    known = [half for half in halves if half]
    least = (stats.median(known) / NORMAL) ** 2 if known else 0.0
    own = [own_variance(seconds) for seconds in cells if len(seconds) >= MIN_RUNS]
    return Prior(max(least, stats.median(own) if own else 0.0), FREEDOM)


def own_variance(seconds: Sequence[float]) -> float:
    """Return the variance of one run's logarithm, from the differences between successive runs."""
    differences = [math.log(after / before) for before, after in pairwise(seconds)]
    middle = stats.median(differences)
    return (1.4826 * stats.median([abs(difference - middle) for difference in differences])) ** 2 / 2


def _found(scaled: Floats, critical: float) -> list[int]:
    """Return the runs at which PELT has steps. Raises UserError without ruptures."""
    try:
        import ruptures
    except ImportError as error:
        raise UserError(f"history needs ruptures ({error}): pip install ruptures") from None
    near = [stats.median(scaled[max(0, i - _NEAR // 2) : i + _NEAR // 2 + 1].tolist()) for i in range(len(scaled))]
    cut = np.clip(scaled, np.subtract(near, _FAR), np.add(near, _FAR))
    # the linear kernel's cost is the squared error; this PELT is compiled, so it keeps long series in milliseconds
    ends = ruptures.KernelCPD(kernel="linear", min_size=LEAST).fit(cut[:, None]).predict(pen=critical**2)
    return [int(end) for end in ends[:-1]]


def _settled(scaled: Floats, steps: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the levels' starts and the earliest and latest place of each step, of steps that were found.

    A step moves to where its levels fit best. A step that leaves a level of fewer than LEAST runs is dropped.
    """
    starts, places = [0, *steps], [(step, step) for step in steps]
    for number in range(len(steps), 0, -1):  # from the last step: where it is dropped, its runs join the level before
        before, after = starts[number - 1], (*starts, len(scaled))[number + 1]
        at, first, last = _place(scaled, before, starts[number], after)
        if at - before < LEAST or after - at < LEAST:
            del starts[number], places[number - 1]
        else:
            starts[number], places[number - 1] = at, (first, last)
    return starts, places


def _place(scaled: Floats, before: int, step: int, after: int) -> tuple[int, int, int]:
    """Return where the step between two runs fits best, and the earliest and the latest place that it may have."""
    low, high = _middles(scaled[before:after], [0, step - before])
    own = scaled[before:after]
    off = [abs(own - middle) for middle in (low, high)]
    errors = [np.where(of < _FAR, of**2, _FAR * (2 * of - _FAR)) for of in off]  # Huber's: no run decides alone
    # errors with a step at each run but the first: runs before it are of the first level, others of the second
    costs = np.cumsum(errors[0])[:-1] + np.cumsum(errors[1][::-1])[::-1][1:]
    likely = np.flatnonzero(costs <= costs.min() + SURE)
    return before + 1 + int(costs.argmin()), before + 1 + int(likely[0]), before + 1 + int(likely[-1])


def _middles(scaled: Floats, starts: Sequence[int]) -> list[float]:
    return [float(np.median(scaled[start:end])) for start, end in pairwise((*starts, len(scaled)))]


def _pending(scaled: Floats, described: Floats, start: int, critical: float, noise: float) -> Pending | None:
    """Return the longest end of fewer than LEAST runs that are further off, on one side, than any before them.

    They must begin with a jump, larger than any other by more than noise explains; a drift has no such jump.
    """
    off = scaled - described
    jumps = abs(np.diff(scaled))
    for number in range(LEAST - 1, 0, -1):
        ends, others = off[-number:], off[start:-number]
        one_side = (ends > 0).all() or (ends < 0).all()
        jump, other = jumps[-number], float(jumps[start : len(jumps) - number].max(initial=0.0))
        if one_side and abs(ends).min() > max(critical, float(abs(others).max())) and jump > other + _FAR:
            return Pending(len(scaled) - number, stats.expm1(noise * float(ends.mean())))
    return None


def _error(of: Floats) -> float:
    """Return the sum of squared errors, in units of the noise."""
    return float((np.clip(of, -_FAR, _FAR) ** 2).sum())


def _creep(scaled: Floats, starts: Sequence[int]) -> tuple[float, float] | None:
    """Return the line that describes a series with steps better: its start and slope a run, in units of the noise."""
    if len(starts) < 2:
        return None
    from scipy import stats as distributions  # half a second, for few histories

    runs, middles = np.arange(len(scaled)), _middles(scaled, starts)
    slope, start, *_ = distributions.theilslopes(scaled, runs)
    steps = np.repeat(middles, np.diff([*starts, len(scaled)]))
    price = math.log(len(scaled))
    better = _error(scaled - start - slope * runs) + price < _error(scaled - steps) + 2 * (len(starts) - 1) * price
    same_way = slope * (middles[-1] - middles[0]) > 0
    return (float(start), float(slope)) if better and same_way else None
