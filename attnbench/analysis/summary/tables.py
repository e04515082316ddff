"""Cells laid out as tables, whatever the output format.

Every axis of a case is either the rows (sequence length), the columns (`by`), or part of a table's title. Batch, heads
and query lengths that follow from row and column do not make tables of their own: they are named where they vary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from attnbench.core.case import DIRECTIONS, DTYPES, Case
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.flops import Convention
from attnbench.core.sizes import short
from attnbench.results import case_names, metrics
from attnbench.results.cells import Cell, values_of
from attnbench.results.sheet import Sheet

NO_FIGURES = "No cell has a figure for this."
LINES = 500  # of the tables of a metric, after which a reader is better served otherwise
FRAME = 5  # lines of a table but its rows
ABREAST = 9  # backends that are columns; more are rows
MEMORY = "m"  # after a percentage: of the roofline, as memory bounds the case
HELD_DOWN = "~"  # after digits: the clock was held down


@dataclass(frozen=True)
class Entry:
    """What stands at a row and column: digits and an aside (utilisation, or the unit), or a word."""

    digits: str = ""
    aside: str = ""
    word: str = ""
    best: bool = False
    memory: bool = False  # the aside is of the roofline
    held_down: bool = False


@dataclass(frozen=True)
class Table:
    title: str
    details: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Entry, ...]], ...]


@dataclass(frozen=True)
class Section:
    """The tables of one metric."""

    metric: metrics.Metric
    tables: tuple[Table, ...]
    left: int = 0  # tables that are not shown

    def more(self) -> str:
        """Of the tables that are not shown, in one line; empty where there are none."""
        if not self.left:
            return ""
        return (
            f"{case_names.count(self.left, 'more table')} not shown: attnbench report --all shows every one, "
            "-f csv and -f json have every cell, fewer run files make fewer."
        )

    def legend(self, best: str) -> str:
        """What the marks in the tables mean; `best` is the writer's own mark."""
        entries = [e for table in self.tables for _, row in table.rows for e in row]
        across = "column" if self.tables and self.tables[0].corner == "backend" else "row"  # backends compete
        return ", ".join(
            filter(
                None,
                (
                    f"{best} best of its {across}" if any(e.best for e in entries) else "",
                    f"{HELD_DOWN} clock held down" if any(e.held_down for e in entries) else "",
                ),
            )
        )


@dataclass(frozen=True)
class _Axis:
    value: Callable[[Cell], Any]  # sorts
    label: Callable[[Cell], str]  # as a title says it
    short: Callable[[Cell], str]  # as a column or row says it


_ROW = "seqlen"
# In the order of titles, and of tables.
_AXES: dict[str, _Axis] = {
    "device": _Axis(lambda c: 0, lambda c: c.device, lambda c: c.device),
    "dtype": _Axis(lambda c: DTYPES.index(c.case.dtype), lambda c: c.case.dtype, lambda c: c.case.dtype),
    "headdim": _Axis(
        lambda c: (c.case.shape.headdim, c.case.shape.headdim_v),
        lambda c: f"headdim {case_names.headdim(c.case)}",
        lambda c: f"d{case_names.headdim(c.case)}",
    ),
    "causal": _Axis(
        lambda c: case_names.mask_rank(c.case), lambda c: case_names.mask(c.case), lambda c: case_names.mask(c.case)
    ),
    "softcap": _Axis(
        lambda c: c.case.softcap,
        lambda c: f"softcap {c.case.softcap:g}" if c.case.softcap else "",
        lambda c: f"softcap {c.case.softcap:g}" if c.case.softcap else "no softcap",
    ),
    "dropout": _Axis(
        lambda c: c.case.dropout_p,
        lambda c: f"dropout {c.case.dropout_p:g}" if c.case.dropout_p else "",
        lambda c: f"dropout {c.case.dropout_p:g}" if c.case.dropout_p else "no dropout",
    ),
    "direction": _Axis(
        lambda c: DIRECTIONS.index(c.case.direction), lambda c: c.case.direction, lambda c: c.case.direction
    ),
    "backend": _Axis(lambda c: case_names.backend_rank(c.backend), lambda c: c.backend, lambda c: c.backend),
    "nheads": _Axis(
        lambda c: (c.case.shape.nheads, c.case.shape.nheads_k),
        lambda c: _heads(c.case),
        lambda c: f"h{case_names.heads(c.case)}",
    ),
    "batch": _Axis(
        lambda c: c.case.shape.batch, lambda c: f"batch {c.case.shape.batch}", lambda c: f"b{c.case.shape.batch}"
    ),
    "seqlen_q": _Axis(
        lambda c: 0 if c.case.shape.seqlen_q == c.case.shape.seqlen_k else c.case.shape.seqlen_q,
        lambda c: "" if c.case.shape.seqlen_q == c.case.shape.seqlen_k else f"seqlen_q {c.case.shape.seqlen_q}",
        lambda c: f"q{short(c.case.shape.seqlen_q)}",
    ),
    _ROW: _Axis(
        lambda c: c.case.shape.seqlen_k,
        lambda c: f"seqlen {short(c.case.shape.seqlen_k)}",
        lambda c: short(c.case.shape.seqlen_k),
    ),
}
_IMPLIED = ("nheads", "batch", "seqlen_q")  # make tables only where row and column do not tell them
BY = tuple(axis for axis in _AXES if axis not in ("device", "seqlen_q"))
BY_OPTION = {"pass": "direction", "window": "causal", "mask": "causal"}  # as the options of `run` call the axes


