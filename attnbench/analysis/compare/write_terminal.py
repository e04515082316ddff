"""A comparison as tables for a person, the answer first."""

from __future__ import annotations

from functools import partial

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnbench.analysis.compare import write_rows
from attnbench.analysis.compare.compare import Comparison
from attnbench.analysis.compare.write_answer import answer
from attnbench.analysis.compare.write_blocks import Block
from attnbench.report.files import plain
from attnbench.report.rich_table import filled, width


def render(console: Console, c: Comparison, every: bool = False) -> None:
    for sentence in answer(c):
        console.print(Text(sentence, "bold"))
    console.print()
    for label, what in write_rows.descriptions(c):
        console.print(Text(f"{label}: ", "bold").append(what, "not bold dim"))
    for block in write_rows.blocks(c, every):
        console.print()
        console.print(Text(block.title, "bold cyan"))
        if block.note:
            console.print(Text(block.note, "dim"))
        console.print(_table(console, block))
    console.print()
    for warning in write_rows.warnings(c):
        console.print(Text("!  ", "yellow").append(warning, ""))
    console.print(Text(write_rows.MORE, "dim"))


def _table(console: Console, block: Block) -> Table:
    """With a row for each machine where columns for each would be too wide to read."""
    empty, texts = partial(_empty, block), [tuple(map(Text, row)) for row in block.rows]
    if block.narrow and width(console, empty, texts) > console.width:
        block = block.narrow()
        empty, texts = partial(_empty, block), [tuple(map(Text, row)) for row in block.rows]
    return filled(console, empty, texts)


def _empty(block: Block) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for i, heading in enumerate(block.headings):
        table.add_column(heading, justify="left" if i in block.text else "right", overflow="fold", vertical="bottom")
    return table


def text(c: Comparison, every: bool = False) -> str:
    """The same without colours, for a file."""
    return plain(lambda console: render(console, c, every))
