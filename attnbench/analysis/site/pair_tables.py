"""The tables of a comparison, with a column for the run files behind each row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from attnbench.analysis.compare.findings import Comparison
from attnbench.analysis.site.findings import Findings
from attnbench.analysis.site.tables import MOST_SOURCES, file_links
from attnbench.core.case import Case
from attnbench.render.document import Block, Column, Entry, Table
from attnbench.results.cells import Key

Cells = Mapping[str, Sequence[Key]]  # label of a machine -> the cells behind a row
BARS = ("bars", "decode-bars")  # with a row for each kind of case and machine


def linked(site: Findings, c: Comparison, blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks of a comparison, its totals, cases, cells and kinds of case with links to the run files."""
    of_cells: dict[str, list[Cells]] = {
        "machines": [
            {label: [*figures.chosen[label].values()] for label in c.labels} for figures in c.figures for _ in c.labels
        ],
        "cases": [_fastest(c, case) for case in c.of_limit("compute")],
        "by-memory": [_fastest(c, case) for case in c.of_limit("memory")],
        "by-launch": [_fastest(c, case) for case in c.of_limit("launch")],
        "cells": [{label: [key] for label in c.labels} for key in c.cells if key[1] not in c.own_code],
        "own-code": [{label: [key] for label in c.labels} for key in c.cells if key[1] in c.own_code],
    }
    for block in blocks:
        if not isinstance(block, Table):
            yield block
        elif block.name in ("groups", *BARS):
            yield _with_links(site, c, block, [_of_kind(c, kind) for kind in _kinds(block)])
        elif len(found := of_cells.get(block.name, [])) == len(block.rows):
            yield _with_links(site, c, block, found)
        else:
            yield block


def _fastest(c: Comparison, case: Case) -> Cells:
    return {machine.label: [machine.fastest[case]] for machine in c.machines}


def _kinds(table: Table) -> list[str]:
    return [str(row[0]) for row in table.rows if row[0]]


def _of_kind(c: Comparison, kind: str) -> Cells:
    """Return the cells that count with shared backends, for a kind of case or all cases."""
    of = c.main.kinds.get(kind, c.main)
    return {label: [*of.chosen[label].values()] for label in c.labels}


def _with_links(site: Findings, c: Comparison, table: Table, compared: Sequence[Cells]) -> Table:
    """Return a table with links to run files. A row with an empty first column belongs to the row above."""
    by_label = {machine.label: machine for machine in c.machines}

    shown = 0 if table.name == "machines" else MOST_SOURCES

    def links(cells: Cells, labels: Iterable[str]) -> Entry:
        found = ((by_label[label].cells, key) for label in labels for key in cells[label])
        return file_links(site, (of[key] for of, key in found if key in of), shown)

    place = next((i for i, column in enumerate(table.columns) if column.heading == "machine"), None)
    rows: list[tuple[Entry, ...]] = []
    number = -1
    for row in table.rows:
        number += bool(row[0])
        rows.append((*row, links(compared[number], c.labels if place is None else [str(row[place])])))
    named = (column if column.heading else replace(column, heading="of the most") for column in table.columns)
    return replace(table, columns=(*named, Column("run files", optional=1)), rows=tuple(rows))
