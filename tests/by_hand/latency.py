"""The latency of a cell, its instrument, and its uncertainty (docs/measuring.md)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import optimize, special, stats

from .device import NORMAL, Spread, spread
from .raw import Cell, Key, Record, RunFile, cells_of, middle, samples

SHORT = 100e-6  # seconds by events, below which the launch gap matters
NEGLIGIBLE = 0.8e-3  # seconds from which the launch gap does not matter
HARDLY_KNOWN = math.log(1.5)
STEADY = 0.005  # half the interval of a time without pauses: its halves differ by less than 1 %
MEDIAN = math.sqrt(math.pi / 2)  # factor of the uncertainty of a median of more than two rounds over the mean's


def timed_by_span(records: Iterable[Record]) -> set[Key]:
    """Return the cells whose latency is the span of their kernels; a case has one method in all files."""
    cases: dict[str, dict[str, list[Record]]] = {}
    for record in records:
        if record["status"] == "ok" and record.get("timer") == "events" and middle(record, "time"):
            cases.setdefault(record["case"].key, {}).setdefault(record["backend"], []).append(record)
    found = set()
    for case, of_backend in cases.items():
        fastest = {backend: min(middle(r, "time") or 0 for r in of) for backend, of in of_backend.items()}
        spanned = {backend for backend, of in of_backend.items() if all(samples(record, "span") for record in of)}
        if min(fastest.values()) < SHORT and all(b in spanned or t >= NEGLIGIBLE for b, t in fastest.items()):
            found |= {(case, backend) for backend in spanned}
    return found


def calls(record: Record, spans: Collection[Key]) -> list[float]:
    """Return the seconds of a record's calls."""
    key = record["case"].key, record["backend"]
    return samples(record, "span" if key in spans and samples(record, "span") else "time")


@dataclass(frozen=True)
class Prior:
    """A variance common to all cells, and its degrees of freedom."""

    variance: float
    freedom: float


def table_prior(of: Spread) -> Prior:
    """Return the prior for few cells, with which the interval of a single round is 1.96 standard deviations."""
    return Prior((NORMAL * of.processes / student(4)) ** 2, 4)


def fitted_prior(rounds: Iterable[Sequence[float]], of: Spread) -> Prior:
    """Return the prior of the variances between rounds, fitted from 20 cells on (Smyth 2004, section 6.2)."""
    every = [[*map(math.log, found)] for found in rounds if len(found) > 1]
    noisy = [logs for logs in every if statistics.variance(logs) > 1e-20]
    if len(noisy) < max(20, len(every) / 2):
        return table_prior(of)
    variance = np.array([statistics.variance(logs) for logs in noisy])
    half = np.array([(len(logs) - 1) / 2 for logs in noisy])
    e = np.log(variance) - special.digamma(half) + np.log(half)
    excess = float(e.var(ddof=1) - special.polygamma(1, half).mean())
    d0 = 50.0
    if excess > special.polygamma(1, 25):
        d0 = 2 * float(optimize.brentq(lambda x: special.polygamma(1, x) - excess, 1e-6, 25, xtol=1e-13))
    return Prior(math.exp(e.mean() + special.digamma(d0 / 2) - math.log(d0 / 2)), d0)


def student(freedom: float) -> float:
    return float(stats.t.ppf(0.975, freedom))


