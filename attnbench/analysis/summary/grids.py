"""Cells laid out as grids, whatever the output format.

Every axis of a case is either the rows (sequence length), the columns (`by`), or part of a grid's title. Batch, heads
and query lengths that follow from row and column do not make grids of their own: they are named where they vary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from attnbench.core.case import CACHE_DTYPES, DATA, DIRECTIONS, DTYPES, LAYOUTS, Case
from attnbench.core.flops import CONVENTIONS
from attnbench.core.formats import digits, percent, share
from attnbench.core.sizes import format_size
from attnbench.core.text import count
from attnbench.report.characters import MEMORY_BOUND
from attnbench.report.document import Ending, Figure, Grid, Grids
from attnbench.results import case_names, metrics
from attnbench.results.cells import Cell
from attnbench.results.metrics import METRICS, Metric
from attnbench.results.uncertainty import contest, hardly_known

COMPILED = {
    "fresh": "each in a new process, no kernel compiled before",
    "kept": "kernels that were compiled before may be reused",
}
LINES = 700  # of the grids of a metric, after which a reader is better served otherwise; fewer of several runs
FEWEST_LINES = 200
FRAME = 5  # lines of a grid beside its rows
ALL_SHOWN = "attnbench report --all shows every one, -f csv and -f json have every cell, fewer run files make fewer."
_TIMES = ("tflops", "gbps", "latency", "speedup")  # beside which stands how far an approximation is off
ABREAST = 9  # with more backends than this they are rows instead of columns


@dataclass(frozen=True)
class _Axis:
    value: Callable[[Cell], Any]  # the value of a cell on this axis, by which cells are sorted
    label: Callable[[Cell], str]  # in a title; "" where a title does not need it
    short: Callable[[Cell], str] | None = None  # in a column or row, where that is not the label


_IN_ORDER: Mapping[str, Sequence[str]] = {"layout": LAYOUTS, "data": DATA, "cache_dtype": CACHE_DTYPES}


def _extra(name: str) -> _Axis:
    """Return the axis of one of case_names.EXTRAS."""
    field = case_names.EXTRAS[name]

    def value(cell: Cell) -> Any:
        found = getattr(cell.case, field)
        return _IN_ORDER[name].index(found) if name in _IN_ORDER else found

    return _Axis(value, lambda cell: case_names.extra(cell.case, name))


_ROW = "seqlen"
# In the order of titles, and of tables.
_AXES: dict[str, _Axis] = {
    "device": _Axis(lambda c: 0, lambda c: c.device),
    "dtype": _Axis(lambda c: DTYPES.index(c.case.dtype), lambda c: c.case.dtype),
    "headdim": _Axis(
        lambda c: (c.case.shape.headdim, c.case.shape.headdim_v),
        lambda c: f"headdim {case_names.headdim(c.case)}",
        lambda c: f"d{case_names.headdim(c.case)}",
    ),
    "causal": _Axis(lambda c: case_names.mask_rank(c.case), lambda c: case_names.mask(c.case)),
    **{name: _extra(name) for name in case_names.EXTRAS},
    "lengths": _Axis(lambda c: case_names.pattern(c.case), lambda c: case_names.pattern(c.case)),
    "direction": _Axis(lambda c: DIRECTIONS.index(c.case.direction), lambda c: c.case.direction),
    "backend": _Axis(lambda c: case_names.backend_rank(c.backend), lambda c: c.backend_name),
    "nheads": _Axis(
        lambda c: (c.case.shape.nheads, c.case.shape.nheads_k),
        lambda c: _heads(c.case),
        lambda c: f"h{case_names.heads(c.case)}",
    ),
    "batch": _Axis(
        lambda c: c.case.shape.batch, lambda c: f"batch {c.case.shape.batch}", lambda c: f"b{c.case.shape.batch}"
    ),
    "seqlen_q": _Axis(
        lambda c: c.case.shape.seqlen_q if case_names.lengths_differ(c.case) else 0,
        lambda c: f"seqlen_q {c.case.shape.seqlen_q}" if case_names.lengths_differ(c.case) else "",
        lambda c: f"q{format_size(c.case.shape.seqlen_q)}",
    ),
    _ROW: _Axis(
        lambda c: case_names.seqlen(c.case),
        lambda c: f"seqlen {format_size(case_names.seqlen(c.case))}",
        lambda c: format_size(case_names.seqlen(c.case)),
    ),
}
_IMPLIED = ("nheads", "batch", "seqlen_q")  # make tables only where row and column do not tell them
BY = tuple(axis for axis in _AXES if axis not in ("device", "seqlen_q"))
BY_OPTION = {"pass": "direction", "window": "causal", "mask": "causal"}  # as the options of `run` call the axes


def grids(
    cells: Sequence[Cell],
    names: Sequence[str] = (),
    by: str | None = None,
    *,
    lines: float = math.inf,
) -> list[Grids]:
    """Return the grids of each metric, then what a speed says nothing without, then the peak memory.

    That is the error of fp8 cells, the errors of approximations, and of masks by name the rate of computed pairs, their
    share and the time to build the mask.

    Without `names` each case has the metrics that its users look at: `Cell.usual`.

    `by` is what the columns are: the backends where it is None, or, of many backends, the sequence lengths. A metric
    that no cell has gives no grids. A metric's grids end after about `lines` lines, divided by the number of devices
    but at least FEWEST_LINES; those of a metric that is not in `names` after what the longest has left of them. The
    peak memory is that of the plainest mask alone.
    """
    if by is None:
        by = _ROW if len({c.backend for c in cells if c.status != "skipped"}) > ABREAST else "backend"
    wanted = [(name, cells) for name in names]
    if not names:
        of_each = {name: [c for c in cells if name in c.usual] for name in ("tflops", "gbps", "latency")}
        wanted = [(name, chosen) for name, chosen in of_each.items() if chosen]
        names = [name for name, _ in wanted]
    narrow, masked = [c for c in cells if c.case.dtype == "fp8"], [c for c in cells if c.case.mask]
    near = [c for c in cells if not c.is_exact]
    beside = {"relative_error": narrow, **dict.fromkeys(("approximation_error", "mass_kept"), near)}
    beside |= dict.fromkeys(("tflops_computed", "block_efficiency", "plan"), masked)
    wanted += [(name, chosen) for name, chosen in beside.items() if name not in names and chosen]
    if "memory_peak" not in names:
        wanted.append(("memory_peak", _with_plainest_mask(cells)))
    lines = max(min(FEWEST_LINES, lines), lines / len({c.device for c in cells}))
    longest = 0
    found = []
    for name, chosen in wanted:
        metric = METRICS[name]
        made, left = _grids(chosen, metric, by, lines if name in names else lines - longest)
        longest = max(longest, sum(len(grid.rows) + FRAME for grid in made))
        if made or left or name in names:
            competing: Any = "column" if made and made[0].corner == "backend" else "row"
            more = f"{count(left, 'more table')} not shown: {ALL_SHOWN}" if left else ""
            found.append(Grids(heading(metric, cells), tuple(made), competing, more))
    return found


def heading(metric: Metric, cells: Sequence[Cell]) -> str:
    """Return what the figures of a metric are; where they count FLOPs also how, and what the percentages are of."""
    if metric.name == "first_call":
        states = sorted({c.run.policy.caches for c in cells if c.status == "ok"})
        how = "; in other runs ".join(COMPILED[state] for state in states)
        return f"{metric.heading} ({how})" if how else metric.heading
    if metric.name not in ("tflops", "utilization", "gbps") or not cells:
        return metric.heading
    if metric.name == "gbps":
        return f"{metric.heading} of q, k, v and out{_share_of_bandwidth([c for c in cells if c.status == 'ok'])}"
    counted = f"{metric.heading} ({CONVENTIONS[cells[0].source.convention]})"
    measured = [c for c in cells if c.status == "ok"]
    known = {(c.device, c.case.dtype): c.rates.peak for c in measured if c.rates.peak}
    if not known:
        return counted
    differ = len({(dtype, peak) for (_, dtype), peak in known.items()}) > len({dtype for _, dtype in known})
    peaks = ", ".join(
        dict.fromkeys(
            f"{digits(peak / 1e12)} for {dtype}{f' on {device}' if differ else ''}"
            for (device, dtype), peak in known.items()
        )
    )
    if metric.name == "utilization":
        return f"{counted}, share of the peak ({peaks})"
    some = {c.rates.bandwidth for c in measured if c.rates.bandwidth and c.bound == "memory"}
    roofline = f"; {MEMORY_BOUND}: of the roofline, where memory bounds ({', '.join(map(bandwidth, sorted(some)))})"
    return f"{counted}, and share of the peak ({peaks})" + (roofline if some else "")


def _share_of_bandwidth(cells: Sequence[Cell]) -> str:
    """Return what the shares beside GB/s are of; "" where there are none."""
    known = sorted({c.rates.bandwidth for c in cells if c.rates.bandwidth})
    return f", and share of the datasheet's bandwidth ({', '.join(map(bandwidth, known))})" if known else ""


def bandwidth(rate: float) -> str:
    """Return bytes/s as "4.80 TB/s" or "43.1 GB/s"."""
    return f"{digits(rate / 1e12)} TB/s" if rate >= 1e12 else f"{digits(rate / 1e9)} GB/s"


def _with_plainest_mask(cells: Sequence[Cell]) -> list[Cell]:
    """Return, of measured cells that differ in the mask alone, those with the plainest: memory hardly depends on it."""
    plainest: dict[Any, Any] = {}
    for cell in cells:
        if cell.value("memory_peak") is not None:
            kind, rank = (cell.device, _but_mask(cell.case)), case_names.mask_rank(cell.case)
            plainest[kind] = min(plainest.get(kind, rank), rank)
    return [c for c in cells if plainest.get((c.device, _but_mask(c.case))) == case_names.mask_rank(c.case)]


def _grids(cells: Sequence[Cell], metric: Metric, by: str, lines: float) -> tuple[list[Grid], int]:
    """Return grids until they have `lines` lines together, and the number of those that are left out."""
    row, column = ("backend", _ROW) if by == _ROW else (_ROW, by)
    titles = [axis for axis in _AXES if axis not in (row, column, *_IMPLIED)]
    implied = [axis for axis in _IMPLIED if axis != column]
    several = len({c.device for c in cells}) > 1
    found: list[Grid] = []
    left = 0
    for group in _split(cells, titles):
        for part in _split_implied(group, row, column, implied):
            if lines <= 0:
                left += any(c.status != "skipped" for c in part)
                continue
            if made := _grid(part, several, metric, (row, column)):
                found.append(made)
                lines -= len(made.rows) + FRAME
    return found, left


def _split(cells: Sequence[Cell], axes: Sequence[str]) -> list[list[Cell]]:
    """Return the cells in groups that are alike in all of the axes, in the order of their values."""
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    devices: dict[str, int] = {}
    for cell in cells:
        device = devices.setdefault(cell.device, len(devices))
        groups.setdefault((device, *(_AXES[axis].value(cell) for axis in axes)), []).append(cell)
    return [groups[key] for key in sorted(groups)]


def _split_implied(cells: list[Cell], row: str, column: str, axes: Sequence[str]) -> list[list[Cell]]:
    """Split cells by each of the axes whose value follows neither from the row alone nor from the column alone."""
    for i, axis in enumerate(axes):
        if not (_tells(row, axis, cells) or _tells(column, axis, cells)):
            rest = axes[i + 1 :]
            return [t for part in _split(cells, [axis]) for t in _split_implied(part, row, column, rest)]
    return [cells]


def _tells(known: str, axis: str, cells: Sequence[Cell]) -> bool:
    """Return whether all cells with the same value on the axis `known` have the same value on `axis`."""
    seen: dict[Any, Any] = {}
    key_of, value_of = _AXES[known].value, _AXES[axis].value
    for cell in cells:
        value = value_of(cell)
        if seen.setdefault(key_of(cell), value) != value:
            return False
    return True


def _grid(cells: Sequence[Cell], several: bool, metric: Metric, axes: tuple[str, str]) -> Grid | None:
    """Return the grid of some cells, None where it would hold no figure and no ending but skips.

    several: whether the report has cells of other devices. axes: of the rows and of the columns.
    """
    row, column = axes
    at = {(_AXES[row].value(c), _AXES[column].value(c)): c for c in cells}
    tried = [key for key, cell in at.items() if cell.status != "skipped"]
    values = {key: value for key, cell in at.items() if (value := cell.value(metric.name)) is not None}
    if not tried or (not values and any(at[key].status == "ok" for key in tried)):
        return None
    rows, columns = (sorted(set(keys)) for keys in zip(*tried, strict=True))  # what was skipped throughout has no place

    case = 0 if column == "backend" else 1  # the place in a key that names the case on which backends compete
    rivals: dict[Any, list[Cell]] = {}
    for key in (key for key in values if "backend" in axes and at[key].is_exact):
        rivals.setdefault(key[case], []).append(at[key])
    starred = {id(cell) for found in rivals.values() for cell in _best(metric, found)}

    details, row_extra, column_extra = _details(cells, row, column)
    of_row, of_column = {r: cell for (r, _), cell in at.items()}, {c: cell for (_, c), cell in at.items()}
    figures = {key: _entry(cell, metric, id(cell) in starred) for key, cell in at.items()}
    return Grid(
        title=_title(cells[0], several, axes),
        details=details,
        corner="backend" if row == "backend" else "seqlen",
        columns=tuple(_label(of_column[c], column, column_extra) for c in columns),
        rows=tuple(
            (_label(of_row[r], row, row_extra), tuple(figures.get((r, c), Ending()) for c in columns)) for r in rows
        ),
    )


def _entry(cell: Cell, metric: Metric, best: bool) -> Figure | Ending:
    value = cell.value(metric.name)
    if value is None:
        return Ending(case_names.ENDINGS.get(cell.status, case_names.NOTHING))
    text = metric.format(value)
    number, _, aside = text.partition(" ")
    memory = metric.name == "tflops" and cell.bound == "memory" and cell.is_exact
    if error := cell.value("approximation_error") if metric.name in _TIMES else None:
        aside = f"{aside} err {percent(error)}".strip()
    elif metric.name in ("tflops", "gbps"):
        used = metrics.share_of_limit(metric.name, cell.value, memory_bound=memory)
        aside = "" if used is None else share(used)
    return Figure(
        number,
        aside,
        best,
        held_down=metric.clocked and cell.held_down,
        memory_bound=memory,
        hardly_known=metric.sure_as is not None and hardly_known(cell.half_interval(metric.sure_as)),
    )


def _best(metric: Metric, rivals: Sequence[Cell]) -> Sequence[Cell]:
    """Return the cells with the best figure and those that tie with it; none where no value is better.

    Latency, energy and what follows from them tie within their uncertainty, and have no best where what reads better is
    hardly known (uncertainty.contest). Other figures tie at the digits shown, and where more than half are that good
    there is no best.
    """
    if metric.better is None or len(rivals) < 2:
        return ()
    higher = metric.better == "higher"
    if sure_as := metric.sure_as:
        half = partial(Cell.half_interval, metric=sure_as)
        return contest(rivals, lambda c: c.value(metric.name), half, higher=higher).winners
    best_of = max if higher else min
    first = best_of(rivals, key=lambda cell: cell.value(metric.name) or 0.0)
    texts = [metric.format(cell.value(metric.name) or 0.0) for cell in rivals]
    top = metric.format(first.value(metric.name) or 0.0)
    if 2 * texts.count(top) > len(texts):
        return ()
    return [cell for cell, text in zip(rivals, texts, strict=True) if text == top]


def _title(cell: Cell, several: bool, axes: tuple[str, str]) -> str:
    names = [a for a in _AXES if a not in (*axes, *_IMPLIED) and (several or a != "device")]
    return ", ".join(filter(None, (_AXES[a].label(cell) for a in names)))


def _details(cells: Sequence[Cell], row: str, column: str) -> tuple[str, list[str], list[str]]:
    """Return what the title says of the implied axes, and those that the labels of rows and of columns have to name."""
    told: list[str] = []
    row_extra: list[str] = []
    column_extra: list[str] = []
    for axis in (a for a in _IMPLIED if a not in (row, column)):
        tokens = {c.case.extent.batch * c.case.extent.seqlen_k for c in cells}
        if len({_AXES[axis].value(c) for c in cells}) == 1:
            told.append(_AXES[axis].label(cells[0]))
        elif axis == "batch" and len(tokens) == 1:
            told.append(f"batch x seqlen = {format_size(tokens.pop())}")
        else:
            (column_extra if _tells(column, axis, cells) else row_extra).append(axis)
    return ", ".join(filter(None, told)), row_extra, column_extra


def _label(cell: Cell, axis: str, extra: Sequence[str]) -> str:
    """Return the label of a row or column: its value on `axis`, then on the implied axes that it has to name."""
    names = [(_AXES[a].short or _AXES[a].label)(cell) or f"no {a}" for a in (axis, *extra)]
    return " ".join(names)


def _heads(case: Case) -> str:
    s = case.shape
    return f"{s.nheads} heads" + (f", {s.nheads_k} key heads" if case_names.grouped(case) else "")


@cache
def _but_mask(case: Case) -> tuple[Any, ...]:
    """Return what sets grids of memory on a device apart: all of a case but its mask, batch and lengths."""
    s = case.shape
    kind = case.dtype, s.headdim, s.headdim_v, case.direction, case_names.extras(case), case_names.pattern(case)
    return *kind, s.nheads, s.nheads_k, case_names.lengths_differ(case)
