"""What a report in text holds, a terminal's or markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from attnbench.report import cautions, facts, notes, setup, tables
from attnbench.report.cautions import Caution
from attnbench.report.cells import Cell
from attnbench.report.cells import cells as cells_of
from attnbench.report.notes import Note
from attnbench.report.setup import Setup
from attnbench.report.tables import Section
from attnbench.types import Run
from attnbench.work import Convention

Part = Callable[[], Any]
MANY = 5000  # cells, from which what stands around the tables is worth a process of its own


@dataclass(frozen=True)
class Contents:
    """In the order of the page."""

    setups: Sequence[Setup]
    sections: Sequence[tuple[str, Section]]  # with their headings
    notes: Sequence[Note]
    cautions: Sequence[Caution]
    facts: Sequence[Caution]


def contents(
    runs: Sequence[Run],
    *,
    metrics: Sequence[str] = ("tflops",),
    by: str | None = None,
    convention: Convention = "exact",
    memory: bool = True,
    lines: float = tables.LINES,
) -> Contents:
    """Of runs; the options are those of tables.sections, which says what it raises."""
    cells = cells_of(runs)
    found: Part = partial(tables.sections, cells, metrics, by, convention, memory, lines) if cells else list
    around: Part = partial(_around, cells, runs, convention)
    if len(cells) < MANY:
        made = [found(), around()]
    else:
        from attnbench.apart import apart

        with apart(_called, (found, around)) as parts:
            made = list(parts)
    headed = [(setup.heading(section.metric, cells, convention), section) for section in made[0]]
    return Contents(sections=headed, **made[1])


def _called(part: Part) -> Any:
    return part()


def _around(cells: Sequence[Cell], runs: Sequence[Run], convention: Convention) -> dict[str, Any]:
    return {
        "setups": setup.setups(cells),
        "notes": notes.notes(cells),
        "cautions": cautions.cautions(cells, runs, convention),
        "facts": facts.facts(cells),
    }
