"""The published figures of GPUs without run files, which follow the measured figures of a comparison."""

from __future__ import annotations

from typing import Any

from attnbench.analysis.compare.findings import Comparison
from attnbench.render.document import Paragraphs, Span, Table


def published_blocks(c: Comparison, every: bool) -> list[Table | Paragraphs]:
    """Return the table of published figures, or without `every` a sentence with their GPUs; empty without figures."""
    if not c.published:
        return []
    from attnbench.analysis.claims import published  # its claims need pydantic, which takes long to import

    if every:
        return [published.table(c.published)]
    names = ", ".join(dict.fromkeys(one.gpu for one in c.published))
    return [
        Paragraphs(((Span(f"{published.TITLE}: {names}. attnbench compare --all has figures and sources.", "quiet"),),))
    ]


def published_summary(c: Comparison, most: int) -> list[Table]:
    """Return the table of the last `most` GPUs, a row for each; empty without published figures."""
    if not c.published:
        return []
    from attnbench.analysis.claims import published

    shown = {*[*dict.fromkeys(one.gpu for one in c.published)][-most:]}
    return [published.summary([one for one in c.published if one.gpu in shown], "", bars=False)]


def published_rows(c: Comparison) -> list[dict[str, Any]]:
    """Return the published figures for JSON; each is marked as not measured."""
    if not c.published:
        return []
    from attnbench.analysis.claims import published

    return published.rows(c.published)
