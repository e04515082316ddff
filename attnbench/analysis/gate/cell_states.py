"""What became of each cell as a whole: missing, failing or working where it did not before, or to be compared."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Literal

from attnbench.analysis.gate.findings import Finding
from attnbench.core.text import one_line
from attnbench.results import case_names
from attnbench.results.cells import Cell, Key

State = Literal["works", "flaky", "fails", "absent"]


def compare_states(
    before: Mapping[Key, Cell], after: Mapping[Key, Cell], planned: Container[Key] = ()
) -> tuple[list[Finding], list[tuple[Cell, Cell]]]:
    """Return the findings on cells as a whole, and the pairs (baseline, current) whose metrics can be compared.

    `planned`: the cells that the current run has planned and not measured yet.
    """
    found, pairs = [], []
    for key, old in before.items():
        new = after.get(key)
        was, now = state(old), state(new)
        rounds = (len(old.ok), len(new.ok) if new else 0)
        if new and ((was == "works" and now in ("flaky", "fails")) or (was == "flaky" and now == "fails")):
            found.append(Finding(*key, None, "newly-failing", rounds, reason=_why(new)))
            continue
        measured = was in ("works", "flaky")
        if measured and now == "absent":
            nothing = "planned, and not measured yet" if key in planned else "no record of it"
            found.append(Finding(*key, None, "missing", rounds, reason=_why(new) if new else nothing))
        elif was != "works" and now == "works":
            found.append(Finding(*key, None, "newly-working", rounds, reason=f"was: {_why(old)}"))
        if measured and new and now in ("works", "flaky"):
            pairs.append((old, new))
    return found, pairs


def state(cell: Cell | None) -> State:
    """Return the state of a cell; None is a cell that the run does not have.

    Flaky: measured in some rounds and failed in others. Absent: no round was measured, and none failed. A cell fails
    that was wrong in any round.
    """
    if cell is None:
        return "absent"
    if any(row.record.status not in ("ok", "skipped") for row in cell.rows):
        return "flaky" if cell.status == "ok" else "fails"
    return "works" if cell.status == "ok" else "absent"


def _why(cell: Cell) -> str:
    """Return how often a cell was not measured, and the first reason: "2 of 5 rounds OOM: out of memory"."""
    records = [row.record for row in cell.rows]
    bad = [record for record in records if record.status not in ("ok", "skipped")] or records
    word = case_names.ENDINGS.get(bad[0].status, bad[0].status)
    share = f"{len(bad)} of {len(records)} rounds " if len(records) > 1 else ""
    return one_line(f"{share}{word}" + (f": {bad[0].reason}" if bad[0].reason else ""))
