"""Tables whose rows say what is compared: the machines are columns, or, where that is too wide to read, rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from attnbench.report.document import Align, Column, Entry, Table

MOST_COLUMNS = 4  # machines as columns; with more, no page is wide enough


@dataclass(frozen=True)
class MachineColumn:
    """What the machines have in each row of a table: a column for each of them, or one column where they are rows."""

    heading: str  # of the one column
    headings: Mapping[str, str]  # label -> heading of the machine's own column; a machine may be without one
    rows: Sequence[Mapping[str, str]]  # for each row of the table: label -> text
    align: Align = "right"


def by_machine(table: Table, labels: Sequence[str], *groups: Sequence[MachineColumn]) -> Table:
    """Return a table with what machines have added: each group machine by machine, one group after the other.

    `narrow` of the result has a row for each machine instead. With more than MOST_COLUMNS machines it is that at once.
    """
    narrow = _machines_as_rows(table, labels, [column for group in groups for column in group])
    if len(labels) > MOST_COLUMNS:
        return narrow
    own = [(label, col) for group in groups for label in labels for col in group if label in col.headings]
    return replace(
        table,
        columns=(*table.columns, *(Column(col.headings[label], col.align, wrap=False) for label, col in own)),
        rows=tuple((*row, *(col.rows[i][label] for label, col in own)) for i, row in enumerate(table.rows)),
        narrow=narrow,
    )


def _machines_as_rows(table: Table, labels: Sequence[str], columns: Sequence[MachineColumn]) -> Table:
    """Return a table with a row for each machine; the first of them says what is compared."""
    rows: list[tuple[Entry, ...]] = []
    for i, row in enumerate(table.rows):
        compared: tuple[Entry, ...] = row
        for label in labels:
            texts = [column.rows[i].get(label, "") for column in columns]
            if any(texts):
                rows.append((*compared, label, *texts))
                compared = ("",) * len(table.columns)
    added = (Column("machine", wrap=False), *(Column(col.heading, col.align, wrap=False) for col in columns))
    return replace(table, columns=(*table.columns, *added), rows=tuple(rows))
