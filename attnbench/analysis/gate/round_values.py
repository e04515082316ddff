"""One value for each round and metric that a gate compares."""

from __future__ import annotations

from attnbench.analysis.gate.findings import TIMED
from attnbench.results.cells import Cell


def round_values(metric: str, cell: Cell) -> dict[int, float]:
    """Return round -> value of a metric, in its unit, of the rounds that have one.

    A latency, or cycles, of 0 is no value: nothing can be compared with it.
    """
    return {n: value for n, value in cell.rounds(metric).items() if value > 0 or metric not in TIMED}
