"""Bars and step functions drawn as rows of characters."""

from __future__ import annotations

import pytest

from attnbench.render.characters import bar, heights
from attnbench.render.document import Bar, Steps


@pytest.mark.parametrize(
    ("start", "end", "utf", "ascii_"),
    [
        (0.0, 1.0, "━━━━━━━━━━", "=========="),
        (0.0, 0.5, "━━━━━     ", "=====     "),
        (0.55, 1.0, "     ╺━━━━", "     ====="),
        (0.0, 0.15, "━╸        ", "==        "),
        (0.5, 0.5, "     ╸    ", "     =    "),
        (1.0, 1.0, "         ╺", "         ="),
    ],
)
def test_bars(start: float, end: float, utf: str, ascii_: str) -> None:
    assert bar(Bar(start, end), 10, utf=True) == utf
    assert bar(Bar(start, end), 10, utf=False) == ascii_


def test_heights() -> None:
    steps = Steps(((0.2, 0.5), (0.5, 1.0), (0.55, 0.5), (0.8, 0.0)))
    assert heights(steps, 10, utf=True) == "  ▄▄▄█▄▄  "
    assert heights(steps, 10, utf=False) == "  ===#==  "
    assert heights(Steps(((0.0, 1.0), (0.5, 0.001))), 4, utf=True) == "██▁▁"  # a small value is visible
    assert heights(Steps(()), 4, utf=True) == "    "
    assert heights(Steps(((0.0, 5 / 9), (1.0, 1.0))), 2, utf=True) == "▄█"  # a step at the end is visible
