"""What one machine is good for on the cases that all have, each with its fastest backend: TFLOP/s, utilisation, watts.

All are geometric means over the cases. Power is that of the work without pauses (run --sustained) where every machine
that has a power reading has that; else NVML's samples of the whole measurement, whose pauses let it fall: the power is
too low then, and TFLOP/s per watt too high, the more so the shorter the call. The two are never mixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from attnbench import stats, work
from attnbench.compare.join import Best
from attnbench.compare.machines import File, Key, Machine, alike
from attnbench.compare.ratios import latency
from attnbench.derive import values
from attnbench.types import Case

Source = Literal["sustained", "samples"]


@dataclass(frozen=True)
class Power:
    """By machine; None where it has no reading. `cases` all machines with one have it of."""

    source: Source
    cases: int
    watts: tuple[float | None, ...]
    tflops_per_watt: tuple[float | None, ...]


@dataclass(frozen=True)
class Units:
    """Run files of one model, power limit and software, against each other: TFLOP/s of each, over the same cells."""

    name: str
    files: tuple[File, ...]
    tflops: tuple[float, ...]
    cells: int

    @property
    def range(self) -> tuple[float, float, float]:
        return min(self.tflops), stats.median(self.tflops), max(self.tflops)


def tflops(machine: Machine, key: Key) -> float:
    """Of exact FLOPs."""
    return work.flops(key[0]) / latency(machine, key) / 1e12


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
    """None where no machine has a reading of any case, or those that have one have it of no common case."""
    readings: dict[Source, list[dict[Case, tuple[float, float]]]] = {
        "sustained": [_readings(m, best, cases, _sustained) for m, best in zip(found, bests, strict=True)],
        "samples": [_readings(m, best, cases, _sampled) for m, best in zip(found, bests, strict=True)],
    }
    having = [i for i in range(len(found)) if any(by_machine[i] for by_machine in readings.values())]
    for source, by_machine in readings.items():
        common = [case for case in cases if having and all(case in by_machine[i] for i in having)]
        if common:
            each = [[by_machine[i][case] for case in common] if i in having else [] for i in range(len(found))]
            watts = tuple(stats.geomean([w for w, _ in pairs]) if pairs else None for pairs in each)
            efficiency = tuple(stats.geomean([e for _, e in pairs]) if pairs else None for pairs in each)
            return Power(source, len(common), watts, efficiency)
    return None


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
            speeds = (stats.geomean([work.flops(key[0]) / times[key] / 1e12 for key in keys]) for times in each)
            environment = files[0].run.environment
            limit = f" {environment.power_limit_w:g} W" if environment.power_limit_w else ""
            lines.append(Units(f"{environment.device.name}{limit}", tuple(files), tuple(speeds), len(keys)))
    return lines


def _readings(
    machine: Machine, best: Best, cases: Iterable[Case], read: Callable[[Machine, Key], tuple[float, float] | None]
) -> dict[Case, tuple[float, float]]:
    """Case -> (watts, TFLOP/s per watt), where there are some."""
    return {case: pair for case in cases if (pair := read(machine, (case, best[case])))}


def _sustained(machine: Machine, key: Key) -> tuple[float, float] | None:
    cell = machine.cells[key]
    watts = [stats.median(found) for r in cell.records if (found := values(r, "sustained_power"))]
    efficiency = cell.value("tflops_per_watt")
    return (stats.median(watts), efficiency) if watts and efficiency else None


def _sampled(machine: Machine, key: Key) -> tuple[float, float] | None:
    watts = machine.cells[key].value("power")
    return (watts, tflops(machine, key) / watts) if watts else None


def _latencies(machine: Machine, file: File) -> dict[Key, float]:
    """Seconds of the cells of one of a machine's files."""
    found = {}
    for key, logs in machine.logs.items():
        own = [log for number, log in logs.items() if number in file.rounds]
        if own:
            found[key] = math.exp(math.fsum(own) / len(own))
    return found
