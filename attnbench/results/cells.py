"""A cell: one case on one backend of one device, all its rounds. The unit that every report works on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter
from typing import Literal

from attnbench.core import stats
from attnbench.core.case import Case
from attnbench.core.flops import Convention
from attnbench.core.record import STATUSES, Record, Run, Status
from attnbench.results import batch, case_names, derive
from attnbench.results.columns import Columns
from attnbench.results.sheet import Sheet

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


@dataclass(frozen=True, eq=False, slots=True)
class Cell:
    case: Case
    backend: str
    rows: tuple[int, ...]  # places of its records among the run's, one per round
    status: Status  # of the cell as a whole: wrong or wrong-kernel if any round was, else ok if any round was
    place: int  # among its sheet's cells
    sheet: Sheet = field(repr=False)  # of its run: what all its cells share

    @property
    def key(self) -> Key:
        return self.case, self.backend

    @property
    def device(self) -> str:
        """Its label."""
        return self.sheet.device

    @property
    def run(self) -> Run:
        return self.sheet.run

    @property
    def columns(self) -> Columns:
        """Of the run's records."""
        return self.sheet.columns

    @property
    def records(self) -> tuple[Record, ...]:
        """One per round. Made here, so what asks every cell of many had better ask the columns."""
        return tuple(self.columns[i] for i in self.rows)

    @property
    def rates(self) -> derive.Context:
        """What the run says of its machine."""
        return self.sheet.rates(self.case.dtype)

    @property
    def ok(self) -> list[int]:
        """The rows of the rounds that were measured."""
        statuses = self.columns.statuses
        return [i for i in self.rows if statuses[i] == "ok"]

    @property
    def spans(self) -> bool:
        """As the sheet has it; so are these."""
        return self.place in self.sheet.spans

    @property
    def compared(self) -> bool:
        return self.place in self.sheet.compared

    @property
    def held_down(self) -> bool:
        return self.place in self.sheet.held_down

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

    def context(self, number: int, convention: Convention = "exact") -> derive.Context:
        """Eager of that round, so that a clock that drifted between rounds cancels; else of all rounds."""
        rates, eager = self.sheet.rates(self.case.dtype, convention), self.sheet.eager.get(self.case)
        if not eager:
            return rates
        seconds = eager.get(number)
        return replace(rates, eager=stats.median([*eager.values()]) if seconds is None else seconds)

    def value(self, metric: str, convention: Convention = "exact") -> float | None:
        """The median over the rounds' values, derived once; None unless the cell is ok."""
        return self.sheet.values(metric, convention)[self.place] if self.status == "ok" else None


def cells(runs: Sequence[Run]) -> list[Cell]:
    """The cells of several runs, in the order of a report; the last record of a job wins within a run.

    Runs share a device label when their figures can stand in one table: nothing in the environment, the timer or the
    cache state differs, and they measured no cell twice. Otherwise each gets a label of its own.
    """
    sheets = [Sheet(run) for run in runs]
    several = len({case.dtype for sheet in sheets for case in sheet.cases.values()}) > 1
    found: list[Cell] = []
    for label, group in _groups(sheets):
        for sheet in group:
            sheet.device, sheet.beside, sheet.several_dtypes = label, group, several
        found += _filled(group)
    return found


def keyed(cells: Sequence[Cell], known: dict[Case, Case]) -> dict[Key, Cell]:
    """By their keys, in which equal cases of several runs, all that are `known`, are one object: look-ups are quick."""
    same: dict[int, Case] = {}
    for case in (case for sheet in _sheets(cells) for case in sheet.cases.values()):
        same[id(case)] = known.setdefault(case, case)
    return {(same[id(c.case)], c.backend): c for c in cells}


def by_sheet(cells: Iterable[Cell]) -> list[tuple[Sheet, list[Cell]]]:
    """The cells of each run: what is asked of all of them is asked once."""
    found: dict[Sheet, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.sheet, []).append(cell)
    return [*found.items()]


def having(cells: Sequence[Cell], records: Callable[[Sheet], Iterable[int]]) -> list[Cell]:
    """The cells with a record among those of their sheet."""
    found = {sheet: sheet.having(records(sheet)) for sheet in _sheets(cells)}
    return [c for c in cells if c.place in found[c.sheet]] if any(found.values()) else []


def values_of(cells: Sequence[Cell], metric: str, convention: Convention = "exact") -> list[float | None]:
    """Cell.value of each."""
    of = {sheet: sheet.values(metric, convention) for sheet in _sheets(cells)}
    return [of[c.sheet][c.place] if c.status == "ok" else None for c in cells]


def by_rates(cells: Iterable[Cell]) -> list[tuple[derive.Context, list[Cell]]]:
    """The cells of each run and dtype, and what the run says of its machine for that dtype."""
    found: dict[tuple[Sheet, str], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.sheet, cell.case.dtype), []).append(cell)
    return [(group[0].rates, group) for group in found.values()]


def _sheets(cells: Iterable[Cell]) -> list[Sheet]:
    return [*dict.fromkeys(map(attrgetter("sheet"), cells))]


def _filled(sheets: Sequence[Sheet]) -> list[Cell]:
    """The cells of all, in the order of a report; each sheet gets its own."""
    ranks = {number: case_names.case_rank(case) for sheet in sheets for number, case in sheet.cases.items()}
    order = {rank: i for i, rank in enumerate(sorted({*ranks.values()}))}
    names = sorted({name for sheet in sheets for name in sheet.columns.backends}, key=case_names.backend_rank)
    backends = {name: i for i, name in enumerate(names)}
    ranked = [
        (order[ranks[number]] * len(names) + backends[backend], sheet, number, backend, rows)
        for sheet in sheets
        for (number, backend), rows in _rows(sheet.columns).items()
    ]
    ranked.sort(key=itemgetter(0))
    found = []
    for _, sheet, number, backend, rows in ranked:
        statuses = {*map(sheet.columns.statuses.__getitem__, rows)}
        status = statuses.pop() if len(statuses) == 1 else min(statuses, key=_WEIGHT.__getitem__)
        found.append(Cell(sheet.cases[number], backend, rows, status, len(sheet.cells), sheet))
        sheet.cells.append(found[-1])
    return found


def _rows(known: Columns) -> dict[tuple[int, str], tuple[int, ...]]:
    """The places of each cell's records, in the order of the rounds, by the identity of its case and its backend."""
    found: defaultdict[tuple[int, str], dict[int, int]] = defaultdict(dict)
    keys = zip(map(id, known.cases), known.backends, strict=True)
    for place, (key, number) in enumerate(zip(keys, known.rounds, strict=True)):
        found[key][number] = place
    return {key: tuple(map(places.__getitem__, sorted(places))) for key, places in found.items()}


def _groups(sheets: Sequence[Sheet]) -> list[tuple[str, list[Sheet]]]:
    """(device label, those whose figures can stand in one table)."""
    joined: list[tuple[list[Sheet], set[Key]]] = []
    for sheet in sheets:
        keys = _keys_of(sheet) if len(sheets) > 1 else set()
        for members, taken in joined:
            if _comparable(members[0].run, sheet.run) and not keys & taken:
                members.append(sheet)
                taken |= keys
                break
        else:
            joined.append(([sheet], set(keys)))
    together = [members for members, _ in joined]
    return list(zip(_labels([members[0].run for members in together]), together, strict=True))


def _keys_of(sheet: Sheet) -> set[Key]:
    numbers = {*zip(map(id, sheet.columns.cases), sheet.columns.backends, strict=True)}
    return {(sheet.cases[number], backend) for number, backend in numbers}


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
