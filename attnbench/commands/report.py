"""`attnbench report`: run files as tables, figures, a page, and files for other programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import typer

from attnbench.commands import complete, options, output
from attnbench.commands.shared import read_runs, tell
from attnbench.core.errors import EXIT_DONE, UserError, one_of
from attnbench.core.text import count, listed, printable
from attnbench.render.document import with_damage

if TYPE_CHECKING:
    from attnbench.analysis.claims.claim_file import Setting
    from attnbench.core.record import Run
    from attnbench.render.document import Document
    from attnbench.results.cells import Cell

TRACKERS = (  # render/export/trackers.py
    *("parquet", "pytest-benchmark", "bmf", "github-action-benchmark"),
    *("aiconfigurator-context", "aiconfigurator-generation"),
)


def _metrics() -> Iterable[str]:
    from attnbench.results.metrics import METRICS

    return METRICS


@dataclass(frozen=True, kw_only=True)
class Options(output.Output):
    """The options of `attnbench report`."""

    results: list[Path] | None = options.argument("RUN|DIR", "Run files, or folders: all run files in them.", None)
    metric: list[str] | None = options.metrics(options.plain, _metrics, "tflops, latency, ...; -m help lists them all.")
    by: str | None = options.plain(
        "AXIS", "What the columns are: backend (default for up to nine), seqlen, headdim, dtype, pass, ..."
    )
    cell: str | None = options.plain(
        "NAME", "Single cells in full, by a part of the name, words of it, or a glob: 'triton 16k d128 causal fwd'."
    )
    model: str | None = options.plain(
        "NAME",
        "The attention of all layers of a model in one step, of cells that `run --model` measured.",
        autocompletion=complete.one(complete.models),
    )
    tp: int | None = options.plain("N", "With --model: the share of one of N devices.")
    flops_convention: str = options.plain(
        "NAME", "exact (unmasked pairs) or fa (as papers print: half for causal).", "exact"
    )
    every: bool = options.plain.flag("Every table, however many there are.", "--all")
    format: list[str] | None = output.formats(
        "table (default), md, html; csv, json, parquet (one row per cell and round); pytest-benchmark, bmf (Bencher), "
        "github-action-benchmark; aiconfigurator-context, aiconfigurator-generation (Parquet). Several may be given, "
        "all but one to a file: -f md=report.md."
    )
    html: Path | None = options.files("FILE", "Figures, a table to filter and every warning on one page.")
    png: Path | None = options.files("FILE", "One figure, for slides.")
    svg: Path | None = options.files("FILE", "One figure, for papers.")
    figure: str | None = options.files(
        "NAME", "The figure of --png and --svg: throughput (default), utilization, speedup, latency, memory, ..."
    )
    panel: str | None = options.files("WORDS", 'Only these panels of --png and --svg: "d128 causal".')

    @property
    def pictures(self) -> dict[str, Path]:
        """The pictures to draw: "png" and "svg", whichever have a file."""
        return {kind: file for kind, file in (("png", self.png), ("svg", self.svg)) if file}

    def wanted(self, known: Sequence[str] = (*output.FORMATS, *TRACKERS)) -> list[tuple[str, Path | None]]:
        """Return the outputs to write. With --html, --png or --svg only what is asked for is printed."""
        found = super().wanted(known)
        written = [file for _, file in found]
        for kind, picture in self.pictures.items():
            output.check_file(f"--{kind} {picture}", picture, written)
            written.append(picture)
        printed = self.json or any("=" not in text for text in self.format or ())
        return found if printed or not (self.html or self.pictures) else [one for one in found if one[1]]

    def check_together(self, formats: Set[str]) -> None:
        """Raise UserError for options of which one has no effect beside another."""

        def refuse(why: str, *names: str, more: Sequence[str] = ()) -> None:
            if given := [*options.changed(self, names), *more]:
                raise UserError(f"{' and '.join(given)}: {why}")

        tables = ("metric", "by", "every")
        for_tools = [f"-f {name}" for name in TRACKERS if name in formats]
        if not self.pictures:
            refuse("only --png and --svg draw a single figure; add --svg FILE or --png FILE", "figure", "panel")
        if self.cell is not None:
            why = "not with --cell, which shows single cells in full; leave one of them out"
            refuse(why, *tables, "png", "svg", more=for_tools)
        if self.model is not None:
            why = "not with --model, which shows steps of a model; leave one of them out"
            refuse(why, *tables, "png", "svg", "cell", more=for_tools)
        elif self.tp is not None:
            raise UserError("--tp needs a model; name one with --model NAME (`attnbench models` lists them)")
        if not formats & {"table", "md"}:
            refuse("for tables only (--format table, md); everything else has every metric and cell", *tables)
        if not self.results:
            raise UserError("give run files to report on, as in attnbench report results/*.jsonl")


@options.command
def report(given: Options) -> None:
    """Show results that were measured before, here or elsewhere, one run or several side by side; needs no GPU.

    attnbench report results/*.jsonl
    attnbench report -m latency,memory_peak --by dtype run.jsonl
    attnbench report run.jsonl --cell 'triton 4k d64 causal bwd'    # samples, errors, traceback, kernels
    attnbench report -f csv run.jsonl > run.csv
    attnbench report --html run.html run.jsonl
    attnbench report --svg speedup.svg --figure speedup --panel 'd128 causal' run.jsonl
    """
    from attnbench.core.flops import Convention

    convention: Convention = one_of("--flops-convention", given.flops_convention, get_args(Convention))
    from attnbench.analysis.report.grids import BY, BY_OPTION, LINES

    columns = BY_OPTION.get(given.by, given.by) if given.by is not None else None
    if columns is not None:
        one_of("--by", columns, BY)
    wanted = given.wanted()
    formats = {name for name, _ in wanted}
    given.check_together(formats)
    read, damage = read_runs(given.results or ())
    from attnbench.results.cells import cells as cells_of

    chosen = options.changed(given, ("cell", "model", "metric", "by", "every", "png", "svg"))
    own = None if chosen else own_document([run for _, run in read])
    if own is None:
        read = _with_cells(read, tell_all=bool(formats & {"table", "md", "html"}))
    results, runs = [path for path, _ in read], [run for _, run in read]
    cells = cells_of(runs, convention)
    if given.cell is not None:
        from attnbench.analysis.report import one_cell

        shown = one_cell.document(one_cell.select(cells, given.cell))
        raise typer.Exit(output.write(with_damage(shown, damage), wanted))
    if given.model is not None:
        from attnbench.analysis.models import step_document
        from attnbench.core.models import find

        found = find(given.model)
        found.heads(of := 1 if given.tp is None else given.tp)
        raise typer.Exit(output.write(with_damage(step_document.document(cells, found, of), damage), wanted))
    if given.pictures:
        _draw(cells, given.pictures, given.figure, given.panel or "")
    if not wanted:
        return
    from attnbench.analysis.report.document import complete, document
    from attnbench.render.document import Document

    shown = Document("report", "")  # only rows or other tools' formats are wanted, which need no tables
    if formats & {"table", "md", "html"}:
        lines = math.inf if given.every else LINES
        grids = bool(formats & {"table", "md"})
        shown = own or document(
            cells, runs, metrics=given.metric or [], by=columns, lines=lines, files=results, with_grids=grids
        )
    shown = complete(shown, formats - {"html"} if own else formats, cells, runs, results)
    shown = replace(with_damage(shown, damage), exit_code=EXIT_DONE)
    raise typer.Exit(output.write(shown, wanted, _trackers(formats, cells)))


_MEASURED = {  # command -> the runs of which it shows more than a table of cells
    "capacity": "that searched what fits",
    "step": "of whole steps of models",
    "claims": "of published claims",
}


def _command(run: Run) -> str:
    """Return the command of _MEASURED that shows more of a run; "" where `report` shows all."""
    from attnbench.analysis.claims import SUITE

    if run.search:
        return "capacity"
    if run.records and all(record.case.step for record in run.records):
        return "step"
    return "claims" if run.suite == SUITE else ""


def own_document(runs: Sequence[Run], claims: Sequence[Setting] | None = None) -> Document | None:
    """Return the document of the command that measured all of the runs; None where it is a table of cells too.

    `claims` are the shipped claims, where they were loaded before.
    """
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

        shown = of_claims(load() if claims is None else claims, runs)
        if all(row["value"] is None for row in shown.rows):
            return None  # a person's own claims
        names = listed(dict.fromkeys(record.backend for run in runs for record in run.records))
        every = f"Cells of {names}, also where no claim could be judged: attnbench report --all."
        return replace(shown, notes=(*shown.notes, (Span(every, "quiet"),)))
    return None


def _with_cells(read: list[tuple[Path, Run]], *, tell_all: bool) -> list[tuple[Path, Run]]:
    """Return the runs without searches, unless there is nothing else; stderr names commands that show runs better."""
    kept = [(path, run) for path, run in read if not run.search] or read
    for command, what in _MEASURED.items():
        number = sum(_command(run) == command for _, run in read)
        if number and command == "capacity" and len(kept) < len(read):
            tell(f"attnbench: left out: {count(number, 'run')} {what}, which attnbench {command} shows")
        elif number and tell_all and command != "capacity":
            tell(f"attnbench: shown as cells: {count(number, 'run')} {what}, of which attnbench {command} shows more")
    return kept


def _trackers(formats: Set[str], cells: Sequence[Cell]) -> output.Writers:
    """Return the writers of formats for other tools; warnings that those tools would not show go to stderr."""
    wanted = [format for format in TRACKERS if format in formats]
    if not wanted:
        return {}
    from attnbench.render.export import trackers

    for doubt in trackers.doubts(cells) if {*wanted} & {*trackers.JSON_FORMATS} else ():
        tell(f"attnbench: {doubt}")
    return {format: partial(trackers.content, format, cells) for format in wanted}


def _draw(cells: Sequence[Cell], pictures: Mapping[str, Path], figure: str | None, panel: str) -> None:
    """Write one chart as PNG or SVG, whichever have a file; by default throughput over the length."""
    from attnbench.render.html import image
    from attnbench.render.html.charts import charts

    drawn = charts(cells)
    if figure is None:
        rates = {row["unit"] for row in drawn.rows}
        figure = "bandwidth" if rates == {"GB/s"} else "throughput"
    for kind, path in pictures.items():
        image.save(path, kind, drawn, figure, panel)
        tell(printable(f"{kind}: {path}"))
