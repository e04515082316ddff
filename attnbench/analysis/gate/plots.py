"""A plot of the rounds of each metric that changed or is not decided, for the page of a gate or an A/B."""

from __future__ import annotations

from collections.abc import Sequence

from attnbench.analysis.gate.verdicts import Finding, signed
from attnbench.render.document import Dot, Plot, Section
from attnbench.results.metrics import METRICS

MOST = 24  # plots of a page
ROOM = 0.05  # of the height, above and below the values
MIDDLE = 0.5  # of the axis: the baseline is on the left of this, the current run on the right


def rounds_section(findings: Sequence[Finding]) -> tuple[Section, ...]:
    """Return the part of a page that shows the rounds of findings, the first MOST of those that have a change."""
    shown = [f for f in findings if f.decision and f.metric and f.verdict != "unchanged" and all(f.values)]
    if not shown:
        return ()
    more = f" (the first {MOST} of {len(shown)})" if len(shown) > MOST else ""
    return (Section("rounds", f"Rounds of changed and open cells{more}", tuple(map(_plot, shown[:MOST]))),)


def _plot(finding: Finding) -> Plot:
    """Return the values of the rounds of both sides, the typical value of each as a line."""
    assert finding.metric
    assert finding.decision
    show = METRICS[finding.metric].format
    every = [value for side in finding.values for value in side]
    low, high = min(every), max(every)
    room = ROOM * (high - low) or ROOM * abs(high) or 1.0

    def at(value: float) -> float:
        return (value - low + room) / (high - low + 2 * room)

    dots, levels = [], []
    typical = (finding.baseline, finding.current)
    for group, (name, values, level) in enumerate(zip(("baseline", "current"), finding.values, typical, strict=True)):
        start = group * MIDDLE
        for place, value in enumerate(values):
            x = start + MIDDLE * (place + 0.5) / len(values)
            dots.append(Dot(x, at(value), group=group, tip=f"{name}: {show(value)}"))
        if level is not None:
            levels.append((start, start + MIDDLE, at(level)))
    title = f"{finding.word}: {finding.metric} of {finding.name}, {signed(finding.decision.change)}"
    ends = ((at(low), show(low)), (at(high), show(high))) if high > low else ((at(low), show(low)),)
    return Plot(title, tuple(dots), tuple(levels), ((0.25, "baseline"), (0.75, "current run")), ends)
