"""The tables of a comparison. Machines are columns or, if that is too wide to read, rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from attnbench.analysis.compare.answer import fit_text, length_text, on_devices, price_text, ratio_text
from attnbench.analysis.compare.common_cells import kinds, kinds_of_work, why_missing
from attnbench.analysis.compare.figures import Figures
from attnbench.analysis.compare.findings import Comparison
from attnbench.analysis.compare.longest_sequence import LongestSequence
from attnbench.analysis.compare.machines import Machine
from attnbench.analysis.compare.speed_ratio import Ratio, equal_weights, speed_ratio
from attnbench.core.case import Case
from attnbench.core.formats import digits, duration, percent, share
from attnbench.core.text import count, listed
from attnbench.render.document import Bar, Column, Entry, Table
from attnbench.results import case_names
from attnbench.results.case_names import NOTHING
from attnbench.results.cells import Key

if TYPE_CHECKING:
    from attnbench.analysis.compare.workload import MeasuredPart, MeasuredWorkload

MOST_ROWS = 24  # in the tables of cases, missing cells and lengths, unless --all was given
MOST_COLUMNS = 4  # for machines; with more, no page is wide enough
NO_TOTAL = "; so the case is in no total of own fastest backends"
_TEXT = {"machine", "figures", "with", "part", "case", "cases of", "cell", "backend", "backends", "why", "limited by"}
_UNITS: Mapping[str, tuple[str, Callable[[Figures, str], float | None]]] = {  # by the limit of a case
    "compute": ("TFLOP/s", Figures.tflops),
    "memory": ("GB/s", Figures.gbps),
    "launch": ("", Figures.seconds),
}
_LONG_TEXT = {"where", "reason"}  # columns of text that may break into lines


def tables(c: Comparison, every: bool = False) -> list[Table]:
    """Return the tables in the order of a report, without empty ones.

    `every`: with all cases, each cell, and bars of the speed. Without it, the tables that fit on a screen (`is_brief`).
    """
    if is_brief(c, every):
        workload = [_workload(c, c.workload)] if c.workload else []
        found = [*workload, _groups(c, brief=True), _rates(c), _for_the_money(c, brief=True)]
        return [table for table in found if table.rows]
    found = [
        _machines(c),
        _for_the_money(c),
        *([_workload(c, c.workload)] if c.workload else []),
        _groups(c),
        *(_bars(c) if every else []),
        *_cases(c),
        *([_cells(c)] if every else []),
        _cells(c, own=True),
        _missing(c),
        _longest(c),
    ]
    return [table for table in found if table.rows]


def is_brief(c: Comparison, every: bool) -> bool:
    """Return whether to leave out the tables that do not fit on a screen."""
    if every or len(c.cases) > MOST_ROWS:
        return not every
    return len(c.cases) + len(c.missing) + sum(longest.limited for longest in c.longest) > MOST_ROWS


def _machines(c: Comparison) -> Table:
    """Return the speed and power of each machine, a row for each kind of figures, the main ones first."""
    home = c.reference.label
    tokens = "tokens/s" + (on_devices(c.workload, " of ") if c.workload else "")
    rows = [
        {
            **_row_of(figures, label),
            "cases": NOTHING if c.workload else str(len(figures.cases)),
            f"speed / {home}": "1x" if label == home else ratio_text(figures.ratio(label)),
            "TFLOP/s": _or_nothing(figures.tflops(label)),
            "GB/s": _or_nothing(figures.gbps(label)),
            "of peak": _or_nothing(figures.utilization(label), share),
            "W": _or_nothing(figures.watts(label)),
            "TFLOP/s/W": _or_nothing(figures.tflops_per_watt(label)),
            f"per watt / {home}": ratio_text(figures.per_watt(label)),
            tokens: _or_nothing(c.tokens_a_second(figures, label)),
        }
        for figures in c.figures
        for label in c.labels
    ]
    note = "Shared backends: in each case the fastest backend that all machines have. "
    note += f"All figures are of the workload {c.workload.name!r}" if c.workload else "Geometric means"
    note += ". FLOPs: exact."
    if (c.workload and c.workload.devices != (1,)) or any(case.ranks > 1 for case in c.main.cases):
        note += " TFLOP/s, GB/s and W: per device, where a case runs on several."
    if any(row["GB/s"] != NOTHING for row in rows):
        note += (
            " GB/s: of cases that memory limits, by the least bytes that a call moves; "
            "TFLOP/s: of cases that compute limits."
        )
    if any(row["of peak"] != NOTHING for row in rows):
        note += " Of peak: as a share of the datasheet's peak."
    if c.workload and c.workload.tokens_are != "tokens":
        note += f" Tokens/s: of {c.workload.tokens_are}."
    if any(row["W"] != NOTHING for row in rows):
        note += " W: the board's power, by its energy counter in the same seconds as TFLOP/s."
    return _table("machines", "Machines", _without_empty(rows), note)


def _for_the_money(c: Comparison, brief: bool = False) -> Table:
    """Return each machine's cost and its work for it, a row for each kind of figures, the main ones first.

    `brief`: only the main ones.
    """
    offers = {label: offer for label in c.labels if (offer := c.offer(label))}
    if not offers:
        return _table("money", "For the money", [])
    home, one = c.reference.label, next(iter(offers.values()))
    rows = []
    for figures in c.figures[:1] if brief else c.figures:
        for label in c.labels:
            offer, worth = offers.get(label), c.worth_below(figures, label)
            tokens = c.million_tokens(figures, label)
            per_hour = offer and offer.price.hours and (offer.energy or offer.price.hours != 1 or offer.price.gpus > 1)
            rows.append(
                {
                    **_row_of(figures, label),
                    "price": str(offer.price) if offer else NOTHING,
                    "a GPU and hour": one.price.money(offer.cost) if offer and per_hour else NOTHING,
                    c.unit(c.main): _or_nothing(c.bought(figures, label)),
                    one.unit("GB/s"): _or_nothing(c.bought_of_decode(figures, label)),
                    f"for the money / {home}": "1x"
                    if offer and label == home
                    else ratio_text(c.for_the_money(figures, label)),
                    "worth it below": price_text((offer or offers[home]).price, worth) if worth else NOTHING,
                    "a million tokens": one.price.money(tokens) if tokens else NOTHING,
                }
            )
    note = f"Worth it below: the price of one device at which it gives as much for the money as {home}."
    if c.energy:
        note += " The cost of an hour of a bought device includes its energy."
    if on := on_devices(c.workload, " A million tokens: on ") if c.workload else "":
        note += f"{on}."
    return _table("money", "For the money", _without_empty(rows), note)


def _row_of(figures: Figures, label: str) -> dict[str, str]:
    return {
        "machine": label,
        "figures": figures.pace,
        "with": "shared backends" if figures.shared else "own fastest",
    }


def _without_empty(rows: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Return the rows without the columns that are empty in all of them."""
    said = [name for name in rows[0] if any(row[name] != NOTHING for row in rows)]
    return [{name: row[name] for name in said} for row in rows]


