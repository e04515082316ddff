"""A bisection as a document: the commit that made a cell slower, the probability of that, and the A/Bs."""

from __future__ import annotations

from typing import Any

from attnbench.analysis.bisect.run_bisect import Outcome
from attnbench.analysis.bisect.search import Step
from attnbench.analysis.gate.hypothesis_tests import FDR
from attnbench.analysis.gate.verdicts import interval, signed
from attnbench.analysis.report.machine_summary import machines
from attnbench.core.documents import with_addresses
from attnbench.core.formats import percent
from attnbench.core.sizes import format_duration
from attnbench.core.text import capitalized, count
from attnbench.render.document import Column, Document, Entry, Reason, Span, Style, Table, Verdict
from attnbench.results.cells import cells
from attnbench.results.disturbed import doubt
from attnbench.run.commits import Commit

STYLES: dict[str, Style] = {"slow": "bad", "not slow": "good", "undecided": "warning", "skipped": "quiet"}
COLUMNS = ("commit", "date", "subject", "against", "margin", "verdict", "change", "low", "high", "pairs", "reason")
MORE = with_addresses("A commit is slow where it is slower than {good} by more than {threshold}; docs/bisect.md.")


def document(outcome: Outcome) -> Document:
    """Return the document of a bisection, finished or not."""
    runs = [step.run for step in outcome.every if step.run]
    rows = [_row(step) for step in outcome.every]
    said, verdict = _told(outcome)
    answer = (*doubt(runs), *said)
    good = outcome.commits[0].short
    return Document(
        command="bisect",
        title=f"Bisection of {_cell(outcome)}",
        answer=answer,
        machines=tuple(machines(cells(runs[:1]))),
        blocks=(_table(outcome),) if rows else (),
        reasons=tuple(Reason(step.verdict, step.commit.short, step.reason) for step in outcome.every if step.reason),
        notes=((Span(MORE.format(good=good, threshold=signed(outcome.threshold)[1:]), "quiet"),),)
        if outcome.threshold
        else (),
        verdict=verdict,
        data=_data(outcome, answer, rows),
        rows=rows,
        columns=COLUMNS,
        exit_code=outcome.exit_code,
    )


def _cell(outcome: Outcome) -> str:
    named = (step.finding.name for step in outcome.every if step.finding)
    return next(named, outcome.request.cell)


def _change(step: Step | None) -> str:
    """Return the change of an A/B with its interval: "+3.1% (+2.9% to +3.3%)"."""
    assert step
    assert step.decision
    return f"{signed(step.decision.change)} ({interval(step.decision)})"


def _told(outcome: Outcome) -> tuple[list[str], Verdict]:
    """Return the answer of a bisection in sentences, and its verdict."""
    whole, last, ended = outcome.whole, outcome.last, outcome.ended
    good, bad = outcome.commits[0].short, outcome.commits[-1].short
    margin = percent(outcome.request.margin)
    unknown = Verdict(f"UNDECIDED: it is not known whether BAD is slower than GOOD by more than {margin}", "warning")
    if whole is None:
        return [f"Nothing is known yet: {good} and {bad} were not compared."], unknown
    if whole.decision is None:
        said = f"{bad} cannot be compared with {good}: {whole.reason}."
        return [said], Verdict(f"NOT COMPARED: {whole.reason}", "bad")
    if whole.verdict == "not slow":
        said = f"There is nothing to find: {bad} is not slower than {good} by {margin}: {_change(whole)}."
        return [said], Verdict(f"NOTHING TO FIND: BAD is not slower than GOOD by {margin}", "warning")
    if whole.verdict == "undecided":
        said = f"It is not decided whether {bad} is slower than {good} by more than {margin}: {_change(whole)}."
        return [f"{said} A longer --time-limit or another --margin may decide it."], unknown
    slower = f"{_cell(outcome)}: {bad} is slower than {good} by {_change(whole)}."
    before, after = outcome.commits[outcome.low].short, outcome.commits[outcome.high]
    left = Verdict(f"UNDECIDED: the commit is {_which(outcome)}", "warning")
    if outcome.confirmed:
        many = outcome.high - outcome.low
        who = after.title if outcome.found else f"{_which(outcome)}, or {'both' if many == 2 else 'several'} together"
        made = f"{capitalized(who, [after.short])} made it slower by {_change(last)} against {before}"
        if outcome.found and last and last.decision:
            sure = f"{signed(last.decision.change)}, with a probability of at least {_probability(outcome):.0%}"
            left = Verdict(f"FOUND: {after.short}, {sure}", "good")
        return [slower, f"{made}, the last that is not slow.", _how_sure(outcome)], left
    if ended:
        limit = format_duration(outcome.request.time_limit)
        how = f"The time limit of {limit} was up" if ended == "time" else "Interrupted"
        return [slower, f"{how}: the commit is {_which(outcome)}."], left
    if last is None or last.decision is None:
        return [slower, f"The commit is {_which(outcome)}: {last.reason if last else 'all others were skipped'}."], left
    why = "the slowdown is spread over several commits, or one of the A/Bs is wrong"
    if last.verdict == "undecided":
        why = f"their A/B did not decide whether that is more than {signed(last.margin)[1:]}; a longer --time-limit may"
    said = f"{after.title} is the first that is slow, but against {before}, the last that is not, it is {_change(last)}"
    shared = "UNDECIDED: no one commit is shown to hold half of the slowdown"
    return [slower, f"{said}: {why}."], Verdict(shared, "warning")


