"""The colours of pages and charts, for light and dark screens, and the colour, dash and shape of each backend.

Readers with a colour vision deficiency can distinguish about eight colours. Therefore any two of up to 32 backends
differ in at least two of three things: colour, dash of the line, shape of the point. They keep all three in every chart
and report.

The eight hues are grey and seven after Okabe and Ito ("Color Universal Design", 2008). A search chose the lightnesses
and saturations for which the least distance between two colours in OKLab (Ottosson, 2020) is largest, over normal
vision and full protanopia, deuteranopia and tritanopia (Machado, Oliveira and Fernandes, "A Physiologically-based Model
for Simulation of Color Vision Deficiency", IEEE TVCG 15(6), 2009), with a contrast of 3:1 with the background (WCAG
2.2, 1.4.11). tests/render/test_charts.py checks the distances.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.results import case_names

SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left")
DASHES = ((1, 0), (7, 3), (2, 2), (9, 3, 2, 3))  # lengths of strokes and gaps, in pixels
SERIES = 8  # number of colours for backends and for groups of bars: "c0" to "c7"
PLACES = SERIES * len(DASHES)

Theme = Mapping[str, str]  # name of a colour -> the colour, as CSS writes it

_COLOURS = {  # name -> the colour on light screens and on paper, the colour on dark screens
    "ink": ("#1f2328", "#e6edf3"),  # text
    "quiet": ("#59636e", "#9aa4af"),  # axes, captions
    "grid": ("#e3e7eb", "#262c35"),  # lines of grids and tables
    "paper": ("#ffffff", "#0d1117"),  # the background
    "good": ("#1a7f37", "#3fb950"),  # a verdict that all is well
    "warning": ("#9a6700", "#d29922"),  # a verdict that leaves something to be checked
    "bad": ("#cf222e", "#f85149"),  # a verdict that something is wrong
    "c0": ("#222222", "#fcf2f5"),
    "c1": ("#e95198", "#ea77ad"),
    "c2": ("#af8e2f", "#e8bf61"),
    "c3": ("#1617a4", "#4895fc"),
    "c4": ("#117651", "#40846b"),
    "c5": ("#7f2401", "#c64113"),
    "c6": ("#8d43c8", "#9450c2"),
    "c7": ("#159dce", "#5ad9ea"),
}
LIGHT: Theme = {name: light for name, (light, _) in _COLOURS.items()}
DARK: Theme = {name: dark for name, (_, dark) in _COLOURS.items()}


def color(name: str) -> str:
    """Return a colour as a page refers to it: a variable of the style sheet, which has another value in dark mode."""
    return f"var(--{name})"


def in_the_light(spec: Any) -> Any:
    """Return a chart with the colours of LIGHT in place of references to them, for a file without a style sheet."""
    return json.loads(re.sub(r"var\(--(\w+)\)", lambda found: LIGHT[found[1]], json.dumps(spec)))


def style_sheet() -> str:
    """Return the style sheet that sets the colours of a page: light on screen and on paper, dark where asked for."""
    light, dark = ("; ".join(f"--{name}: {color}" for name, color in theme.items()) for theme in (LIGHT, DARK))
    return f":root {{{light}}}\n@media screen and (prefers-color-scheme: dark) {{:root {{{dark}}}}}"


@dataclass(frozen=True)
class SeriesMark:
    """How a backend is drawn: the number of its colour (3 for "c3"), the dash of its line, the shape of its points."""

    color: int
    dash: int
    shape: str

    @classmethod
    def of(cls, place: int) -> SeriesMark:
        """Return mark number `place`, from 0 to PLACES - 1: any two differ in at least two of the three properties."""
        dash, color = divmod(place, SERIES)
        return cls(color, dash, SHAPES[(color + dash) % len(SHAPES)])


def backend_marks(backends: Sequence[str]) -> dict[str, SeriesMark]:
    """Return the mark of each backend.

    attnbench's own backends have the same mark in every report; others take those that are left, in the order given.
    """
    ranks = {backend: case_names.backend_rank(backend)[0] for backend in backends}
    known = len(case_names.BACKEND_ORDER)
    places = {backend: rank for backend, rank in ranks.items() if rank < known}
    left = [place for place in (*range(known, PLACES), *range(known)) if place not in places.values()]
    others = [backend for backend in backends if backend not in places]
    places |= {backend: left[i % len(left)] for i, backend in enumerate(others)}
    return {backend: SeriesMark.of(places[backend] % PLACES) for backend in backends}
