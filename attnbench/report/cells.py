"""A cell: one case on one backend of one device, all its rounds. The unit that every report works on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from attnbench import derive, metrics, stats
from attnbench.report import batch, words
from attnbench.types import STATUSES, Case, Record, Run, Status
from attnbench.work import Convention

# A wrong result or kernel outweighs a measured one; then what happened weighs more than what was not tried.
_WEIGHT: Mapping[Status, int] = {
    "wrong": 0,
    "wrong-kernel": 1,
    "ok": 2,
    "failed": 3,
    "timeout": 4,
    "oom": 5,
    "skipped": 6,
}
assert set(_WEIGHT) == set(STATUSES)

Key = tuple[Case, str]  # what names a cell among those of a device: its case and backend
CLOCK_HELD = 0.985  # of the best clock; the rest is the gauge's and the boost's own play


@dataclass(frozen=True)
class Cell:
    device: str  # label, unique among devices (or settings) that are not comparable
    case: Case
    backend: str
    records: tuple[Record, ...]  # one per round
    run: Run = field(repr=False)
    rates: derive.Context = field(default_factory=derive.Context)  # what the run says of its machine
    best_clock: float | None = None  # Hz, the highest clock_held of the run's records
    eager: Mapping[int, float] = field(default_factory=dict)  # round -> seconds of eager on the same case
    _values: dict[tuple[str, Convention], float | None] = field(default_factory=dict, init=False, repr=False)
    _contexts: dict[tuple[int, Convention], derive.Context] = field(default_factory=dict, init=False, repr=False)

    @property
    def key(self) -> Key:
        return self.case, self.backend

    @cached_property
    def status(self) -> Status:
        """Of the cell as a whole: wrong or wrong-kernel if any round was, else ok if any round was."""
        return min({r.status for r in self.records}, key=_WEIGHT.__getitem__)

    @property
    def reason(self) -> str | None:
        """Of the first round that ended with the cell's status."""
        return next(r.reason for r in self.records if r.status == self.status)

    @property
    def bound(self) -> Literal["compute", "memory"] | None:
        return derive.bound(self.case, self.rates)

    @cached_property
    def held_down(self) -> bool:
        """Whether something kept the clock below its best in a measured round.

        The exact gauge tells where there is one: well below the run's best clock, or below the device's and NVML names
        a limit. Else NVML's limits do.
        """
        return any(self._held_down(r) for r in self.records if r.status == "ok")

    def _held_down(self, record: Record) -> bool:
        held, top = metrics.value("clock_held", record), self.run.environment.clock_max_hz
        if held is None:
            return bool(record.limits)
        if self.best_clock is not None and held < CLOCK_HELD * self.best_clock:
            return True
        return bool(record.limits) and (top is None or held < CLOCK_HELD * top)

    def context(self, record: Record, convention: Convention = "exact") -> derive.Context:
        """Eager of the same round, so that a clock that drifted between rounds cancels; else of all rounds."""
        key = record.round if self.eager else 0, convention
        if (found := self._contexts.get(key)) is None:
            eager = self.eager.get(record.round)
            if eager is None and self.eager:
                eager = stats.median(list(self.eager.values()))
            found = self._contexts[key] = replace(self.rates, eager=eager, convention=convention)
        return found

    def keep(self, metric: str, value: float | None) -> None:
        """The value of a metric that needs no context, as report/batch.py computes it for many cells at once."""
        self._values[metric, "exact"] = value

    def value(self, metric: str, convention: Convention = "exact") -> float | None:
        """The median over the rounds' values, derived once; None unless the cell is ok."""
        if self.status != "ok":
            return None
        alone = isinstance(metrics.METRICS[metric].derive, derive.Once)  # needs no context
        key: tuple[str, Convention] = metric, "exact" if alone else convention
        if key not in self._values:
            if alone:
                found = [metrics.value(metric, r) for r in self.records]
            else:
                found = [metrics.value(metric, r, self.context(r, convention)) for r in self.records]
            known = [v for v in found if v is not None]
            self._values[key] = stats.median(known) if known else None
        return self._values[key]


def cells(runs: Sequence[Run]) -> list[Cell]:
    """The cells of several runs, in the order of a report; the last record of a job wins within a run.

    Runs share a device label when their figures can stand in one table: nothing in the environment, the timer or the
    cache state differs, and they measured no cell twice. Otherwise each gets a label of its own.
    """
    found: list[Cell] = []
    ranks = {case: words.case_rank(case) for run in runs for case in dict.fromkeys(r.case for r in run.records)}
    for label, group in groups(runs):
        eager: dict[Case, dict[int, float]] = {}  # shared by the cells of a case, and filled by that of eager
        members = [cell for run in group for cell in _cells_of(label, run, eager)]
        members.sort(key=lambda c: (ranks[c.case], words.backend_rank(c.backend)))
        for cell in members:
            if cell.backend == "eager" and cell.status == "ok":
                latencies = ((r.round, metrics.value("latency", r)) for r in cell.records)
                eager[cell.case].update((i, latency) for i, latency in latencies if latency is not None)
        found += members
    return found


def groups(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """(device label, runs whose figures can stand in one table)."""
    joined: list[tuple[list[Run], set[Key]]] = []
    for run in runs:
        keys = {(r.case, r.backend) for r in run.records}
        for members, taken in joined:
            if _comparable(members[0], run) and not keys & taken:
                members.append(run)
                taken |= keys
                break
        else:
            joined.append(([run], set(keys)))
    together = [members for members, _ in joined]
    return list(zip(_labels([members[0] for members in together]), together, strict=True))


def _cells_of(label: str, run: Run, eager: dict[Case, dict[int, float]]) -> Iterable[Cell]:
    latest = {(r.case, r.backend, r.round): r for r in run.records}
    rounds: dict[Key, list[Record]] = {}
    for (case, backend, _), record in latest.items():
        rounds.setdefault((case, backend), []).append(record)
    rates = derive.contexts(run, {case.dtype for case, _ in rounds})
    batch.prime(("latency", "samples", "ci", "drift", "clock_held"), latest.values())
    clocks = (metrics.value("clock_held", r) for r in latest.values())
    best = max((hz for hz in clocks if hz is not None), default=None)
    for (case, backend), records in rounds.items():
        ordered = tuple(sorted(records, key=lambda r: r.round))
        yield Cell(label, case, backend, ordered, run, rates[case.dtype], best, eager.setdefault(case, {}))


def _comparable(a: Run, b: Run) -> bool:
    same_policy = (a.policy.timer, a.policy.l2) == (b.policy.timer, b.policy.l2)
    return same_policy and not a.environment.differences(b.environment)


def _labels(runs: Sequence[Run]) -> list[str]:
    """The device names; where two are alike, with the first of torch, power limit, start or place that tells them."""
    names = [run.environment.device.name for run in runs]
    labels = list(names)
    for name in {n for n in names if names.count(n) > 1}:
        alike = [i for i, n in enumerate(names) if n == name]
        telling = (
            [f"torch {runs[i].environment.torch}" for i in alike],
            [f"{runs[i].environment.power_limit_w or 0:g} W" for i in alike],
            [f"run of {runs[i].started}" for i in alike],
            [f"run {i + 1}" for i in alike],
        )
        extras = next(extra for extra in telling if len(set(extra)) == len(alike))
        for i, extra in zip(alike, extras, strict=True):
            labels[i] = f"{name} ({extra})"
    return labels