def sections(
    cells: Sequence[Cell],
    names: Sequence[str] = ("tflops",),
    by: str | None = None,
    convention: Convention = "exact",
    memory: bool = False,
    lines: float = math.inf,
) -> list[Section]:
    """The tables of each metric, the error of fp8 cells, then with `memory` peak memory, condensed.

    `by` is what the columns are: the backends where it is None, or, of many backends, the sequence lengths.
    UserError: unknown metric or axis.

    A metric that no cell has gives a section without tables. After so many `lines` a metric's tables end.
    """
    if by is None:
        by = _ROW if len({c.backend for c in cells if c.status != "skipped"}) > ABREAST else "backend"
    if by not in BY:
        raise UserError(f'no columns "{by}"{did_you_mean(by, BY)}')
    for name in names:
        if name not in metrics.METRICS:
            raise UserError(f'no metric "{name}"{did_you_mean(name, metrics.METRICS)}')
    wanted = [(name, cells) for name in names]
    if "relative_error" not in names and (narrow := [c for c in cells if c.case.dtype == "fp8"]):
        wanted.append(("relative_error", narrow))  # a speed in fp8 says nothing without it
    if memory and "memory_peak" not in names:
        wanted.append(("memory_peak", _plainest_masks(cells)))
    found = []
    for name, chosen in wanted:
        metric = metrics.METRICS[name]
        made, left = _tables(chosen, metric, by, convention, lines)
        if made or chosen is cells:
            found.append(Section(metric, tuple(made), left))
    return found


def _plainest_masks(cells: Sequence[Cell]) -> list[Cell]:
    """Of cells that differ in the mask alone those with the plainest: memory hardly depends on it. Measured ones."""
    plainest: dict[Any, Any] = {}
    kinds = [(cell.device, _but_mask(cell.case)) for cell in cells]
    for cell, kind, peak in zip(cells, kinds, values_of(cells, "memory_peak"), strict=True):
        if peak is not None:
            rank = case_names.mask_rank(cell.case)
            plainest[kind] = min(plainest.get(kind, rank), rank)
    return [c for c, kind in zip(cells, kinds, strict=True) if plainest.get(kind) == case_names.mask_rank(c.case)]


def _tables(
    cells: Sequence[Cell], metric: metrics.Metric, by: str, convention: Convention, lines: float
) -> tuple[list[Table], int]:
    """Those that fit into so many lines, the first in any case; and how many do not."""
    row, column = ("backend", _ROW) if by == _ROW else (_ROW, by)
    titles = [axis for axis in _AXES if axis not in (row, column, *_IMPLIED)]
    implied = [axis for axis in _IMPLIED if axis != column]
    several = len({c.device for c in cells}) > 1
    found: list[Table] = []
    left = 0
    for group in _split(cells, titles):
        for table in _split_implied(group, row, column, implied):
            if lines <= 0:
                left += any(c.status != "skipped" for c in table)
                continue
            made = _table(table, several, metric, (row, column), convention)
            if made is not None:
                found.append(made)
                lines -= len(made.rows) + FRAME
    return found, left


def _split(cells: Sequence[Cell], axes: Sequence[str]) -> list[list[Cell]]:
    groups: dict[tuple[int, tuple[Any, ...]], list[Cell]] = {}
    devices: dict[str, int] = {}
    known: dict[tuple[int, str, Sheet], list[Cell]] = {}  # a case on a backend of a run -> its group
    by_backend = "backend" in axes
    for cell in cells:
        one = id(cell.case), cell.backend if by_backend else "", cell.sheet
        if (group := known.get(one)) is None:
            device = devices.setdefault(cell.device, len(devices))
            values = tuple(_AXES[axis].value(cell) for axis in axes)
            group = known[one] = groups.setdefault((device, values), [])
        group.append(cell)
    return [groups[key] for key in sorted(groups)]


def _split_implied(cells: list[Cell], row: str, column: str, axes: Sequence[str]) -> list[list[Cell]]:
    """Splits by those of the axes that neither the row alone nor the column alone tells."""
    for i, axis in enumerate(axes):
        if not (_tells(row, axis, cells) or _tells(column, axis, cells)):
            rest = axes[i + 1 :]
            return [t for part in _split(cells, [axis]) for t in _split_implied(part, row, column, rest)]
    return [cells]


