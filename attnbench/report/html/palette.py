"""What figures look like: the colours of backends, ink and paper, by light and in the dark.

The colours stay apart for readers with any of the common colour deficiencies: they start from Okabe and Ito, "Color
Universal Design" (2008), darkened or lightened until each has a contrast of 3:1 with its paper (WCAG 2.2, 1.4.11).
Each backend has a shape of its own too, and keeps both in every figure and every report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.results import case_names

SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left")
FONT = "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"


@dataclass(frozen=True)
class Look:
    ink: str
    quiet: str  # axes, captions
    grid: str
    paper: str
    colors: tuple[str, ...]

    def css(self) -> str:
        """As custom properties, which `ON_PAGE` refers to."""
        named = {"ink": self.ink, "quiet": self.quiet, "grid": self.grid, "paper": self.paper}
        named |= {f"c{i}": color for i, color in enumerate(self.colors)}
        return "; ".join(f"--{name}: {value}" for name, value in named.items())


LIGHT = Look(
    ink="#1f2328",
    quiet="#59636e",
    grid="#e3e7eb",
    paper="#ffffff",
    colors=(
        "#6e7781",
        "#b0508a",
        "#b87400",
        "#0072b2",
        "#008763",
        "#d24d00",
        "#6a3fc0",
        "#7d7a00",
        "#008a9e",
        "#8a1538",
    ),
)
DARK = Look(
    ink="#e6edf3",
    quiet="#9aa4af",
    grid="#262c35",
    paper="#0d1117",
    colors=(
        "#9aa4af",
        "#e88cc4",
        "#eaa92e",
        "#58a9ea",
        "#2cc295",
        "#ff7f45",
        "#b39bff",
        "#cfc642",
        "#4fd3e3",
        "#ff7d9c",
    ),
)
ON_PAGE = Look(
    "var(--ink)", "var(--quiet)", "var(--grid)", "var(--paper)", tuple(f"var(--c{i})" for i in range(len(LIGHT.colors)))
)


def style() -> str:
    """The colours of a page, by light (and on paper) and in the dark."""
    dark = f"@media screen and (prefers-color-scheme: dark) {{:root {{{DARK.css()}}}}}"
    return f":root {{{LIGHT.css()}}}\n{dark}"


def places(backends: Sequence[str]) -> dict[str, int]:
    """The place of each in the lists of colours and shapes: attnbench's own have one each, others those left."""
    known = len(case_names.BACKEND_ORDER)
    strangers = [b for b in backends if case_names.backend_rank(b)[0] == known]
    return {b: known + strangers.index(b) if b in strangers else case_names.backend_rank(b)[0] for b in backends}
