"""A table of a comparison, with the machines side by side or, where that is too wide to read, one below the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

MOST_BESIDE = 4  # machines; with more, no page is wide enough


@dataclass(frozen=True)
class Block:
    """A table. `text` are the places of columns that stand to the left; the others are figures.

    `narrow` makes the same table with a row for each machine, where it has columns for each.
    """

    name: str
    title: str
    note: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text: tuple[int, ...] = (0,)
    narrow: Callable[[], Block] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Figure:
    """What machines, by their number, have in each row of a table."""

    rows: Sequence[Mapping[int, str]]
    headings: Mapping[int, str]  # of the columns of each machine
    heading: str  # of the one column where machines are rows
    text: bool = False


def by_machine(block: Block, labels: Sequence[str], *parts: Sequence[Figure]) -> Block:
    """A block whose rows say what is compared, and the figures of machines: in each part, machine by machine."""
    narrow = partial(_narrow, block, labels, [figure for part in parts for figure in part])
    if len(labels) > MOST_BESIDE:
        return narrow()
    columns = list(_columns(range(len(labels)), parts))
    text = (*block.text, *(i for i, (_, figure) in enumerate(columns, len(block.headings)) if figure.text))
    return replace(
        block,
        headings=(*block.headings, *(figure.headings[machine] for machine, figure in columns)),
        rows=tuple(
            (*row, *(figure.rows[i][machine] for machine, figure in columns)) for i, row in enumerate(block.rows)
        ),
        text=text,
        narrow=narrow,
    )


def _columns(machines: Sequence[int], parts: Sequence[Sequence[Figure]]) -> Iterator[tuple[int, Figure]]:
    for part in parts:
        for machine in machines:
            yield from ((machine, figure) for figure in part if machine in figure.headings)


def _narrow(block: Block, labels: Sequence[str], figures: Sequence[Figure]) -> Block:
    """What is compared stands in the first row of several."""
    keys, n = len(block.headings), len(block.headings) + 1
    rows = []
    for i, row in enumerate(block.rows):
        said = row
        for machine, label in enumerate(labels):
            own = [figure.rows[i].get(machine, "") for figure in figures]
            if any(own):
                rows.append((*said, label, *own))
                said = ("",) * keys
    text = (*block.text, keys, *(n + i for i, figure in enumerate(figures) if figure.text))
    headings = (*block.headings, "machine", *(figure.heading for figure in figures))
    return replace(block, headings=headings, rows=tuple(rows), text=text)
