"""The tables of a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attnbench.analysis.compare.answer import ratio_digits, ratio_text
from attnbench.analysis.compare.compare import Comparison
from attnbench.analysis.compare.longest_sequence import Fit
from attnbench.analysis.compare.machine_columns import MachineColumn, by_machine
from attnbench.analysis.compare.speed_ratio import Ratio
from attnbench.core.case import Case
from attnbench.core.formats import digits, percent, share
from attnbench.core.sizes import format_size
from attnbench.core.text import count
from attnbench.report.document import Column, Table
from attnbench.results import case_names

NOTHING = case_names.NOTHING
MOST_CASES = 500  # listed unless --all was given


def tables(c: Comparison, every: bool = False) -> list[Table]:
    """Return the tables in the order of a report, without empty ones. `every`: with all cases, and with each cell."""
    found = [
        _machines(c),
        *([_workload(c)] if c.workload else []),
        _groups(c),
        _cases(c, every),
        *([_cells(c)] if every else []),
        _missing(c),
        _longest(c),
        _spreads(c),
    ]
    return [table for table in found if table.rows]


def _machines(c: Comparison) -> Table:
    home, power = c.reference.label, c.power
    columns: dict[str, list[str]] = {
        "machine": [*c.labels],
        f"speed / {home}": ["1x" if label == home else ratio_text(c.overall[label]) for label in c.labels],
        "TFLOP/s": [_or_nothing(c.tflops[label]) for label in c.labels],
    }
    note = "Each machine runs each case with its fastest backend. "
    note += f"Speed and TFLOP/s: of the workload {c.workload.name!r}; the rest: g" if c.workload else "G"
    note += f"eometric means over {count(len(c.cases), 'case')}. FLOPs: exact."
    shares = c.utilization.values()
    if any(found is not None for found in shares):
        columns["of peak"] = [NOTHING if found is None else share(found) for found in shares]
        note += " Of peak: the datasheet's."
    if power:
        columns["W"] = [_or_nothing(power.watts[label]) for label in c.labels]
        columns["TFLOP/s/W"] = [_or_nothing(power.tflops_per_watt[label]) for label in c.labels]
        note += f" W, TFLOP/s/W: without pauses, by the energy counter, over {count(power.cases, 'case')}."
    if c.prices:
        bought = {label: c.bought(label) for label in c.labels}
        base = bought[home]
        columns["price"] = [str(c.prices.get(label, NOTHING)) for label in c.labels]
        columns[next(iter(c.prices.values())).unit] = [_or_nothing(amount) for amount in bought.values()]
        columns[f"for the money / {home}"] = [
            f"{ratio_digits(amount / base)}x" if amount and base else NOTHING for amount in bought.values()
        ]
    rows = tuple(zip(*columns.values(), strict=True))
    return Table("machines", _columns(*columns), rows, "Machines", note)


def _workload(c: Comparison) -> Table:
    assert c.workload
    name, parts = c.workload.name, c.workload.parts
    rows = [(part.name, percent(part.share), str(len(part.cases))) for part in parts]
    rows.append((f"all of {name}", "100%", str(sum(len(part.cases) for part in parts))))
    of = f"time on {c.reference.label}" if c.workload.workload.weights == "time" else "FLOPs"
    note = f"Weights are shares of {of}. A part is one call of each of its cases. "
    note += "Its ratio is that of the total times, and so is that of the whole."
    if left_out := sum(part.left_out for part in parts):
        note += f" {count(left_out, 'case')} not measured on all machines {'is' if left_out == 1 else 'are'} left out."
    backends = [{label: ", ".join(part.backends[label]) or NOTHING for label in c.labels} for part in parts]
    table = Table("workload", _columns("part", "weight", "cases"), tuple(rows), f"Workload {name}", note)
    return by_machine(
        table,
        c.labels,
        [_speed_column(c, [*(part.ratios for part in parts), c.workload.ratios])],
        [MachineColumn("backends", _headings(c, "on {}"), [*backends, dict.fromkeys(c.labels, "")], "left")],
    )


def _groups(c: Comparison) -> Table:
    groups = [*c.groups, *([c.whole] if len(c.groups) > 1 else [])]
    table = Table(
        "groups",
        _columns("cases of", "cases", "cells"),
        tuple((group.name, str(len(group.cases)), str(len(group.cells))) for group in groups),
        "Speed by kind of case",
        "Geometric means. Fastest backends: each machine runs each case with the backend that is fastest on it. "
        "Same backend: every cell that all machines have, the slow backends as much as the fast.",
    )
    fastest = _speed_column(c, [group.fastest for group in groups], "fastest backends")
    same = _speed_column(c, [group.same for group in groups], "same backend")
    return by_machine(table, c.labels, [fastest], [same])


def _cases(c: Comparison, every: bool) -> Table:
    shown = c.cases[: None if every else MOST_CASES]
    names = _names([("", case) for case in c.cases])
    left = len(c.cases) - len(shown)
    table = Table(
        "cases",
        _columns("case"),
        tuple((name,) for name in names[: len(shown)]),
        "The fastest backend of each case",
        f"{count(left, 'more case')} not shown: attnbench compare --all shows every one." if left else "",
    )
    backends = [{m.label: m.fastest[case] for m in c.machines} for case in shown]
    tflops = [{m.label: digits(m.tflops((case, m.fastest[case]))) for m in c.machines} for case in shown]
    ratios = [{machine.label: c.case_ratio(case, machine) for machine in c.others} for case in shown]
    return by_machine(
        table,
        c.labels,
        [
            MachineColumn("backend", _headings(c, "{}"), backends, "left"),
            MachineColumn("TFLOP/s", _headings(c, "TFLOP/s"), tflops),
        ],
        [_speed_column(c, ratios)],
    )


def _cells(c: Comparison) -> Table:
    names = _names([(backend, case) for case, backend in c.cells])
    table = Table("cells", _columns("cell"), tuple((name,) for name in names), "Cells that all machines have")
    tflops = [{machine.label: digits(machine.tflops(key)) for machine in c.machines} for key in c.cells]
    ratios = [{machine.label: c.cell_ratio(key, machine) for machine in c.others} for key in c.cells]
    return by_machine(
        table,
        c.labels,
        [MachineColumn("TFLOP/s", _headings(c, "{}, TFLOP/s"), tflops)],
        [_speed_column(c, ratios)],
    )


def _missing(c: Comparison) -> Table:
    numbers: dict[str, int] = {}
    for missing in c.missing:
        numbers[missing.machine] = numbers.get(missing.machine, 0) + len(missing.cells)
    note = "; ".join(f"{label} lacks {count(n, 'cell')} that another machine has" for label, n in numbers.items())
    columns = (
        Column("machine", wrap=False),
        Column("cells", "right", wrap=False),
        Column("why", wrap=False),
        Column("backend", wrap=False),
        Column("where"),
        Column("reason"),
    )
    return Table(
        "missing",
        columns,
        tuple((m.machine, str(len(m.cells)), m.why, m.backend, m.where or "all", m.reason) for m in c.missing),
        "Missing",
        f"{note}. Such a cell counts above only where its backend is the fastest of the machine that has it.",
    )


def _longest(c: Comparison) -> Table:
    limited = [longest for longest in c.longest if longest.limited]
    note = "The longest that was measured, of any mask; in brackets the next, which memory refused."
    if free := len(c.longest) - len(limited):
        note += f" {count(free, 'other')} fitted all that was tried."
    table = Table(
        "longest",
        _columns("cases of", "backend", left=2),
        tuple((longest.name, longest.backend) for longest in limited),
        "The longest sequence that fits",
        note,
    )
    fits = [{label: _fit(fit) for label, fit in longest.fits.items()} for longest in limited]
    return by_machine(table, c.labels, [MachineColumn("longest", _headings(c, "{}"), fits)])


def _fit(fit: Fit | None) -> str:
    if fit is None:
        return NOTHING
    longest = format_size(fit.longest) if fit.longest else "none"
    return f"{longest} ({format_size(fit.refused)})" if fit.refused else f"at least {longest}"


def _spreads(c: Comparison) -> Table:
    rows = []
    for spread in c.spreads:
        least, median, most = spread.range
        units = NOTHING if spread.units is None else str(spread.units)
        figures = (digits(least), digits(median), digits(most), percent((most - least) / median))
        rows.append((spread.name, str(len(spread.files)), units, str(spread.cells), *figures))
    note = "Run files of one model, power limit and software against each other, over the same cells."
    if any(spread.units is None for spread in c.spreads):
        note += " Some do not name the unit that measured them: these may be several units, or runs of one."
    columns = _columns("model", "files", "units", "cells", "least TFLOP/s", "median", "most", "apart")
    return Table("units", columns, tuple(rows), "Spread between runs of one model", note)


def _columns(*headings: str, left: int = 1) -> tuple[Column, ...]:
    """Return columns of which so many first ones hold text, and the others figures."""
    return tuple(Column(heading, "left" if i < left else "right", wrap=False) for i, heading in enumerate(headings))


def _headings(c: Comparison, heading: str) -> dict[str, str]:
    """Return the heading of each machine's column, with its label in place of {}."""
    return {label: heading.format(label) for label in c.labels}


def _or_nothing(value: float | None) -> str:
    return digits(value) if value else NOTHING


def _speed_column(c: Comparison, ratios: Sequence[Mapping[str, Ratio | None]], what: str = "") -> MachineColumn:
    """Return the ratio of each machine but the reference in each row; `what` says with which backends."""
    home, others = c.reference.label, [machine.label for machine in c.others]
    headings = {label: f"{what}{': ' if what else ''}{label} / {home}" for label in others}
    if len(others) == 1:
        headings = {others[0]: what or "speed"}
    rows = [{label: ratio_text(row[label]) for label in others} for row in ratios]
    return MachineColumn(f"{what or 'speed'} / {home}", headings, rows)


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
