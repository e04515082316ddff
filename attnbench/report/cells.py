"""A cell: one case on one backend of one device, all its rounds. The unit that every report works on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Literal

from attnbench import columns, derive, metrics, stats
from attnbench.columns import Columns
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
    rows: tuple[int, ...]  # places of its records among the run's, one per round
    columns: Columns = field(repr=False)  # of the run's records
    status: Status  # of the cell as a whole: wrong or wrong-kernel if any round was, else ok if any round was
    run: Run = field(repr=False)
    rates_of: Callable[[str], derive.Context] = field(repr=False)  # what the run says of its machine, by dtype
    best_clock: float | None = None  # Hz, the highest clock_held of the run's records
    eager: Mapping[int, float] = field(default_factory=dict)  # round -> seconds of eager on the same case
    several_dtypes: bool = False  # not all cells of the report have this one's
    _values: dict[tuple[str, Convention], float | None] = field(default_factory=dict, init=False, repr=False)
    _contexts: dict[tuple[int, Convention], derive.Context] = field(default_factory=dict, init=False, repr=False)

    @property
    def key(self) -> Key:
        return self.case, self.backend

    @cached_property
    def records(self) -> tuple[Record, ...]:
        """One per round. Made here, so what asks every cell of many had better ask the columns."""
        return tuple(self.columns[i] for i in self.rows)

    @cached_property
    def _timed(self) -> tuple[Record, ...]:
        """Of the measured rounds, for metrics that derive from the latency alone; whole where that is not finite."""
        seconds, numbers = batch.values("latency", self.columns), self.columns.rounds
        return tuple(
            self.columns[i] if (t := seconds[i]) is None else derive.timed(self.case, self.backend, numbers[i], t)
            for i in self.ok
        )

    @property
    def rates(self) -> derive.Context:
        """What the run says of its machine."""
        return self.rates_of(self.case.dtype)

    @cached_property
    def ok(self) -> list[int]:
        """The rows of the rounds that were measured."""
        statuses = self.columns.statuses
        return [i for i in self.rows if statuses[i] == "ok"]

    @property
    def spans(self) -> bool:
        """Whether in a measured round the kernels' span stands in place of the events' reading."""
        found = batch.spans(self.columns)
        return bool(found) and any(i in found for i in self.ok)

    @property
    def compared(self) -> bool:
        """Whether the instruments took turns."""
        return any(self.any(self.columns.present[name]) for name in derive.TURNS)

    def any(self, few: Collection[int]) -> bool:
        """Whether one of its records is among these places."""
        return bool(few) and any(i in few for i in self.rows)

    def rounds(self, metric: str) -> dict[int, float]:
        """Round -> value, of a metric that needs no context, where there is one."""
        values, rounds = batch.values(metric, self.columns), self.columns.rounds
        return {rounds[i]: value for i in self.rows if (value := values[i]) is not None}

    @property
    def reason(self) -> str | None:
        """Of the first round that ended with the cell's status."""
        return next(self.columns.reasons.get(i) for i in self.rows if self.columns.statuses[i] == self.status)

    @property
    def bound(self) -> Literal["compute", "memory"] | None:
        return derive.bound(self.case, self.rates)

    @cached_property
    def held_down(self) -> bool:
        """Whether something kept the clock below its best in a measured round.

        The exact gauge tells where there is one: well below the run's best clock, or below the device's and NVML names
        a limit. Else NVML's limits do.
        """
        clocks = batch.values("clock_held", self.columns)
        return any(self._held_down(clocks[i], i in self.columns.limits) for i in self.ok)

    def _held_down(self, held: float | None, limited: bool) -> bool:
        top = self.run.environment.clock_max_hz
        if held is None:
            return limited
        if self.best_clock is not None and held < CLOCK_HELD * self.best_clock:
            return True
        return limited and (top is None or held < CLOCK_HELD * top)

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
        """The value of a metric that needs no context."""
        self._values[metric, "exact"] = value

    def value(self, metric: str, convention: Convention = "exact") -> float | None:
        """The median over the rounds' values, derived once; None unless the cell is ok."""
        if self.status != "ok":
            return None
        alone = isinstance(metrics.METRICS[metric].derive, derive.Once)  # needs no context
        key: tuple[str, Convention] = metric, "exact" if alone else convention
        if key not in self._values:
            if metric in batch.FORMULAS:
                found: list[float | None] = [*self.rounds(metric).values()]
            elif alone:
                found = [metrics.value(metric, r) for r in self.records]
            else:
                records = self._timed if metrics.METRICS[metric].derive in derive.OF_LATENCY else self.records
                found = [metrics.value(metric, r, self.context(r, convention)) for r in records]
            known = [v for v in found if v is not None]
            self._values[key] = stats.median(known) if known else None
        return self._values[key]


