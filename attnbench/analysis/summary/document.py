"""The document of a report: what was measured, the grids, why figures are missing, what to doubt and what to know."""

from __future__ import annotations

from collections.abc import Sequence

from attnbench.analysis.summary.cautions import cautions
from attnbench.analysis.summary.facts import facts
from attnbench.analysis.summary.grids import LINES, grids
from attnbench.analysis.summary.machine_summary import machines
from attnbench.analysis.summary.reasons import reasons
from attnbench.core.flops import Convention
from attnbench.core.record import Run
from attnbench.report.document import NOTHING_MEASURED, Document, Machine
from attnbench.results.cells import cells as cells_of


def document(
    runs: Sequence[Run],
    *,
    metrics: Sequence[str] = ("tflops",),
    by: str | None = None,
    convention: Convention = "exact",
    memory: bool = True,
    lines: float = LINES,
) -> Document:
    """Return the report of some runs; grids.grids explains the options and what is raised."""
    cells = cells_of(runs, convention)
    return Document(
        command="report",
        title=", ".join(dict.fromkeys(cell.device for cell in cells)) or "no records",
        machines=tuple(machines(cells)) or (Machine(NOTHING_MEASURED, ""),),
        blocks=tuple(grids(cells, metrics, by, memory=memory, lines=lines)) if cells else (),
        reasons=tuple(reasons(cells)),
        cautions=tuple(cautions(cells, runs)),
        facts=tuple(facts(cells)),
    )
