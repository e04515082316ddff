"""How many times as fast one machine is as another, and how sure that is.

Everything here is a weighted sum of logarithms of latencies, L = sum of w log t over cells: one cell, the geometric
mean of many (all w alike), or a workload's time (w its share in it). Of the machines A and B the ratio is
exp(L_A - L_B): above 1, B is the faster.

**The interval of L**, 95 %, comes from rounds wherever a cell has several. A round is a fresh process, and all cells of
a round share its mood, so rounds and not cells are the unit of replication. With n rounds of a cell about their mean m,
round r moves L by e_r, the sum over its cells of w (log t - m) / n; of R rounds in all

    variance of L = R / (R - 1) * sum of e_r^2,    half the interval = t(R - 1, 97.5 %) * its root,

the variance of a mean of clusters (Liang and Zeger, "Longitudinal data analysis using generalized linear models",
Biometrika 73(1), 1986, with the correction for few clusters). Of one cell it is s / sqrt(n) with Student's t.

**Of samples.** A cell with one round has only its samples: the interval of their median from ranks (stats.py), below 6
samples Student's t on their logarithms, none of one sample. It knows nothing of what sets one process, run or unit
apart from another, so it is too narrow; reports say which cells have only this. Cells are independent there, and their
intervals add in quadrature.

**Two intervals make one** by the method of variance estimates recovery, which keeps their asymmetry: the lower end of
L_A - L_B lies sqrt((L_A - low_A)^2 + (high_B - L_B)^2) below. Zou and Donner, "Construction of confidence limits about
effect measures", Statistics in Medicine 27(10), 2008.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from attnbench.analysis.compare.machines import Machine
from attnbench.core import stats
from attnbench.results.cells import Key
from attnbench.results.derive import MIN_SAMPLES_INTERVAL, samples

Weights = Mapping[Key, float]
ROUNDS, SAMPLES = "rounds", "samples"


@dataclass(frozen=True)
class Ratio:
    """low and high are its 95 % interval; None where nothing is known of the noise."""

    value: float
    low: float | None
    high: float | None
    sources: tuple[str, ...]  # what the interval is from, of ROUNDS and SAMPLES
    n: int  # cells, or cases

    @property
    def even(self) -> bool:
        """Whether it cannot be told from 1."""
        return self.low is None or self.high is None or self.low <= 1 <= self.high


@dataclass(frozen=True)
class Side:
    """A weighted sum of log latencies on one machine, and how far its interval reaches below and above."""

    log: float
    below: float
    above: float
    sources: tuple[str, ...]


def ratio(reference: Machine, ours: Weights, other: Machine, theirs: Weights | None = None) -> Ratio:
    """How many times as fast `other` is as `reference`; `theirs` where other backends stand for it there."""
    if other is reference and theirs in (None, ours):
        return Ratio(1.0, 1.0, 1.0, (), len(ours))
    a, b = side(reference, ours), side(other, ours if theirs is None else theirs)
    return joined(a, b, len(ours))


def joined(a: Side, b: Side, n: int) -> Ratio:
    value = a.log - b.log
    below, above = math.hypot(a.below, b.above), math.hypot(a.above, b.below)
    known = math.isfinite(below) and math.isfinite(above)
    sources = tuple(dict.fromkeys(sorted(a.sources + b.sources)))
    low, high = (math.exp(value - below), math.exp(value + above)) if known else (None, None)
    return Ratio(math.exp(value), low, high, sources, n)


def alike(keys: Iterable[Key]) -> Weights:
    """The geometric mean's."""
    found = list(keys)
    return dict.fromkeys(found, 1 / len(found))


def latency(machine: Machine, key: Key) -> float:
    """Seconds: the geometric mean of the rounds' medians."""
    return math.exp(machine.means[key])


def side(machine: Machine, weights: Weights) -> Side:
    total, moves = 0.0, defaultdict[int, float](float)
    below, above = 0.0, 0.0  # squares, of cells with one round
    alone = False
    for key, weight in weights.items():
        logs, middle = machine.logs[key], machine.means[key]
        total += weight * middle
        if len(logs) > 1:
            share = weight / len(logs)
            for number, log in logs.items():
                moves[number] += share * (log - middle)
        else:
            alone = True
            lower, upper = of_samples(machine, key)
            below += (weight * lower) ** 2
            above += (weight * upper) ** 2
    half = 0.0
    if moves:
        count = len(moves)
        variance = count / (count - 1) * math.fsum(e * e for e in moves.values())
        half = _student(count - 1) * math.sqrt(variance)
    sources = ((ROUNDS,) if moves else ()) + ((SAMPLES,) if alone else ())
    return Side(total, math.hypot(half, math.sqrt(below)), math.hypot(half, math.sqrt(above)), sources)


def of_samples(machine: Machine, key: Key) -> tuple[float, float]:
    """How far the interval of the only round's median reaches below and above it, as logarithms."""
    cell = machine.cells[key]
    record = next(cell.columns[i] for i in cell.rows if cell.columns.rounds[i] in machine.logs[key])
    found = samples(record)
    if len(found) >= MIN_SAMPLES_INTERVAL:
        low, high = stats.median_interval(found)
        middle = stats.median(found)
        return (math.log(middle / low) if low > 0 else math.inf), math.log(high / middle)
    if len(found) < 2 or min(found) <= 0:
        return math.inf, math.inf
    logs = [math.log(t) for t in found]
    middle = math.fsum(logs) / len(logs)
    error = math.sqrt(math.fsum((v - middle) ** 2 for v in logs) / (len(logs) - 1) / len(logs))
    half = _student(len(logs) - 1) * error
    return half, half


@lru_cache(maxsize=256)
def _student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t."""
    from scipy import special  # type: ignore[import-untyped]

    return float(special.stdtrit(freedom, 0.975))
