"""The cells that another machine has a figure of and a machine lacks, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.analysis.compare.machines import Machine
from attnbench.core.text import merged, one_line, template
from attnbench.results import case_names
from attnbench.results.cells import Cell, Key

NOT_PLANNED = "not planned"
NOT_RUN = "not run yet"
NO_TIME = "no figure"


@dataclass(frozen=True)
class MissingCells:
    """Cells of one backend that a machine lacks for one reason, though another machine has a figure of them."""

    machine: str
    why: str  # of case_names.ENDINGS, or NOT_PLANNED, NOT_RUN, NO_TIME
    backend: str
    cells: tuple[Cell, ...]  # of the machine that has them
    where: str  # "64k; d128"; "" where all cells of the backend are missing
    reason: str  # "" where `why` says it all


def missing_cells(machines: Sequence[Machine]) -> list[MissingCells]:
    """Return what each machine lacks, gathered by backend and reason."""
    measured: dict[Key, Cell] = {}
    for machine in machines:
        for key in machine.log_latencies:
            measured.setdefault(key, machine.cells[key])
    by_backend: dict[str, list[Cell]] = {}
    for (_, backend), cell in measured.items():
        by_backend.setdefault(backend, []).append(cell)
    found = []
    for machine in machines:
        planned = {(job.case, job.backend) for job in machine.run.plan}
        gathered: dict[tuple[str, str, str], list[tuple[Cell, str]]] = {}
        for key, cell in measured.items():
            if key not in machine.log_latencies:
                why, reason = _why(machine.cells.get(key), key in planned)
                gathered.setdefault((key[1], why, template(reason)), []).append((cell, reason))
        for (backend, why, _), members in gathered.items():
            cells = tuple(cell for cell, _ in members)
            reason = merged([reason for _, reason in members]) if members[0][1] else ""
            where = case_names.where([c.case for c in cells], [c.case for c in by_backend[backend]])
            found.append(MissingCells(machine.label, why, backend, cells, where, reason))
    return found


def _why(cell: Cell | None, planned: bool) -> tuple[str, str]:
    """Return the word and the reason for a cell without a figure."""
    if cell is None:
        return (NOT_RUN if planned else NOT_PLANNED), ""
    if cell.status == "ok":
        return NO_TIME, "no sample of its time"
    return case_names.ENDINGS[cell.status], one_line(cell.reason or "no reason given")