def _workload(c: Comparison, workload: MeasuredWorkload) -> Table:
    parts = workload.parts
    rows = [{"part": p.name, "weight": percent(p.share), "cases": str(len(p.cases))} for p in parts]
    cases = str(sum(len(part.cases) for part in parts))
    rows.append({"part": f"all of {workload.name}", "weight": "100%", "cases": cases})
    if workload.devices != (1,):
        devices = [listed(map(str, sorted({*map(p.devices, p.cells[workload.reference])}))) for p in parts]
        rows = [{**row, "devices": of} for row, of in zip(rows, [*devices, ""], strict=True)]
    if any(part.stands_in for part in parts):
        known = [f"interpolated, {percent(p.interpolation)}" if p.interpolation else "measured" for p in parts]
        rows = [{**row, "time": time} for row, time in zip(rows, [*known, ""], strict=True)]
    of = "FLOPs" if workload.weights == "work" else f"time on {c.reference.label}"
    note = f"Figures {c.main.pace}. Weights are shares of {of}. One call of a part is one call of each of its cases. "
    note += "The ratio of a part, and of the whole, is the ratio of the total times."
    if left_out := sum(part.left_out for part in parts):
        are = "is" if left_out == 1 else "are"
        note += f" {count(left_out, 'case')} that not all machines measured or tried {are} left out."

    def backends(part: MeasuredPart | None, machine: Machine) -> str:
        if part is None:
            return ""
        names = part.backends(c.main.machines[machine.label])
        return ", ".join(c.backend_name(name, machine) for name in names) or NOTHING

    table = _table("workload", f"Workload {workload.name}", rows, note)
    speed = _speed(c, lambda part, machine: workload.ratio(c.main.machines[machine.label], part))
    return _by_machine(c, table, [*parts, None], [speed], [_MachineColumn("backends", "on {}", backends)])


