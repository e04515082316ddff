"""What `attnbench backends` shows: which can run here, where each gave right results, and what the others lack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Row:
    name: str
    version: str
    tried: str  # where it gave right results
    reason: str | None = None  # why it cannot run here
    install: str | None = None  # what would help


def render(console: Console, device: str, rows: Sequence[Row]) -> None:
    """A table, and below it a line for each reason, with what would help whole and on a line of its own."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("backend", "version", "right results on"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, (row.name, row.version, row.tried)), style="dim" if row.reason else None)
    console.print(f"on {device}:", markup=False)
    console.print(table)
    lacking: dict[tuple[str, str | None], list[str]] = {}
    for row in rows:
        if row.reason:
            lacking.setdefault((row.reason, row.install), []).append(row.name)
    if lacking:
        console.print("\nNot here:", style="bold")
    for (reason, install), names in lacking.items():
        console.print(Text(", ".join(names)) + Text(f": {reason}", "dim"), soft_wrap=True)
        if install:
            console.print(f"    {install}", markup=False, soft_wrap=True)
    more = "What each supports: --matrix; case by case: attnbench run --dry-run; one of its own: attnbench env create"
    console.print(f"\n{more}", style="dim", markup=False, soft_wrap=True)
