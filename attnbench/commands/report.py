"""`attnbench report`: run files as tables, figures and files for other programs."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnbench.commands.shared import collect_no_garbage, ends_with_its_reader, one_of, put, read
from attnbench.core.errors import UserError

if TYPE_CHECKING:
    from attnbench.analysis.summary.contents import Contents
    from attnbench.core.flops import Convention
    from attnbench.core.record import Run

THEN = {
    "table": ("attnbench.analysis.summary.contents", "attnbench.report.terminal"),
    "md": ("attnbench.analysis.summary.contents", "attnbench.report.markdown"),
}
FORMATS = ("table", "md", "csv", "json", "parquet", "pytest-benchmark", "bmf", "github-action-benchmark")

files = partial(typer.Option, rich_help_panel="Files and output")


def report(
    results: Annotated[list[Path] | None, typer.Argument(metavar="RESULTS", help="Run files.")] = None,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            help="table, md; csv, json, parquet (one row a cell and round); pytest-benchmark, bmf (Bencher), "
            "github-action-benchmark.",
        ),
    ] = "table",
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", "-m", metavar="NAMES", help="tflops, latency, ...; -m help lists them all."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="AXIS",
            help="What the columns are: backend (default for up to nine), seqlen, headdim, dtype, pass, ...",
        ),
    ] = None,
    flops_convention: Annotated[
        str, typer.Option(metavar="NAME", help="exact (unmasked pairs) or fa (as papers print: half for causal).")
    ] = "exact",
    every: Annotated[bool, typer.Option("--all", metavar="", help="Every table, however many there are.")] = False,
    html: Annotated[
        Path | None, files("--html", metavar="FILE", help="Figures, a table to filter and every warning on one page.")
    ] = None,
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
    attnbench report -f csv run.jsonl > run.csv
    attnbench report --html run.html run.jsonl
    attnbench report --svg speedup.svg --figure speedup --panel 'd128 causal' run.jsonl
    """
    one_of("--format", format, FORMATS)
    convention = _convention(flops_convention)
    if format != "table" and (html or png or svg):
        raise UserError(f"--format {format}: --html, --png and --svg write nothing else; leave one of them out")
    names = [name for text in metric or ["tflops"] for name in text.split(",")]
    from attnbench.results.metrics import METRICS

    if names == ["help"]:
        for m in METRICS.values():
            print(f"{m.name:22} {m.doc}")
        return
    for name in names:
        one_of("--metric", name, tuple(METRICS))
    from attnbench.analysis.summary.tables import BY, BY_OPTION

    columns = BY_OPTION.get(by, by) if by else None
    if columns:
        one_of("--by", columns, BY)
    if not (png or svg) and (given := _given({"--figure": figure, "--panel": panel})):
        raise UserError(f"{given}: only --png and --svg draw a single figure; add --svg FILE or --png FILE")
    tables = format in ("table", "md") and not (html or png or svg)
    if not tables and (given := _given({"--metric": metric, "--by": by, "--all": every or None})):
        raise UserError(f"{given}: of the tables only (--format table, md); everything else has every metric and cell")
    if not results:
        raise UserError("give run files to report on, as in attnbench report results/*.jsonl")
    collect_no_garbage()
    ends_with_its_reader()
    from attnbench.results.batch import FORMULAS, ahead_of
    from attnbench.results.columns import REPORT

    rows = format in ("csv", "json", "parquet")
    ahead = tuple(dict.fromkeys((*REPORT, *ahead_of(FORMULAS if rows else ()))))
    runs = [read(path, ahead, THEN[format] if tables else ()) for path in results]
    if html or png or svg:
        _draw(runs, results, {"html": html, "png": png, "svg": svg}, figure or "throughput", panel or "", convention)
    elif format in ("csv", "json"):
        from attnbench.report.export import flat_rows

        put(flat_rows.csv(runs, convention) if format == "csv" else flat_rows.json_text(runs, convention))
    elif format not in ("md", "table"):
        from attnbench.report.export import trackers

        trackers.write(sys.stdout, format, runs, convention)
        for doubt in trackers.doubts(runs) if format in trackers.JSON_FORMATS else ():
            print(f"attnbench: {doubt}", file=sys.stderr)
    else:
        from attnbench.analysis.summary.contents import contents
        from attnbench.analysis.summary.tables import LINES

        lines = math.inf if every else LINES
        _tables(contents(runs, metrics=names, by=columns, convention=convention, lines=lines), format)


def _given(options: Mapping[str, Any]) -> str:
    """The names of those that were, for an error line."""
    return " and ".join(name for name, value in options.items() if value is not None)


def _convention(word: str) -> Convention:
    one_of("--flops-convention", word, ("exact", "fa"))
    return "fa" if word == "fa" else "exact"


def _tables(contents: Contents, format: str) -> None:
    if format == "md":
        from attnbench.report import markdown

        put(markdown.render(contents))
        return
    from rich.console import Console

    from attnbench.report import terminal

    terminal.render(Console(highlight=False), contents)


def _draw(
    runs: Sequence[Run],
    paths: Sequence[Path],
    pictures: Mapping[str, Path | None],
    figure: str,
    panel: str,
    convention: Convention,
) -> None:
    """Writes the page, and the figure as PNG and SVG, whichever have a file."""
    from attnbench.report.html import html_page, image

    for kind, path in pictures.items():
        if path is not None:
            if kind == "html":
                html_page.save(path, runs, paths, convention)
            else:
                image.save(path, kind, runs, figure, panel, convention)
            print(f"{kind}: {path}")
