"""The metrics of all cells that have figures in both runs, decided together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from attnbench.analysis.gate import decide, looks, rounds
from attnbench.analysis.gate.decide import Decision
from attnbench.analysis.gate.findings import Finding, Kind, name
from attnbench.analysis.gate.margins import RULES, Margins
from attnbench.analysis.gate.readings import Readings, Side, alike, readings
from attnbench.analysis.gate.rounds import AllRounds
from attnbench.results import case_names
from attnbench.results.cells import Cell
from attnbench.results.made import Made

if TYPE_CHECKING:
    from attnbench.results.arrays import Floats, Ints


@dataclass(frozen=True, eq=False)
class Measured(Made[Finding]):
    """A finding for each that was decided, by column: a Finding is made when it is asked for."""

    both: Sequence[tuple[Cell, Cell]]  # in the baseline and in the current run
    places: list[int]  # of each one's cells in `both`
    metrics: list[str]
    values: tuple[Floats, Floats]  # of its rounds, in the metric's unit, a row each
    tests: AllRounds  # the logarithms of these
    decisions: Sequence[Decision]
    seen: list[int] | None  # pairs of rounds that the decision rests on, of an A/B
    verdicts: list[decide.Verdict]
    changes: list[float]

    @property
    def kinds(self) -> list[Kind]:
        return [Kind(*each) for each in zip(self.verdicts, self.metrics, strict=True)]

    def rounds(self, i: int) -> tuple[int, int]:
        """On either side."""
        return (self.tests.n[i].item(), self.tests.m[i].item()) if self.seen is None else (self.seen[i], self.seen[i])

    @cached_property
    def held_down(self) -> list[bool]:
        """Whether a limit kept the clock below its best on either side, where that makes the figure."""
        of_cells = [old.held_down or new.held_down for old, new in self.both]
        each = zip(self.metrics, self.places, strict=True)
        return [metric == "latency" and of_cells[place] for metric, place in each]

    def __len__(self) -> int:
        return len(self.places)

    def make(self, i: int) -> Finding:
        _, cell = self.both[self.places[i]]
        decision = self.decisions[i]
        n, m = self.rounds(i)
        before, after = self.values
        return Finding(
            cell.case,
            cell.backend,
            self.metrics[i],
            decision.verdict,
            (n, m),
            (before[i, :n].tolist(), after[i, :m].tolist()),
            self.tests.margin[i].item(),
            decision,
            _settle(decision) if decision.verdict == "inconclusive" else "",
            self.held_down[i],
        )


def measured(
    both: Sequence[tuple[Cell, Cell]], metrics: Sequence[str], margins: Margins, in_turns: bool
) -> tuple[list[Finding], Measured | None]:
    """Of metrics that the current run lost, and of the others, decided together; of rounds in turns look by look."""
    import numpy as np

    missing, parts = [], []
    sides = [Side.of(cells) for cells in zip(*both, strict=True)]
    names = [name(new.backend, new.case) for _, new in both] if margins.cells else []
    for metric in metrics if both else ():
        before, after = readings(metric, *sides)
        for i in np.flatnonzero((before.counts > 0) & (after.counts == 0)).tolist():
            old, new = both[i]
            lost = len(old.ok), 0
            missing.append(Finding(new.case, new.backend, metric, "missing", lost, reason="no value any more"))
        paired = in_turns or RULES[metric].cached  # alike are the rounds of one number
        if paired:
            before, after = alike(before, after)
        some = np.flatnonzero((before.counts > 0) & (after.counts > 0))
        own = [margins.of(metric, names[i]) for i in some.tolist()] if margins.cells else margins.of(metric, "")
        margin = np.full(len(some), own)
        parts.append(_Part.of(metric, some, before, after, margin, paired))
    parts = [part for part in parts if part.places.size]
    return missing, _decided(both, parts, in_turns) if parts else None


@dataclass(frozen=True, eq=False)
class _Part:
    """One metric."""

    metric: str
    places: Ints  # of the pairs
    baseline: Floats  # values, a row a pair
    current: Floats
    tests: AllRounds

    @classmethod
    def of(cls, metric: str, some: Ints, before: Readings, after: Readings, margin: Floats, paired: bool) -> _Part:
        import numpy as np

        rule, sides = RULES[metric], (before, after)
        x, y = (side.table(side.values)[some] for side in sides)
        before_log, after_log = (side.table(_logs(side.values, rule.floor or math.ulp(0.0)))[some] for side in sides)
        hidden = (x.max(axis=1) <= rule.floor) & (y.max(axis=1) <= rule.floor)  # no noise to know
        family = np.where(hidden, "", metric if rule.noisy else "")
        n, m = (side.counts[some] for side in sides)
        tests = AllRounds(before_log, after_log, n, m, margin, family, np.full(len(some), paired))
        return cls(metric, some, x, y, tests)


def _logs(values: Floats, least: float) -> Floats:
    """By the standard library, whose last digit does not differ from processor to processor as numpy's does."""
    import numpy as np

    return np.fromiter(map(math.log, np.maximum(values, least).tolist()), float, len(values))


def _decided(both: Sequence[tuple[Cell, Cell]], parts: Sequence[_Part], in_turns: bool) -> Measured:
    places = [i for part in parts for i in part.places.tolist()]
    metrics = [part.metric for part in parts for _ in part.places]
    values = rounds.stacked([part.baseline for part in parts]), rounds.stacked([part.current for part in parts])
    tests = rounds.joined([part.tests for part in parts])
    if not in_turns:
        found = decide.decide(tests)
        return Measured(both, places, metrics, values, tests, found, None, found.verdicts, found.changes)
    turns = looks.decide_in_turns(tests)
    decisions, seen = [decision for decision, _ in turns], [pairs for _, pairs in turns]
    verdicts, changes = [d.verdict for d in decisions], [d.change for d in decisions]
    return Measured(both, places, metrics, values, tests, decisions, seen, verdicts, changes)


def _settle(decision: decide.Decision) -> str:
    if decision.noise is None:
        return "too few rounds to know its noise"
    if decision.more is None:
        return f"over {decide.MORE[-1]} more rounds a side: it lies at the margin, or is too noisy"
    return f"{case_names.count(decision.more, 'more round')} a side would settle it"
