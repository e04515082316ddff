"""What one machine is good for on the cases that all have, each with its fastest backend: TFLOP/s, utilisation, watts.

All are geometric means over the cases. Power is that of the work without pauses (run --sustained) alone. NVML's samples
of the other runs hold the pauses between bursts, and its average lags by a second: for sdpa-cudnn on an H200 (4k, d128,
causal, fwd) they made 4.7 TFLOP/s per watt of what is 0.72 (results/20261121-060508-sustained-nvidia-h200.jsonl).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attnbench.analysis.compare.join import Best
from attnbench.analysis.compare.machines import File, Machine, alike
from attnbench.analysis.compare.ratios import latency
from attnbench.core import flops, stats
from attnbench.core.case import Case
from attnbench.results.cells import Key
from attnbench.results.derive import values


@dataclass(frozen=True)
class Power:
    """By machine; None where it has no reading."""

    cases: int  # with a reading on every machine that has any
    watts: tuple[float | None, ...]
    tflops_per_watt: tuple[float | None, ...]


@dataclass(frozen=True)
class Units:
    """Run files of one model, power limit and software, against each other: TFLOP/s of each, over the same cells."""

    name: str
    files: tuple[File, ...]
    tflops: tuple[float, ...]
    cells: int
    count: int | None = None  # of units that measured them; None where a file does not name its own

    @property
    def range(self) -> tuple[float, float, float]:
        return min(self.tflops), stats.median(self.tflops), max(self.tflops)


def tflops(machine: Machine, key: Key) -> float:
    """Of exact FLOPs."""
    return flops.flops(key[0]) / latency(machine, key) / 1e12


def mean(machine: Machine, best: Best, cases: Iterable[Case], metric: str | None = None) -> float | None:
    """The geometric mean of a metric, TFLOP/s by default; None where a case has none."""
    found = []
    for case in cases:
        key = case, best[case]
        value = tflops(machine, key) if metric is None else machine.cells[key].value(metric)
        if not value:
            return None
        found.append(value)
    return stats.geomean(found) if found else None


def power(found: Sequence[Machine], bests: Sequence[Best], cases: Sequence[Case]) -> Power | None:
    """None where no machine has a reading, or those that have some have no case in common."""
    readings = [{c: r for c in cases if (r := _sustained(m, (c, b[c])))} for m, b in zip(found, bests, strict=True)]
    having = [own for own in readings if own]
    common = [case for case in cases if all(case in own for own in having)]
    if not having or not common:
        return None
    watts = tuple(stats.geomean([own[case][0] for case in common]) if own else None for own in readings)
    efficiency = tuple(stats.geomean([own[case][1] for case in common]) if own else None for own in readings)
    return Power(len(common), watts, efficiency)


def units(found: Sequence[Machine]) -> list[Units]:
    """Of files that nothing but the unit may set apart, over the cells that all of them measured."""
    home = {file.path: machine for machine in found for file in machine.files}
    lines = []
    for files in alike(found):
        if len(files) < 2:
            continue
        each = [_latencies(home[file.path], file) for file in files]
        keys = [key for key in each[0] if all(key in other for other in each)]
        if keys:
            speeds = (stats.geomean([flops.flops(key[0]) / times[key] / 1e12 for key in keys]) for times in each)
            environment = files[0].run.environment
            limit = f" {environment.power_limit_w:g} W" if environment.power_limit_w else ""
            known = {file.run.environment.device.uuid for file in files}
            count = None if None in known else len(known)
            lines.append(Units(f"{environment.device.name}{limit}", tuple(files), tuple(speeds), len(keys), count))
    return lines


def _sustained(machine: Machine, key: Key) -> tuple[float, float] | None:
    """(watts, TFLOP/s per watt)."""
    cell = machine.cells[key]
    if cell.place not in cell.sheet.powered:
        return None
    watts = [stats.median(found) for r in cell.records if (found := values(r, "sustained_power"))]
    efficiency = cell.value("tflops_per_watt")
    return (stats.median(watts), efficiency) if watts and efficiency else None


def _latencies(machine: Machine, file: File) -> dict[Key, float]:
    """Seconds of the cells of one of a machine's files."""
    found = {}
    for key, logs in machine.logs.items():
        own = [log for number, log in logs.items() if number in file.rounds]
        if own:
            found[key] = math.exp(math.fsum(own) / len(own))
    return found
