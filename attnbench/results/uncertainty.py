"""The uncertainty of a latency or an energy: within a process, between processes, between cards.

An uncertainty is half a 95 % interval, relative to the figure (strictly, of its logarithm): the mean of many fresh
processes on this card lies within it. Two figures of one card differ with 95 % confidence where their distance exceeds
both uncertainties, added in quadrature (`apart`): 1.4 times either one, if they are equal.

**One round** shows the variation within one process: the interval of the median of its samples, from ranks
(core/stats.py), or, below 6 samples, Student's t on their logarithms. Where the samples have two speeds
(`_between_speeds`), the median is at the more frequent one, and another process may run at the other, so the interval
includes it. One round cannot show the differences between processes (memory layout, clocks, heat), which are four times
as large on an H200. They are in a table by device, spreads.json: the standard deviation `processes` of a latency's
logarithm between fresh processes of one card. It is measured where tests/statistics/spreads.py has run files of the
device, else an assumption, which is named. Both parts are added in quadrature; as the table's part contains the typical
variation within a process, the sum is rather too large.

**Several rounds**, each a fresh process, show these differences themselves. With their variance s^2, moderated by a
prior as in the gate (noise.py), and d degrees of freedom in all, a mean of n is known to

    t(d, 97.5 %) s / sqrt(n).

The prior is fitted to the run's own cells where there are enough, else it is the table's: FREEDOM degrees of freedom,
and a variance such that for one round, without a variance of its own, the interval is 1.96 `processes`: t(4) sqrt(1/2).
A median of more than two rounds has a larger uncertainty than their mean, by at most sqrt(pi / 2) for normal values.

**Other work on a CPU.** Where other processes left fewer cores than torch has threads while a cell was timed, the
latency may be too large by their ratio. Its logarithm is a part of the uncertainty, in one round or several. Where more
than a quarter was taken, the uncertainty is unknown: threads that wait for one another lose far more
(core/other_work.py).

**Cards.** The table also has the standard deviations between cards of one model (`Cards`), by the load of a cell. They
count where two compared figures were measured on different cards, as no number of rounds shows them.

A standard deviation of all cells, times 1.96, covers about 95 % of them even where cells differ in noise: a mixture of
normal distributions has about the same share within twice its standard deviation as a normal distribution.
tests/statistics/test_spreads.py checks this on all pairs of fresh runs in results/.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from attnbench.core import gpus, stats
from attnbench.core.formats import FAR, percent
from attnbench.core.machine import Device
from attnbench.core.text import some
from attnbench.results.noise import N, Prior, moderated

MIN_SAMPLES_INTERVAL = 6  # fewer samples have no 95 % interval of the median within their range
NORMAL = 1.96  # 97.5 % quantile of the normal distribution
MIN_SAMPLES_SPEEDS = 10
SPEED_GAP = 0.02  # difference of logarithms; the clock causes smaller gaps
FREEDOM = 4.0  # degrees of freedom of the table's prior
MEDIAN = math.sqrt(math.pi / 2)
HARDLY_KNOWN = math.log(1.5)  # half a 95 % interval from which on a latency ties with nearly any other
NONE_KNOWN = "no latency is known to better than a factor of 1.5"
LOADED_FROM, LOADED_TO = 0.3, 0.6  # shares of the datasheet's rate
STEADY = 0.005  # of a latency without pauses, whose halves differ by at most twice this (worker/measure/energy.py)

Rival = TypeVar("Rival")


class Cards(NamedTuple):
    """The differences between cards of a model, as standard deviations of a latency's logarithm (pool.py)."""

    all: float = 0.0  # common to all work of a card
    loaded: float = 0.0  # additional, common to all work under full load
    cell: float = 0.0  # of a single cell without load
    loaded_cell: float = 0.0  # of a single cell under full load

    def units(self, load: float, cells: int = 1) -> float:
        """Return the standard deviation of a card in the mean of some cells at a load from 0 to 1."""
        return math.hypot(self.all, self.loaded * load, self.of_cell(load) / math.sqrt(cells))

    def of_cell(self, load: N) -> N:
        """Return the part of a single cell in it, at a load from 0 to 1."""
        return self.cell + (self.loaded_cell - self.cell) * load


