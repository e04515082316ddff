"""The findings on all metrics of all cells that have values in both runs, decided together."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from attnbench.analysis.gate.findings import Finding, full_name
from attnbench.analysis.gate.hypothesis_tests import MORE_ROUNDS, Decision, Rounds, decide
from attnbench.analysis.gate.margins import RULES, Margins
from attnbench.analysis.gate.repeated_looks import decide_in_looks
from attnbench.analysis.gate.round_values import round_values
from attnbench.core.text import count
from attnbench.results.cells import Cell


@dataclass(frozen=True)
class _Compared:
    """One metric of a cell that has values on both sides."""

    metric: str
    baseline: Cell
    current: Cell
    values: tuple[list[float], list[float]]  # of the rounds, in the metric's unit
    margin: float
    paired: bool

    @property
    def test(self) -> Rounds:
        """The logarithms of the values. What both sides have at or below the metric's floor has no noise."""
        rule = RULES[self.metric]
        least = rule.floor or math.ulp(0.0)
        before, after = ([math.log(max(value, least)) for value in side] for side in self.values)
        hidden = all(value <= rule.floor for side in self.values for value in side)
        family = self.metric if rule.noisy and not hidden else ""
        return Rounds(before, after, self.margin, family, self.paired)

    def finding(self, decision: Decision, rounds: tuple[int, int]) -> Finding:
        """Return the finding of a decision that rests on so many rounds of either side."""
        before, after = (side[:number] for side, number in zip(self.values, rounds, strict=True))
        return Finding(
            case=self.current.case,
            backend=self.current.backend,
            metric=self.metric,
            verdict=decision.verdict,
            rounds=rounds,
            values=(before, after),
            margin=self.margin,
            decision=decision,
            reason=_remedy(decision) if decision.verdict == "inconclusive" else "",
            held_down=self.metric == "latency" and (self.baseline.held_down or self.current.held_down),
        )


def metric_findings(
    pairs: Sequence[tuple[Cell, Cell]], metrics: Collection[str], margins: Margins, in_turns: bool
) -> list[Finding]:
    """Return a finding for each metric of each pair of cells (baseline, current) that the baseline has values of.

    With `in_turns` the rounds were measured in turns: they are compared in pairs, look by look.
    """
    missing, compared = [], []
    names = [full_name(new.backend, new.case) for _, new in pairs]
    for metric in metrics:
        for name, (old, new) in zip(names, pairs, strict=True):
            before, after = round_values(metric, old, new)
            if before and not after:
                rounds = len(old.ok), 0
                missing.append(Finding(new.case, new.backend, metric, "missing", rounds, reason="no value any more"))
            paired = in_turns or RULES[metric].cached
            if paired:  # round i with round i
                before, after = ({n: side[n] for n in side if n in before and n in after} for side in (before, after))
            if before and after:
                values = [*before.values()], [*after.values()]
                compared.append(_Compared(metric, old, new, values, margins.of(metric, name), paired))
    tests = [one.test for one in compared]
    if in_turns:
        decided = [(decision, (seen, seen)) for decision, seen in decide_in_looks(tests)]
    else:
        rounds_of = [(len(test.baseline), len(test.current)) for test in tests]
        decided = [*zip(decide(tests), rounds_of, strict=True)]
    return missing + [one.finding(*decision) for one, decision in zip(compared, decided, strict=True)]


def _remedy(decision: Decision) -> str:
    """Return what would settle an inconclusive decision, or why nothing would."""
    if decision.noise is None:
        return "too few rounds to know its noise"
    if decision.more is None:
        return f"over {MORE_ROUNDS[-1]} more rounds a side: it lies at the margin, or is too noisy"
    return f"{count(decision.more, 'more round')} a side would settle it"
