"""TFLOP/s, share of the peak, watts and TFLOP/s per watt of a machine, over the cases that all machines have.

Each case counts with the machine's fastest backend, and all figures are geometric means over the cases. Power is that
of the work without pauses (run --sustained) alone: NVML's samples of other runs hold the pauses between bursts, and its
average lags by a second. For sdpa-cudnn on an H200 (4k, d128, causal, fwd) they give 4.7 TFLOP/s per watt where 0.72 is
right (results/20261121-060508-sustained-nvidia-h200.jsonl).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnbench.analysis.compare.machines import Machine
from attnbench.core import stats
from attnbench.core.case import Case
from attnbench.results.cells import Key


@dataclass(frozen=True)
class Power:
    """Power and efficiency by the machine's label; None where it has no reading."""

    cases: int  # with a reading on every machine that has any
    watts: Mapping[str, float | None]
    tflops_per_watt: Mapping[str, float | None]


def mean_tflops(machine: Machine, cases: Sequence[Case]) -> float:
    """Return the geometric mean of TFLOP/s over the cases, each with the machine's fastest backend."""
    return stats.geomean([machine.tflops((case, machine.fastest[case])) for case in cases])


def mean_utilization(machine: Machine, cases: Sequence[Case]) -> float | None:
    """Return the geometric mean of the shares of the datasheet's peak; None where a case has none."""
    shares = [machine.cells[case, machine.fastest[case]].value("utilization") for case in cases]
    return stats.geomean([share for share in shares if share]) if all(shares) else None


def power(machines: Sequence[Machine], cases: Sequence[Case]) -> Power | None:
    """Return power over the cases that all machines with readings share; None where there are none."""
    readings = {
        m.label: {case: found for case in cases if (found := _sustained(m, (case, m.fastest[case])))} for m in machines
    }
    measured = [of_machine for of_machine in readings.values() if of_machine]
    common = [case for case in cases if all(case in of_machine for of_machine in measured)]
    if not measured or not common:
        return None

    def mean(which: int) -> dict[str, float | None]:
        return {
            label: stats.geomean([of_machine[case][which] for case in common]) if of_machine else None
            for label, of_machine in readings.items()
        }

    return Power(len(common), watts=mean(0), tflops_per_watt=mean(1))


def _sustained(machine: Machine, key: Key) -> tuple[float, float] | None:
    """Return (watts, TFLOP/s per watt) of a cell's work without pauses, the medians over its rounds."""
    cell = machine.cells[key]
    watts = [reading for row in cell.rows if (reading := row.one_value("sustained_power"))]
    efficiency = cell.value("tflops_per_watt")
    return (stats.median(watts), efficiency) if watts and efficiency else None
