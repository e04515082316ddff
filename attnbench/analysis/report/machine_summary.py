"""The lines above the grids: what each device is, and how it was measured."""

from __future__ import annotations

from collections.abc import Sequence

from attnbench.analysis.report.grids import bandwidth
from attnbench.core import stats
from attnbench.core.formats import digits, duration, percent
from attnbench.core.groups import grouped
from attnbench.core.policy import SHORT
from attnbench.render.document import Machine
from attnbench.results import metrics
from attnbench.results.cells import Cell
from attnbench.results.run_setup import setup_texts

TIMERS = {
    "events": "CUDA events",
    "graph": "CUDA graph replay",
    "cupti": "CUPTI kernel spans",
    "outside": "a clock outside the process",
}


def machines(cells: Sequence[Cell]) -> list[Machine]:
    """Return the machines of some cells, by device label; a machine like an earlier one has only its differences."""
    by_device = grouped(cells, lambda cell: cell.device)
    found: list[Machine] = []
    told: dict[str, set[str]] = {}  # device -> the parts of its line
    for device, group in by_device.items():
        alike = next((d for d in list(by_device)[: len(found)] if _same_machine(by_device[d][0], group[0])), None)
        if alike is None:
            latency, ceilings = _latency(group), _ceilings(group)
            method = ", ".join(filter(None, [latency, *_instruments(group)]))
            found.append(Machine(device, ", ".join(_machine(group)), "; ".join(filter(None, [method, ceilings]))))
            continue
        first = by_device[alike]
        if alike not in told:
            told[alike] = {*_machine(first), *_instruments(first)}
        machine, method = (
            ", ".join(text for text in texts if text not in told[alike])
            for texts in (_machine(group), _instruments(group))
        )
        against = _agreement(_against(first, group))
        differs = f"differs from {alike} by {against}" if against else ""
        found.append(Machine(device, machine, "; ".join(filter(None, [method, differs]))))
    return found


def _same_machine(a: Cell, b: Cell) -> bool:
    """Return whether two cells were measured on devices of one name, with one torch and one power limit."""
    env, other = a.run.environment, b.run.environment
    return (env.device.name, env.torch, env.power_limit_w) == (other.device.name, other.torch, other.power_limit_w)


def _against(some: Sequence[Cell], others: Sequence[Cell]) -> list[float]:
    """Return the difference in latency of each cell that both devices have, as a share of the mean of the two."""
    first = {c.key: c.value("latency") for c in some}
    pairs = [(first.get(c.key), c.value("latency")) for c in others]
    return [abs(a - b) / stats.median([a, b]) for a, b in pairs if a and b]


def _machine(cells: Sequence[Cell]) -> list[str]:
    env, texts = cells[0].run.environment, setup_texts(cells[0].run)
    units = {uuid for cell in cells if (uuid := cell.run.environment.device.uuid)}
    days = sorted({cell.run.started[:10] for cell in cells})
    parts = [
        f"with {len(env.peers)} more: {', '.join(map(str, env.peers))}" if env.peers else "",
        *(texts[name] for name in ("device memory", "power_limit_w", "device threads", "device instructions")),
        *(texts[name] for name in ("variables", "driver", "torch")),
        f"CUDA {env.cuda}" if env.cuda and env.device.kind == "cuda" else "",
        f"suite {', '.join(dict.fromkeys(c.run.suite for c in cells))}",
        " to ".join(dict.fromkeys((days[0], days[-1]))),
        f"runs on {len(units)} cards" if len(units) > 1 else "",
    ]
    return [part for part in parts if part]


def _latency(cells: Sequence[Cell]) -> str:
    """Return the words for the number of samples behind the latencies; "" where nothing was measured."""
    counts = {n for c in cells for row in c.ok if (n := len(row.samples))}
    if not counts:
        return ""
    fewest, most = min(counts), max(counts)
    number = str(fewest) if fewest == most else f"{fewest} to {most}"
    rounds = max(len(c.rows) for c in cells)
    again = f", then over {rounds} rounds" if rounds > 1 else ""
    return f"latency = median of {number} {'sample' if number == '1' else 'samples'}{again}"


def _instruments(cells: Sequence[Cell]) -> list[str]:
    """Return the timers, the state of L2, the clocks, and how well rounds agree."""
    ok = [row for c in cells for row in c.ok]
    latencies = [list(c.rounds("latency").values()) for c in cells]
    spreads = [(max(f) - min(f)) / middle for f in latencies if len(f) > 1 and (middle := stats.median(f))]
    parts = [TIMERS.get(timer, timer) for timer in sorted({r.record.timer for r in ok if r.record.timer})]
    if any(c.uses_span for c in cells):
        parts.append(f"{TIMERS['cupti']} in cases under {duration(SHORT)}")
    parts += [f"L2 {state}" for state in sorted({r.record.l2 for r in ok if r.record.l2})]
    parts.append(clock_range(cells))
    if agreement := _agreement(spreads):
        parts.append(f"rounds agree within {agreement}")
    return [part for part in parts if part]


def clock_range(cells: Sequence[Cell]) -> str:
    """Return the clocks of the cells and the device's highest clock: "SM clock 1600-1700 of 1980 MHz"; or ""."""
    clocks = [hz for c in cells for row in c.ok if (hz := metrics.clock(row)) is not None]
    if not clocks:
        return ""
    top = cells[0].run.environment.clock_max_hz
    ends = dict.fromkeys(f"{hz / 1e6:.0f}" for hz in (min(clocks), max(clocks)))
    return f"SM clock {'-'.join(ends)}{f' of {top / 1e6:.0f}' if top else ''} MHz"


def _agreement(spreads: Sequence[float]) -> str:
    """Return the median, 95th percentile and maximum of spreads as text; "" for none.

    A spread is the range of repeated latencies of one cell, as a share of their median.
    """
    if not spreads:
        return ""
    typical, most, worst = (percent(stats.percentile(spreads, p)) for p in (50, 95, 100))
    return f"{typical} in the median cell, {most} in the 95th percentile and {worst} in the worst"


def _ceilings(cells: Sequence[Cell]) -> str:
    """Return as text the rates of a large matmul and a large copy during the runs; of several runs the median."""
    matmuls: dict[str, set[float]] = {}
    for cell in cells:
        if cell.rates.ceiling:
            matmuls.setdefault(cell.case.dtype, set()).add(cell.rates.ceiling)
    copies = {cell.rates.copy for cell in cells if cell.rates.copy}
    parts = [f"{digits(stats.median([*found]) / 1e12)} TFLOP/s {dtype}" for dtype, found in matmuls.items()]
    parts = [f"matmul {', '.join(parts)}"] if parts else []
    parts += [f"copy {bandwidth(stats.median([*copies]))}"] if copies else []
    return f"ceilings here: {', '.join(parts)}" if parts else ""
