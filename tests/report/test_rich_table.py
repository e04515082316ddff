"""Long tables are what rich makes of them row by row."""

from __future__ import annotations

import io
import random
from typing import Literal

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnbench.report.rich_table import filled, width

WORDS = ("a", "", "of", "sdpa-flash", "16k d128 causal", "1.23x (1.20 to 1.26)", "\u00b5s", "x" * 30)


def empty(vertical: Literal["top", "bottom"] = "top") -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("a long heading", overflow="fold", vertical=vertical)
    table.add_column("figures", justify="right", overflow="fold", vertical=vertical)
    table.add_column("", overflow="fold", vertical=vertical)
    return table


def printed(table: Table, columns: int) -> str:
    console = Console(file=io.StringIO(), width=columns)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("vertical", ["top", "bottom"])
@pytest.mark.parametrize("columns", [12, 25, 40, 80, 200])
def test_columns_at_once_are_rows_one_by_one(columns: int, vertical: Literal["top", "bottom"]) -> None:
    dice = random.Random(columns)
    rows = [[Text(" ".join(dice.choices(WORDS, k=dice.randint(0, 4)))) for _ in range(3)] for _ in range(40)]
    one_by_one = empty(vertical)
    for row in rows:
        one_by_one.add_row(*row)
    console = Console(width=columns)
    assert printed(filled(console, lambda: empty(vertical), rows), columns) == printed(one_by_one, columns)
    whole = console.measure(one_by_one, options=console.options.update(width=10_000)).maximum
    assert width(console, empty, rows) == whole
