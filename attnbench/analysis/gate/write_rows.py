"""A judgement in words, the same in every format: a headline, the findings to list, the counts of the rest."""

from __future__ import annotations

from dataclasses import dataclass

from attnbench.analysis.gate.findings import VERDICTS, Finding, Kind
from attnbench.analysis.gate.gate import Judgement
from attnbench.analysis.gate.readings import signed, text
from attnbench.analysis.summary.tables import HELD_DOWN
from attnbench.results.case_names import count
from attnbench.results.metrics import percent

WORDS = {0: "PASS", 1: "FAIL", 3: "INCONCLUSIVE", 4: "NOT COMPARABLE"}
HEADINGS = ("verdict", "metric", "cell", "baseline", "current", "change", "interval", "margin", "rounds", "")


@dataclass(frozen=True)
class Row:
    finding: Finding
    entries: tuple[str, ...]  # one for each of HEADINGS


def headline(judgement: Judgement) -> str:
    """PASS, FAIL, ... and why, in one line."""
    word = WORDS[judgement.exit_code]
    if judgement.refused:
        return f"{word}: {count(len(judgement.refused), 'difference')} that nothing says is meant"
    counts = [f"{number} {v}" for v in VERDICTS if (number := judgement.count(v))]
    return f"{word}: {', '.join(counts)}"


def listed(judgement: Judgement, every: bool = False) -> list[Row]:
    """The findings that a reader must see, the gravest first: what changed, and what keeps the gate from passing.

    The cells that there was no time for are a note of the judgement, not a row each.
    """

    def telling(kind: Kind) -> bool:
        changed = kind.verdict not in ("unchanged", "inconclusive")
        return every or changed or (judgement.unsettles(kind) and not kind.unmeasured)

    return [row(f) for f in judgement.those(telling)]


def row(finding: Finding) -> Row:
    """Cells of a table; a cell as a whole has no figures."""
    f, d = finding, finding.decision
    figures = ("",) * 6
    if d and f.metric and f.margin is not None:
        change = signed(d.change) + (HELD_DOWN if f.held_down else "")
        interval = "unknown" if d.low is None or d.high is None else f"{signed(d.low)} to {signed(d.high)}"
        rounds = "+".join(map(str, f.rounds))
        figures = (text(f.metric, f.baseline), text(f.metric, f.current), change, interval, percent(f.margin), rounds)
    return Row(f, (f.verdict, f.metric or "", f.name, *figures, f.reason))


def sentence(finding: Finding) -> str:
    """One finding in a line: latency +6% (5.1% to 7%, margin 3%), 1.2 ms -> 1.27 ms; or missing: no record of it."""
    return figures(finding) if finding.decision else f"{finding.verdict}: {finding.reason}"


def figures(finding: Finding) -> str:
    """The same without the verdict."""
    if not finding.decision:
        return ": ".join(filter(None, (finding.metric, finding.reason)))
    entries = dict(zip(HEADINGS, row(finding).entries, strict=True))
    said = f"{finding.metric} {entries['change']} ({entries['interval']}, margin {entries['margin']}), "
    said += f"{entries['baseline']} -> {entries['current']}"
    return said + (f"; {finding.reason}" if finding.reason else "")


def rest(judgement: Judgement) -> str:
    """Of what `listed` leaves out; empty where it leaves out nothing."""
    left = judgement.count("unchanged")
    undecided = {
        kind.metric: number
        for kind, number in judgement.counts.items()
        if kind.verdict == "inconclusive" and kind.metric and not judgement.unsettles(kind)
    }
    parts = []
    if left:
        parts.append(f"{count(left, 'result')} shown to lie within the margin")
    if undecided:
        names = ", ".join(sorted(undecided))
        parts.append(f"{sum(undecided.values())} of {names} inconclusive, which does not count here")
    return "; ".join(parts)