def _groups(c: Comparison, brief: bool = False) -> Table:
    """Return the speed ratios by kind of case: of the main figures and, if they differ, with own fastest backends.

    `brief`: by kind of work.
    """
    own = c.beside(sustained=c.main.sustained, shared=False)
    both = [(c.main, "speed" if not own else "shared backends"), *([(own, "own fastest")] if own else [])]
    every = sorted({case for figures, _ in both for case in figures.cases}, key=case_names.case_rank)
    grouped = kinds_of_work(every) if brief else kinds(every)
    grouped |= {"all": every} if len(grouped) > 1 else {}

    def of_kind(figures: Figures, name: str) -> Figures:
        return figures.of([case for case in grouped[name] if case in figures.chosen[c.reference.label]])

    def numbers(name: str) -> str:
        return " / ".join(dict.fromkeys(str(len(of_kind(figures, name).cases)) for figures, _ in both))

    rows = [{"cases of": name, "cases": numbers(name)} for name in grouped]
    note = f"Figures {c.main.pace}, geometric means."
    if own and not brief:
        note += (
            " Shared backends: the fastest backend that all machines have; own fastest: the fastest of each machine."
        )
    if any("/" in row["cases"] for row in rows) and not brief:
        note += " Cases: with shared backends / own fastest."
    table = _table("groups", f"Speed by kind of {'work' if brief else 'case'}", rows, note)

    def column(figures: Figures, what: str) -> _MachineColumn:
        def ratio(name: str, machine: Machine) -> Ratio | None:
            of = of_kind(figures, name)
            return of.ratio(machine.label) if of.cases else None

        return _speed(c, ratio, "" if what == "speed" else what)

    return _by_machine(c, table, [*grouped], *([column(figures, what)] for figures, what in both))


def _rates(c: Comparison) -> Table:
    """Return the speed by kind of work and limit, each in its unit, and for decode tokens/s through a layer."""
    rows: list[dict[str, str]] = []
    texts: list[Callable[[str], str]] = []
    for work, cases in kinds_of_work(c.main.cases).items():
        of_work = c.main.of(cases)
        for limit, (unit, value) in _UNITS.items():
            if own := [case for case in cases if of_work.limits[case] == limit]:
                rows.append({"cases of": work, "limited by": limit, "cases": str(len(own))})
                texts.append(partial(_with_unit, value, unit, c.main.of(own)))
        if of_work.tokens_of_decode(c.reference.label):
            rows.append({"cases of": work, "limited by": "any", "cases": str(len(cases))})
            texts.append(partial(_with_unit, Figures.tokens_of_decode, "tokens/s", of_work))
    note = "With the same backends. Tokens/s: through the attention of one layer." if c.main.shared else ""
    table = _table("rates", "Rates by kind of work", rows, note)
    return _by_machine(c, table, texts, [_MachineColumn("rate", "{}", lambda text, machine: text(machine.label))])


def _with_unit(value: Callable[[Figures, str], float | None], unit: str, figures: Figures, label: str) -> str:
    found = value(figures, label)
    return "" if found is None else f"{digits(found)} {unit}" if unit else duration(found)


