"""The published figures of GPUs that nobody here measured, in a comparison: after all that was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attnbench.analysis.compare.findings import Comparison
from attnbench.render.document import Table


def published_tables(c: Comparison, brief: bool) -> list[Table]:
    """Return the table of published figures; `brief`: a row for each GPU. None where there are none."""
    if not c.published:
        return []
    from attnbench.analysis.claims import published  # its claims need pydantic, which takes long to import

    more = "attnbench compare --all has each figure with its source."
    return [published.summary(c.published, more, bars=False) if brief else published.table(c.published)]


def published_summary(c: Comparison, most: int) -> list[Table]:
    """Return the table of the first GPUs, a row for each; none where there are no published figures."""
    if not c.published:
        return []
    from attnbench.analysis.claims import published

    found = published.summary(c.published, "", bars=False)
    return [replace(found, rows=found.rows[-most:])]


def published_rows(c: Comparison) -> list[dict[str, Any]]:
    """Return the published figures for JSON; each says that it was not measured."""
    if not c.published:
        return []
    from attnbench.analysis.claims import published

    return published.rows(c.published)
