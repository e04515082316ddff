"""Drawings made of characters, for terminal and markdown: marks beside values, bars and step functions."""

from __future__ import annotations

import math

from attnbench.render.document import Bar, Drawing, Figure, Steps

BEST, HELD_DOWN, MEMORY_BOUND, HARDLY_KNOWN = "*", "~", "m", "?"  # marks beside values
NO_FIGURES = "No cell has a figure for this."
_UTF_HEIGHTS, _ASCII_HEIGHTS = " ▁▂▃▄▅▆▇█", " .:-=+*#"


def marks(figure: Figure) -> str:
    """Return the marks that follow a value's digits: for a clock that was held down, for a large uncertainty."""
    return (HELD_DOWN if figure.held_down else "") + (HARDLY_KNOWN if figure.hardly_known else "")


def drawing(entry: Drawing, width: int, *, utf: bool) -> str:
    """Return a drawing as one line of `width` characters."""
    if isinstance(entry, Bar):
        return bar(entry, width, utf=utf)
    return heights(entry, width, utf=utf)


def bar(entry: Bar, width: int, *, utf: bool) -> str:
    """Return a bar on an axis of `width` characters. Its ends are exact to half a character, or to one in ASCII.

    The ends of a hatched bar are exact to one character.
    """
    first = min(2 * width - 1, round(2 * width * entry.start))
    last = max(first + 1, min(2 * width, round(2 * width * entry.end)))
    if entry.hatched:
        return (" " * (first // 2) + ("░" if utf else "/") * max(1, -(-last // 2) - first // 2)).ljust(width)
    if not utf:
        return (" " * (first // 2) + "=" * max(1, -(-last // 2) - first // 2)).ljust(width)
    cells = (((2 * i >= first) and (2 * i < last), (2 * i + 1 >= first) and (2 * i + 1 < last)) for i in range(width))
    return "".join("━" if left and right else "╸" if left else "╺" if right else " " for left, right in cells)


def heights(entry: Steps, width: int, *, utf: bool) -> str:
    """Draw a step function in `width` characters.

    Each shows the largest height in its stretch, and is blank only where that is 0.
    """
    levels = _UTF_HEIGHTS if utf else _ASCII_HEIGHTS
    text = ""
    for column in range(width):
        since, until = column / width, (column + 1) / width if column + 1 < width else math.inf
        held = next((height for at, height in reversed(entry.steps) if at <= since), 0.0)
        most = max([held, *(height for at, height in entry.steps if since < at < until)])
        text += levels[max(1, round(most * (len(levels) - 1)))] if most > 0 else levels[0]
    return text
