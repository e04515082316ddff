"""How often `cluster report` names a unit that is like the others, and finds one that is not: seeded simulations, whose
table docs/cluster.md has.

    python tests/statistics/simulate_cluster.py

Each row is of REPORTS clusters of one model, with two families of cells. A unit's figure in a family is a draw; what it
has in common with the other family is half of the variance. `judge` is told the H200's entry of spreads.json.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnbench.analysis.cluster.outliers import judge
from attnbench.results.uncertainty import MEASURED

ENTRY = MEASURED["H200 SXM"]
TABLE = math.hypot(ENTRY.units, ENTRY.processes)  # of one round
REPORTS = 2000
FAMILIES = 2

Noise = Callable[[Any, tuple[int, int]], Any]
NOISES: dict[str, Noise] = {
    "as the table says": lambda rng, shape: rng.normal(0, TABLE, shape),
    "half of that": lambda rng, shape: rng.normal(0, TABLE / 2, shape),
    "twice that": lambda rng, shape: rng.normal(0, 2 * TABLE, shape),
    "heavy tails (t, 5 degrees of freedom)": lambda rng, shape: TABLE * math.sqrt(3 / 5) * rng.standard_t(5, shape),
}
SIGNALS = {"nothing": (0.0, 0.0), "one unit is 5 % slower": (0.05, 0.05), "5 % slower in one family": (0.0, 0.05)}


@dataclass(frozen=True)
class Result:
    """Shares of reports that name a unit that is like the others, and that find the one that is not."""

    false: float
    found: float
    threshold: float  # the median over reports


def simulate(signal: str, noise: str, units: int, reports: int = REPORTS, seed: int = 1) -> Result:
    rng = np.random.default_rng(seed)
    false = found = 0
    thresholds = []
    for _ in range(reports):
        common, own = NOISES[noise](rng, (units, 1)), NOISES[noise](rng, (units, FAMILIES))
        figures = (common + own) / math.sqrt(2)
        figures[0] += np.log1p(SIGNALS[signal])
        named: set[int] = set()
        for family in figures.T:
            judged = judge(family.tolist(), TABLE, True, units * FAMILIES)
            assert judged
            thresholds.append(judged.threshold)
            named |= {*np.flatnonzero(np.abs(family - judged.middle) > judged.threshold).tolist()}
        slow = {0} if signal != "nothing" else set()
        false += bool(named - slow)
        found += bool(named & slow)
    return Result(false / reports, found / reports, math.expm1(float(np.median(thresholds))))


def main() -> None:
    print("| what is off | units differ | units | threshold | reports with a false outlier | found |")
    print("| :--- | :--- | ---: | ---: | ---: | ---: |")
    for signal in SIGNALS:
        for noise in NOISES:
            for units in (3, 8, 32):
                got = simulate(signal, noise, units)
                found = f"{got.found:.1%}" if signal != "nothing" else ""
                print(f"| {signal} | {noise} | {units} | {got.threshold:.2%} | {got.false:.2%} | {found} |")


if __name__ == "__main__":
    sys.exit(main())
