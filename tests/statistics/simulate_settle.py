"""The error rates of a gate that continues if it is inconclusive, by simulation with the noise of an H200.

    python tests/statistics/simulate_settle.py [--runs 400] [--only TEXT]

A gate of five rounds a side that is inconclusive, and finds no regression, continues in two ways: the current run gets
MORE rounds and is judged again (`run --resume FILE --rounds N`), or the open cells are measured in turns (`--settle`)
for at most PAIRS pairs. A cell has one noise in both. The gate has the noise between whole runs; turns have the drift
of the machine instead, as in simulate_ab.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from h200_noise import draw, measured
from other_noise import Other, add
from printed import options, show
from simulate_ab import Scenario as Turns
from simulate_ab import by_values as decide_turns
from simulate_ab import drift_in_turns
from simulate_gate import KINDS, Scenario, both, by_values

MORE, PAIRS = 4, 16
WAYS = ("the gate alone", f"{MORE} more rounds of the current run", f"in turns, {PAIRS} pairs at most")
SCENARIOS = {
    "nothing changed": Scenario(),
    "one cell slower by 6 %, twice the margin": Scenario(planted=0.06, changed=1),
    "one cell slower by 4 %, the margin and 1 point": Scenario(planted=0.04, changed=1),
    "one cell slower by 3 %, the margin": Scenario(planted=0.03, changed=1),
    "noise times 3, one cell slower by 6 %": Scenario(scale=3, planted=0.06, changed=1),
    "each cell 1 % off in either run, one slower by 6 %": Scenario(planted=0.06, changed=1, other=Other(offset=0.01)),
}


def simulate(kind: str, s: Scenario, gates: int, seed: int = 0) -> list[Counter[str]]:
    """Return for each of WAYS the number of gates with a false regression or an open cell, and the changed verdicts."""
    rng = np.random.default_rng(seed)
    found: list[Counter[str]] = [Counter() for _ in WAYS]
    for _ in range(gates):
        runs = draw(rng, s.cells, 2 * PAIRS, kind, s.scale, 0.0, 4)  # type: ignore[arg-type]
        for run in (runs[0], runs[-1]):
            run += rng.standard_normal() * measured().shift * s.scale
        for run in runs[2:]:
            run[: s.changed] += math.log1p(s.planted)
        before, after = add(rng, s.other, [runs[0][:, : s.rounds], runs[-1][:, : s.rounds + MORE]], s.changed)
        first = _gate(rng, s, before, after[:, : s.rounds])
        ways = [first, first, first]
        if "inconclusive" in first and "regressed" not in first:
            ways = [first, _gate(rng, s, before, after), _settled(rng, s, first, runs[1:3])]
        for verdicts, count in zip(ways, found, strict=True):
            count["false"] += "regressed" in verdicts[s.changed :]
            count["open"] += "inconclusive" in verdicts
            count.update(verdicts[: s.changed])
    return found


def _gate(rng: np.random.Generator, s: Scenario, before: np.ndarray, after: np.ndarray) -> list[str]:
    return [verdict for verdict, _, _ in by_values([before, after], s, rng)[0]]


def _settled(rng: np.random.Generator, s: Scenario, first: Sequence[str], sides: Sequence[np.ndarray]) -> list[str]:
    """Return the verdicts of a gate, with open cells decided in turns."""
    cells = [i for i, verdict in enumerate(first) if verdict == "inconclusive"]
    a, b = (side[cells, :PAIRS] for side in sides)
    drift_in_turns(rng, (a, b), Turns.drift, Turns.walk)
    verdicts = list(first)
    for i, verdict in zip(cells, decide_turns(a, b, s.margin, rng)[0], strict=True):
        verdicts[i] = verdict
    return verdicts


HEADING = ("what", "how", "with a false regression", "with an open cell", "changed: regressed", "unchanged")


def main() -> None:
    asked = options(__doc__, 400)
    show("settle", asked, HEADING, _rows(asked.runs, asked.only), seed=0)


def _rows(gates: int, only: str) -> Iterator[list[str]]:
    for what, scenario in SCENARIOS.items():
        if only in what:
            counts = [simulate(kind, scenario, gates) for kind in KINDS]
            for i, way in enumerate(WAYS):
                names = ("false", "open", *(("regressed", "unchanged") if scenario.changed else ()))
                shares = [both(of[i][name] / gates for of in counts) for name in names]
                yield [what, way, *shares, *[""] * (4 - len(shares))]


if __name__ == "__main__":
    main()
