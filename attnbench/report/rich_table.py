"""Long tables by rich, in less than half of its time: a column is one cell with the lines of all rows, laid out once.

The result is what a row each gives, folded entries included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

UNBOUNDED = 10_000  # characters


def filled(console: Console, empty: Callable[[], Table], rows: Sequence[Sequence[Text]]) -> Table:
    """A table with these rows."""
    trial, entries = _trial(empty, rows)
    console.render_lines(trial)
    table = empty()
    for column, each in zip(table.columns, entries, strict=True):
        column.width = each.width
    folded = [[_folded(console, column, text) for column, text in zip(table.columns, row, strict=True)] for row in rows]
    heights = [max(map(len, row)) for row in folded]
    lines: list[list[Text]] = [[] for _ in entries]
    for row, height in zip(folded, heights, strict=True):
        for column, into, own in zip(table.columns, lines, row, strict=True):
            blank = [Text()] * (height - len(own))
            into += [*blank, *own] if column.vertical == "bottom" else [*own, *blank]
    table.add_row(*map(Text("\n", no_wrap=True).join, lines))
    return table


def width(console: Console, empty: Callable[[], Table], rows: Sequence[Sequence[Text]]) -> int:
    """Characters that it would take where there is no end of them."""
    trial, _ = _trial(empty, rows)
    return console.measure(trial, options=console.options.update(width=UNBOUNDED)).maximum


def _trial(empty: Callable[[], Table], rows: Sequence[Sequence[Text]]) -> tuple[Table, list[_Entries]]:
    table, entries = empty(), [_Entries(column) for column in zip(*rows, strict=True)]
    table.add_row(*entries)
    return table, entries


class _Entries:
    """Of one column: rich asks how wide they are, and tells how wide they may be."""

    def __init__(self, texts: Sequence[Text]) -> None:
        self.width = 1
        self._text = Text("\n").join(texts)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return self._text.__rich_measure__(console, options)

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterable[Text]:
        self.width = max(options.max_width, 1)
        return ()


def _folded(console: Console, column: Column, text: Text) -> list[Text]:
    if column.width is None or cell_len(text.plain) <= column.width:
        return [text]
    return [*text.wrap(console, column.width, overflow=column.overflow, no_wrap=column.no_wrap)]