def within(found: Sequence[float]) -> float | None:
    """Return half the 95 % interval of the samples' median by ranks, relative; below 6, of their mean logarithm."""
    n = len(found)
    if n >= 6:
        below = max(k for k in range(1, n // 2 + 1) if 2 * stats.binom.cdf(k - 1, n, 0.5) <= 0.05)
        ordered = sorted(found)
        return max((ordered[-below] - ordered[below - 1]) / 2 / statistics.median(found), two_speeds(ordered))
    if n < 2:
        return None
    return student(n - 1) * math.sqrt(statistics.variance(map(math.log, found)) / n)


def two_speeds(ordered: Sequence[float]) -> float:
    """Return the logarithm of the ratio of two speeds; 0 for less than ten samples or a single speed.

    Each side of the gap has a tenth of the samples. The gap is over 2 % and over four times the median deviation of
    either side.
    """
    n = len(ordered)
    if n < 10 or ordered[0] <= 0:
        return 0.0
    each = max(2, -(-n // 10))
    split = max(range(each, n - each + 1), key=lambda i: (math.log(ordered[i] / ordered[i - 1]), i))
    slow, fast = ([math.log(one) for one in side] for side in (ordered[split:], ordered[:split]))
    deviations = [statistics.median(abs(one - statistics.median(side)) for one in side) for side in (slow, fast)]
    gap = math.log(ordered[split] / ordered[split - 1])
    return statistics.median(slow) - statistics.median(fast) if gap > max(0.02, 4 * max(deviations)) else 0.0


def of_rounds(values: Sequence[float], prior: Prior) -> float:
    """Return half the 95 % interval of the median over rounds, with the prior."""
    n, d = len(values), len(values) - 1
    variance = statistics.variance(map(math.log, values))
    joined = (prior.freedom * prior.variance + d * variance) / (prior.freedom + d)
    return student(prior.freedom + d) * math.sqrt(joined / n) * (MEDIAN if n > 2 else 1)


@dataclass(frozen=True)
class Figure:
    """The time of a cell: its value by round, and half its 95 % interval for other processes on the card."""

    rounds: Mapping[int, float]
    half: float | None
    alone: float | None  # part of the uncertainty that a single process shows; for one round only
    by_memory: bool = False
    load: float = 1.0  # 0 up to 30 % of the datasheet's rate, 1 from 60 % on, linear between

    @property
    def value(self) -> float:
        return statistics.median(self.rounds.values())

    def rate(self, amount: float) -> float:
        """Return an amount over the time: the median over its rounds."""
        return statistics.median(amount / one for one in self.rounds.values())

    @property
    def is_hardly_known(self) -> bool:
        return self.half is None or self.half >= HARDLY_KNOWN


def figure(rounds: Mapping[int, float], alone: float | None, of: Spread, prior: Prior) -> Figure | None:
    """Return a figure from its rounds; `alone` is a single process' part of the uncertainty."""
    if not rounds:
        return None
    if len(rounds) > 1:
        return Figure(rounds, of_rounds([*rounds.values()], prior), None)
    return Figure(rounds, None if alone is None else math.hypot(alone, NORMAL * of.processes), alone)


def rounds_of(cell: Cell, spans: Collection[Key]) -> dict[int, list[float]]:
    """Return round -> seconds of its calls, for measured rounds with calls."""
    return {n: found for n, record in cell.ok.items() if (found := calls(record, spans))}


def common_prior(cells: Iterable[Cell], spans: Collection[Key], of: Spread) -> Prior:
    """Return the common prior of a run's latencies between rounds."""
    each = (rounds_of(cell, spans).values() for cell in cells)
    return fitted_prior([[*map(statistics.median, rounds)] for rounds in each], of)


def latency(cell: Cell, spans: Collection[Key], of: Spread, prior: Prior) -> Figure | None:
    """Return the latency of a cell; None where it is not right or was not timed."""
    rounds = rounds_of(cell, spans)
    alone = within(next(iter(rounds.values()))) if len(rounds) == 1 else None
    medians = {n: statistics.median(found) for n, found in rounds.items()}
    found = figure(medians, alone, of, prior) if cell.status == "ok" else None
    if cell.key not in spans or not found or found.half is None:
        return found
    toll = statistics.median(traced_toll(cell.ok[n]) for n in rounds)
    return replace(found, half=math.hypot(found.half, toll), alone=found.alone and math.hypot(found.alone, toll))


def traced_toll(record: Record) -> float:
    """Return the time by which tracing lengthened the call of the span, beyond 2 % and 0.3 us."""
    traced, plain = middle(record, "span_events"), middle(record, "time")
    if not traced or not plain or record.get("host_bound"):
        return 0.0
    return traced / plain - 1 if traced > 1.02 * plain + 0.3e-6 else 0.0


def sustained(cell: Cell, of: Spread, prior: Prior) -> Figure | None:
    """Return the latency without pauses: the mean of a round."""
    means = {n: statistics.fmean(found) for n, record in cell.ok.items() if (found := samples(record, "sustained"))}
    return figure(means, STEADY, of, prior) if cell.status == "ok" else None


def fastest(rivals: Mapping[Any, tuple[float, float | None]]) -> list[Any]:
    """Return the rival with the least time, then those that tie with it, from times and uncertainties.

    None where a rival whose time is hardly known may be faster than the best well-known one.
    """
    known = {name: of for name, of in rivals.items() if of[1] is not None and of[1] < HARDLY_KNOWN}
    if not known:
        return []
    first = min(known, key=lambda name: known[name][0])
    least, half = known[first]
    for name, (seconds, of) in rivals.items():
        if name not in known and math.log(seconds / least) <= math.hypot(math.inf if of is None else of, half):
            return []
    alike = [n for n, (t, of) in known.items() if n != first and abs(math.log(t / least)) <= math.hypot(of, half)]
    return [first, *alike]


class Measured:
    """A run file with the common data of its figures."""

    def __init__(self, file: RunFile) -> None:
        self.file, self.cells, self.spread = file, cells_of(file.records), spread(file)
        self.spans = timed_by_span(file.records)
        self.approximate = {record["backend"] for record in file.records if record.get("approximation")}
        prior = common_prior(self.cells.values(), self.spans, self.spread)
        each = {key: latency(cell, self.spans, self.spread, prior) for key, cell in self.cells.items()}
        self.latency = {key: one for key, one in each.items() if one}

    def is_exact(self, key: Key) -> bool:
        """Return whether the backend of a cell computes exact attention; others are not ranked."""
        return key[1] not in self.approximate
