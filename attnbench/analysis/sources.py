"""Adds to a table which run files its rows are from, for pages that can link to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from attnbench.core.record import Run
from attnbench.render.document import Column, Entry, Table

Sources = Callable[[Iterable[Run]], Entry]  # returns links to the run files of some runs


def with_sources(table: Table, runs: Sequence[Iterable[Run]], sources: Sources | None) -> Table:
    """Return a table with a column of the run files of each row; the table as it is without `sources`."""
    if sources is None:
        return table
    rows = tuple((*row, sources(of)) for row, of in zip(table.rows, runs, strict=True))
    return replace(table, columns=(*table.columns, Column("run files", optional=1)), rows=rows)
