"""The error rates of `cluster report`: false outliers and found ones, by seeded simulations (docs/dev/cluster.md).

    python tests/statistics/simulate_cluster.py [--runs 2000] [--only TEXT]

Each entry is for 2000 clusters of one model, with two families of cells. A GPU's speed in a family is a draw that
shares half of its variance with the other family. `judge` gets the H200's entry of spreads.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from printed import options, show

from attnbench.analysis.cluster.outliers import judge
from attnbench.results.uncertainty import MEASURED

ENTRY = MEASURED["H200 SXM"]
TABLE = math.hypot(ENTRY.cards.units(1.0, 9), ENTRY.processes)  # standard deviation of one round of 9 cells
FAMILIES = 2
UNITS = (3, 8, 16, 32, 64)
GROUP = math.log1p(0.02)  # offset of every third unit, where units are of two groups

Noise = Callable[[Any, tuple[int, int]], Any]


def normal(scale: float) -> Noise:
    return lambda rng, shape: rng.normal(0, scale * TABLE, shape)


def student(freedom: int, scale: float = 1.0) -> Noise:
    """Return draws from Student's t, scaled to the table's standard deviation times a factor."""
    unit = scale * TABLE * math.sqrt((freedom - 2) / freedom)
    return lambda rng, shape: unit * rng.standard_t(freedom, shape)


NOISES: dict[str, Noise] = {
    "as the table says": normal(1),
    "half of that": normal(0.5),
    "twice that": normal(2),
    "heavy tails (t, 5 degrees of freedom)": student(5),
    "heavy tails (t, 3 degrees of freedom)": student(3),
    "t, 3 degrees of freedom, half of the table's": student(3, 0.5),
    "t, 3 degrees of freedom, twice the table's": student(3, 2),
    "two groups: a third of the units is 2 % apart": normal(1),
    "two groups, half of the table's": normal(0.5),
}
SIGNALS = {
    "nothing": (0.0, 0.0),
    "one unit is 5 % slower": (0.05, 0.05),
    "5 % slower in one family": (0.0, 0.05),
    "one unit is 10 % slower": (0.1, 0.1),
}


@dataclass(frozen=True)
class Result:
    """The shares of reports that name a normal unit, and that find the abnormal one."""

    false: float  # a normal unit is an outlier
    false_far: float  # a normal unit is an outlier or far off
    found: float
    found_far: float


def simulate(signal: str, noise: str, units: int, reports: int, seed: int = 1) -> Result:
    rng = np.random.default_rng(seed)
    slow = {0} if signal != "nothing" else set()
    counts = np.zeros(4)
    for _ in range(reports):
        common, own = NOISES[noise](rng, (units, 1)), NOISES[noise](rng, (units, FAMILIES))
        figures = (common + own) / math.sqrt(2)
        if noise.startswith("two groups"):
            figures[2::3] += GROUP
        figures[0] += np.log1p(SIGNALS[signal])
        outliers: set[int] = set()
        far: set[int] = set()
        for family in figures.T:
            judged = judge(family.tolist(), TABLE, units * FAMILIES)
            assert judged
            off = np.abs(family - judged.middle)
            outliers |= {*np.flatnonzero(off > judged.threshold).tolist()}
            far |= {*np.flatnonzero(off > judged.far).tolist()}
        counts += [bool(outliers - slow), bool(far - slow), bool(outliers & slow), bool(far & slow)]
    return Result(*(counts / reports).tolist())


HEADING = ("what happens", "units differ", *(f"{units} units" for units in UNITS))


def main() -> None:
    """Print shares of reports: with a false outlier; with any unit far off; of slow units, those that are found."""
    asked = options(__doc__, 2000)
    show("cluster", asked, HEADING, _rows(asked.runs, asked.only), seed=1)


def _rows(reports: int, only: str) -> Iterator[list[str]]:
    for signal in SIGNALS:
        for noise in NOISES:
            if only in f"{signal} {noise}":
                got = [simulate(signal, noise, units, reports) for units in UNITS]
                if signal == "nothing":
                    entries = [f"{one.false:.2%}; {one.false_far:.1%}" for one in got]
                else:
                    entries = [f"{one.found:.0%}; {one.found_far:.0%}" for one in got]
                yield [signal, noise, *entries]


if __name__ == "__main__":
    main()
