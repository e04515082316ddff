"""Judges each cell as a whole: wrong, missing, newly failing, newly working, or to be compared."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Literal

from attnbench.analysis.gate.verdicts import Finding, Verdict
from attnbench.core.record import WRONG
from attnbench.core.text import count, one_line, some
from attnbench.results import case_names
from attnbench.results.case_names import full_name
from attnbench.results.cells import Cell, Key

State = Literal["works", "flaky", "fails", "absent"]
Change = tuple[State, State]  # the state of a cell in the baseline and in the current run

VERDICTS: Mapping[Change, Verdict] = {
    ("works", "flaky"): "newly-failing",
    ("works", "fails"): "newly-failing",
    ("flaky", "fails"): "newly-failing",
    ("works", "absent"): "missing",
    ("flaky", "absent"): "missing",
    ("flaky", "works"): "newly-working",
    ("fails", "works"): "newly-working",
    ("absent", "works"): "newly-working",
}
COMPARED: set[Change] = {("works", "works"), ("flaky", "works"), ("flaky", "flaky")}
NOTES: Mapping[Change, str] = {  # in the order of a report
    ("fails", "fails"): "worked in neither run",
    ("absent", "fails"): "worked in neither run",
    ("flaky", "flaky"): "failed in some rounds of both runs; the rounds that worked count",
    ("fails", "flaky"): "worked in some rounds, and not in the baseline: not compared",
    ("absent", "flaky"): "worked in some rounds, and not in the baseline: not compared",
}
NEW = "in the current run only, not compared"

# An A/B does not go on with a cell that has failed, so its few rounds would stay inconclusive.
COMPARED_IN_TURNS: set[Change] = {("works", "works")}
NOTES_IN_TURNS = {**NOTES, ("flaky", "flaky"): "failed in some rounds of both runs, not compared"}


def compare_states(
    before: Mapping[Key, Cell],
    after: Mapping[Key, Cell],
    planned: Container[Key] = (),
    in_turns: bool = False,
    allow_wrong: bool = False,
) -> tuple[list[Finding], list[tuple[Cell, Cell]], list[str]]:
    """Return the findings on cells as a whole, the pairs (baseline, current) to compare, and notes on all other cells.

    `planned`: the cells that the current run has planned and not measured yet. `in_turns`: the runs are an A/B. A cell
    whose result is wrong in the current run is a finding whatever it was before; with `allow_wrong` a wrong cell that
    worked before is newly failing, as if it had failed in any other way.
    """
    found, pairs = [], []
    compared, notes = (COMPARED_IN_TURNS, NOTES_IN_TURNS) if in_turns else (COMPARED, NOTES)
    noted: dict[str, list[str]] = {text: [] for text in (*notes.values(), NEW)}
    for key in {**before, **after}:
        old, new = before.get(key), after.get(key)
        change = state(old), state(new)
        rounds = (len(old.ok) if old else 0, len(new.ok) if new else 0)
        verdict = VERDICTS.get(change)
        if new and new.status in WRONG and not (verdict and allow_wrong):
            found.append(Finding(*key, None, "wrong", rounds, reason=_wrong(old, new)))
        elif old is None:
            noted[NEW].append(full_name(key[1], key[0]))
        else:
            if verdict:
                found.append(Finding(*key, None, verdict, rounds, reason=_reason(verdict, old, new, key in planned)))
            if new and change in compared:
                pairs.append((old, new))
            if change in notes:
                noted[notes[change]].append(full_name(old.backend, old.case))
    return (
        found,
        pairs,
        [f"{count(len(names), 'cell')} {text}: {some(names)}" for text, names in noted.items() if names],
    )


def state(cell: Cell | None) -> State:
    """Return the state of a cell; None is a cell that the run does not have.

    Flaky: measured in some rounds and failed in others. Absent: no round was measured, and none failed. A cell
    that was wrong in any round fails.
    """
    if cell is None:
        return "absent"
    if any(row.record.status not in ("ok", "skipped") for row in cell.rows):
        return "flaky" if cell.status == "ok" else "fails"
    return "works" if cell.status == "ok" else "absent"


def worked_in_neither(before: Mapping[Key, Cell], after: Mapping[Key, Cell]) -> str:
    """Return why the first cell that failed in both runs did so on either side; "" where there is none."""
    for (case, backend), old in before.items():
        new = after.get((case, backend))
        if new and state(old) == state(new) == "fails":
            return one_line(f"{full_name(backend, case)}: baseline {_why(old)}; current run {_why(new)}")
    return ""


def _wrong(old: Cell | None, new: Cell) -> str:
    """Return what is wrong with the current run's result, and why the baseline has no figure either."""
    why = _why(new)
    if old is None or state(old) != "fails":
        return why
    before, word = _why(old), "is wrong too" if old.status in WRONG else "failed"
    return f"{why}; the baseline {word}" + (f": {before}" if before != why else "")


def _reason(verdict: Verdict, old: Cell, new: Cell | None, planned: bool) -> str:
    if verdict == "newly-working":
        return f"was: {_why(old)}"
    if new:
        return _why(new)
    return "planned, and not measured yet" if planned else "no record of it"


def _why(cell: Cell) -> str:
    """Return how often a cell was not measured, and the first reason: "2 of 5 rounds OOM: out of memory"."""
    records = [row.record for row in cell.rows]
    bad = [record for record in records if record.status in WRONG]
    bad = bad or [record for record in records if record.status not in ("ok", "skipped")] or records
    word = case_names.ENDINGS.get(bad[0].status, bad[0].status)
    share = f"{len(bad)} of {len(records)} rounds " if len(records) > 1 else ""
    return one_line(f"{share}{word}" + (f": {bad[0].reason}" if bad[0].reason else ""))
