"""A comparison in words, the same in every format: tables of text, then what to doubt. The answer first: answer.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnbench.analysis.compare.compare import Comparison
from attnbench.analysis.compare.longest import Fit
from attnbench.analysis.compare.machines import Machine
from attnbench.analysis.compare.ratios import ROUNDS, SAMPLES, Ratio
from attnbench.analysis.compare.write_answer import ONE_ROUND, number, times
from attnbench.analysis.compare.write_blocks import Block, Figure, by_machine
from attnbench.core.case import Case
from attnbench.core.sizes import short
from attnbench.results import case_names, metrics
from attnbench.results.metrics import digits

NOTHING = case_names.NOTHING
MOST = 500  # cases, after which a reader is better served otherwise
MORE = "What to doubt in the figures of one run: attnbench report FILE. What the figures are: docs/compare.md."


def blocks(c: Comparison, every: bool = False) -> list[Block]:
    """In the order of a report; those without rows are left out. `every`: each cell too, and each that is lacking."""
    found = [_machines(c), _workload(c), _groups(c), _cases(c, every), *([_cells(c)] if every else [])]
    return [block for block in (*found, _lacks(c), _longest(c), _units(c)) if block.rows]


def descriptions(c: Comparison) -> list[tuple[str, str]]:
    """(label, what it is and how it was measured)."""
    return [(m.label, _description(m)) for m in c.machines]


def _description(machine: Machine) -> str:
    here = machine.run.environment
    device = here.device
    rounds = max((len(each) for each in machine.logs.values()), default=0)
    parts = [
        device.name,
        metrics.size(device.memory),
        f"{here.power_limit_w:g} W" if here.power_limit_w else "",
        f"{device.threads} threads" if device.threads else "",
        f"torch {here.torch}" if here.torch else "",
        f"driver {here.driver}" if here.driver else "",
        case_names.count(len(machine.logs), "cell"),
        case_names.count(rounds, "round"),
        ", ".join(file.path.name for file in machine.files),
    ]
    return ", ".join(filter(None, parts))


def _machines(c: Comparison) -> Block:
    priced = next(iter(c.prices.values()), None)
    peaks = any(u is not None for u in c.utilization)
    headings = ["machine", f"speed / {c.reference.label}", "TFLOP/s"]
    headings += ["of peak"] if peaks else []
    headings += ["W", "TFLOP/s/W"] if c.power else []
    headings += ["price", priced.unit, f"for the money / {c.reference.label}"] if priced else []
    base = c.bought(c.home)
    rows = []
    for i, machine in enumerate(c.machines):
        speed = c.rate(i)
        share = c.utilization[i]
        row = [machine.label, "1x" if i == c.home else times(c.overall[i]), digits(speed) if speed else NOTHING]
        row += [metrics.share(share) if share is not None else NOTHING] if peaks else []
        if c.power:
            row += [digits(v) if v else NOTHING for v in (c.power.watts[i], c.power.tflops_per_watt[i])]
        if priced:
            price, amount = c.prices.get(machine.label), c.bought(i)
            row += [str(price) if price else NOTHING, digits(amount) if amount else NOTHING]
            row += [f"{number(amount / base)}x" if amount and base else NOTHING]
        rows.append(tuple(row))
    cases = case_names.count(len(c.cases), "case")
    note = "Each machine runs each case with its fastest backend. "
    if c.workload:
        note += f"Speed and TFLOP/s: of the workload {c.workload.workload.name!r}; the rest: "
    note += f"{'g' if c.workload else 'G'}eometric means over {cases}. FLOPs: exact."
    note += " Of peak: the datasheet's." if peaks else ""
    if c.power:
        note += f" W, TFLOP/s/W: without pauses, by the energy counter, over {case_names.count(c.power.cases, 'case')}."
    return Block("machines", "Machines", note, tuple(headings), tuple(rows))


def _workload(c: Comparison) -> Block:
    if c.workload is None:
        return Block("workload", "", "", (), ())
    parts = c.workload.parts
    rows = [(part.name, metrics.percent(part.share), str(len(part.cases))) for part in parts]
    rows.append((f"all of {c.workload.workload.name}", "100%", str(sum(len(part.cases) for part in parts))))
    backends = [{i: ", ".join(part.backends[i]) or NOTHING for i in range(len(c.machines))} for part in parts] + [
        dict.fromkeys(range(len(c.machines)), "")
    ]
    of = f"time on {c.reference.label}" if c.workload.workload.weights == "time" else "FLOPs"
    left = sum(part.left_out for part in c.workload.parts)
    note = f"Weights are shares of {of}. A part is one call of each of its cases, its ratio that of the total times; "
    note += "so is the whole's." + (
        f" {case_names.count(left, 'case')} not measured on all are left out." if left else ""
    )
    block = Block("workload", f"Workload {c.workload.workload.name}", note, ("part", "weight", "cases"), tuple(rows))
    on = Figure(backends, {i: f"on {m.label}" for i, m in enumerate(c.machines)}, "backends", text=True)
    return by_machine(block, _labels(c), [_speeds(c, [*(part.ratios for part in parts), c.workload.ratios])], [on])


def _groups(c: Comparison) -> Block:
    groups = [*c.groups, *([c.whole] if len(c.groups) > 1 else [])]
    rows = tuple((group.name, str(len(group.cases)), str(len(group.cells))) for group in groups)
    best = _speeds(c, [group.best for group in groups], "fastest backends")
    same = _speeds(c, [group.same for group in groups], "same backend")
    note = "Geometric means. Fastest backends: on each machine the fastest of each case, as who chooses would. "
    note += "Same backend: every cell that all machines have, the slow backends as much as the fast."
    block = Block("groups", "Speed by kind of case", note, ("cases of", "cases", "cells"), rows)
    return by_machine(block, _labels(c), [best], [same])


def _cases(c: Comparison, every: bool) -> Block:
    shown = c.cases[: None if every else MOST]
    names = _names([("", case) for case in c.cases])[: len(shown)]
    left = len(c.cases) - len(shown)
    note = f"{case_names.count(left, 'more case')} not shown: attnbench compare --all shows every one." if left else ""
    block = Block("cases", "The fastest backend of each case", note, ("case",), tuple((name,) for name in names))
    machines = range(len(c.machines))
    bests = Figure([{i: c.bests[i][case] for i in machines} for case in shown], _headed(c, "{}"), "backend", text=True)
    tflops = [{i: digits(c.speed(i, (case, c.bests[i][case]))) for i in machines} for case in shown]
    ratios = [{i: c.case_ratio(case, i) for i in c.others()} for case in shown]
    speed = _speeds(c, ratios)
    return by_machine(block, _labels(c), [bests, Figure(tflops, _headed(c, "TFLOP/s"), "TFLOP/s")], [speed])


def _cells(c: Comparison) -> Block:
    rows = tuple((name,) for name in _names([(backend, case) for case, backend in c.cells]))
    block = Block("cells", "Cells that all machines have", "", ("cell",), rows)
    tflops = [{i: digits(c.speed(i, key)) for i in range(len(c.machines))} for key in c.cells]
    speed = _speeds(c, [{i: c.cell_ratio(key, i) for i in c.others()} for key in c.cells])
    return by_machine(block, _labels(c), [Figure(tflops, _headed(c, "{}, TFLOP/s"), "TFLOP/s")], [speed])


def _names(cells: Sequence[tuple[str, Case]]) -> list[str]:
    """With the dtype where there are several; with batch and heads where a name alone is that of several cells."""
    several = len({case.dtype for _, case in cells}) > 1
    names = [case_names.case(backend, case, several).strip() for backend, case in cells]
    if len({*names}) == len(names):
        return names
    return [
        f"{name} b{case.shape.batch} h{case_names.heads(case)}" for name, (_, case) in zip(names, cells, strict=True)
    ]


_COUNT = "They count nowhere above but where one of them is the fastest of its machine."


def _lacks(c: Comparison) -> Block:
    rows = [
        (lack.machine, str(len(lack.cells)), lack.why, lack.backend, lack.where or "all", lack.reason)
        for lack in c.lacks
    ]
    lacking = {
        label: sum(int(row[1]) for row in rows if row[0] == label) for label in dict.fromkeys(r[0] for r in rows)
    }
    note = "; ".join(
        f"{label} lacks {case_names.count(n, 'cell')} that another machine has" for label, n in lacking.items()
    )
    headings = ("machine", "cells", "why", "backend", "where", "reason")
    return Block("missing", "Missing", f"{note}. {_COUNT}", headings, tuple(rows), (0, 2, 3, 4, 5))


def _longest(c: Comparison) -> Block:
    limited = [line for line in c.longest if line.limited]
    free = len(c.longest) - len(limited)
    note = "The longest that was measured, of any mask; in brackets the next, which memory refused. "
    note += f"{case_names.count(free, 'other')} fitted all that was tried." if free else ""
    rows = tuple((line.name, line.backend) for line in limited)
    block = Block("longest", "The longest sequence that fits", note.strip(), ("cases of", "backend"), rows, (0, 1))
    fits = [dict(enumerate(map(_fit, line.fits))) for line in limited]
    return by_machine(block, _labels(c), [Figure(fits, _headed(c, "{}"), "longest")])


def _fit(fit: Fit | None) -> str:
    if fit is None:
        return NOTHING
    longest = short(fit.longest) if fit.longest else "none"
    return f"{longest} ({short(fit.refused)})" if fit.refused else f"at least {longest}"


def _units(c: Comparison) -> Block:
    rows = []
    for units in c.units:
        low, middle, high = units.range
        apart = metrics.percent((high - low) / middle)
        count = NOTHING if units.count is None else str(units.count)
        rows.append((units.name, str(len(units.files)), count, str(units.cells), *map(digits, units.range), apart))
    note = "Run files of one model, power limit and software against each other, over the same cells."
    if any(units.count is None for units in c.units):
        note += " Some do not name the unit that measured them: these may be several units, or runs of one."
    headings = ("model", "files", "units", "cells", "least TFLOP/s", "median", "most", "apart")
    return Block("units", "Spread between runs of one model", note, headings, tuple(rows))


def warnings(c: Comparison) -> list[str]:
    """What to doubt, the intervals first."""
    found = [_intervals(c), *(c.workload.notes if c.workload else ()), *c.warnings, _unpowered(c)]
    return [case_names.one_line(line) for line in found if line]


def _intervals(c: Comparison) -> str:
    sources = {source for r in (*c.overall, *c.whole.best, *c.whole.same) if r for source in r.sources}
    alone = [m.label for m in c.machines if any(len(each) == 1 for each in m.logs.values())]
    blind = [m.label for m in c.machines if m.label in alone and any(f.run.reduced for f in m.files)]
    if SAMPLES in sources and blind:
        return (
            f"No intervals of what a baseline with one round measured ({', '.join(blind)}): it keeps one value a "
            "round, and so nothing of its noise. Compare the run files, or run --rounds 5."
        )
    if SAMPLES not in sources:
        return "Intervals are 95 %, from rounds." if sources else ""
    rounds = " from rounds, and where a cell has only one" if ROUNDS in sources else ""
    return (
        f"Intervals are 95 %{',' if rounds else ''}{rounds} from the samples of a single round ({', '.join(alone)}): "
        "they know nothing of what sets one process, run or unit apart from the next. Two runs of one H200 differ by "
        f"up to {metrics.percent(ONE_ROUND)} in a cell; run --rounds 5."
    )


def _unpowered(c: Comparison) -> str:
    """GPUs without a figure of their power."""
    without = [
        m.label
        for i, m in enumerate(c.machines)
        if m.run.environment.device.kind == "cuda" and not (c.power and c.power.watts[i])
    ]
    if not without:
        return ""
    return (
        f"No TFLOP/s per watt of {', '.join(without)}: power samples of a run hold the pauses between its bursts. "
        "Measure all with run --sustained 10s."
    )


def _labels(c: Comparison) -> list[str]:
    return [machine.label for machine in c.machines]


def _headed(c: Comparison, heading: str) -> dict[int, str]:
    """A heading for each machine, with its label in it."""
    return {i: heading.format(label) for i, label in enumerate(_labels(c))}


Ratios = Mapping[int, Ratio] | Sequence[Ratio | None]  # by the number of a machine


def _speeds(c: Comparison, ratios: Sequence[Ratios], what: str = "") -> Figure:
    """How fast the others are in each row, with `what` in common, which else is any."""
    over, others = f"{what or 'speed'} / {c.reference.label}", list(c.others())
    headings = {i: f"{what}{': ' if what else ''}{c.machines[i].label} / {c.reference.label}" for i in others}
    if len(others) == 1:
        headings = {others[0]: what or "speed"}
    return Figure([{i: times(row[i]) for i in others} for row in ratios], headings, over)
