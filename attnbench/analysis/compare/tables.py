"""The tables of a comparison. Machines are columns or, where that is too wide to read, rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from attnbench.analysis.compare.answer import ratio_digits, ratio_text
from attnbench.analysis.compare.compare import Comparison
from attnbench.analysis.compare.longest_sequence import Fit
from attnbench.analysis.compare.machines import Machine
from attnbench.analysis.compare.speed_ratio import Ratio
from attnbench.core import stats
from attnbench.core.case import Case
from attnbench.core.formats import digits, percent, share
from attnbench.core.sizes import format_size
from attnbench.core.text import count
from attnbench.report.document import Column, Entry, Table
from attnbench.results import case_names
from attnbench.results.case_names import NOTHING

if TYPE_CHECKING:
    from attnbench.analysis.compare.workload import MeasuredPart, MeasuredWorkload

MOST_CASES = 500  # listed unless --all was given
MOST_COLUMNS = 4  # machines as columns; with more, no page is wide enough
_TEXT = {"machine", "part", "case", "cases of", "cell", "model", "backend", "backends", "why", "where", "reason"}
_LONG_TEXT = {"where", "reason"}


def tables(c: Comparison, every: bool = False) -> list[Table]:
    """Return the tables in the order of a report, without empty ones. `every`: with all cases, and with each cell."""
    found = [
        _machines(c),
        *([_workload(c, c.workload)] if c.workload else []),
        _groups(c),
        _cases(c, every),
        *([_cells(c)] if every else []),
        _missing(c),
        _longest(c),
        _spreads(c),
    ]
    return [table for table in found if table.rows]


def _machines(c: Comparison) -> Table:
    home = c.reference.label
    with_peak = any(found.utilization is not None for found in c.efficiency.values())
    rows = []
    for label in c.labels:
        found, bought, base = c.efficiency[label], c.bought(label), c.bought(home)
        row = {
            "machine": label,
            f"speed / {home}": "1x" if label == home else ratio_text(c.overall[label]),
            "TFLOP/s": _or_nothing(c.tflops[label]),
        }
        if c.sustained_cases:
            (machine,) = (m for m in c.machines if m.label == label)
            row["without pauses"] = "1x" if label == home else ratio_text(c.sustained_ratio(machine))
            row["TFLOP/s so"] = _or_nothing(c.sustained_tflops(machine))
        if with_peak:
            row["of peak"] = _or_nothing(found.utilization, share)
        if c.cases_with_power:
            row |= {"W": _or_nothing(found.watts), "TFLOP/s/W": _or_nothing(found.tflops_per_watt)}
        if c.prices:
            row["price"] = str(c.prices.get(label, NOTHING))
            row[next(iter(c.prices.values())).unit] = _or_nothing(bought)
            row[f"for the money / {home}"] = f"{ratio_digits(bought / base)}x" if bought and base else NOTHING
        rows.append(row)
    note = "Each machine runs each case with its fastest backend. "
    note += f"Speed and TFLOP/s: of the workload {c.workload.name!r}; the rest: g" if c.workload else "G"
    note += f"eometric means over {count(len(c.cases), 'case')}. FLOPs: exact."
    if with_peak:
        note += " Of peak: the datasheet's."
    if c.sustained_cases:
        note += f" Without pauses: over {count(len(c.sustained_cases), 'case')}, with what is fastest so."
    if c.cases_with_power:
        note += f" W, TFLOP/s/W: without pauses, by the energy counter, over {count(c.cases_with_power, 'case')}."
    return _table("machines", "Machines", rows, note)


def _workload(c: Comparison, workload: MeasuredWorkload) -> Table:
    parts = workload.parts
    rows = [{"part": p.name, "weight": percent(p.share), "cases": str(len(p.cases))} for p in parts]
    cases = str(sum(len(part.cases) for part in parts))
    rows.append({"part": f"all of {workload.name}", "weight": "100%", "cases": cases})
    of = f"time on {c.reference.label}" if workload.weights == "time" else "FLOPs"
    note = f"Weights are shares of {of}. A part is one call of each of its cases. "
    note += "Its ratio is that of the total times, and so is that of the whole."
    if left_out := sum(part.left_out for part in parts):
        note += f" {count(left_out, 'case')} not measured on all machines {'is' if left_out == 1 else 'are'} left out."

    def backends(part: MeasuredPart | None, machine: Machine) -> str:
        return ", ".join(part.backends(machine)) or NOTHING if part else ""

    table = _table("workload", f"Workload {workload.name}", rows, note)
    speed = _speed(c, lambda part, machine: workload.ratio(machine, part))
    return _by_machine(c, table, [*parts, None], [speed], [_MachineColumn("backends", "on {}", backends)])


def _groups(c: Comparison) -> Table:
    groups = [*c.groups, *([c.whole] if len(c.groups) > 1 else [])]
    rows = [{"cases of": g.name, "cases": str(len(g.cases)), "cells": str(len(g.cells))} for g in groups]
    note = "Geometric means. Fastest backends: each machine runs each case with the backend that is fastest on it. "
    note += "Same backend: every cell that all machines have, the slow backends as much as the fast."
    table = _table("groups", "Speed by kind of case", rows, note)
    fastest = _speed(c, lambda group, machine: group.fastest[machine.label], "fastest backends")
    same = _speed(c, lambda group, machine: group.same[machine.label], "same backend")
    return _by_machine(c, table, groups, [fastest], [same])


def _cases(c: Comparison, every: bool) -> Table:
    shown = c.cases if every else c.cases[:MOST_CASES]
    left = len(c.cases) - len(shown)
    note = f"{count(left, 'more case')} not shown: attnbench compare --all shows every one." if left else ""
    rows = [{"case": name} for name in _names([("", case) for case in c.cases])[: len(shown)]]
    table = _table("cases", "The fastest backend of each case", rows, note)
    backend = _MachineColumn("backend", "{}", lambda case, machine: machine.fastest[case][1])
    tflops = _MachineColumn("TFLOP/s", "TFLOP/s", lambda case, machine: digits(machine.tflops(machine.fastest[case])))
    sustained = _MachineColumn("without pauses", "without pauses", _without_pauses)
    speed = _speed(c, lambda case, machine: c.fastest_ratio(machine, [case]))
    return _by_machine(c, table, shown, [backend, tflops, sustained], [speed])


def _without_pauses(case: Case, machine: Machine) -> str:
    """Return the TFLOP/s without pauses of the backend that is fastest so, named where it is not so in bursts."""
    key = machine.sustained.fastest.get(case)
    if key is None:
        return ""
    return digits(machine.sustained.tflops(key)) + ("" if key == machine.fastest[case] else f" {key[1]}")


def _cells(c: Comparison) -> Table:
    rows = [{"cell": name} for name in _names([(backend, case) for case, backend in c.cells])]
    table = _table("cells", "Cells that all machines have", rows)
    tflops = _MachineColumn("TFLOP/s", "{}, TFLOP/s", lambda key, machine: digits(machine.tflops(key)))
    return _by_machine(c, table, c.cells, [tflops], [_speed(c, lambda key, machine: c.same_ratio(machine, [key]))])


def _missing(c: Comparison) -> Table:
    rows = [{**vars(missing), "cells": str(missing.cells), "where": missing.where or "all"} for missing in c.missing]
    numbers = Counter[str]()
    for missing in c.missing:
        numbers[missing.machine] += missing.cells
    note = "; ".join(f"{label} lacks {count(n, 'cell')} that another machine has" for label, n in numbers.items())
    note += ". Such a cell counts above only where its backend is the fastest of the machine that has it."
    return _table("missing", "Missing", rows, note)


def _longest(c: Comparison) -> Table:
    limited = [longest for longest in c.longest if longest.limited]
    note = "The longest that was measured, of any mask; in brackets the next, which memory refused."
    if free := len(c.longest) - len(limited):
        note += f" {count(free, 'other')} fitted all that was tried."
    rows = [{"cases of": longest.cases, "backend": longest.backend} for longest in limited]
    table = _table("longest", "The longest sequence that fits", rows, note)
    fits = _MachineColumn("longest", "{}", lambda longest, machine: _fit(longest.fits[machine.label]))
    return _by_machine(c, table, limited, [fits])


def _fit(fit: Fit | None) -> str:
    if fit is None:
        return NOTHING
    longest = format_size(fit.longest) if fit.longest else "none"
    return f"{longest} ({format_size(fit.refused)})" if fit.refused else f"at least {longest}"


def _spreads(c: Comparison) -> Table:
    rows = []
    for spread in c.spreads:
        least, median, most = min(spread.tflops), stats.median(spread.tflops), max(spread.tflops)
        rows.append(
            {
                "model": spread.model,
                "files": str(len(spread.files)),
                "units": _or_nothing(spread.units, str),
                "cells": str(spread.cells),
                "least TFLOP/s": digits(least),
                "median": digits(median),
                "most": digits(most),
                "apart": percent((most - least) / median),
            }
        )
    note = "Run files of one model, power limit and software against each other, over the same cells."
    if any(spread.units is None for spread in c.spreads):
        note += " Some do not name the unit that measured them: these may be several units, or runs of one."
    return _table("units", "Spread between runs of one model", rows, note)


def _table(name: str, title: str, rows: Sequence[Mapping[str, str]], note: str = "") -> Table:
    """Return the table of rows that each have heading -> entry."""
    columns = tuple(_column(heading, heading) for heading in (rows[0] if rows else ()))
    return Table(name, columns, tuple(tuple(row.values()) for row in rows), title, note)


def _column(heading: str, holds: str) -> Column:
    """Return a column; what it holds says on which side its entries stand and whether they may break."""
    return Column(heading, "left" if holds in _TEXT else "right", wrap=holds in _LONG_TEXT)


class _MachineColumn(NamedTuple):
    """What a table says of each machine: a column for each machine, or one column where machines are rows."""

    heading: str  # of the one column
    own: str  # heading of a machine's own column, with {} for its label
    text: Callable[[Any, Machine], str]  # of what a row compares, and a machine


def _by_machine(c: Comparison, table: Table, compared: Sequence[Any], *groups: Sequence[_MachineColumn]) -> Table:
    """Return a table with columns added for the machines: each group machine by machine, without empty columns.

    `compared` is what each row compares. `narrow` of the result has a row for each machine instead; with more than
    MOST_COLUMNS machines that is the result.
    """
    columns = [column for group in groups for column in group]
    own = [(machine, column) for group in groups for machine in c.machines for column in group]
    texts = [{(machine.label, column): column.text(of, machine) for machine, column in own} for of in compared]
    own = [(machine, column) for machine, column in own if any(row[machine.label, column] for row in texts)]
    narrow: list[tuple[Entry, ...]] = []
    for row, found in zip(table.rows, texts, strict=True):
        compared_texts = row
        for label in c.labels:
            entries = [found[label, column] for column in columns]
            if any(entries):
                narrow.append((*compared_texts, label, *entries))
                compared_texts = ("",) * len(row)
    added = [_column("machine", "machine"), *(_column(column.heading, column.heading) for column in columns)]
    by_row = replace(table, columns=(*table.columns, *added), rows=tuple(narrow))
    if len(c.machines) > MOST_COLUMNS:
        return by_row
    added = [_column(column.own.replace("{}", machine.label), column.heading) for machine, column in own]
    rows = [(*row, *(found[m.label, col] for m, col in own)) for row, found in zip(table.rows, texts, strict=True)]
    return replace(table, columns=(*table.columns, *added), rows=tuple(rows), narrow=by_row)


def _speed(c: Comparison, ratio: Callable[[Any, Machine], Ratio | None], what: str = "") -> _MachineColumn:
    """Return the column of the ratios of all machines but the reference; `what` says with which backends."""
    home = c.reference.label
    own = (what or "speed") if len(c.others) == 1 else f"{what}{': ' if what else ''}{{}} / {home}"

    def text(compared: Any, machine: Machine) -> str:
        return "" if machine is c.reference else ratio_text(ratio(compared, machine))

    return _MachineColumn(f"{what or 'speed'} / {home}", own, text)


def _or_nothing(value: float | None, form: Callable[[float], str] = digits) -> str:
    return form(value) if value else NOTHING


def _names(cells: Iterable[tuple[str, Case]]) -> list[str]:
    """Return unique names of (backend, case), with the dtype, batch and heads where these tell them apart."""
    cells = list(cells)
    several_dtypes = len({case.dtype for _, case in cells}) > 1
    names = [case_names.case_name(backend, case, several_dtypes).strip() for backend, case in cells]
    if len({*names}) == len(names):
        return names
    return [
        f"{name} b{case.shape.batch} h{case_names.heads(case)}" for name, (_, case) in zip(names, cells, strict=True)
    ]