def _bars(c: Comparison) -> list[Table]:
    """Return TFLOP/s, and the work for the money, by kind of case and machine, as bars from 0."""
    note = f"Figures {c.main.pace}, geometric means, with "
    note += (
        "the fastest of the backends that all machines have."
        if c.main.shared
        else "each machine's own fastest backend."
    )
    of_kinds = replace(c.main, workload=None).kinds
    charts: list[tuple[str, str, Callable[[Figures, str], float | None]]] = [
        ("bars", "TFLOP/s", Figures.tflops),
        ("decode-bars", "GB/s", Figures.gbps),
    ]
    if one := next(filter(None, map(c.offer, c.labels)), None):
        charts += [("money-bars", one.unit(), lambda of, label: c.bought(of, label) if of.tflops(label) else None)]
        charts += [("decode-money-bars", one.unit("GB/s"), c.bought_of_decode)]
    tables = []
    for name, unit, value in charts:
        found = {
            kind: {label: number for label in c.labels if (number := value(of, label))} for kind, of in of_kinds.items()
        }
        most = max((number for of in found.values() for number in of.values()), default=0.0)
        rows = [
            ("" if i else kind, label, digits(number), Bar(0.0, number / most, c.labels.index(label)))
            for kind, of in found.items()
            for i, (label, number) in enumerate(of.items())
        ]
        columns = [_column("cases of", "cases of"), _column("machine", "machine"), _column(unit, unit), Column("")]
        tables.append(Table(name, tuple(columns), tuple(rows), f"{unit} by kind of case", note))
    return tables


def _cases(c: Comparison) -> list[Table]:
    """Return the common cases by each machine's fastest backend and by shared ones, with a table for each limit."""
    fastest = "The fastest backend of each case"
    return [
        _cases_of(c, c.of_limit("compute"), "cases", fastest, "TFLOP/s", Machine.tflops),
        _cases_of(c, c.of_limit("memory"), "by-memory", f"{fastest} that memory limits", "GB/s", Machine.gbps),
        _cases_of(c, c.of_limit("launch"), "by-launch", f"{fastest} that launching limits", "us", _microseconds),
    ]


def _microseconds(machine: Machine, key: Key) -> float:
    return machine.latency(key) * 1e6


def _cases_of(
    c: Comparison,
    cases: Sequence[Case],
    name: str,
    title: str,
    unit: str,
    rate: Callable[[Machine, Key], float | None],
) -> Table:
    rows = [{"case": text} for text in _names([("", case) for case in cases])]
    footnotes: dict[str, int] = {}
    none: Mapping[str, Mapping[Case, Key]] = {label: {} for label in c.labels}
    of_shared = next((figures.chosen for figures in c.figures if figures.shared and not figures.sustained), none)

    def own_backend(case: Case, machine: Machine) -> str:
        key = machine.fastest[case]
        marks = [footnotes.setdefault(why, len(footnotes) + 1) for why in _lacking(c, key)]
        return " ".join([c.backend_name(key[1], machine), *(f"[{number}]" for number in marks)])

    def without_pauses(case: Case, machine: Machine) -> str:
        """Return the rate of the fastest backend without pauses, with its name if another one is fastest in bursts."""
        key = machine.sustained.fastest.get(case)
        if key is None:
            return ""
        return _or_nothing(rate(machine.sustained, key)) + ("" if key == machine.fastest[case] else f" {key[1]}")

    def shared(case: Case, machine: Machine) -> str:
        ours, theirs = (of_shared[each.label].get(case) for each in (c.reference, machine))
        if machine is c.reference or not ours or not theirs:
            return ""
        ratio = speed_ratio(c.reference, equal_weights([ours]), machine, equal_weights([theirs]))
        return f"{ratio_text(ratio)} {' / '.join(dict.fromkeys((ours[1], theirs[1])))}"

    columns = [
        _MachineColumn("backend", "{}", own_backend),
        _MachineColumn(unit, unit, lambda case, machine: _or_nothing(rate(machine, machine.fastest[case]))),
        _MachineColumn("without pauses", "without pauses", without_pauses),
    ]
    differ = any(m.fastest[case] != of_shared[m.label].get(case) for case in cases for m in c.machines)
    own = "own fastest" if differ else ""
    speeds = [_speed(c, lambda case, machine: c.fastest_ratio(machine, [case]), own)]
    if differ:
        home = c.reference.label
        what = "shared backends" if len(c.others) == 1 else f"shared backends: {{}} / {home}"
        speeds.append(_MachineColumn(f"shared backends / {home}", what, shared))
    if any(c.sustained_ratio(machine, case) for machine in c.others for case in cases):
        speeds.append(_speed(c, lambda case, machine: c.sustained_ratio(machine, case), "speed without pauses"))
    note = "All figures are in bursts."
    if any(without_pauses(case, machine) for machine in c.machines for case in cases):
        note = 'All figures are in bursts, except in the columns "without pauses".'
    if differ:
        note += (
            " Own fastest: the fastest backend of each machine; shared backends: the fastest that all machines have."
        )
    found = _by_machine(c, _table(name, title, rows, note), cases, columns, speeds)
    return replace(found, footnotes=tuple(footnotes)) if rows else found


