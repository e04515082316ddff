"""The colours of pages and figures, for light and dark screens, and the colour and shape of each backend.

The colours of backends can be told apart by readers with any of the common colour vision deficiencies: they start from
Okabe and Ito, "Color Universal Design" (2008), darkened or lightened until each has a contrast of 3:1 with the
background (WCAG 2.2, 1.4.11). Each backend also has a shape of its own, and keeps both in every figure and report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.results import case_names

SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left")
FONT = "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"


@dataclass(frozen=True)
class Theme:
    """Colours, each as CSS writes them."""

    ink: str  # text
    quiet: str  # axes, captions
    grid: str  # lines of grids and tables
    paper: str  # the background
    good: str  # a verdict that all is well
    warning: str  # a verdict that leaves something to be checked
    bad: str  # a verdict that something is wrong
    series: tuple[str, ...]  # of backends and of groups of bars

    def custom_properties(self) -> str:
        """Return the colours as CSS declarations, `--ink: #1f2328; ...; --c0: #6e7781; ...`; IN_PAGE refers to them."""
        names = ("ink", "quiet", "grid", "paper", "good", "warning", "bad")
        named = {name: getattr(self, name) for name in names}
        named |= {f"c{i}": color for i, color in enumerate(self.series)}
        return "; ".join(f"--{name}: {value}" for name, value in named.items())


LIGHT = Theme(
    ink="#1f2328",
    quiet="#59636e",
    grid="#e3e7eb",
    paper="#ffffff",
    good="#1a7f37",
    warning="#9a6700",
    bad="#cf222e",
    series=(
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
DARK = Theme(
    ink="#e6edf3",
    quiet="#9aa4af",
    grid="#262c35",
    paper="#0d1117",
    good="#3fb950",
    warning="#d29922",
    bad="#f85149",
    series=(
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
# For figures in a page: the page's style sheet says what each colour is, so that dark mode needs no second drawing.
IN_PAGE = Theme(
    **{name: f"var(--{name})" for name in ("ink", "quiet", "grid", "paper", "good", "warning", "bad")},
    series=tuple(f"var(--c{i})" for i in range(len(LIGHT.series))),
)


def style_sheet() -> str:
    """Return the style sheet that sets the colours of a page: light on screen and on paper, dark where asked for."""
    dark = f"@media screen and (prefers-color-scheme: dark) {{:root {{{DARK.custom_properties()}}}}}"
    return f":root {{{LIGHT.custom_properties()}}}\n{dark}"


def backend_places(backends: Sequence[str]) -> dict[str, int]:
    """Return backend -> its place in Theme.series and SHAPES, both taken modulo their length.

    attnbench's own backends have the same place in every report; others follow, in the order given.
    """
    known = len(case_names.BACKEND_ORDER)
    others = [b for b in backends if case_names.backend_rank(b)[0] == known]
    return {b: known + others.index(b) if b in others else case_names.backend_rank(b)[0] for b in backends}