def _tells(known: str, axis: str, cells: Sequence[Cell]) -> bool:
    """Whether cells alike in one axis are alike in the other."""
    seen: dict[Any, Any] = {}
    key_of, value_of = _AXES[known].value, _AXES[axis].value
    for cell in cells:
        value = value_of(cell)
        if seen.setdefault(key_of(cell), value) != value:
            return False
    return True


def _table(
    cells: Sequence[Cell], several: bool, metric: metrics.Metric, axes: tuple[str, str], conv: Convention
) -> Table | None:
    row, column = axes
    at = {(_AXES[row].value(c), _AXES[column].value(c)): c for c in cells}
    tried = [key for key, cell in at.items() if cell.status != "skipped"]
    columns = sorted({c for _, c in tried})  # what was skipped throughout is told below the tables
    rows = sorted({r for r, c in (tried if row == "backend" else at) if c in columns})
    if not tried:
        return None
    values = {key: cell.value(metric.name, conv) for key, cell in at.items()}
    if any(at[key].status == "ok" for key in tried) and not any(v is not None for v in values.values()):
        return None

    rivals: dict[Any, list[float]] = {}  # only backends compete, on one case
    for key, value in values.items() if "backend" in axes else ():
        if value is not None:
            rivals.setdefault(key[0 if column == "backend" else 1], []).append(value)
    best = {place: _best(metric, found) for place, found in rivals.items()}

    def entry(r: Any, c: Any) -> Entry:
        return _entry(at.get((r, c)), metric, best.get(r if column == "backend" else c, set()), conv)

    details, row_extra, column_extra = _details(cells, row, column)
    of_row, of_column = {r: cell for (r, _), cell in at.items()}, {c: cell for (_, c), cell in at.items()}
    return Table(
        title=_title(cells[0], several, axes),
        details=details,
        corner="backend" if row == "backend" else "seqlen",
        columns=tuple(_label(of_column[c], column, column_extra) for c in columns),
        rows=tuple((_label(of_row[r], row, row_extra), tuple(entry(r, c) for c in columns)) for r in rows),
    )


def _entry(cell: Cell | None, metric: metrics.Metric, best: set[str], convention: Convention) -> Entry:
    if cell is None:
        return Entry()
    if cell.status != "ok":
        return Entry(word=case_names.ENDINGS[cell.status])
    value = cell.value(metric.name, convention)
    if value is None:
        return Entry(word=case_names.NOTHING)
    text = metric.format(value)
    digits, _, aside = text.partition(" ")
    memory = metric.name == "tflops" and cell.bound == "memory"
    if metric.name == "tflops":
        share = cell.value("roofline" if memory else "utilization", convention)
        aside = "" if share is None else metrics.share(share)
    held_down = metric.clocked and cell.held_down
    return Entry(digits, aside, best=text in best, memory=memory, held_down=held_down)


def _best(metric: metrics.Metric, rivals: Sequence[float]) -> set[str]:
    """The best figure as written, so that a tie at the digits shown is a tie; none if more than half are that good."""
    if metric.better is None or not rivals:
        return set()
    texts = [metric.format(v) for v in rivals]
    champion = metric.format(max(rivals) if metric.better == "higher" else min(rivals))
    return {champion} if 2 * texts.count(champion) <= len(texts) else set()


def _title(cell: Cell, several: bool, axes: tuple[str, str]) -> str:
    """`several`: whether there are other devices."""
    names = [a for a in _AXES if a not in (*axes, *_IMPLIED)]
    if not several:
        names.remove("device")
    return ", ".join(filter(None, (_AXES[a].label(cell) for a in names)))


def _details(cells: Sequence[Cell], row: str, column: str) -> tuple[str, list[str], list[str]]:
    """What the title says of the implied axes, and which of them row and column labels have to name."""
    told: list[str] = []
    row_extra: list[str] = []
    column_extra: list[str] = []
    for axis in (a for a in _IMPLIED if a not in (row, column)):
        tokens = {c.case.shape.batch * c.case.shape.seqlen_k for c in cells}
        if len({_AXES[axis].value(c) for c in cells}) == 1:
            told.append(_AXES[axis].label(cells[0]))
        elif axis == "batch" and len(tokens) == 1:
            told.append(f"batch x seqlen = {short(tokens.pop())}")
        else:
            (column_extra if _tells(column, axis, cells) else row_extra).append(axis)
    return ", ".join(filter(None, told)), row_extra, column_extra


def _label(cell: Cell, axis: str, extra: Sequence[str]) -> str:
    return " ".join([_AXES[axis].short(cell), *(_AXES[a].short(cell) for a in extra)])


def _heads(case: Case) -> str:
    s = case.shape
    return f"{s.nheads} heads" + (f", {s.nheads_k} key heads" if s.nheads_k != s.nheads else "")


@cache
def _but_mask(case: Case) -> tuple[Any, ...]:
    """All that sets tables of memory apart on a device."""
    s = case.shape
    kind = case.dtype, s.headdim, s.headdim_v, case.direction, case_names.extras(case)
    return *kind, s.nheads, s.nheads_k, s.seqlen_q == s.seqlen_k
