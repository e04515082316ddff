"""Cautions as tables: where each holds, what happened there, why it matters, what to do.

The cautions of a command are one tuple of rules, read from top to bottom. A rule has a function of what was found that
returns the values of each place where the rule holds, and templates of str.format over these values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from attnbench.core.documents import with_addresses
from attnbench.core.formats import percent
from attnbench.core.text import count, some
from attnbench.render.document import Caution
from attnbench.results.cells import Cell

Found = TypeVar("Found")
Places = Iterable[dict[str, Any]]  # the values of each place where a rule holds; none where it does not hold


@dataclass(frozen=True)
class Rule(Generic[Found]):
    """A caution, or a fact, and the function that returns where it holds."""

    where: Callable[[Found], Places]
    what: str
    why: str = ""
    todo: str = ""


def stated(rules: Iterable[Rule[Found]], found: Found) -> tuple[Caution, ...]:
    """Return the cautions of all places where rules hold."""
    return tuple(
        Caution(*(with_addresses(text).format_map(values) for text in (rule.what, rule.why, rule.todo)))
        for rule in rules
        for values in rule.where(found)
    )


def when(holds: object, **values: Any) -> Places:
    """Return one place with these values, or none where `holds` is false."""
    return [values] if holds else []


def in_cells(cells: Iterable[Cell], **values: Any) -> Places:
    """Return one place for some cells, or none without cells.

    Its values: {number} of cells, the same with a noun as {cells}, {results} and {figures}, and their {names}.
    """
    found = list(cells)
    told = {f"{noun}s": count(len(found), noun) for noun in ("cell", "result", "figure")}
    return when(found, number=len(found), names=some(cell.name for cell in found), **told, **values)


def furthest(
    found: Sequence[tuple[float, Cell]],
    write: Callable[[float], str] = percent,
    pick: Callable[..., tuple[float, Cell]] = max,
) -> Places:
    """Return one place for cells with a figure each, or none without cells.

    Its values: those of in_cells, the picked figure as {most}, and its {cell}.
    """
    if not found:
        return []
    most, cell = pick(found, key=lambda pair: pair[0])
    return in_cells((cell for _, cell in found), most=write(most), cell=cell)
