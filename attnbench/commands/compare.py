"""`attnbench compare`: parse, compare, write. Heavy imports stay inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from attnbench.commands import options
from attnbench.commands.output import FORMATS, Output, write
from attnbench.commands.shared import read_runs, tell
from attnbench.core.errors import UserError
from attnbench.render.document import with_damage

what = options.Panel("What to compare")


@dataclass(frozen=True, kw_only=True)
class Options(Output):
    """The options of `attnbench compare`."""

    results: list[Path] = options.argument("RUN|DIR", "Run files, two or more, or folders of them.")
    to: str | None = what("NAME", "The machine that the others are compared with; else the first.")
    name: list[str] | None = what(
        "FILE=LABEL", "What to call the machine of a file; files with one label are one machine."
    )
    price: list[str] | None = what(
        "NAME=PRICE",
        "h200=3.40/h (rent), h200=32000/4y (bought, for 4 years), h200=32000 (bought); of a host with 8: "
        "h200=280000/8gpu/4y. Any currency: €3.10/h, 3.10 CHF/h.",
    )
    energy_price: float | None = what(
        "PRICE",
        "Price of a kWh: adds the measured power of bought devices to their cost (needs run --sustained 10s).",
    )
    pue: float | None = what("RATIO", "Power of the building over the power of its devices, such as 1.3. Default: 1.")
    workload: str | None = what(
        "FILE|WORDS",
        "A YAML file of weighted cases, combined into one figure; or words such as 'chat: 2k in, 300 out, "
        "llama-3.1-8b, batch 32, tp 2' for a whole model, interpolated between what was measured.",
    )
    document_file: Path | None = options.files(
        "FILE", "Write the output to this file, and print nothing (with one format only).", None, "--out", "-o"
    )
    every: bool = options.files.flag(
        "Show every case and cell in table and md too; html, json and csv always do.", "--all"
    )

    def wanted(self, known: Sequence[str] = FORMATS) -> list[tuple[str, Path | None]]:
        """Return the outputs to write; with --out the one format given, by default a table, goes to that file alone."""
        if not self.document_file:
            return super().wanted(known)
        formats = [*(self.format or ()), *(["json"] if self.json else ())]
        if len(formats) > 1 or "=" in "".join(formats):
            raise UserError(
                f"--out takes one format, as in -f md -o {self.document_file}; for several write -f FORMAT=FILE for "
                "each"
            )
        to_file = [f"{''.join(formats) or 'table'}={self.document_file}"]
        return [one for one in Output(format=to_file, html=self.html).wanted(known) if one[1]]


@options.command
def compare(given: Options) -> None:
    """Compare machines for a buyer: speed, power, price, what fits in memory; needs no GPU.

    Measure the same suite on each, best with --suite sustained --rounds 5: what a machine sustains is less than what it
    does in bursts. Files of one GPU model with one power limit count as one machine, with the newest measurement of
    each cell. If all files are of one model, each file is a machine of its own, and prices are not compared.

    With --price for the reference machine (--to, else the first) it gives the break-even price of each other machine,
    at which the same work costs the same. --all and --html plot this over the price. With --html the page prints on one
    side of A4. Published figures of GPUs that no file measured stand in a table of their own (--all).

    attnbench compare h200.jsonl h100.jsonl
    attnbench compare h200.jsonl h100.jsonl --price h200=3.40/h --price h100=2.20/h
    attnbench compare h200-sustained.jsonl h100-sustained.jsonl --price h200=32000/4y --energy-price 0.15 --pue 1.3
    attnbench compare llama-*.jsonl --workload "chat: 2k in, 300 out, llama-3.1-8b, batch 32"
    attnbench compare lab-*.jsonl --to h100 --workload chat.yaml --html compare.html
    """
    wanted = given.wanted()
    read, damage = read_runs(given.results)
    results, runs = [path for path, _ in read], [run for _, run in read]

    from attnbench.analysis.compare.document import document
    from attnbench.analysis.compare.findings import compare as compared

    comparison = compared(
        results,
        runs,
        given.to,
        given.name or (),
        given.price or (),
        given.workload,
        given.energy_price,
        given.pue,
    )
    for why in comparison.machines_left_out.values():
        tell(f"attnbench: left out: {why}")

    def page() -> str:
        from attnbench.render.html import html_page

        return html_page.render(with_damage(document(comparison, every=True), damage))

    if code := write(with_damage(document(comparison, given.every), damage), wanted, {"html": page}):
        raise typer.Exit(code)