def _lacking(c: Comparison, key: Key) -> list[str]:
    """Return the reasons, a sentence each, why a machine's fastest cell is not compared with other machines."""
    said = [
        f"{key[1]} has no figure on {machine.label}: {': '.join(filter(None, why_missing(machine, key)))}"
        f"{'' if key in machine.tried else NO_TOTAL}"
        for machine in c.machines
        if key not in machine.log_rounds
    ]
    if key in c.of_unlike_versions:
        said.append(f"{key[1]} is not of one version on all machines, so it does not count as a shared backend")
    return [*said, *([f"{key[1]} ran unlike kernels: {c.unlike[key]}{NO_TOTAL}"] if key in c.unlike else [])]


def _cells(c: Comparison, own: bool = False) -> Table:
    """Return the cells that all machines have: of own code, which is in no ranking (`own`), or of all others."""
    cells = [key for key in c.cells if (key[1] in c.own_code) == own]
    named = [(c.backend_name(backend, *c.machines), case) for case, backend in cells]
    errors = (c.reference.cells[key].value("approximation_error") for key in cells)
    names = [
        name if error is None else f"{name} (approx., err {percent(error)})"
        for name, error in zip(_names(named), errors, strict=True)
    ]
    name, title = ("own-code", "Own code, in no ranking") if own else ("cells", "Cells that all machines have")
    table = _table(name, title, [{"cell": name} for name in names], "In bursts.")
    rate = _MachineColumn("TFLOP/s", "{}, TFLOP/s", lambda key, machine: _or_nothing(machine.tflops(key)))
    if any(c.reference.limit(key) != "compute" or not c.reference.cells[key].is_exact for key in cells):
        rate = _MachineColumn("rate", "{}", lambda key, machine: _rate(machine, key, c.reference.limit(key)))
    return _by_machine(c, table, cells, [rate], [_speed(c, lambda key, machine: c.same_ratio(machine, key))])


def _rate(machine: Machine, key: Key, limit: str) -> str:
    """Return the rate of a cell with the unit of its limit; the time of an approximation, or where launching limits."""
    rate, unit = (machine.gbps(key), "GB/s") if limit == "memory" else (machine.tflops(key), "TFLOP/s")
    return f"{digits(rate)} {unit}" if rate and limit != "launch" else duration(machine.latency(key))


def _missing(c: Comparison) -> Table:
    rows = [{**vars(missing), "cells": str(missing.cells), "where": missing.where or "all"} for missing in c.missing]
    numbers = Counter[str]()
    for missing in c.missing:
        numbers[missing.machine] += missing.cells
    note = "; ".join(f"{label} lacks {count(n, 'cell')} that another machine has" for label, n in numbers.items())
    note += ". Such a cell counts above only with own fastest backends, "
    note += "and only if the machine that lacks it cannot run it."
    return _table("missing", "Missing", rows, note)


def _longest(c: Comparison) -> Table:
    limited = [longest for longest in c.longest if longest.limited]
    note = "Of one layer and any mask. At least: another limit than memory ended it. No room to measure: with the "
    note += "copies and the check of a run; attnbench capacity finds what fits."
    if free := len(c.longest) - len(limited):
        note += f" {count(free, 'other row')} {'shows' if free == 1 else 'show'} no limit."
    rows = [{"cases of": longest.cases, "backend": longest.backend} for longest in limited]
    table = _table("longest", "The longest sequence measured", rows, note)

    def fit(longest: LongestSequence, machine: Machine) -> str:
        return fit_text(longest.fits[machine.label], length_text(longest.fits.values()))

    fits = _MachineColumn("longest", "{}", fit)
    return _by_machine(c, table, limited, [fits])