NO_CARDS = Cards()


def load(utilization: float | None) -> float:
    """Return the load, 0 to 1, of a cell that reaches a share of the datasheet's rate; 1 where the share is unknown."""
    share = 1.0 if utilization is None else (utilization - LOADED_FROM) / (LOADED_TO - LOADED_FROM)
    return min(1.0, max(0.0, share))


@dataclass(frozen=True)
class Spread:
    """The differences between processes and between cards of a device: standard deviations of a latency's logarithm."""

    device: str
    processes: float  # between processes of one card
    source: str
    measured: bool
    cards: Cards = NO_CARDS  # further, between cards of one model

    @cached_property
    def prior(self) -> Prior:
        """The variance of one round, whose root times t(FREEDOM) is NORMAL times `processes`; empty where that is 0."""
        return Prior() if not self.processes else Prior((NORMAL * self.processes / student(FREEDOM)) ** 2, FREEDOM)

    def __str__(self) -> str:
        if not self.processes:
            return f"{self.device}: {self.source}"
        how = f"{self.device}, measured" if self.measured else f"not measured on this device; {self.device}, assumed"
        return f"{how}: {self.source}"


@dataclass(frozen=True)
class Uncertainty:
    """The parts of the uncertainty of a latency: halves of 95 % intervals, relative to the latency."""

    within: float | None  # of one process's samples; None for several rounds, whose scatter contains it
    processes: float  # further, of other processes on this card
    rounds: int
    spread: Spread
    added: float = 0.0  # most by which other work on a CPU, or tracing, may have increased the median over rounds

    @property
    def total(self) -> float:
        """The uncertainty of the figure for other processes on this card."""
        return math.hypot(self.within or 0.0, self.processes, self.added)

    def __str__(self) -> str:
        if self.rounds > 1:
            return f"from {self.rounds} rounds"
        return f"between processes: {self.spread}"


def spread(device: Device) -> Spread:
    """Return the measured spread of a device, or an assumed one."""
    gpu = gpus.find(device.name, device.memory, device.multiprocessors)
    return MEASURED.get(gpu.name if gpu else device.name) or ASSUMED[device.kind]


def uncertainty(
    rounds: Sequence[Sequence[float]], of: Spread, prior: Prior | None = None, added: float = 0.0
) -> Uncertainty | None:
    """Return the uncertainty of a latency, the median over rounds of the medians of these samples, in seconds.

    `prior` is for several rounds, by default the table's; `added` is the part of other work on a CPU, or of tracing.
    None where the uncertainty is unknown: for a single sample, a latency of 0, or one that may be too large by any
    factor.
    """
    if added == math.inf:
        return None
    medians = [stats.median(samples) for samples in rounds if samples]
    if not medians or not all(0 < median < math.inf for median in medians):
        return None
    if len(medians) == 1:
        within = within_process(next(filter(None, rounds)))
        return None if within is None else Uncertainty(within, NORMAL * of.processes, 1, of, added)
    logs = [math.log(median) for median in medians]
    half = half_interval(stats.variance(logs) / len(logs), len(logs) - 1, 1 / len(logs), prior or of.prior)
    return Uncertainty(None, half * (MEDIAN if len(logs) > 2 else 1.0), len(logs), of, added)


def of_sustained(rounds: Sequence[float], of: Spread, prior: Prior | None = None) -> Uncertainty | None:
    """Return the uncertainty of a latency without pauses, from the mean of each round, in seconds.

    Within the process of one round it is STEADY. The differences between processes are assumed to be the same as in
    bursts.
    """
    if len(rounds) > 1:
        return uncertainty([[seconds] for seconds in rounds], of, prior)
    return Uncertainty(STEADY, NORMAL * of.processes, 1, of) if rounds else None


