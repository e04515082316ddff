"""Draw the pictures of docs/masks.md, from the definitions of the masks:

python tests/core/draw_masks.py        writes docs/masks.svg
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from attnbench.core import masks

PICTURE = Path(__file__).parents[2] / "docs" / "masks.svg"
CELLS, SIDE, GAP, COLUMNS = 64, 192, 28, 4
PANELS = {  # title -> mask, left side of the window, tokens of a cell
    "causal": ("", None, 1),
    "causal, window 12/0": ("", 12, 1),
    "prefix:16": ("prefix:16", None, 1),
    "sink_tokens:4, window 12/0": ("sink_tokens:4", 12, 1),
    "strided:8": ("strided:8", None, 1),
    "dilated:2": ("dilated:2", None, 1),
    "random:0.1 (2k tokens)": ("random:0.1", None, 32),
    "random:0.5 (2k tokens)": ("random:0.5", None, 32),
}


def sees(text: str, left: int | None, scale: int) -> Callable[[int, int], bool]:
    """Return the function that is true where the query at `place` sees a key, under causal; both are in cells."""
    mask = masks.find(text) if text else None
    blocks = mask.kept_blocks(CELLS * scale) if mask else None

    def seen(place: int, key: int) -> bool:
        in_band = key <= place and (left is None or key >= place - left)
        return masks.sees(mask, in_band, place * scale, key * scale, blocks) if mask else in_band

    return seen


def panel(title: str, text: str, left: int | None, scale: int) -> str:
    """Return one picture: queries from top to bottom, keys from left to right, dark where a query sees a key."""
    seen, runs, cells = sees(text, left, scale), [], 0
    for row in range(CELLS):
        start = None
        for key in range(CELLS + 1):
            is_seen = key < CELLS and seen(row, key)
            cells += is_seen
            if is_seen and start is None:
                start = key
            elif not is_seen and start is not None:
                runs.append(f"M{start} {row}.5h{key - start}")
                start = None
    share = cells / (CELLS * (CELLS + 1) / 2)
    unit = SIDE / CELLS
    return (
        f'<text y="-8">{title}</text><text x="{SIDE}" y="{SIDE + 13}" text-anchor="end" class="share">'
        f"{share:.0%} of causal</text>"
        f'<rect width="{SIDE}" height="{SIDE}" fill="#fff" stroke="#999"/>'
        f'<path transform="scale({unit:g})" d="{"".join(runs)}" stroke="#1f4e79" fill="none"/>'
    )


def picture() -> str:
    """Return the pictures of all masks as one SVG."""
    step = SIDE + GAP
    rows = -(-len(PANELS) // COLUMNS)
    width, height = COLUMNS * step + GAP, rows * (step + 18) + GAP
    drawn = []
    for i, (title, of) in enumerate(PANELS.items()):
        x, y = GAP + i % COLUMNS * step, GAP + i // COLUMNS * (step + 18)
        drawn.append(f'<g transform="translate({x} {y})">{panel(title, *of)}</g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'aria-label="Masks by name: queries from top to bottom, keys from left to right">'
        "<style>text{font:13px sans-serif;fill:#333}.share{font-size:11px;fill:#666}</style>"
        f'<rect width="{width}" height="{height}" fill="#fff"/>' + "\n".join(drawn) + "</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(picture())
