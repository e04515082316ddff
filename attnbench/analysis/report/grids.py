"""Cells laid out as grids, whatever the output format.

Every axis of a case is either the rows (sequence length), the columns (`by`), or part of a grid's title. Batch, heads
and query lengths that follow from row and column do not make grids of their own: they are named where they vary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from attnbench.core.case import Case
from attnbench.core.flops import CONVENTIONS
from attnbench.core.formats import digits, percent, share
from attnbench.core.groups import grouped
from attnbench.core.sizes import format_size
from attnbench.core.text import count
from attnbench.render.characters import MEMORY_BOUND
from attnbench.render.document import Ending, Figure, Grid, Grids
from attnbench.results import bits, case_names, metrics
from attnbench.results.cells import Cell, contest_of
from attnbench.results.metrics import METRICS, Metric

COMPILED = {
    "fresh": "each in a new process, no kernel compiled before",
    "kept": "kernels that were compiled before may be reused",
}
LINES = 700  # of the grids of a metric; with more, another format reads better
FEWEST_LINES = 200
FRAME = 5  # lines that a grid takes in addition to its rows
ALL_SHOWN = (
    "attnbench report --all shows every table, -f csv and -f json have every cell, fewer run files make fewer tables."
)
_TIMES = ("tflops", "gbps", "latency", "speedup")  # metrics beside which the error of an approximation stands
ABREAST = 9  # with more backends than this, backends are rows instead of columns


_ROW = "seqlen"
_OF_CASES = [*case_names.AXES]
_AFTER_PASS = _OF_CASES.index("direction") + 1
# In the order of titles, and of tables.
_AXES = ("device", *_OF_CASES[:_AFTER_PASS], "backend", *_OF_CASES[_AFTER_PASS:])
_IMPLIED = ("nheads", "batch", "seqlen_q")  # make tables of their own only where they do not follow from row and column
BY = tuple(axis for axis in _AXES if axis not in ("device", "seqlen_q"))
BY_OPTION = {"pass": "direction", "window": "causal", "mask": "causal"}  # an option of `run` -> its axis here


def grids(
    cells: Sequence[Cell],
    names: Sequence[str] = (),
    by: str | None = None,
    *,
    lines: float = math.inf,
) -> list[Grids]:
    """Return the grids of each metric, then of the figures that a speed must be read with, then of the peak memory.

    The figures to read with a speed are the error of fp8 cells, the errors of approximations, for masks by name the
    rate of computed pairs, their share and the time to build the mask, and the verdicts on bits, where there are any.

    Without `names` each case has its own unit and the metrics beside it: `Cell.usual`. A grid of throughput has all its
    rows, cells that memory limits in GB/s, as their labels say, and cells that launching limits as a time.

    `by` is the axis of the columns; None: the backends, or the sequence lengths where there are many backends. A metric
    that no cell has gives no grids. A metric's grids end after about `lines` lines, divided by the number of devices
    but at least FEWEST_LINES; a metric that is not in `names` has only the lines that the longest metric has left. The
    peak memory is of the plainest mask alone.
    """
    if by is None:
        by = _ROW if len({c.backend for c in cells if c.status != "skipped"}) > ABREAST else "backend"
    wanted, default = [(name, cells) for name in names], not names
    own_units = {id(cell) for cell in _of_several_units(cells, by)} if default else set[int]()
    if default:
        of_each = {
            name: [c for c in cells if name in (("tflops",) if id(c) in own_units else c.usual)]
            for name in metrics.USUAL
        }
        wanted = [(name, chosen) for name, chosen in of_each.items() if chosen]
        names = [name for name, _ in wanted]
    narrow = [c for c in cells if c.case.dtype == "fp8" and c.case.is_softmax]
    masked = [c for c in cells if c.case.mask and c.case.is_softmax]
    near = [c for c in cells if not c.is_exact]
    beside = {"relative_error": narrow, **dict.fromkeys(("approximation_error", "mass_kept"), near)}
    beside |= dict.fromkeys(("tflops_computed", "block_efficiency", "plan"), masked)
    beside |= {name: [c for c in cells if c.bits] for name in bits.VERDICTS}
    wanted += [(name, chosen) for name, chosen in beside.items() if name not in names and chosen]
    if "memory_peak" not in names:
        wanted.append(("memory_peak", _with_plainest_mask(cells)))
    devices = len({c.device for c in cells})
    several = devices > 1
    lines = max(min(FEWEST_LINES, lines), lines / devices)
    longest = 0
    found = []
    for name, chosen in wanted:
        metric = METRICS[name]
        of_cell = partial(_metric, metric, own_units if name == "tflops" else ())
        made, left = _grids(chosen, several, metric, by, lines if name in names else lines - longest, of_cell)
        longest = max(longest, sum(len(grid.rows) + FRAME for grid in made))
        if made or left or name in names:
            competing: Any = "column" if made and made[0].corner == "backend" else "row"
            more = f"{count(left, 'more table')} not shown: {ALL_SHOWN}" if left else ""
            found.append(Grids(heading(metric, chosen, own_units=default), tuple(made), competing, more))
    return found


def _of_several_units(cells: Sequence[Cell], by: str) -> list[Cell]:
    """Return the cells of all grids in which compute limits some case, so that throughput is their first unit."""
    own = [c for c in cells if not c.case.step and c.case not in c.source.approximated]
    return [c for part in _parts(own, by) if any(c.usual[0] == "tflops" for c in part) for c in part]


def _metric(metric: Metric, own_units: Collection[int], cell: Cell) -> Metric:
    """Return the metric of a cell in the grids of a metric: its own unit, if `own_units` has the cell's id."""
    return METRICS[cell.usual[0]] if id(cell) in own_units else metric


