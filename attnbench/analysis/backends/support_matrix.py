"""The support matrix as a table for the terminal, as markdown (docs/backends.md holds it), CSV and JSON.

Reasons are footnotes, one number each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnbench.core.errors import UserError
from attnbench.report.files import as_csv
from attnbench.report.markdown import row, safe
from attnbench.results.case_names import headdim
from attnbench.run.support import (
    FEATURES,
    LEGEND,
    PLAIN,
    Row,
    Support,
    SupportMatrix,
    matrices_by_architecture,
    named_device,
    support_matrix,
)

FORMATS = ("table", "md", "csv", "json")
BEGIN, END = "<!-- matrix: made by `attnbench backends --matrix --into FILE` -->", "<!-- end of the matrix -->"
DOCUMENTED = "Hopper"
STYLES = {"yes": "green", "fwd": "yellow", "bwd": "yellow", "no": "dim"}
BY_ARCHITECTURE = "Where each runs"
UNVERIFIED = "not verified on hardware"
MORE = "Feature by feature: attnbench backends --matrix --gpu h100 (or sm_90, ampere, ..., cpu)"


class Notes:
    """Footnotes: a number for each text, in the order of their first use."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def mark(self, text: str) -> str:
        return str(self.numbers.setdefault(text, len(self.numbers) + 1)) if text else ""


Grid = tuple[str, list[str], list[tuple[tuple[str, str], list[Support]]]]  # title, columns, ((backend, remark), cells)


def overview(matrices: Sequence[SupportMatrix]) -> Grid:
    """Backends by device."""
    columns = [m.device.name for m in matrices]
    names = [(row.backend, "" if row.verified else UNVERIFIED) for row in matrices[0].rows]
    rows = [(name, [m.rows[i].overall for m in matrices]) for i, name in enumerate(names)]
    return BY_ARCHITECTURE, columns, rows


def by_feature(of: SupportMatrix) -> list[Grid]:
    """Backends by feature, a grid a group of features; those that run nothing there come in the first alone."""
    grids: list[Grid] = []
    for group in dict.fromkeys(f.group for f in FEATURES):
        chosen = [i for i, f in enumerate(FEATURES) if f.group == group]
        rows = [
            ((row.backend, _remark(row)), [row.cells[i] for i in chosen])
            for row in of.rows
            if row.plain is not None or not grids
        ]
        grids.append((f"{of.device.name}, {group}", [FEATURES[i].name for i in chosen], rows))
    return grids


def _remark(row: Row) -> str:
    """What a reader must know of the whole row."""
    parts = []
    if row.plain is not None and (row.plain.dtype, row.plain.shape) != (PLAIN.dtype, PLAIN.shape):
        parts.append(f"its other features in {row.plain.dtype}, headdim {headdim(row.plain)}")
    if row.asks and row.plain is not None:
        parts.append(f"{row.asks} may refuse more, by its version, when a case is run")
    if not row.verified:
        parts.append(UNVERIFIED)
    return "; ".join(parts)


def render(console: Console, gpus: Sequence[SupportMatrix]) -> None:
    """Feature by feature on each GPU; with none given, where each backend runs."""
    for of in gpus:
        notes = Notes()
        for grid in by_feature(of):
            _render(console, grid, notes)
        _footnotes(console, notes)
        console.print(LEGEND, style="dim")
    if not gpus:
        notes = Notes()
        _render(console, overview(matrices_by_architecture()), notes)
        _footnotes(console, notes)
        console.print(MORE, style="dim", markup=False)


def _render(console: Console, grid: Grid, notes: Notes) -> None:
    """As many tables beside the names as the width takes columns."""
    title, columns, rows = grid
    names = [f"{name} {notes.mark(remark)}".strip() for (name, remark), _ in rows]
    shown = [[f"{c.answer} {notes.mark(c.reason)}".strip() for c in cells] for _, cells in rows]
    widths = [2 + max(len(name), *(len(row[i]) for row in shown)) for i, name in enumerate(columns)]
    corner = max(map(len, names))
    first = 0
    while first < len(columns):
        last = first + 1
        while last < len(columns) and corner + sum(widths[first : last + 1]) <= console.width:
            last += 1
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column(title if first == 0 else "", no_wrap=True)
        for name in columns[first:last]:
            table.add_column(name, no_wrap=True)
        for name, texts, (_, cells) in zip(names, shown, rows, strict=True):
            table.add_row(Text(name), *(Text(texts[i], STYLES[cells[i].answer]) for i in range(first, last)))
        console.print(table)
        console.print()
        first = last


def _footnotes(console: Console, notes: Notes) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right", style="dim")
    table.add_column(overflow="fold")
    for text, number in notes.numbers.items():
        table.add_row(str(number), Text(text))
    console.print(table)


def markdown(gpus: Sequence[SupportMatrix], level: str = "###") -> str:
    """As `render`, in GitHub's markdown."""
    sections = [by_feature(of) for of in gpus] or [[overview(matrices_by_architecture())]]
    blocks = []
    for grids in sections:
        notes = Notes()
        for title, columns, rows in grids:
            lines = [
                f"{level} {title}",
                "",
                row("backend", *map(safe, columns)),
                "|---" * (len(columns) + 1) + "|",
            ]
            for (name, remark), cells in rows:
                shown = [_noted(c.answer, notes.mark(c.reason)) for c in cells]
                lines.append(row(_noted(f"`{name}`", notes.mark(remark)), *shown))
            blocks.append("\n".join(lines))
        blocks.append("\n".join(f"{number}. {safe(text)}" for text, number in notes.numbers.items()))
    if gpus:
        blocks.append(safe(LEGEND))
    return "\n\n".join(filter(None, blocks)) + "\n"


def _noted(text: str, mark: str) -> str:
    return f"{text} <sup>{mark}</sup>" if mark else text


def _flat(gpus: Sequence[SupportMatrix]) -> Iterable[dict[str, str]]:
    """One entry a device, backend and feature."""
    for of in gpus or matrices_by_architecture():
        capability = ".".join(map(str, of.device.capability or ()))
        for backend in of.rows:
            for feature, cell in zip(FEATURES, backend.cells, strict=True):
                yield {
                    "device": of.device.name,
                    "capability": capability,
                    "backend": backend.backend,
                    "feature": feature.name,
                    "support": cell.answer,
                    "reason": cell.reason,
                }


def csv_text(gpus: Sequence[SupportMatrix]) -> str:
    return as_csv(list(_flat(gpus)))


def json_text(gpus: Sequence[SupportMatrix]) -> str:
    return json.dumps(list(_flat(gpus)), indent=1) + "\n"


WRITERS: dict[str, Callable[[Sequence[SupportMatrix]], str]] = {"md": markdown, "csv": csv_text, "json": json_text}


def documented() -> str:
    """What docs/backends.md holds between its marks."""
    return f"{BEGIN}\n\n{markdown(())}\n{markdown([support_matrix(named_device(DOCUMENTED))])}\n{END}\n"


def put_into(path: Path) -> None:
    """Replaces what stands between the marks of a file. Raises UserError where there are none."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"--into: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"--into: {path} is not text ({error.reason})") from None
    before, begin, rest = text.partition(f"{BEGIN}\n")
    _, end, after = rest.partition(f"{END}\n")
    if not begin or not end:
        raise UserError(f"--into: {path} has no place for the matrix; put these two lines where it goes: {BEGIN} {END}")
    try:
        path.write_text(before + documented() + after, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--into: cannot write {path}: {error.strerror}") from None
