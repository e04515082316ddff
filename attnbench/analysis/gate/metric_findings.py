"""The findings on all metrics of all cells that have values in both runs, decided together."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from attnbench.analysis.gate.findings import Finding, full_name
from attnbench.analysis.gate.hypothesis_tests import MORE_ROUNDS, Decision, Rounds, decide
from attnbench.analysis.gate.margins import RULES, Margins
from attnbench.analysis.gate.repeated_looks import decide_in_looks
from attnbench.analysis.gate.round_values import round_values
from attnbench.core.text import count
from attnbench.results.cells import Cell


def metric_findings(
    pairs: Sequence[tuple[Cell, Cell]], metrics: Collection[str], margins: Margins, in_turns: bool
) -> list[Finding]:
    """Return a finding for each metric of each pair of cells (baseline, current) that the baseline has values of.

    With `in_turns` the rounds were measured in turns: they are compared in pairs, look by look.
    """
    missing, compared, tests = [], [], []
    for metric in metrics:
        for old, new in pairs:
            before, after = round_values(metric, old), round_values(metric, new)
            if before and not after:
                rounds = len(old.ok), 0
                missing.append(Finding(*new.key, metric, "missing", rounds, reason="no value any more"))
            paired = in_turns or RULES[metric].cached
            if paired:  # round i with round i
                before, after = ({n: side[n] for n in side if n in before and n in after} for side in (before, after))
            if before and after:
                values = [*before.values()], [*after.values()]
                margin = margins.of(metric, full_name(new.backend, new.case))
                held_down = metric == "latency" and (old.held_down or new.held_down)
                rounds = len(before), len(after)
                compared.append(Finding(*new.key, metric, "inconclusive", rounds, values, margin, held_down=held_down))
                tests.append(_test(metric, values, margin, paired))
    if not in_turns:
        return missing + [_decided(f, decision) for f, decision in zip(compared, decide(tests), strict=True)]
    return missing + [_decided(f, *seen) for f, seen in zip(compared, decide_in_looks(tests), strict=True)]


def _test(metric: str, values: tuple[list[float], list[float]], margin: float, paired: bool) -> Rounds:
    """Return the logarithms of a metric's values. What both sides have at or below its floor has no noise."""
    rule = RULES[metric]
    least = rule.floor or math.ulp(0.0)
    before, after = ([math.log(max(value, least)) for value in side] for side in values)
    hidden = all(value <= rule.floor for side in values for value in side)
    return Rounds(before, after, margin, metric if rule.noisy and not hidden else "", paired)


def _decided(finding: Finding, decision: Decision, pairs: int | None = None) -> Finding:
    """Return a finding with its decision, which rests on the first pairs of rounds of an A/B, or on all rounds."""
    before, after = (side[:pairs] for side in finding.values)
    return replace(
        finding,
        verdict=decision.verdict,
        rounds=(len(before), len(after)),
        values=(before, after),
        decision=decision,
        reason=_remedy(decision) if decision.verdict == "inconclusive" else "",
    )


def _remedy(decision: Decision) -> str:
    """Return what would settle an inconclusive decision, or why nothing would."""
    if decision.noise is None:
        return "too few rounds to know its noise"
    if decision.more is None:
        return f"over {MORE_ROUNDS[-1]} more rounds a side: it lies at the margin, or is too noisy"
    return f"{count(decision.more, 'more round')} a side would settle it"
