"""Tables of figures in the documents, made of run files and of kept simulations: `make tables` renews them.

A document has the call in a comment, and cog (cog.readthedocs.io) writes below it what the call prints.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import cog  # of the running cog

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

import attnbench  # noqa: E402
from attnbench.results import metrics  # noqa: E402
from attnbench.results.case_names import case_name  # noqa: E402
from attnbench.results.cells import Cell, contest_of  # noqa: E402


@cache
def _cells(pattern: str) -> tuple[Cell, ...]:
    """Return the cells of the run files that a pattern names, the oldest first."""
    found = attnbench.load(str(ROOT / "results" / f"{pattern}.jsonl.gz")).cells
    return tuple(sorted(found, key=lambda one: one.run.started))


def cell(file: str, words: str) -> Cell | None:
    """Return the cell of a run file in results/ whose name has these words and the fewest others; None without one.

    Of several files that a pattern names, the newest that has it.
    """
    asked = {*words.split()}
    found: dict[int, dict[Any, Cell]] = {}
    for one in _cells(file):
        name = case_name(one.backend, one.case, dtype=True, batch=True).split()
        if asked <= {*name} and one.status == "ok":
            found.setdefault(len(name), {})[one.key] = one
    nearest = [*found[min(found)].values()] if found else []
    if len(nearest) > 1:
        raise ValueError(f"{words!r} names several cells of {file}: {', '.join(one.name for one in nearest)}")
    return nearest[0] if nearest else None


def cells(file: str, words: str) -> list[Cell]:
    """Return the right cells of the run files in results/ whose names have these words."""
    asked = {*words.split()}
    named = ((one, case_name(one.backend, one.case, dtype=True, batch=True)) for one in _cells(file))
    return [one for one, name in named if asked <= {*name.split()} and one.status == "ok"]


def figure(of: Cell, name: str) -> str:
    """Return a metric of a cell as tables show it."""
    value = of.value(name)
    return "-" if value is None else metrics.named(name).format(value)


def table(
    corner: str,
    rows: Mapping[str, str],
    columns: Mapping[str, tuple[str, str]],
    text: str = "{tflops}",
    *,
    bold: str = "",
) -> None:
    """Print a table of cells. `text` has the names of metrics in braces.

    rows: title -> words of a cell's name. columns: title -> run file, and more words. bold: "row" or "column", in each
    of which the fastest stand out, with those that cannot be told from them.
    """
    found = {(row, column): cell(file, f"{a} {b}") for row, a in rows.items() for column, (file, b) in columns.items()}
    missing = [row for row in rows if not any(found[row, column] for column in columns)]
    if missing:
        raise ValueError(f"no figure in {missing}")
    groups = {"row": [[(r, c) for c in columns] for r in rows], "column": [[(r, c) for r in rows] for c in columns]}
    fastest: set[tuple[str, str]] = set()
    for group in groups.get(bold, ()):
        winners = contest_of([one for place in group if (one := found[place])]).winners
        fastest |= {place for place in group if found[place] in winners}
    shown_rows = []
    for row in rows:
        shown = []
        for column in columns:
            of = found[row, column]
            said = text.format_map(_Figures(of)).replace(" / -", "") if of else ""
            shown.append(f"**{said}**" if (row, column) in fastest else said)
        shown_rows.append((row, *shown))
    lines((corner, *columns), *shown_rows)


def simulated(name: str, *rows: str, columns: int | None = None) -> None:
    """Print the command of a simulation and the table that it kept in simulated/: its first columns, some or all rows.

    rows: their first entries.
    """
    kept = json.loads((HERE / "simulated" / f"{name}.json").read_text(encoding="utf-8"))
    chosen = [row for row in kept["rows"] if not rows or row[0] in rows]
    if missing := {*rows} - {row[0] for row in chosen}:
        raise ValueError(f"no row of {name} is {missing}")
    cog.outl(f"\n    {kept['command']}    # {kept['repetitions']} repetitions a row, seed {kept['seed']}")
    lines(kept["heading"][:columns], *(row[:columns] for row in chosen))


def recorded(name: str) -> None:
    """Print the output of a command, which record.py keeps in simulated/."""
    cog.outl("\n```text\n" + (HERE / "simulated" / f"{name}.txt").read_text(encoding="utf-8") + "```\n")


def lines(heading: Sequence[str], *rows: Sequence[str]) -> None:
    """Print a table of texts, the first column left-aligned."""
    rule = (":---", *("---:" for _ in heading[1:]))
    cog.outl()
    for row in (heading, rule, *rows):
        cog.outl(f"| {' | '.join(row)} |")
    cog.outl()


class _Figures(dict[str, str]):
    """The metrics of a cell by name, as tables show them."""

    def __init__(self, of: Cell) -> None:
        self.of = of

    def __missing__(self, name: str) -> str:
        return figure(self.of, name)
