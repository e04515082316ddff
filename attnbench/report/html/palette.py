"""The colours of pages and figures, for light and dark screens, and the colour and shape of each backend.

The colours of backends can be told apart by readers with any of the common colour vision deficiencies: they start from
Okabe and Ito, "Color Universal Design" (2008), darkened or lightened until each has a contrast of 3:1 with the
background (WCAG 2.2, 1.4.11). Each backend also has a shape of its own, and keeps both in every figure and report.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from attnbench.results import case_names

SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left")
SERIES = 10  # number of colours for backends and for groups of bars: "c0" to "c9"

Theme = Mapping[str, str]  # name of a colour -> the colour, as CSS writes it

_COLOURS = {  # name -> the colour on light screens and on paper, the colour on dark screens
    "ink": ("#1f2328", "#e6edf3"),  # text
    "quiet": ("#59636e", "#9aa4af"),  # axes, captions
    "grid": ("#e3e7eb", "#262c35"),  # lines of grids and tables
    "paper": ("#ffffff", "#0d1117"),  # the background
    "good": ("#1a7f37", "#3fb950"),  # a verdict that all is well
    "warning": ("#9a6700", "#d29922"),  # a verdict that leaves something to be checked
    "bad": ("#cf222e", "#f85149"),  # a verdict that something is wrong
    "c0": ("#6e7781", "#9aa4af"),
    "c1": ("#b0508a", "#e88cc4"),
    "c2": ("#b87400", "#eaa92e"),
    "c3": ("#0072b2", "#58a9ea"),
    "c4": ("#008763", "#2cc295"),
    "c5": ("#d24d00", "#ff7f45"),
    "c6": ("#6a3fc0", "#b39bff"),
    "c7": ("#7d7a00", "#cfc642"),
    "c8": ("#008a9e", "#4fd3e3"),
    "c9": ("#8a1538", "#ff7d9c"),
}
LIGHT: Theme = {name: light for name, (light, _) in _COLOURS.items()}
DARK: Theme = {name: dark for name, (_, dark) in _COLOURS.items()}


def color(name: str) -> str:
    """Return a colour as a page refers to it. The style sheet says what it is, dark mode included."""
    return f"var(--{name})"


def in_the_light(spec: Any) -> Any:
    """Return a figure with the colours of LIGHT in place of what `color` gave, for a file without a style sheet."""
    return json.loads(re.sub(r"var\(--(\w+)\)", lambda found: LIGHT[found[1]], json.dumps(spec)))


def style_sheet() -> str:
    """Return the style sheet that sets the colours of a page: light on screen and on paper, dark where asked for."""
    light, dark = ("; ".join(f"--{name}: {color}" for name, color in theme.items()) for theme in (LIGHT, DARK))
    return f":root {{{light}}}\n@media screen and (prefers-color-scheme: dark) {{:root {{{dark}}}}}"


def backend_marks(backends: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Return backend -> the number of its colour (3 for "c3") and its shape.

    attnbench's own backends have the same mark in every report; others follow, in the order given.
    """
    known = len(case_names.BACKEND_ORDER)
    others = [b for b in backends if case_names.backend_rank(b)[0] == known]
    places = {b: known + others.index(b) if b in others else case_names.backend_rank(b)[0] for b in backends}
    return {backend: (place % SERIES, SHAPES[place % len(SHAPES)]) for backend, place in places.items()}
