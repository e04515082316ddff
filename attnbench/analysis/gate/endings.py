"""How cells ended in two runs: missing, failing or working where they did not before, or to be compared."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Literal

from attnbench.analysis.gate.findings import Finding
from attnbench.results import case_names
from attnbench.results.cells import Cell, Key

State = Literal["works", "flaky", "fails", "absent"]


def endings(
    before: Mapping[Key, Cell], after: Mapping[Key, Cell], planned: Container[Key] = ()
) -> tuple[list[Finding], list[tuple[Cell, Cell]]]:
    """What can be said of cells by how they ended, and the pairs whose figures are to be compared.

    `planned`: the cells that the current run has not come to yet.
    """
    found, both = [], []
    for key, old in before.items():
        new = after.get(key)
        was, now = state(old), state(new)
        if was == now == "works" and new:  # nearly all, so at once
            both.append((old, new))
            continue
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
            both.append((old, new))
    return found, both


def state(cell: Cell | None) -> State:
    """Flaky: measured in some rounds, and failed in others. A round that was wrong outweighs those that were not."""
    if cell is None:
        return "absent"
    if cell.place in cell.sheet.failed:
        return "flaky" if cell.status == "ok" else "fails"
    return "works" if cell.status == "ok" else "absent"


def _why(cell: Cell) -> str:
    """Of the first round that was not ok: "2 of 5 rounds OOM: out of memory"."""
    statuses, rows = cell.columns.statuses, cell.rows
    bad = [i for i in rows if statuses[i] not in ("ok", "skipped")] or rows
    word = case_names.ENDINGS.get(statuses[bad[0]], statuses[bad[0]])
    share = f"{len(bad)} of {len(rows)} rounds " if len(rows) > 1 else ""
    reason = cell.columns.reasons.get(bad[0])
    return case_names.one_line(f"{share}{word}" + (f": {reason}" if reason else ""))
