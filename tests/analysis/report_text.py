"""Reports of runs as text, for tests."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from attnbench.analysis.report.document import document
from attnbench.core.flops import Convention
from attnbench.core.record import Run
from attnbench.render import terminal
from attnbench.render.document import Document
from attnbench.results.cells import cells


def report(runs: Sequence[Run], convention: Convention = "exact", **options: Any) -> Document:
    """Return the document of a report on runs, with the options of report.document."""
    return document(cells(runs, convention), runs, **options)


def shown(runs: Sequence[Run], width: int = 100, encoding: str = "utf-8", **options: Any) -> str:
    """Return the output of a report to a pipe."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    terminal.render(Console(file=stream, width=width, _environ={}), report(runs, **options))
    stream.flush()
    return raw.getvalue().decode(encoding)
