"""`attnbench report`: run files as tables, figures, a page, and files for other programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from attnbench.commands import complete, options, output
from attnbench.commands.shared import one_of, read_runs, tell
from attnbench.core.errors import EXIT_DONE, UserError
from attnbench.core.text import count, listed, printable

if TYPE_CHECKING:
    from attnbench.core.record import Run
    from attnbench.render.document import Document
    from attnbench.results.cells import Cell

TRACKERS = ("parquet", "pytest-benchmark", "bmf", "github-action-benchmark")  # render/export/trackers.py

files = partial(typer.Option, rich_help_panel="Files and output")


def _metrics() -> Iterable[str]:
    from attnbench.results.metrics import METRICS

    return METRICS


@dataclass(frozen=True)
class ReportOutput(output.Output):
    """Where a report is written, also in the formats of other tools."""

    format: Annotated[
        list[str] | None,
        files(
            "--format",
            "-f",
            metavar="FORMAT[=FILE]",
            help="table (default), md, html; csv, json, parquet (one row per cell and round); pytest-benchmark, bmf "
            "(Bencher), github-action-benchmark. Several may be given, all but one to a file: -f md=report.md.",
        ),
    ] = None
    html: Annotated[
        Path | None, files("--html", metavar="FILE", help="Figures, a table to filter and every warning on one page.")
    ] = None


@options.grouped
def report(
    *,
    results: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN|DIR", help="Run files, or folders: all run files in them.")
    ] = None,
    metric: Annotated[
        list[str] | None, options.metric_option(_metrics, help="tflops, latency, ...; -m help lists them all.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="AXIS",
            help="What the columns are: backend (default for up to nine), seqlen, headdim, dtype, pass, ...",
        ),
    ] = None,
    cell: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Single cells in full, by a part of the name, words of it, or a glob: 'triton 16k d128 causal fwd'.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The attention of all layers of a model in one step, of cells that `run --model` measured.",
            autocompletion=complete.one(complete.models),
        ),
    ] = None,
    tp: Annotated[int | None, typer.Option(metavar="N", help="With --model: on one of N devices.")] = None,
    flops_convention: Annotated[
        str, typer.Option(metavar="NAME", help="exact (unmasked pairs) or fa (as papers print: half for causal).")
    ] = "exact",
    every: Annotated[bool, typer.Option("--all", metavar="", help="Every table, however many there are.")] = False,
    output_to: ReportOutput,
    png: Annotated[Path | None, files("--png", metavar="FILE", help="One figure, for slides.")] = None,
    svg: Annotated[Path | None, files("--svg", metavar="FILE", help="One figure, for papers.")] = None,
    figure: Annotated[
        str | None,
        files(
            metavar="NAME",
            help="Of --png and --svg: throughput (default), utilization, speedup, latency, memory, ...",
        ),
    ] = None,
    panel: Annotated[
        str | None, files(metavar="WORDS", help='Of --png and --svg: "d128 causal", those panels alone.')
    ] = None,
) -> None:
    """Show results that were measured before, here or elsewhere, one run or several side by side; needs no GPU.

    attnbench report results/*.jsonl
    attnbench report -m latency,memory_peak --by dtype run.jsonl
    attnbench report run.jsonl --cell 'triton 4k d64 causal bwd'    # samples, errors, traceback, kernels
    attnbench report -f csv run.jsonl > run.csv
    attnbench report --html run.html run.jsonl
    attnbench report --svg speedup.svg --figure speedup --panel 'd128 causal' run.jsonl
    """
    from attnbench.core.flops import Convention

    convention: Convention = one_of("--flops-convention", flops_convention, get_args(Convention))
    from attnbench.analysis.report.grids import BY, BY_OPTION, LINES

    columns = BY_OPTION.get(by, by) if by is not None else None
    if columns is not None:
        one_of("--by", columns, BY)
    wanted = _wanted(output_to, bool(png or svg))
    formats = {name for name, _ in wanted}
    pictures = {"--png": png, "--svg": svg}
    written = [file for _, file in wanted]
    for option, picture in pictures.items():
        if picture:
            output.check_file(f"{option} {picture}", picture, written)
            written.append(picture)
    if not (png or svg) and (given := _given({"--figure": figure, "--panel": panel})):
        raise UserError(f"{given}: only --png and --svg draw a single figure; add --svg FILE or --png FILE")
    tables = {"--metric": metric or None, "--by": by, "--all": every or None}
    for_tools = {f"-f {name}": name for name in formats & {*TRACKERS}}
    if cell is not None and (given := _given({**tables, **pictures, **for_tools})):
        raise UserError(f"{given}: not with --cell, which shows single cells in full; leave one of them out")
    if model is not None and (given := _given({**tables, **pictures, **for_tools, "--cell": cell})):
        raise UserError(f"{given}: not with --model, which shows steps of a model; leave one of them out")
    if model is None and tp is not None:
        raise UserError("--tp is of a model; name one with --model NAME (`attnbench models` lists them)")
    if not formats & {"table", "md"} and (given := _given(tables)):
        raise UserError(f"{given}: for tables only (--format table, md); everything else has every metric and cell")
    if not results:
        raise UserError("give run files to report on, as in attnbench report results/*.jsonl")
    read = read_runs(results)
    results, runs = [path for path, _ in read], [run for _, run in read]
    from attnbench.results.cells import cells as cells_of

    one = cell is not None or model is not None
    own = None if one or metric or by or every or png or svg else _own_document(runs)
    if own is None:
        read = _with_cells(read, tell_all=bool(formats & {"table", "md", "html"}))
        results, runs = [path for path, _ in read], [run for _, run in read]
    cells = cells_of(runs, convention)
    if cell is not None:
        from attnbench.analysis.report import one_cell

        raise typer.Exit(output.write(one_cell.document(one_cell.select(cells, cell)), wanted))
    if model is not None:
        from attnbench.analysis.models import step_document
        from attnbench.core.models import find

        found = find(model)
        found.heads(of := 1 if tp is None else tp)
        raise typer.Exit(output.write(step_document.document(cells, found, of), wanted))
    if png or svg:
        _draw(cells, {"png": png, "svg": svg}, figure, panel or "")
    if not wanted:
        return
    from attnbench.analysis.report.document import complete, document
    from attnbench.render.document import Document

    shown = Document("report", "")  # of rows and of other tools' formats alone: they need no tables
    if formats & {"table", "md", "html"}:
        lines = math.inf if every else LINES
        shown = own or document(cells, runs, metrics=metric or [], by=columns, lines=lines, files=results)
    shown = complete(shown, formats - {"html"} if own else formats, cells, runs, results)
    raise typer.Exit(output.write(replace(shown, exit_code=EXIT_DONE), wanted, _trackers(formats, cells)))


_MEASURED = {  # command -> runs that it shows with more than a table of cells
    "capacity": "that searched what fits",
    "step": "of whole steps of models",
    "claims": "of published claims",
}


def _command(run: Run) -> str:
    """Return the command of _MEASURED that shows a run, "" where that is `report`."""
    from attnbench.analysis.claims import SUITE

    if run.search:
        return "capacity"
    if run.records and all(record.case.step for record in run.records):
        return "step"
    return "claims" if run.suite == SUITE else ""


def _own_document(runs: Sequence[Run]) -> Document | None:
    """Return what the command shows that measured all of the runs, where it shows more than a table of cells."""
    commands = {_command(run) for run in runs}
    if commands == {"capacity"}:
        from attnbench.analysis.capacity.document import document

        return document(runs)
    if commands == {"step"}:
        from attnbench.analysis.step.document import document as of_steps

        return of_steps(runs)
    if commands == {"claims"}:
        from attnbench.analysis.claims.claim_file import load
        from attnbench.analysis.claims.document import document as of_claims
        from attnbench.render.document import Span

        shown = of_claims(load([]), runs)
        if all(row["value"] is None for row in shown.rows):
            return None  # claims of one's own
        names = listed(dict.fromkeys(record.backend for run in runs for record in run.records))
        every = f"Cells of {names}, also where no claim could be judged: attnbench report --all."
        return replace(shown, notes=(*shown.notes, (Span(every, "quiet"),)))
    return None


def _with_cells(read: list[tuple[Path, Run]], *, tell_all: bool) -> list[tuple[Path, Run]]:
    """Return the runs without searches, unless there is nothing else; what another command shows better is told."""
    kept = [(path, run) for path, run in read if not run.search] or read
    for command, what in _MEASURED.items():
        number = sum(_command(run) == command for _, run in read)
        if number and command == "capacity" and len(kept) < len(read):
            tell(f"attnbench: left out: {count(number, 'run')} {what}, which attnbench {command} shows")
        elif number and tell_all and command != "capacity":
            tell(f"attnbench: shown as cells: {count(number, 'run')} {what}, of which attnbench {command} shows more")
    return kept


def _wanted(output_to: ReportOutput, drawn: bool) -> Sequence[tuple[str, Path | None]]:
    """Return what is written (Output.wanted). With --html, --png or --svg only what is asked for is printed."""
    found = output_to.wanted((*output.FORMATS, *TRACKERS))
    printed = output_to.json or any("=" not in text for text in output_to.format or ())
    return found if printed or not (output_to.html or drawn) else [one for one in found if one[1]]


def _given(options: Mapping[str, Any]) -> str:
    """Return the names of the options that were given, for an error line."""
    return " and ".join(name for name, value in options.items() if value is not None)


def _trackers(formats: Set[str], cells: Sequence[Cell]) -> output.Writers:
    """Return what writes those of the formats that are for other tools; what these would not notice goes to stderr."""
    wanted = [format for format in TRACKERS if format in formats]
    if not wanted:
        return {}
    from attnbench.render.export import trackers

    for doubt in trackers.doubts(cells) if {*wanted} & {*trackers.JSON_FORMATS} else ():
        tell(f"attnbench: {doubt}")
    return {format: partial(trackers.content, format, cells) for format in wanted}


def _draw(cells: Sequence[Cell], pictures: Mapping[str, Path | None], figure: str | None, panel: str) -> None:
    """Write one figure as PNG and SVG, whichever have a file; by default the rate over the length."""
    from attnbench.render.html import image
    from attnbench.render.html.charts import charts

    drawn = charts(cells)
    if figure is None:
        rates = {row["unit"] for row in drawn.rows}
        figure = "bandwidth" if rates == {"GB/s"} else "throughput"
    for kind, path in pictures.items():
        if path is not None:
            image.save(path, kind, drawn, figure, panel)
            print(printable(f"{kind}: {path}"))