def _which(outcome: Outcome) -> str:
    """Return the commits of which one is the answer: "one of 3 commits, 1a2b3c4d5e6f to 6f5e4d3c2b1a"."""
    first, last = outcome.commits[outcome.low + 1], outcome.commits[outcome.high]
    if first == last:
        return first.title
    return f"one of {count(outcome.high - outcome.low, 'commit')}, {first.short} to {last.short}"


def _how_sure(outcome: Outcome) -> str:
    assert outcome.threshold
    many = sum(step.decision is not None for step in outcome.every)
    return (
        f"That it is by more than {signed(outcome.threshold)[1:]} is right with a probability of at least "
        f"{_probability(outcome):.0%}, whatever the search did; all {count(many, 'A/B')} are right at "
        f"once with at least {_all_right(outcome):.0%} (Bonferroni)."
    )


def _probability(outcome: Outcome) -> float:
    """Return the least probability that the answer is right: the last A/B alone decides it."""
    assert outcome.last
    return 1 - FDR * outcome.last.attempts


def _all_right(outcome: Outcome) -> float:
    """Return the least probability that no A/B is wrong."""
    return max(0.0, 1 - sum(step.error for step in outcome.every))


def _table(outcome: Outcome) -> Table:
    """Return a row for each commit that was tried, in their order."""
    place = {commit: i for i, commit in enumerate(outcome.commits)}
    against_good = [step for step in (outcome.whole, *outcome.steps) if step]
    columns = (
        Column("", "right"),
        Column("commit", wrap=False),
        Column("date", wrap=False, optional=2),
        Column("verdict", wrap=False),
        Column("change", wrap=False),
        Column("pairs", "right", optional=1),
        Column("subject"),
    )
    rows = (_entries(place, step) for step in sorted(against_good, key=lambda step: place[step.commit]))
    title = f"Commits that were tried, against {outcome.commits[0].short}"
    return Table("commits", columns, tuple(rows), title=title, labels=2)


def _entries(place: dict[Commit, int], step: Step) -> tuple[Entry, ...]:
    commit = step.commit
    change, pairs = (_change(step), str(step.finding.rounds[1])) if step.finding and step.decision else ("", "")
    verdict = Span(step.verdict, STYLES[step.verdict])
    return f"{place[commit]}", commit.short, commit.date[:10], verdict, change, pairs, commit.subject


def _row(step: Step) -> dict[str, Any]:
    decision = step.decision
    commit, against = step.commit, step.against
    change = (decision.change, decision.low, decision.high) if decision else (None, None, None)
    pairs = step.finding.rounds[1] if step.finding else None
    values = (commit.id, commit.date, commit.subject, against.id, step.margin, step.verdict)
    return dict(zip(COLUMNS, (*values, *change, pairs, step.reason), strict=True))


def _data(outcome: Outcome, answer: tuple[str, ...], rows: list[dict[str, Any]]) -> dict[str, Any]:
    after = outcome.commits[outcome.high]
    return {
        "answer": answer,
        "cell": _cell(outcome),
        "metric": outcome.request.metric,
        "found": after.id if outcome.found else None,
        "left": [commit.id for commit in outcome.commits[outcome.low + 1 : outcome.high + 1]],
        "threshold": outcome.threshold,
        "probability": _probability(outcome) if outcome.confirmed else None,
        "all_right": _all_right(outcome),
        "ended": outcome.ended,
        "steps": rows,
    }
