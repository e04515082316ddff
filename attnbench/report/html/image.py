"""One figure as a PNG or SVG file, for slides and papers: drawn by vl-convert, without a browser."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.analysis.summary.machine_summary import CONVENTIONS
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.flops import Convention
from attnbench.core.record import Run
from attnbench.report.html import figures, palette
from attnbench.report.html.chart_rows import Points
from attnbench.report.html.chart_rows import points as points_of
from attnbench.results.cells import cells as cells_of

if TYPE_CHECKING:
    from types import ModuleType

VEGA_LITE = "6.4"  # as in assets/
SCALE = 2.5  # PNG pixels for one of a figure
MOST_PANELS = 24
_WIDE, _SINGLE = (300, 200), (560, 360)  # of one panel, where there are several and where there is one


def save(
    path: Path, kind: str, runs: Sequence[Run], name: str, panel: str = "", convention: Convention = "exact"
) -> None:
    """Writes one figure, of the panels whose title has all words of `panel`. `kind` is "png" or "svg".

    Raises UserError: no such figure or panel, nothing to draw, no vl-convert, a file that cannot be written.
    """
    known = [figure.name for figure in figures.FIGURES]
    if name not in known:
        raise UserError(f"--figure: unknown {name!r}{did_you_mean(name, known)}")
    figure = next(f for f in figures.FIGURES if f.name == name)
    everything = points_of(cells_of(runs), convention)
    if not everything.panels:
        raise UserError("nothing to draw: no cell has a record; see attnbench report")
    chosen = everything.only(panel)
    if not chosen.panels:
        raise UserError(f"--panel: none has all of {panel!r} in its title; there are: {', '.join(everything.panels)}")
    if figure not in figures.drawable(chosen):
        raise UserError(f"nothing to draw for {name}: no cell has a figure for it; see attnbench report")
    if len(chosen.panels) > MOST_PANELS:
        raise UserError(f"{len(chosen.panels)} panels are too many for one figure; choose with --panel 'd128 causal'")
    vega = _vl_convert()
    spec = drawing(figure, chosen, convention)
    found = (
        vega.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=SCALE)
        if kind == "png"
        else vega.vegalite_to_svg(spec, vl_version=VEGA_LITE).encode()
    )
    try:
        path.write_bytes(found)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def drawing(figure: figures.Figure, points: Points, convention: Convention = "exact") -> dict[str, Any]:
    """The whole specification: light, with data, title and legend."""
    number = len({row[figure.panel] for row in points.cells})
    columns = number if number <= 4 else math.ceil(number / math.ceil(number / 4))
    size = _SINGLE if number == 1 else _WIDE
    marks = [CONVENTIONS[convention]] if figure.counts_flops else []
    marks += ["hollow: clock held down"] if figure.hollow and any(row["held"] for row in points.cells) else []
    marks += ["✕: no figure"] if figure.crosses and any(row["slot"] is not None for row in points.cells) else []
    spec = figures.spec(figure, points, palette.LIGHT, size, columns, legend=True)
    return {
        **spec,
        "data": {"values": figures.rows(figure, points)},
        "background": palette.LIGHT.paper,
        "padding": 12,
        "title": {"text": figure.title, "subtitle": " · ".join(filter(None, (points.common, *marks)))},
    }


def _vl_convert() -> ModuleType:
    try:
        import vl_convert
    except ImportError as error:
        raise UserError(f"--png and --svg need vl-convert ({error}): pip install 'attnbench[plots]'") from None
    return vl_convert
