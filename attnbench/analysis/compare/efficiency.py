"""TFLOP/s, share of the peak and power of each machine, and how far apart runs of one GPU model lie.

Each case counts with the machine's fastest backend, and all figures are geometric means over the cases. Power is that
of the work without pauses (run --sustained) alone: NVML's samples of other runs hold the pauses between bursts, and its
average lags by a second. For sdpa-cudnn on an H200 (4k, d128, causal, fwd) they give 4.7 TFLOP/s per watt where 0.72 is
right (results/20261121-060508-sustained-nvidia-h200.jsonl).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.analysis.compare.common_cells import common
from attnbench.analysis.compare.machines import Machine, files_by_setup, machine_of
from attnbench.core import stats
from attnbench.core.case import Case
from attnbench.results.run_setup import setup_texts


@dataclass(frozen=True)
class Efficiency:
    """The efficiency of one machine over the cases that all machines have; None stands for what is not known."""

    tflops_geomean: float
    utilization: float | None  # share of the datasheet's peak
    watts: float | None
    tflops_per_watt: float | None


def efficiency(machine: Machine, cases: Sequence[Case], with_power: Sequence[Case]) -> Efficiency:
    """Return the geometric means over the cases; those of power are over `with_power`, from cases_with_power()."""
    shares = [machine.cells[machine.fastest[case]].value("utilization") for case in cases]
    readings = [found for case in with_power if (found := _sustained(machine, case))]
    return Efficiency(
        tflops_geomean=stats.geomean([machine.tflops(machine.fastest[case]) for case in cases]),
        utilization=stats.geomean([share for share in shares if share]) if all(shares) else None,
        watts=stats.geomean([watts for watts, _ in readings]) if readings else None,
        tflops_per_watt=stats.geomean([efficiency for _, efficiency in readings]) if readings else None,
    )


def cases_with_power(machines: Sequence[Machine], cases: Sequence[Case]) -> list[Case]:
    """Return the cases with a reading of power on every machine that has any."""
    measured = [found for m in machines if (found := {case: True for case in cases if _sustained(m, case)})]
    return common(measured) if measured else []


def _sustained(machine: Machine, case: Case) -> tuple[float, float] | None:
    """Return (watts, TFLOP/s per watt) of a case's work without pauses, the medians over its rounds."""
    cell = machine.cells[machine.fastest[case]]
    watts = [reading for row in cell.rows if (reading := row.one_value("sustained_power"))]
    efficiency = cell.value("tflops_per_watt")
    return (stats.median(watts), efficiency) if watts and efficiency else None


@dataclass(frozen=True)
class UnitSpread:
    """Run files of one model with the same power limit and software, over the cells that all measured."""

    model: str  # with its power limit
    files: tuple[str, ...]
    units: int | None  # how many measured them; None where a file does not name its unit
    tflops: tuple[float, ...]  # a geometric mean for each file
    cells: int


def unit_spreads(machines: Sequence[Machine]) -> list[UnitSpread]:
    """Return the spread of every model that several files with common cells measured: units differ, and so do runs."""
    found = []
    for files in files_by_setup(file for machine in machines for file in machine.files):
        each = [machine_of(file.path.name, [file], [other.run for other in files]) for file in files]
        keys = common(machine.log_latencies for machine in each) if len(files) > 1 else []
        if keys:
            uuids = {machine.environment.device.uuid for machine in each}
            found.append(
                UnitSpread(
                    model=f"{each[0].environment.device.name} {setup_texts(each[0].run)['power_limit_w']}".strip(),
                    files=tuple(file.path.name for file in files),
                    units=None if None in uuids else len(uuids),
                    tflops=tuple(stats.geomean([machine.tflops(key) for key in keys]) for machine in each),
                    cells=len(keys),
                )
            )
    return found