def of_energy(
    rounds: Sequence[float], errors: Sequence[float], of: Spread, prior: Prior | None = None
) -> Uncertainty | None:
    """Return the uncertainty of the energy of one call, from the joules of each round.

    `errors` are the relative uncertainties of the rounds' power (worker/measure/energy.py). One round has the
    uncertainties of its time without pauses and of its power, in quadrature; the scatter of several contains both. The
    differences between processes and cards are assumed to be the same as for latencies. None for one round whose power
    has no known uncertainty.
    """
    if len(rounds) > 1:
        return uncertainty([[joules] for joules in rounds], of, prior)
    if not rounds or not errors:
        return None
    return Uncertainty(math.hypot(STEADY, errors[0]), NORMAL * of.processes, 1, of)


def of_sum(parts: Sequence[tuple[float, float | None]]) -> float | None:
    """Return the uncertainty of a sum of latencies of one card, from (latency, its uncertainty); None where unknown.

    A cause such as the clock may affect all kernels of a process alike, so the errors are added, and not in quadrature;
    the result is rather too large.
    """
    total = sum(latency for latency, _ in parts)
    halves = [latency * half for latency, half in parts if half is not None]
    return sum(halves) / total if total > 0 and len(halves) == len(parts) else None


def half_interval(variance: float, freedom: float, weight: float, prior: Prior) -> float:
    """Return half the 95 % interval of a mean or sum of logarithms over rounds.

    `variance` is the variance of the sum, with `freedom` degrees of freedom; `weight` is the variance that it would
    have if each round had variance 1. `freedom` and `weight` determine the influence of the prior.
    """
    joined, total = moderated(variance, freedom, Prior(prior.variance * weight, prior.freedom))
    return student(total) * math.sqrt(joined) if joined > 0 else 0.0


def within_process(samples: Sequence[float]) -> float | None:
    """Return half the 95 % interval of the median of samples over that median; None for one sample."""
    samples = sorted(samples)
    if len(samples) >= MIN_SAMPLES_INTERVAL:
        half = max(stats.relative_halfwidth(samples), _between_speeds(samples))
        return half if math.isfinite(half) else None
    if len(samples) < 2 or not all(0 < seconds < math.inf for seconds in samples):
        return None
    logs = [math.log(seconds) for seconds in samples]
    return half_interval(stats.variance(logs) / len(logs), len(logs) - 1, 1.0, Prior())


def _between_speeds(samples: Sequence[float]) -> float:
    """Return the distance of two speeds of samples, as a logarithm; 0 where there is one speed.

    There are two where a tenth or more of the samples lies on either side of a gap that is larger than SPEED_GAP and
    than four times the median deviation on either side. Few measured cells have two: 23 of 7,471 in results/.
    """
    least = max(2, math.ceil(0.1 * len(samples)))
    if len(samples) < MIN_SAMPLES_SPEEDS or min(samples) <= 0:
        return 0.0
    ordered = sorted(samples)
    if math.log(ordered[-least]) - math.log(ordered[least - 1]) <= SPEED_GAP:  # most cells have one speed and end here
        return 0.0
    logs = [*map(math.log, ordered)]
    gap, at = max((logs[i] - logs[i - 1], i) for i in range(least, len(logs) - least + 1))
    sides = logs[:at], logs[at:]
    middles = [stats.median(side) for side in sides]
    scatter = max(stats.median([abs(log - m) for log in side]) for side, m in zip(sides, middles, strict=True))
    return middles[1] - middles[0] if gap > max(SPEED_GAP, 4 * scatter) else 0.0


def apart(one: float, other: float, of_one: float | None, of_other: float | None, units: float = 0.0) -> bool:
    """Return whether two figures above 0 differ by more than their uncertainties, added in quadrature.

    `units` is the difference of their cards (Cell.between_cards). True where an uncertainty is unknown, so that figures
    are called alike only for a reason.
    """
    if of_one is None or of_other is None or one <= 0 or other <= 0:
        return one != other
    return abs(math.log(one / other)) > math.hypot(of_one, of_other, units)


