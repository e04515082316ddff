"""A judgement in words, the same in every format: a headline, the findings to list, the counts of the rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from attnbench.gate.gate import VERDICTS, Finding, Judgement
from attnbench.gate.readings import signed, text
from attnbench.metrics import percent
from attnbench.report.tables import HELD_DOWN
from attnbench.report.words import count

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
    found = Counter(f.verdict for f in judgement.findings)
    counts = [f"{found[v]} {v}" for v in VERDICTS if found[v]]
    return f"{word}: {', '.join(counts)}"


def listed(judgement: Judgement, every: bool = False) -> list[Row]:
    """The findings that a reader must see, the gravest first: what changed, and what keeps the gate from passing.

    The cells that there was no time for are a note of the judgement, not a row each.
    """
    return [row(f) for f in judgement.findings if every or _telling(judgement, f)]


def _telling(judgement: Judgement, finding: Finding) -> bool:
    changed = finding.verdict not in ("unchanged", "inconclusive")
    return changed or (judgement.unsettles(finding) and not finding.unmeasured)


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
    left = [f for f in judgement.findings if f.verdict == "unchanged"]
    undecided = [
        f for f in judgement.findings if f.verdict == "inconclusive" and f.metric and not judgement.unsettles(f)
    ]
    parts = []
    if left:
        parts.append(f"{count(len(left), 'result')} shown to lie within the margin")
    if undecided:
        names = ", ".join(sorted({f.metric for f in undecided if f.metric}))
        parts.append(f"{len(undecided)} of {names} inconclusive, which does not count here")
    return "; ".join(parts)