def heading(metric: Metric, cells: Sequence[Cell], own_units: bool = False) -> str:
    """Return the heading of a metric's figures, with how FLOPs are counted and what the percentages are of.

    `own_units`: cells that memory limits are in GB/s.
    """
    if metric.name == "first_call":
        states = sorted({c.run.policy.caches for c in cells if c.status == "ok"})
        how = "; in other runs ".join(COMPILED[state] for state in states)
        return f"{metric.heading} ({how})" if how else metric.heading
    if metric.name not in ("tflops", "utilization", "gbps") or not cells:
        return metric.heading
    if metric.name == "gbps":
        read = "inputs and results" if any(not c.case.is_softmax for c in cells) else "q, k, v and out"
        return f"{metric.heading} of {read}{_share_of_bandwidth([c for c in cells if c.status == 'ok'])}"
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
    of_memory = f"; GB/s where memory is the limit ({', '.join(map(bandwidth, sorted(some)))})"
    if own_units:
        return f"{counted}, and share of the peak ({peaks})" + (of_memory if some else "")
    roofline = f"; {MEMORY_BOUND}: of the roofline, where memory bounds ({', '.join(map(bandwidth, sorted(some)))})"
    return f"{counted}, and share of the peak ({peaks})" + (roofline if some else "")


def _share_of_bandwidth(cells: Sequence[Cell]) -> str:
    """Return the words for the reference of the shares beside GB/s; "" where there are no shares."""
    known = sorted({c.rates.bandwidth for c in cells if c.rates.bandwidth})
    return f", and share of the datasheet's bandwidth ({', '.join(map(bandwidth, known))})" if known else ""


def bandwidth(rate: float) -> str:
    """Return bytes/s as "4.80 TB/s" or "43.1 GB/s"."""
    return f"{digits(rate / 1e12)} TB/s" if rate >= 1e12 else f"{digits(rate / 1e9)} GB/s"


