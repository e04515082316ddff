"""Above the tables: how the figures were made, once for each device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.analysis.summary.tables import MEMORY
from attnbench.core import stats
from attnbench.core.flops import Convention
from attnbench.core.policy import SHORT
from attnbench.results import batch, metrics
from attnbench.results.cells import Cell, by_rates, by_sheet

TIMERS = {"events": "CUDA events", "graph": "CUDA graph replay", "cupti": "CUPTI kernel spans"}
CACHES = {
    "fresh": "each in a new process, no kernel compiled before",
    "kept": "kernels that were compiled before may be reused",
}
CONVENTIONS = {"exact": "FLOPs: exact", "fa": "FLOPs: fa, causal counts half"}


@dataclass(frozen=True)
class Setup:
    """A device, what it is, and how it was measured."""

    device: str
    machine: str
    method: str


def setups(cells: Sequence[Cell]) -> list[Setup]:
    by_device: dict[str, list[Cell]] = {}
    for cell in cells:
        by_device.setdefault(cell.device, []).append(cell)
    found: list[Setup] = []
    for device, group in by_device.items():
        alike = next((d for d in list(by_device)[: len(found)] if _same_machine(by_device[d][0], group[0])), None)
        against = _agreement(_against(by_device[alike], group)) if alike else ""
        method = _method(group) + (f"; agrees with {alike} within {against}" if against else "")
        found.append(Setup(device, _machine(group), method))
    return found


def _same_machine(a: Cell, b: Cell) -> bool:
    """Whether figures of both can be compared at all; attnbench's version may differ."""
    env, other = a.run.environment, b.run.environment
    return (env.device.name, env.torch, env.power_limit_w) == (other.device.name, other.torch, other.power_limit_w)


def _against(some: Sequence[Cell], others: Sequence[Cell]) -> list[float]:
    """How far the latencies of the cells that both have lie apart, as a share of their mean."""
    first = {c.key: c.value("latency") for c in some}
    pairs = [(first.get(c.key), c.value("latency")) for c in others]
    return [abs(a - b) / stats.median([a, b]) for a, b in pairs if a is not None and b is not None]


def _machine(cells: Sequence[Cell]) -> str:
    env = cells[0].run.environment
    parts = [
        metrics.size(env.device.memory) if env.device.memory else "",
        f"{env.power_limit_w:g} W" if env.power_limit_w else "",
        f"{env.device.threads} threads" if env.device.threads else "",
        f"driver {env.driver}" if env.driver else "",
        f"torch {env.torch}" if env.torch else "",
        f"CUDA {env.cuda}" if env.cuda and env.device.kind == "cuda" else "",
        f"suite {', '.join(dict.fromkeys(c.run.suite for c in cells))}",
        cells[0].run.started[:10],
    ]
    return ", ".join(filter(None, parts))


def _method(cells: Sequence[Cell]) -> str:
    rounds = max((len(c.rows) for c in cells), default=1)
    counts: set[float] = set()
    clocks: list[float] = []
    timers: set[str | None] = set()
    caches: set[str | None] = set()
    spreads: list[float] = []
    sheets = by_sheet(cells)
    for sheet, group in sheets:
        columns, statuses = sheet.columns, sheet.columns.statuses
        ok = [i for c in group for i in c.rows if statuses[i] == "ok"]
        counts.update(filter(None, map(batch.values("samples", columns).__getitem__, ok)))
        clocks += batch.clocks(columns, ok)
        timers.update(map(columns.timers.__getitem__, ok))
        caches.update(map(columns.l2.__getitem__, ok))
        spreads += batch.spreads("latency", columns, [c.rows for c in group])
    parts = []
    if counts:
        fewest, most = int(min(counts)), int(max(counts))
        number = str(fewest) if fewest == most else f"{fewest} to {most}"
        again = f", then over {rounds} rounds" if rounds > 1 else ""
        parts.append(f"latency = median of {number} {'sample' if number == '1' else 'samples'}{again}")
    parts += [TIMERS.get(timer, timer) for timer in sorted(filter(None, timers))]
    if any(sheet.spans for sheet, _ in sheets):
        parts.append(f"{TIMERS['cupti']} under {metrics.duration(SHORT)}")
    parts += [f"L2 {state}" for state in sorted(filter(None, caches))]
    if clocks:
        low, high = f"{min(clocks) / 1e6:.0f}", f"{max(clocks) / 1e6:.0f}"
        top = cells[0].run.environment.clock_max_hz
        parts.append(f"SM clock {low if low == high else f'{low}-{high}'}{f' of {top / 1e6:.0f}' if top else ''} MHz")
    if agreement := _agreement(spreads):
        parts.append(f"rounds agree within {agreement}")
    return ", ".join(parts) + _ceilings(cells)


def _agreement(spreads: Sequence[float]) -> str:
    """How far repeated latencies of a cell lie apart, as a share of their median: what a repetition is worth here."""
    if not spreads:
        return ""
    typical, most, worst = (metrics.percent(stats.percentile(spreads, p)) for p in (50, 95, 100))
    return f"{typical} in the median cell, {most} in the 95th percentile and {worst} in the worst"


def _ceilings(cells: Sequence[Cell]) -> str:
    """What a large matmul and a large copy reached meanwhile; of several runs the median."""
    matmuls: dict[str, set[float]] = {}
    some = by_rates(cells)
    for rates, group in some:
        if rates.ceiling:
            matmuls.setdefault(group[0].case.dtype, set()).add(rates.ceiling)
    copies = {rates.copy for rates, _ in some if rates.copy}
    parts = [f"{metrics.digits(stats.median([*found]) / 1e12)} TFLOP/s {dtype}" for dtype, found in matmuls.items()]
    parts = [f"matmul {', '.join(parts)}"] if parts else []
    parts += [f"copy {bandwidth(stats.median([*copies]))}"] if copies else []
    return f"; ceilings here: {', '.join(parts)}" if parts else ""


def bandwidth(rate: float) -> str:
    """4.80 TB/s, 43.1 GB/s."""
    return f"{metrics.digits(rate / 1e12)} TB/s" if rate >= 1e12 else f"{metrics.digits(rate / 1e9)} GB/s"


def heading(metric: metrics.Metric, cells: Sequence[Cell], convention: Convention = "exact") -> str:
    """What the figures of a metric are; where they count FLOPs also how, and what the percentages are of."""
    if metric.name == "first_call":
        states = sorted({c.run.policy.caches for c in cells if c.status == "ok"})
        how = "; in other runs ".join(CACHES[state] for state in states)
        return f"{metric.heading} ({how})" if how else metric.heading
    if metric.name not in ("tflops", "utilization"):
        return metric.heading
    counted = f"{metric.heading} ({CONVENTIONS[convention]})"
    measured = by_rates(c for c in cells if c.status == "ok")
    known = {(group[0].device, group[0].case.dtype): rates.peak for rates, group in measured if rates.peak}
    if not known:
        return counted
    several = len({device for device, _ in known}) > 1
    peaks = ", ".join(
        f"{metrics.digits(peak / 1e12)} for {dtype}{f' on {device}' if several else ''}"
        for (device, dtype), peak in known.items()
    )
    if metric.name == "utilization":
        return f"{counted}, share of the peak ({peaks})"
    some = {r.bandwidth for r, group in measured if r.bandwidth and any(c.bound == "memory" for c in group)}
    roofline = f"; {MEMORY}: of the roofline, where memory bounds ({', '.join(map(bandwidth, sorted(some)))})"
    return f"{counted}, and share of the peak ({peaks})" + (roofline if some else "")
