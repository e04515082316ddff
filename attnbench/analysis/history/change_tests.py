"""Tests whether cells of a unit changed: by two tests, and a cell has changed where both say so.

docs/history.md has the idea. Both look for the description that leaves the least squared error of a cell's logarithms:
a step at any run, a stretch of runs at another level, or a line over the runs. A level lasts for LEAST runs or longer.

**Runs in another order.** The runs are put in random order, all cells of the unit and all metrics together, since cells
share the state of a run. A cell must be described better than the best described cell of each order, in all but
FALSE_ALARM of these orders (Westfall and Young, "Resampling-Based Multiple Testing", 1993, their maxT; with stretches
as in Olshen et al., "Circular binary segmentation", Biostatistics 5(4), 2004). That holds whatever the noise.

**Runs that resemble the run before.** A step must also be more likely than noise of which each run keeps the share rho
of the error of the last one (AR(1)). Both are fitted by least squares for each rho up to a limit, whose greatest
likelihoods are compared. The critical ratio is the largest of simulated series with rho up to that limit, for
FALSE_ALARM over all cells (Bonferroni). The limit is the autocorrelation of the median cell, corrected for what a short
series hides (Kendall, "Note on bias in the estimation of autocorrelation", Biometrika 41, 1954), plus its standard
error. Where the median of the cells itself passes both tests (then rho may be up to MOST), its change is taken out
before the limit is found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from attnbench.results.noise import Floats

Bools = NDArray[np.bool_]

LEAST = 3  # runs of a level
FALSE_ALARM = 0.01  # probability that a history without changes shows one, in any of its cells
MIN_RUNS = 10  # fewer runs have too few orders: a step is seen by chance in more than FALSE_ALARM
EDGES = 40  # places at which a stretch of runs may begin or end, at most
MOST = 0.9  # the largest autocorrelation that is considered
_STEP = 0.1  # between the autocorrelations that are tried
_SERIES = 4000  # number of simulated series for each autocorrelation
_TAIL = 0.01  # share of the simulated series from which the critical value is extrapolated
_ORDERS = 999
_AT_ONCE = 50  # orders, so that the memory does not grow with their number


@dataclass(frozen=True)
class Outcome:
    """The results of the tests on the cells of a unit, in one metric."""

    changed: Bools  # which cells changed, by both tests
    alike: Bools  # the order of the runs matters, but likeness to the run before may explain it
    correlation: float  # autocorrelation of the median cell, without a change that all cells share
    kept: Floats  # rho of each cell beside its best description
    detectable: float  # step in the middle that 95 % of cells show, in standard deviations; inf: no step


def judged(metrics: Sequence[Floats], least: Sequence[float], groups: int = 1) -> list[Outcome]:
    """Return the outcome in each metric, from logarithms: an array (cells, runs) for each, of the same runs.

    `least`: for each metric, the least noise of a run. `groups`: the number of groups of cells in the history, which
    share its rate of false alarms.
    """
    runs = metrics[0].shape[1]
    level = FALSE_ALARM / groups
    tried = _models(runs)
    rows = [of - np.median(of, axis=1, keepdims=True) for of in metrics]
    rows = [np.vstack([of, np.median(of, axis=0)]) for of in rows]  # the last row is the median of the cells
    floors = [runs * noise**2 for noise in least]
    varying = sum(int((tried[0].errors(of)[0] > floor).sum()) for of, floor in zip(rows, floors, strict=True))
    per_row = level / max(1, varying)
    matters = _order_matters(rows, floors, level)
    found = []
    for of, floor, by_order in zip(rows, floors, matters, strict=True):
        cells = of[:-1]
        whole = (
            len(cells) > 1 and by_order[-1] and _likelier(of[-1:], MOST, floor)[0][0] > _critical(runs, MOST, per_row)
        )
        correlation = _correlation(cells, floor)
        if whole:
            correlation = _correlation(tried[0].without(cells, of[-1]), floor, 1)
        limit = _limit(correlation, runs)
        ratios, kept = _likelier(cells, limit, floor)
        likely = ratios > _critical(runs, limit, per_row)
        seen = _detectable(runs, limit, per_row) if 2 / math.comb(runs, runs // 2) <= level else math.inf
        found.append(Outcome(by_order[:-1] & likely, by_order[:-1] & ~likely, correlation, kept, seen))
    return found


@dataclass(frozen=True)
class _Model:
    """The descriptions of a series for one rho, without the share of the last run's error that each run keeps."""

    whiten: Floats  # (runs, runs); removes that share, and the mean
    changes: Floats  # (descriptions, runs), unit vectors
    log: float  # of the determinant

    def errors(self, rows: Floats) -> tuple[Floats, Floats]:
        """Return the squared errors of series (..., runs) without a change, and with the best change."""
        left = rows @ self.whiten.T
        whole = (left**2).sum(-1)
        return whole, (whole - ((left @ self.changes.T) ** 2).max(-1)).clip(0)

    def without(self, rows: Floats, like: Floats) -> Floats:
        """Return series without the change that describes the series `like` best."""
        left = rows @ self.whiten.T
        change = self.changes[((like @ self.whiten.T @ self.changes.T) ** 2).argmax()]
        cleaned: Floats = left - (left @ change)[:, None] * change
        return cleaned


