"""Cells that have no figure in one of two runs: missing, failing or working where they did not before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attnbench.gate.findings import Finding
from attnbench.report import words
from attnbench.report.cells import Cell, Key


def endings(before: Mapping[Key, Cell], after: Mapping[Key, Cell]) -> tuple[list[Finding], list[tuple[Cell, Cell]]]:
    """What can be said of cells without a figure, and the pairs that have figures on both sides."""
    found, both = [], []
    for key, old in before.items():
        new = after.get(key)
        was, now = state(old), state(new)
        if was == now == "works" and new:
            both.append((old, new))
            continue
        rounds = (len(old.ok), len(new.ok) if new else 0)
        if was == "works" and now == "fails" and new:
            found.append(Finding(*key, None, "newly-failing", rounds, reason=_why(new)))
        elif was == "works":
            found.append(Finding(*key, None, "missing", rounds, reason=_why(new) if new else "no record of it"))
        elif now == "works":
            found.append(Finding(*key, None, "newly-working", rounds, reason=f"was: {_why(old)}"))
    return found, both


def state(cell: Cell | None) -> Literal["works", "fails", "absent"]:
    """A cell that failed in any round fails: a crash now and then is one too many."""
    if cell is None:
        return "absent"
    if cell.place in cell.sheet.failed:
        return "fails"
    return "works" if cell.status == "ok" else "absent"


def _why(cell: Cell) -> str:
    """Of the first round that was not ok: "2 of 5 rounds OOM: out of memory"."""
    statuses, rows = cell.columns.statuses, cell.rows
    bad = [i for i in rows if statuses[i] not in ("ok", "skipped")] or rows
    word = words.ENDINGS.get(statuses[bad[0]], statuses[bad[0]])
    share = f"{len(bad)} of {len(rows)} rounds " if len(rows) > 1 else ""
    reason = cell.columns.reasons.get(bad[0])
    return words.one_line(f"{share}{word}" + (f": {reason}" if reason else ""))
