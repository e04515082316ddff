"""The document of `attnbench backends`: which backends run here, where each gave right results, what others lack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.core.text import some
from attnbench.render.document import Block, Column, Document, Machine, Pairs, Paragraphs, Span, Table

MORE = (
    "What each backend supports: --matrix; case by case: attnbench run --dry-run; an environment of its own for a "
    "library: attnbench env create"
)


@dataclass(frozen=True)
class Row:
    """One backend on this machine."""

    backend: str
    version: str | None  # of its library
    verified: str  # on what hardware it gave right results
    interpreter: str | None = None  # in which it runs, where that is not this one
    reason: str | None = None  # why it cannot run here
    install: str | None = None  # the command that installs what is missing


def document(device: str, rows: Sequence[Row]) -> Document:
    """Return the list of backends, with a line for each reason why some cannot run here, and how to install them."""
    reasons: dict[str, list[str]] = {}
    commands: dict[str, list[str]] = {}
    for row in rows:
        if row.reason:
            reasons.setdefault(row.reason, []).append(row.backend)
            if row.install:
                commands.setdefault(row.install, []).append(row.backend)
    blocks: list[Block] = [_table(rows)]
    if reasons:
        lines = ((Span(", ".join(names)), Span(f": {reason}", "quiet")) for reason, names in reasons.items())
        blocks.append(Paragraphs(tuple(lines), "Not here"))
    if commands:
        pairs = ((some(names, 2), command, "") for command, names in commands.items())
        blocks.append(Pairs(tuple(pairs), "To install what is missing"))
    return Document(
        command="backends",
        title=f"Backends on {device}",
        machines=(Machine(device, ""),),
        blocks=tuple(blocks),
        notes=((Span(MORE, "quiet"),),),
        data=[vars(row) for row in rows],
        rows=[vars(row) for row in rows],
    )


def _table(rows: Sequence[Row]) -> Table:
    entries = []
    for row in rows:
        version = (row.version or "-") + (f", in {row.interpreter}" if row.interpreter else "")
        texts = (row.backend, version, row.verified)
        entries.append(tuple(Span(text, "quiet" if row.reason else "") for text in texts))
    columns = (Column("backend", wrap=False), Column("version"), Column("right results on"))
    return Table("backends", columns, tuple(entries))