@lru_cache(8)
def _models(runs: int) -> tuple[_Model, ...]:
    """Return the models of so many runs, of each rho from 0 to MOST."""
    at, stride = np.arange(runs), math.ceil(runs / EDGES)
    shapes = [at >= start for start in range(LEAST, runs - LEAST + 1)]
    edges = range(LEAST, runs - LEAST + 1, stride)
    shapes += [(at >= start) & (at < end) for start in edges for end in edges if end - start >= LEAST]
    changes = np.array([*shapes, at], float)
    found = []
    for rho in np.arange(0, MOST + _STEP / 2, _STEP):
        whiten = np.eye(runs) - rho * np.eye(runs, k=-1)
        whiten[0, 0] = math.sqrt(1 - rho**2)
        mean = whiten.sum(axis=1) / np.linalg.norm(whiten.sum(axis=1))
        centred = (np.eye(runs) - np.outer(mean, mean)) @ whiten
        directions = changes @ centred.T
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        found.append(_Model(centred, directions, math.log(1 - rho**2)))
    return tuple(found)


def _order_matters(metrics: Sequence[Floats], floors: Sequence[float], level: float) -> list[Bools]:
    """Return for each series of each metric whether the order of the runs is another than chance explains."""

    def ratios(rows: Floats, floor: float) -> Floats:
        whole, left = model.errors(rows)
        return (whole + floor) / (left + floor)

    runs = metrics[0].shape[1]
    model = _models(runs)[0]
    seen = [ratios(rows, floor) for rows, floor in zip(metrics, floors, strict=True)]
    varying = [rows[model.errors(rows)[0] > floor] for rows, floor in zip(metrics, floors, strict=True)]
    better = [np.ones(len(rows)) for rows in metrics]  # number of orders that are as good, the measured order included
    number = max(_ORDERS, math.ceil(10 / level))
    random = np.random.default_rng(0)
    for done in range(0, number, _AT_ONCE):
        orders = random.random((min(_AT_ONCE, number - done), runs)).argsort(axis=1)
        best = np.zeros(len(orders))
        for rows, floor in zip(varying, floors, strict=True):
            best = np.maximum(best, ratios(rows[:, orders], floor).max(axis=0, initial=1.0))
        for counted, own in zip(better, seen, strict=True):
            counted += (best >= own[:, None] * (1 - 1e-9)).sum(axis=1)
        if min(counted.min() for counted in better) > level * (number + 1):
            break  # no further orders can change the outcome
    return [counted <= level * (number + 1) for counted in better]


def _likelier(rows: Floats, limit: float, floor: float) -> tuple[Floats, Floats]:
    """Return how much likelier a change is than no change, with rho up to `limit`, and the rho of the change.

    The first is twice the logarithm of the ratio of the likelihoods.
    """
    runs = rows.shape[-1]
    none, changed = [], []
    for model in _up_to(limit, runs):
        whole, left = model.errors(rows)
        none.append(runs * np.log(whole + floor) - model.log)
        changed.append(runs * np.log(left + floor) - model.log)
    return np.min(none, axis=0) - np.min(changed, axis=0), _STEP * np.argmin(changed, axis=0)


def _up_to(limit: float, runs: int) -> Iterator[_Model]:
    for number, model in enumerate(_models(runs)):
        if number * _STEP <= limit + _STEP / 2:
            yield model


def _correlation(rows: Floats, floor: float, changes: int = 0) -> float:
    """Return the autocorrelation of the median series, corrected for its length and the changes taken from it."""
    runs = rows.shape[-1]
    centred = rows - rows.mean(axis=1, keepdims=True)
    squares = (centred**2).sum(axis=1)
    some = squares > floor
    if not some.any():
        return 0.0
    own = (centred[some, 1:] * centred[some, :-1]).sum(axis=1) / squares[some]
    return float(np.median((own + (1 + changes) / runs) / (1 - 3 / runs)))


def _limit(correlation: float, runs: int) -> float:
    """Return the upper limit of the autocorrelation, at most MOST, in steps of _STEP.

    It is the estimate, 0 where that is negative, plus one standard error.
    """
    known = min(max(correlation, 0.0), MOST)
    return round(min(known + math.sqrt((1 - known**2) / runs), MOST) / _STEP) * _STEP


def _critical(runs: int, limit: float, level: float) -> float:
    """Return the ratio that a share `level` of series without a change exceeds."""
    return _simulated(runs, limit) + 2 * runs / (runs - 2) * math.log(_TAIL / level)


@lru_cache(32)
def _simulated(runs: int, limit: float) -> float:
    """Return the ratio that a share _TAIL of series exceeds.

    For normal values the share above it falls off as Student's t.
    """

    def of(rho: float) -> float:
        return float(np.quantile(_likelier(_noise(runs, rho), limit, 0.0)[0], 1 - _TAIL))

    return max(of(rho) for rho in {0.0, limit / 2, limit})


def _noise(runs: int, rho: float, number: int = _SERIES) -> Floats:
    """Return series of noise of which each run keeps a share rho of the error of the last one."""
    drawn = np.random.default_rng(0).normal(size=(number, runs))
    for run in range(1, runs):
        drawn[:, run] = rho * drawn[:, run - 1] + math.sqrt(1 - rho**2) * drawn[:, run]
    return drawn


@lru_cache(32)
def _detectable(runs: int, limit: float, level: float) -> float:
    """Return the step in the middle of the runs that 95 % of series show, in standard deviations of a run."""
    noise, critical = _noise(runs, 0.0, 200), _critical(runs, limit, level)
    for size in np.geomspace(1, 100, 60):
        stepped = noise + size * (np.arange(runs) >= runs // 2)
        if (_likelier(stepped, limit, 0.0)[0] > critical).mean() >= 0.95:
            return float(size)
    return math.inf