def cells(runs: Sequence[Run]) -> list[Cell]:
    """The cells of several runs, in the order of a report; the last record of a job wins within a run.

    Runs share a device label when their figures can stand in one table: nothing in the environment, the timer or the
    cache state differs, and they measured no cell twice. Otherwise each gets a label of its own.
    """
    found: list[Cell] = []
    several = len({case.dtype for run in runs for case in columns.of(run.records).cases}) > 1
    for label, group in groups(runs):
        eager: dict[Case, dict[int, float]] = {}  # shared by the cells of a case, and filled by that of eager
        members = [cell for run in group for cell in _cells_of(label, run, eager, several)]
        ranks = {case: words.case_rank(case) for case in eager}
        members.sort(key=lambda c: (ranks[c.case], words.backend_rank(c.backend)))
        for cell in members:
            if cell.backend == "eager" and cell.status == "ok":
                eager[cell.case].update(cell.rounds("latency"))
        found += members
    return found


def prime(names: Iterable[str], cells: Sequence[Cell]) -> None:
    """Has each measured cell keep its values of metrics that need no context, computed at once where they are many."""
    for known, group in by_columns([c for c in cells if c.status == "ok"]):
        if len(known) >= batch.FEW:
            for name, values in batch.of_cells(names, group):
                for cell, value in zip(group, values, strict=True):
                    cell.keep(name, value)


def by_columns(cells: Iterable[Cell]) -> list[tuple[Columns, list[Cell]]]:
    """The cells of each run, and its columns: what is asked of all of them is asked once."""
    found: dict[int, list[Cell]] = {}
    for cell in cells:
        found.setdefault(id(cell.columns), []).append(cell)
    return [(group[0].columns, group) for group in found.values()]


def each_rates(cells: Iterable[Cell]) -> Iterator[Cell]:
    """One cell for each of the `rates` that cells may have."""
    return iter({(id(c.columns), c.case.dtype): c for c in cells}.values())


def groups(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """(device label, runs whose figures can stand in one table)."""
    joined: list[tuple[list[Run], set[Key]]] = []
    for run in runs:
        keys = _keys_of(run) if len(runs) > 1 else set()
        for members, taken in joined:
            if _comparable(members[0], run) and not keys & taken:
                members.append(run)
                taken |= keys
                break
        else:
            joined.append(([run], set(keys)))
    together = [members for members, _ in joined]
    return list(zip(_labels([members[0] for members in together]), together, strict=True))


def _keys_of(run: Run) -> set[Key]:
    known = columns.of(run.records)
    return set(zip(known.cases, known.backends, strict=True))


def _cells_of(label: str, run: Run, eager: dict[Case, dict[int, float]], several: bool) -> Iterator[Cell]:
    known = columns.of(run.records)
    statuses, numbers = known.statuses, known.rounds
    rows: dict[tuple[int, str], list[int]] = {}
    for (number, backend, _), i in known.last.items():
        rows.setdefault((number, backend), []).append(i)
    cases = {id(case): case for case in known.cases}
    rates = cache(partial(_rates, run, known))
    clocks = batch.values("clock_held", known)
    best = max((hz for i in known.last.values() if (hz := clocks[i]) is not None), default=None)
    latencies = {number: eager.setdefault(case, {}) for number, case in cases.items()}
    for (number, backend), own in rows.items():
        if len(own) > 1:
            own.sort(key=numbers.__getitem__)
        case = cases[number]
        status = min({statuses[i] for i in own}, key=_WEIGHT.__getitem__)
        yield Cell(label, case, backend, tuple(own), known, status, run, rates, best, latencies[number], several)


def _rates(run: Run, known: Columns, dtype: str) -> derive.Context:
    matmuls, copies = (known.samples(name) if known.present[name] else () for name in derive.CEILINGS)
    own = [v for i, readings in matmuls if known.cases[i].dtype == dtype for v in readings]
    return derive.context(run, dtype, own, [v for _, readings in copies for v in readings])


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