def _table(name: str, title: str, rows: Sequence[Mapping[str, str]], note: str = "") -> Table:
    """Return a table of rows, each a mapping heading -> entry."""
    columns = tuple(_column(heading, heading) for heading in (rows[0] if rows else ()))
    return Table(name, columns, tuple(tuple(row.values()) for row in rows), title, note)


def _column(heading: str, holds: str) -> Column:
    """Return a column; `holds`, the kind of its entries, sets their alignment and whether lines may break."""
    return Column(heading, "left" if holds in _TEXT | _LONG_TEXT else "right", wrap=holds in _LONG_TEXT)


class _MachineColumn(NamedTuple):
    """A figure of each machine in a table: a column for each machine, or one column if machines are rows."""

    heading: str  # when machines are rows
    own: str  # heading of a machine's column, with {} for its label
    text: Callable[[Any, Machine], str]  # (the row's element of `compared`, a machine) -> entry


def _by_machine(c: Comparison, table: Table, compared: Sequence[Any], *groups: Sequence[_MachineColumn]) -> Table:
    """Return a table with columns added for the machines: each group machine by machine, without empty columns.

    `compared` has the case, cell or other subject of each row. `narrow` of the result has a row for each machine
    instead; with more than MOST_COLUMNS machines this table is the result.
    """
    columns = [column for group in groups for column in group]
    own = [(machine, column) for group in groups for machine in c.machines for column in group]
    texts = [{(machine.label, column): column.text(of, machine) for machine, column in own} for of in compared]
    own = [(machine, column) for machine, column in own if any(row[machine.label, column] for row in texts)]
    columns = [column for column in columns if any(column is shown for _, shown in own)]
    narrow: list[tuple[Entry, ...]] = []
    for row, found in zip(table.rows, texts, strict=True):
        compared_texts = row
        for label in c.labels:
            entries = [found[label, column] for column in columns]
            if any(entries):
                narrow.append((*compared_texts, label, *entries))
                compared_texts = ("",) * len(row)
    added = [_column("machine", "machine"), *(_column(column.heading, column.heading) for column in columns)]
    labels = len(table.columns) + 1
    by_row = replace(table, columns=(*table.columns, *added), rows=tuple(narrow), labels=labels)
    if len(c.machines) > MOST_COLUMNS:
        return by_row
    added = [_column(column.own.replace("{}", machine.label), column.heading) for machine, column in own]
    rows = [(*row, *(found[m.label, col] for m, col in own)) for row, found in zip(table.rows, texts, strict=True)]
    return replace(table, columns=(*table.columns, *added), rows=tuple(rows), narrow=by_row)


def _speed(c: Comparison, ratio: Callable[[Any, Machine], Ratio | None], what: str = "") -> _MachineColumn:
    """Return the column with the speed ratios of all machines but the reference; `what` names the backends."""
    home = c.reference.label
    own = (what or "speed") if len(c.others) == 1 else f"{what}{': ' if what else ''}{{}} / {home}"

    def text(compared: Any, machine: Machine) -> str:
        return "" if machine is c.reference else ratio_text(ratio(compared, machine))

    return _MachineColumn(f"{what or 'speed'} / {home}", own, text)


def _or_nothing(value: float | None, form: Callable[[float], str] = digits) -> str:
    return form(value) if value else NOTHING


def _names(cells: Iterable[tuple[str, Case]]) -> list[str]:
    """Return unique names for (backend, case), with the dtype, batch and heads if needed to distinguish them."""
    cells = list(cells)
    several_dtypes = len({case.dtype for _, case in cells}) > 1
    names = [case_names.case_name(backend, case, several_dtypes).strip() for backend, case in cells]
    if len({*names}) == len(names):
        return names
    return [case_names.case_name(*cell, several_dtypes, batch=True).strip() for cell in cells]
