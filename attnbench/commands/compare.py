"""`attnbench compare`: parse, compare, write. Heavy imports stay inside."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnbench.commands.shared import collect_no_garbage, ends_with_its_reader, one_of, put, read

if TYPE_CHECKING:
    from attnbench.analysis.compare.compare import Comparison

THEN = ("scipy.special", "attnbench.analysis.compare.compare", "attnbench.analysis.compare.write_terminal")
FORMATS = ("table", "md", "csv", "html", "json")

what = partial(typer.Option, rich_help_panel="What to compare")
output = partial(typer.Option, rich_help_panel="Files and output")


def compare(
    results: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run files, two or more.")],
    to: Annotated[
        str | None, what("--to", metavar="NAME", help="The machine that the others are compared with; else the first.")
    ] = None,
    name: Annotated[
        list[str] | None,
        what(
            "--name",
            metavar="FILE=LABEL",
            help="What to call the machine of a file; files with one label are rounds of one machine.",
        ),
    ] = None,
    price: Annotated[
        list[str] | None,
        what("--price", metavar="NAME=PRICE", help="Of one device: h200=3.40/h (rent) or h200=32000 (to buy)."),
    ] = None,
    workload: Annotated[
        Path | None, what("--workload", metavar="FILE", help="YAML: cases with weights, for one figure in all.")
    ] = None,
    format: Annotated[
        str, output("--format", "-f", metavar="FORMAT", help="table, md, html; csv, json (every cell).")
    ] = "table",
    out: Annotated[Path | None, output("--out", "-o", metavar="FILE", help="Write it there.")] = None,
    every: Annotated[bool, output("--all", metavar="", help="Every cell too, not the fastest backends only.")] = False,
) -> None:
    """Compare machines for who buys one: speed, power, price, what fits in memory; needs no GPU.

    Measure the same suite on each, best with --rounds 5. Files of one machine count as its rounds.

    attnbench compare h200.jsonl h100.jsonl
    attnbench compare h200.jsonl h100.jsonl --price h200=3.40/h --price h100=2.20/h
    attnbench compare lab-*.jsonl --to h100 --workload chat.yaml -f html -o compare.html
    """
    from attnbench.results.columns import COMPARE

    one_of("--format", format, FORMATS)
    collect_no_garbage()
    ends_with_its_reader()
    runs = [read(path, COMPARE, THEN) for path in results]

    from attnbench.analysis.compare.compare import Request
    from attnbench.analysis.compare.compare import compare as compared

    request = Request(to, tuple(name or ()), tuple(price or ()), workload)
    _write(compared(results, runs, request), format, out, every)


def _write(comparison: Comparison, format: str, out: Path | None, every: bool) -> None:
    if format == "table" and not out:
        from rich.console import Console

        from attnbench.analysis.compare import write_terminal

        write_terminal.render(Console(highlight=False), comparison, every)
        return
    put(_text(comparison, format, every), out)
    if out:
        print(f"{format}: {out}")


def _text(comparison: Comparison, format: str, every: bool) -> str:
    from attnbench.analysis.compare import write_export, write_html, write_markdown, write_terminal

    if format in ("csv", "json"):
        return write_export.csv_text(comparison) if format == "csv" else write_export.json_text(comparison)
    if format == "html":
        return write_html.page(comparison)
    return write_markdown.render(comparison, every) if format == "md" else write_terminal.text(comparison, every)
