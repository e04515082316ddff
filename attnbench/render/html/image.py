"""A chart as a PNG or SVG file, for slides and papers: drawn by vl-convert, without a browser."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

from attnbench.core.errors import UserError, one_of
from attnbench.core.files import this_python, write_file
from attnbench.core.flops import CONVENTIONS
from attnbench.render.html import palette, vega_spec
from attnbench.render.html.charts import Charts
from attnbench.render.html.elements import shown
from attnbench.render.html.figures import FIGURES, Spec, VegaFigure, drawable

VEGA_LITE = "6.4"  # the version in assets/
SCALE = 2.5  # pixels of a PNG for one pixel of the chart
MOST_PANELS = 24
PROGRAM = """
import json, sys
request = json.load(sys.stdin)
sys.path[:] = request["path"]
import vl_convert
if request["kind"] == "svg":
    content = vl_convert.vegalite_to_svg(request["spec"], vl_version=request["version"]).encode()
else:
    content = vl_convert.vegalite_to_png(request["spec"], vl_version=request["version"], scale=request["scale"])
sys.stdout.buffer.write(content)
"""
_PANEL = (300, 200)  # width and height of a panel in pixels, where there are several
_SINGLE_PANEL = (560, 360)


def save(path: Path, kind: str, charts: Charts, name: str, panel: str = "") -> None:
    """Write a chart to a file: the panels whose titles contain all words of `panel`. `kind` is "png" or "svg".

    Raises UserError as `figure` and `drawn` do, and where the file cannot be written.
    """
    write_file(path, drawn(kind, figure(charts, name, panel)))


def figure(charts: Charts, name: str, panel: str = "") -> Spec:
    """Return the specification of a chart by its name: the panels whose titles contain all words of `panel`.

    Raises UserError where there is no such chart or panel, nothing to draw, or too much for one image.
    """
    known = {figure.name: figure for figure in FIGURES}
    one_of("--figure", name, known)
    if not charts.panels:
        raise UserError("nothing to draw: no cell has a record; see attnbench report")
    chosen = charts.only(panel)
    if not chosen.panels:
        raise UserError(f"--panel: none has all of {panel!r} in its title; there are: {', '.join(charts.panels)}")
    if known[name] not in drawable(chosen):
        raise UserError(f"nothing to draw for {name}: no cell has a figure for it; see attnbench report")
    if (number := len(known[name].panels_of(chosen))) > MOST_PANELS:
        raise UserError(f"{number} panels are too many for one figure; choose with --panel 'd128 causal 16k'")
    return specification(known[name], chosen)


def specification(figure: VegaFigure, charts: Charts) -> Spec:
    """Return the whole Vega-Lite specification of a chart in the light theme, with its data, title and legend."""
    number = len(figure.panels_of(charts))
    columns = number if number <= 4 else math.ceil(number / math.ceil(number / 4))
    size = _SINGLE_PANEL if number == 1 else _PANEL
    spec = palette.in_the_light(vega_spec.spec(figure, charts, size, columns, legend=True))
    drawn = json.dumps(spec)  # the subtitle names only marks that occur
    notes = [CONVENTIONS[charts.convention]] if figure.counts_flops else []
    notes += ["hollow: clock held down"] if "datum.held" in drawn and any(row["held"] for row in charts.rows) else []
    notes += ["✕: no figure"] if "datum.slot" in drawn and any(row["slot"] is not None for row in charts.rows) else []
    return {
        **spec,
        "data": {"values": vega_spec.data(figure, charts)},
        "background": palette.LIGHT["paper"],
        "padding": 12,
        "title": {"text": figure.title, "subtitle": " · ".join(filter(None, (charts.common, *notes)))},
    }


def drawn(kind: str, spec: Spec) -> bytes:
    """Return a chart as the content of a PNG or SVG file, by `kind`.

    vl-convert runs in a process of its own, because it ends its process where memory is short. Raises UserError where
    it is missing or crashes.
    """
    if importlib.util.find_spec("vl_convert") is None:
        raise UserError("--png and --svg need vl-convert: pip install vl-convert-python")
    request = {"path": sys.path, "kind": kind, "spec": shown(spec), "version": VEGA_LITE, "scale": SCALE}
    program = [this_python(), "-I", "-c", PROGRAM]
    done = subprocess.run(program, input=json.dumps(request).encode(), capture_output=True)
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.decode(errors="replace").strip()
    is_limited = _memory_is_limited()
    if done.returncode > 0 and not is_limited:
        raise RuntimeError(f"vl-convert ended with exit code {done.returncode}: {said}")
    todo = "raise the limit of memory (ulimit -v, ulimit -d)" if is_limited else "memory may be short"
    raise UserError(f"--{kind}: vl-convert, which draws it, crashed; {todo}, or write a page with --html")


def _memory_is_limited() -> bool:
    try:
        import resource
    except ImportError:  # Windows
        return False
    limits = (resource.getrlimit(of)[0] for of in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return any(limit != resource.RLIM_INFINITY for limit in limits)
