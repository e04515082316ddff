"""The published figures of GPUs that nobody here measured, in a comparison: after all that was measured."""

from __future__ import annotations

from typing import Any

from attnbench.analysis.compare.findings import Comparison
from attnbench.render.document import Paragraphs, Span, Table


def published_blocks(c: Comparison, every: bool) -> list[Table | Paragraphs]:
    """Return the table of published figures; without `every` a sentence that names their GPUs. None without any."""
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
    """Return the table of the last GPUs, a row for each; none where there are no published figures."""
    if not c.published:
        return []
    from attnbench.analysis.claims import published

    shown = {*[*dict.fromkeys(one.gpu for one in c.published)][-most:]}
    return [published.summary([one for one in c.published if one.gpu in shown], "", bars=False)]


def published_rows(c: Comparison) -> list[dict[str, Any]]:
    """Return the published figures for JSON; each says that it was not measured."""
    if not c.published:
        return []
    from attnbench.analysis.claims import published

    return published.rows(c.published)