def _with_plainest_mask(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells with the plainest mask among measured cells that differ in the mask alone.

    Memory hardly depends on the mask.
    """
    plainest: dict[Any, Any] = {}
    for cell in cells:
        if cell.value("memory_peak") is not None:
            kind, rank = (cell.device, _but_mask(cell.case)), case_names.mask_rank(cell.case)
            plainest[kind] = min(plainest.get(kind, rank), rank)
    return [c for c in cells if plainest.get((c.device, _but_mask(c.case))) == case_names.mask_rank(c.case)]


def _grids(
    cells: Sequence[Cell], several: bool, metric: Metric, by: str, lines: float, of_cell: Callable[[Cell], Metric]
) -> tuple[list[Grid], int]:
    """Return grids until they have `lines` lines together, and the number of grids that are left out.

    several: whether the report has cells of other devices. of_cell: the metric of each cell.
    """
    found: list[Grid] = []
    left = 0
    for part in _parts(cells, by):
        if lines <= 0:
            left += any(c.status != "skipped" for c in part)
            continue
        if made := _grid(part, several, metric, _row_and_column(by), of_cell):
            found.append(made)
            lines -= len(made.rows) + FRAME
    return found, left


def _row_and_column(by: str) -> tuple[str, str]:
    return ("backend", _ROW) if by == _ROW else (_ROW, by)


def _parts(cells: Sequence[Cell], by: str) -> Iterator[list[Cell]]:
    """Yield the cells of each grid."""
    row, column = _row_and_column(by)
    titles = [axis for axis in _AXES if axis not in (row, column, *_IMPLIED)]
    implied = [axis for axis in _IMPLIED if axis != column]
    for group in _split(cells, titles):
        yield from _split_implied(group, row, column, implied)


def _value(axis: str, cell: Cell) -> Any:
    """Return the value of a cell on an axis, by which cells are sorted; devices keep their order."""
    if axis in case_names.AXES:
        return case_names.AXES[axis].value(cell.case)
    return case_names.backend_rank(cell.backend) if axis == "backend" else 0


def _text(axis: str, cell: Cell, *, short: bool = False) -> str:
    """Return a cell's value on an axis as a title says it, or in short as a row or column does."""
    if axis in case_names.AXES:
        of = case_names.AXES[axis]
        return of.brief(cell.case) if short else of.label(cell.case)
    return cell.backend_name if axis == "backend" else cell.device


def _split(cells: Sequence[Cell], axes: Sequence[str]) -> list[list[Cell]]:
    """Return the cells in groups that are alike in all of the axes, in the order of their values."""
    devices = [*dict.fromkeys(cell.device for cell in cells)]
    place = {device: number for number, device in enumerate(devices)}
    known: dict[tuple[str, Case], tuple[Any, ...]] = {}  # a case comes up once for each device

    def values(cell: Cell) -> tuple[Any, ...]:
        of = cell.backend if "backend" in axes else "", cell.case
        if of not in known:
            known[of] = tuple(_value(axis, cell) for axis in axes)
        return known[of]

    groups = grouped(cells, lambda cell: (place[cell.device], *values(cell)))
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
    for cell in cells:
        value = _value(axis, cell)
        if seen.setdefault(_value(known, cell), value) != value:
            return False
    return True


def _grid(
    cells: Sequence[Cell], several: bool, metric: Metric, axes: tuple[str, str], of_cell: Callable[[Cell], Metric]
) -> Grid | None:
    """Return the grid of some cells, None where it would hold no figure and no ending but skips.

    several: whether the report has cells of other devices. axes: of the rows and of the columns.
    """
    row, column = axes
    at = {(_value(row, c), _value(column, c)): c for c in cells}
    tried = [key for key, cell in at.items() if cell.status != "skipped"]
    values = {key: value for key, cell in at.items() if (value := cell.value(of_cell(cell).name)) is not None}
    if not tried or (not values and any(at[key].status == "ok" for key in tried)):
        return None
    rows, columns = (sorted(set(keys)) for keys in zip(*tried, strict=True))  # without rows and columns of skips

    rivals = grouped((at[key] for key in values if "backend" in axes and at[key].is_ranked), lambda cell: cell.case)
    starred = {id(cell) for found in rivals.values() for cell in _best(of_cell(found[0]), found)}

    details, row_extra, column_extra = _details(cells, row, column)
    of_row, of_column = {r: cell for (r, _), cell in at.items()}, {c: cell for (_, c), cell in at.items()}
    figures = {key: _entry(cell, of_cell(cell), id(cell) in starred) for key, cell in at.items()}
    units = {key: unit for key, cell in at.items() if (unit := of_cell(cell).unit) not in (metric.unit, "s")}
    of_rows = {r: unit for (r, _), unit in units.items() if all((r, c) in units for c in columns if (r, c) in at)}
    rest = {(r, c): unit for (r, c), unit in units.items() if r not in of_rows}
    of_columns = {c: unit for (_, c), unit in rest.items() if all((r, c) in rest for r in rows if (r, c) in at)}
    for r, c in rest.keys() & values.keys():
        if c not in of_columns:
            figures[r, c] = _with_unit(figures[r, c], rest[r, c])
    return Grid(
        title=_title(cells[0], several, axes),
        details=details,
        corner="backend" if row == "backend" else "seqlen",
        columns=tuple(_label(of_column[c], column, column_extra, of_columns.get(c, "")) for c in columns),
        rows=tuple(
            (
                _label(of_row[r], row, row_extra, of_rows.get(r, "")),
                tuple(figures.get((r, c), Ending()) for c in columns),
            )
            for r in rows
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
        hardly_known=metric.sure_as is not None and cell.is_hardly_known(metric.sure_as),
    )


def _best(metric: Metric, rivals: Sequence[Cell]) -> Sequence[Cell]:
    """Return the cells with the best figure and the cells that tie with it; none where no value is better.

    Latency, energy and figures derived from them tie within their uncertainty, and have no best where a better value
    is hardly known (uncertainty.contest). Other figures tie at the digits shown, and where more than half are that good
    there is no best.
    """
    if metric.better is None or len(rivals) < 2:
        return ()
    higher = metric.better == "higher"
    if sure_as := metric.sure_as:
        return contest_of(rivals, metric.name, sure_as=sure_as, higher=higher).winners
    best_of = max if higher else min
    first = best_of(rivals, key=lambda cell: cell.value(metric.name) or 0.0)
    texts = [metric.format(cell.value(metric.name) or 0.0) for cell in rivals]
    top = metric.format(first.value(metric.name) or 0.0)
    if 2 * texts.count(top) > len(texts):
        return ()
    return [cell for cell, text in zip(rivals, texts, strict=True) if text == top]


def _title(cell: Cell, several: bool, axes: tuple[str, str]) -> str:
    names = [a for a in _AXES if a not in (*axes, *_IMPLIED) and (several or a != "device")]
    return ", ".join(filter(None, (_text(a, cell) for a in names)))


def _details(cells: Sequence[Cell], row: str, column: str) -> tuple[str, list[str], list[str]]:
    """Return the title's words on the implied axes, and the axes that labels of rows and of columns have to name."""
    told: list[str] = []
    row_extra: list[str] = []
    column_extra: list[str] = []
    for axis in (a for a in _IMPLIED if a not in (row, column)):
        tokens = {c.case.extent.batch * c.case.extent.seqlen_k for c in cells}
        if len({_value(axis, c) for c in cells}) == 1:
            told.append(_text(axis, cells[0]))
        elif axis == "batch" and len(tokens) == 1:
            told.append(f"batch x seqlen = {format_size(tokens.pop())}")
        else:
            (column_extra if _tells(column, axis, cells) else row_extra).append(axis)
    return ", ".join(filter(None, told)), row_extra, column_extra


def _with_unit(figure: Figure | Ending, unit: str) -> Figure | Ending:
    return replace(figure, aside=f"{unit} {figure.aside}".strip()) if isinstance(figure, Figure) else figure


def _label(cell: Cell, axis: str, extra: Sequence[str], unit: str = "") -> str:
    """Return the label of a row or column: its value on `axis`, on the implied axes that it has to name, and a unit."""
    names = [_text(a, cell, short=True) or f"no {a}" for a in (axis, *extra)]
    return " ".join([*names, *([unit] if unit else [])])


@cache
def _but_mask(case: Case) -> tuple[Any, ...]:
    """Return the part of a case that keeps grids of memory on a device apart: all but mask, batch and lengths."""
    s = case.shape
    kind = case.dtype, s.headdim, s.headdim_v, case.direction, case_names.extras(case), case_names.pattern(case)
    return *kind, s.nheads, s.nheads_k, case_names.lengths_differ(case)
