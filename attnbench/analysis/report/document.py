"""The document of a report: the answer, the machines, the grids, why figures are missing, cautions and facts."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from attnbench.analysis.report import scaling
from attnbench.analysis.report.answer import answer
from attnbench.analysis.report.cautions import cautions
from attnbench.analysis.report.facts import facts
from attnbench.analysis.report.grids import LINES, grids
from attnbench.analysis.report.machine_summary import machines
from attnbench.analysis.report.phases import phases
from attnbench.analysis.report.reasons import reasons
from attnbench.core.record import Run
from attnbench.render.document import Document
from attnbench.results.cells import Cell
from attnbench.results.disturbed import doubt
from attnbench.results.export_rows import COLUMNS, MadeRows, table_rows


def document(
    cells: Sequence[Cell],
    runs: Sequence[Run],
    *,
    metrics: Sequence[str] = (),
    by: str | None = None,
    lines: float = LINES,
    files: Sequence[Path] = (),
    with_grids: bool = True,
) -> Document:
    """Return the report of the cells of some runs; grids.grids explains the options and what is raised.

    `files` are the files of the runs, for the advice to resume a run. A page with charts shows no grids.
    """
    return Document(
        command="report",
        title=", ".join(dict.fromkeys(cell.device for cell in cells)) or "no records",
        answer=(*doubt(runs), *answer(cells, runs)),
        machines=tuple(machines(cells)),
        blocks=(
            *(grids(cells, metrics, by, lines=lines) if cells and with_grids else ()),
            *scaling.tables(cells),
            *(phases(cells) if "seconds" in metrics else ()),
        ),
        reasons=tuple(reasons(cells)),
        cautions=cautions(cells, runs, files),
        facts=facts(cells),
        appendix=scaling.sections(cells),
    )


def complete(
    report: Document, formats: Container[str], cells: Sequence[Cell], runs: Sequence[Run], files: Sequence[Path]
) -> Document:
    """Return a report with the parts that some formats have beyond those of a terminal.

    CSV and JSON: every metric of every cell and round. html: figures, a table to filter, environments, how to measure
    again. `files` are the run files, as the reader would name them.
    """
    if "csv" in formats or "json" in formats:
        rows = MadeRows(partial(table_rows, cells))
        report = replace(report, data=rows, rows=rows, columns=COLUMNS)
    if "html" in formats:
        from attnbench.analysis.report import page
        from attnbench.render.html.charts import charts

        appendix = (*report.appendix, page.environment(runs, files), page.reproduce(runs, files, cells))
        report = replace(report, page=charts(cells, page.note_on_figures(cells)), appendix=appendix)
    return report
