"""A plot as an SVG in the page itself: it needs no script, prints sharply and takes its colours from the page."""

from __future__ import annotations

from attnbench.render.document import Dot, Plot
from attnbench.render.html.elements import Markup, element, filled, joined
from attnbench.render.html.palette import SERIES, color

WIDTH, HEIGHT = 640, 170  # of the drawing, in its own units
LEFT, RIGHT, TOP, BOTTOM = 70, 14, 10, 24  # margins around the axes
FIRST = 3  # number of the colour of group 0: blue


def plot(found: Plot) -> Markup:
    """Return a plot with its labels; each point shows its description at the pointer."""
    grid = (element("path", d=f"M{LEFT} {_y(at)}H{WIDTH - RIGHT}", stroke=color("grid")) for at, _ in found.y_labels)
    lines = (
        element("path", d=f"M{_x(start)} {_y(at)}H{_x(end)}", stroke=color("ink"), stroke_width=2)
        for start, end, at in found.levels
    )
    heights = (_label(text, LEFT - 8, f"{_y(at)}", "end", dy="0.35em") for at, text in found.y_labels)
    places = (_label(text, _x(at), str(HEIGHT - 6), _anchor(at)) for at, text in found.x_labels)
    return element(
        "svg",
        *(*grid, *map(_dot, found.dots), *lines, *heights, *places),
        class_="plot",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=_finding(found),
    )


def _finding(found: Plot) -> str:
    """Return the title, and the descriptions of the first and the last point, for readers who do not see them."""
    told = sorted((dot for dot in found.dots if dot.tip and not dot.group), key=lambda dot: dot.x)
    return f"{found.title}. First: {told[0].tip}. Last: {told[-1].tip}." if told else found.title


def _dot(dot: Dot) -> Markup:
    own = color(f"c{(FIRST + dot.group) % SERIES}")
    x = _x(dot.x)
    interval = (
        element("path", d=f"M{x} {_y(dot.low)}V{_y(dot.high)}", stroke=own, stroke_width=4, stroke_opacity="0.35")
        if dot.low is not None and dot.high is not None
        else ""
    )
    return element(
        "g", filled("title", dot.tip), joined(interval, element("circle", cx=x, cy=_y(dot.y), r=4, fill=own))
    )


def _label(text: str, x: str | float, y: str, anchor: str, **more: str) -> Markup:
    return element("text", text, x=str(x), y=y, text_anchor=anchor, fill=color("quiet"), font_size=12, **more)


def _anchor(at: float) -> str:
    return "start" if at < 0.1 else "end" if at > 0.9 else "middle"


def _x(at: float) -> str:
    return f"{LEFT + at * (WIDTH - LEFT - RIGHT):.5g}"


def _y(at: float) -> str:
    return f"{TOP + (1 - at) * (HEIGHT - TOP - BOTTOM):.5g}"
