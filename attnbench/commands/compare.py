"""`attnbench compare`: parse, compare, write. Heavy imports stay inside."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from attnbench.commands import options
from attnbench.commands.output import Output, option, write
from attnbench.commands.shared import read_runs, tell
from attnbench.core.errors import UserError

what = partial(typer.Option, rich_help_panel="What to compare")


@options.grouped
def compare(
    *,
    results: Annotated[
        list[Path], typer.Argument(metavar="RUN|DIR", help="Run files, two or more, or folders of them.")
    ],
    to: Annotated[
        str | None, what("--to", metavar="NAME", help="The machine that the others are compared with; else the first.")
    ] = None,
    name: Annotated[
        list[str] | None,
        what(
            "--name",
            metavar="FILE=LABEL",
            help="What to call the machine of a file; files with one label are one machine.",
        ),
    ] = None,
    price: Annotated[
        list[str] | None,
        what(
            "--price",
            metavar="NAME=PRICE",
            help="h200=3.40/h (rent), h200=32000/4y (bought, for 4 years), h200=32000 (bought); of a host with 8: "
            "h200=280000/8gpu/4y. Any currency: €3.10/h, 3.10 CHF/h.",
        ),
    ] = None,
    energy_price: Annotated[
        float | None,
        what(
            "--energy-price",
            metavar="PRICE",
            help="Of a kWh: adds the measured power of bought devices to their cost (needs run --sustained 10s).",
        ),
    ] = None,
    pue: Annotated[
        float | None,
        what("--pue", metavar="RATIO", help="Power of the building over that of its devices, such as 1.3. Default: 1."),
    ] = None,
    workload: Annotated[
        str | None,
        what(
            "--workload",
            metavar="FILE|WORDS",
            help="YAML: cases with weights, for one figure in all; or 'chat: 2k in, 300 out, llama-3.1-8b, batch 32', "
            "interpolated between what was measured.",
        ),
    ] = None,
    output_to: Output,
    document_file: Annotated[
        Path | None, option("--out", "-o", metavar="FILE", help="Write the one format to a file and print nothing.")
    ] = None,
    every: Annotated[
        bool,
        option("--all", metavar="", help="Every case and every cell in table and md, as html, json and csv have them."),
    ] = False,
) -> None:
    """Compare machines for a buyer: speed, power, price, what fits in memory; needs no GPU.

    Measure the same suite on each, best with --suite sustained --rounds 5: what a machine sustains is less than what it
    does in bursts. Files of one model with one power limit are one machine, by the newest of what they measured; where
    all are of one model, each file stands for itself and no price is compared.

    attnbench compare h200.jsonl h100.jsonl
    attnbench compare h200.jsonl h100.jsonl --price h200=3.40/h --price h100=2.20/h
    attnbench compare h200-sustained.jsonl h100-sustained.jsonl --price h200=32000/4y --energy-price 0.15 --pue 1.3
    attnbench compare llama-*.jsonl --workload "chat: 2k in, 300 out, llama-3.1-8b, batch 32"
    attnbench compare lab-*.jsonl --to h100 --workload chat.yaml --html compare.html
    """
    if document_file:
        output_to = Output(_with_file(output_to, document_file), output_to.html)
    # with --out nothing is printed
    wanted = [(name, file) for name, file in output_to.wanted() if file or not document_file]
    read = read_runs(results)
    results, runs = [path for path, _ in read], [run for _, run in read]

    from attnbench.analysis.compare.document import document
    from attnbench.analysis.compare.findings import compare as compared

    comparison = compared(results, runs, to, name or (), price or (), workload, energy_price, pue)
    for why in comparison.machines_left_out.values():
        tell(f"attnbench: left out: {why}")

    def page() -> str:
        from attnbench.render.html import html_page

        return html_page.render(document(comparison, every=True))

    if code := write(document(comparison, every), wanted, {"html": page}):
        raise typer.Exit(code)


def _with_file(output_to: Output, out: Path) -> list[str]:
    """Return the one format given (the table by default) as FORMAT=FILE."""
    formats = [*(output_to.format or ()), *(["json"] if output_to.json else ())]
    if len(formats) > 1 or "=" in "".join(formats):
        raise UserError(f"--out takes one format, as in -f md -o {out}; for several write -f FORMAT=FILE for each")
    return [f"{''.join(formats) or 'table'}={out}"]