def hardly_known(half: float | None) -> bool:
    """Return whether an uncertainty is unknown, or no better than a factor of 1.5."""
    return half is None or half >= HARDLY_KNOWN


@dataclass(frozen=True)
class Contest(Generic[Rival]):
    """The rivals that can be the best: the best of the well-known ones, and hardly known ones that may be better.

    Where none is well known, all are doubtful.
    """

    known: tuple[Rival, ...]  # the best, then those that tie with it and with each better one
    doubtful: tuple[Rival, ...]  # hardly known rivals that tie with the best of `known`, or are better

    @property
    def winners(self) -> tuple[Rival, ...]:
        """The best rival, then the rivals that tie with it; none where a hardly known one may be better."""
        return () if self.doubtful else self.known


def contest(
    rivals: Iterable[Rival],
    figure: Callable[[Rival], float | None],
    half: Callable[[Rival], float | None],
    units: Callable[[Rival, Rival], float],
    *,
    higher: bool = False,
) -> Contest[Rival]:
    """Return which rivals have the least figure, or the highest.

    `half` returns the uncertainty of a figure, `units` the uncertainty from two rivals' cards, 0 for one card. A hardly
    known rival is left out only where it is worse than the best by more than their uncertainties explain. A rival of
    unknown uncertainty may be the best, whatever its figure.
    """
    sign = -1.0 if higher else 1.0
    found = [(sign * (figure(one) or 0.0), one) for one in rivals]
    sure = [(value, one) for value, one in found if not hardly_known(half(one))]
    unsure = [(value, one, half(one)) for value, one in found if hardly_known(half(one))]
    if not sure:
        return Contest((), tuple(one for _, one, _ in unsure))
    least, first = min(sure, key=lambda pair: pair[0])

    def ties(value: float, one: Rival, other_value: float = least, other: Rival = first) -> bool:
        return not apart(abs(value), abs(other_value), half(one), half(other), units(one, other))

    alike = (
        one
        for value, one in sure
        if one is not first and all(ties(value, one, *better) for better in sure if better[0] < value)
    )
    may_win = (one for value, one, wide in unsure if value < least or wide is None or ties(value, one))
    return Contest((first, *alike), tuple(may_win))


def doubt(
    contests: Sequence[Contest[Rival]], name: Callable[[Rival], str], half: Callable[[Rival], float | None]
) -> str:
    """Return why comparisons of latencies have no winner; "" where all have one."""
    without = [one for one in contests if not one.winners]
    doubtful = [rival for one in without if one.known for rival in one.doubtful]
    said = [NONE_KNOWN] if any(not one.known for one in without) else []
    if names := list(dict.fromkeys(map(name, doubtful))):
        halves = [half(one) for one in doubtful]
        they, only = ("it is", "only") if len(names) == 1 else ("they are", "at worst")
        most = math.inf if None in halves else max(filter(None, halves))
        how = "hardly known" if most > FAR else f"known to ±{percent(most)} {only}"
        said.append(f"{some(names)} may be faster, since {they} {how}")
    return ", or ".join(said)


@lru_cache(maxsize=256)
def student(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t; FREEDOM's is a constant, so that a report need not load scipy."""
    if freedom == FREEDOM:
        return 2.7764451051977987
    from scipy import special  # type: ignore[import-untyped]

    return float(special.stdtrit(freedom, 0.975))


def _read(file: Path) -> tuple[Mapping[str, Spread], Mapping[str, Spread]]:
    table = json.loads(file.read_text(encoding="utf-8"))
    measured = {entry["device"]: _entry(entry, measured=True) for entry in table["measured"]}
    return measured, {kind: _entry(entry, measured=False) for kind, entry in table["assumed"].items()}


def _entry(entry: Mapping[str, Any], measured: bool) -> Spread:
    return Spread(**{**entry, "cards": Cards(**entry["cards"])}, measured=measured)


MEASURED, ASSUMED = _read(Path(__file__).with_name("spreads.json"))
