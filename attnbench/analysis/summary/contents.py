"""What a report in text holds, a terminal's or markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.analysis.summary import cautions, facts, machine_summary, no_figure, tables
from attnbench.analysis.summary.cautions import Caution
from attnbench.analysis.summary.machine_summary import Setup
from attnbench.analysis.summary.no_figure import Note
from attnbench.analysis.summary.tables import Section
from attnbench.core.flops import Convention
from attnbench.core.record import Run
from attnbench.results.cells import cells as cells_of

Half = dict[str, Any]  # some of the fields of Contents
MANY = 5000  # cells, from which the second half is worth a process of its own


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

    def first() -> Half:
        found = tables.sections(cells, metrics, by, convention, memory, lines) if cells else []
        headed = [(machine_summary.heading(section.metric, cells, convention), section) for section in found]
        return {"sections": headed, "facts": facts.facts(cells)}

    def second() -> Half:  # which takes about as long
        doubts = cautions.cautions(cells, runs, convention)
        return {"setups": machine_summary.setups(cells), "notes": no_figure.notes(cells), "cautions": doubts}

    if len(cells) < MANY:
        return Contents(**first(), **second())
    from attnbench.results.apart import apart

    with apart(_called, (first, second)) as halves:
        one, other = halves
    return Contents(**one, **other)


def _called(half: Callable[[], Half]) -> Half:
    return half()
