"""The error rates of `attnbench ab`, by simulation with the noise of an H200.

    python tests/statistics/simulate_ab.py [--runs 1000] [--only TEXT]

The noise is simulate_gate.py's, without the part between runs, which rounds in turns share. Instead the machine drifts
from turn to turn, evenly and randomly. Every A/B goes through the code that decides, look by look: `by_records` makes
run files' records of all four metrics and judges them like the command, `by_values` passes only latencies to the
statistics. tests/statistics/test_ab_error_rates.py asserts the figures with fewer runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from h200_noise import draw, draw_first_calls
from other_noise import LATENCY, NONE, Other, add
from printed import options, show
from simulate_gate import KINDS, both, simulated_run

from attnbench.analysis.gate.findings import Request, judge
from attnbench.analysis.gate.margins import DEFAULT, Margins
from attnbench.analysis.gate.repeated_looks import decide_in_looks
from attnbench.analysis.gate.rounds import Rounds
from attnbench.core.case import Case, Shape
from attnbench.run.ab.schedule import LOOKS, order


@dataclass(frozen=True)
class Scenario:
    cells: int = 100
    margin: float = 0.03
    planted: float = 0.0  # slowdown of the changed cells: 0.06 is 6 %
    changed: int = 0  # number of changed cells, the first ones
    scale: float = 1.0  # factor on the noise
    pairs: int = LOOKS[-1]  # most pairs in the available time
    drift: float = 0.001  # change of the machine in each turn, in one direction (logarithm)
    walk: float = 0.001  # random change: standard deviation in each turn
    other: Other = NONE


@dataclass(frozen=True)
class Rates:
    """The results: shares of all A/Bs, and of the changed cells of all A/Bs."""

    false_alarms: float  # A/Bs with a regression where nothing changed
    inconclusive: float  # A/Bs that end with an open cell
    regressed: float  # share of the changed cells
    unchanged: float
    longest: float  # pairs until the last cell was settled or time ran out: mean
    typical: float  # pairs of a cell: mean


Verdicts = tuple[list[str], list[int], bool]  # verdicts of cells, their pairs, and whether another metric regressed
Decider = Callable[[np.ndarray, np.ndarray, float, np.random.Generator], Verdicts]


def by_values(a: np.ndarray, b: np.ndarray, margin: float, _: np.random.Generator) -> Verdicts:
    tests = [Rounds(x.tolist(), y.tolist(), margin, "latency", paired=True) for x, y in zip(a, b, strict=True)]
    decided = decide_in_looks(tests)
    return [d.verdict for d, _ in decided], [n for _, n in decided], False


def by_records(a: np.ndarray, b: np.ndarray, margin: float, rng: np.random.Generator) -> Verdicts:
    """Decide like `by_values`, but through `judge`, with first calls, and with unchanged errors and memory."""
    cases = [Case(Shape(1, i + 1, i + 1, 1, 1, 64, 64), "bf16", "fwd") for i in range(len(a))]
    calls = draw_first_calls(rng, *a.shape)
    runs = [
        replace(simulated_run(cases, np.exp(times) * LATENCY, first), turns="simulated")
        for times, first in zip((a, b), calls, strict=True)
    ]
    found = judge(*runs, Request(DEFAULT, Margins({"latency": margin}))).findings
    assert len(found) == 4 * len(cases)
    of = {f.case: f for f in found if f.metric == "latency"}
    others = any(f.verdict == "regressed" for f in found if f.metric != "latency")
    return [of[case].verdict for case in cases], [of[case].rounds[0] for case in cases], others


def drift_in_turns(rng: np.random.Generator, sides: Sequence[np.ndarray], drift: float, walk: float) -> None:
    """Add the drift of a machine in each turn to the logarithms of both sides, ... x pairs."""
    pairs = sides[0].shape[-1]
    level = np.cumsum(drift + walk * rng.standard_normal(2 * pairs))
    for pair in range(pairs):
        for turn, side in enumerate(order(pair)):
            sides[side][..., pair] += level[2 * pair + turn]


def draw_turns(rng: np.random.Generator, scenario: Scenario, kind: str) -> list[np.ndarray]:
    """Draw the logarithms of the rounds of both sides, cells x pairs, measured in turns on a machine that drifts."""
    s = scenario
    sides = draw(rng, s.cells, s.pairs, kind, s.scale, 0.0)  # type: ignore[arg-type]
    drift_in_turns(rng, sides, s.drift, s.walk)
    sides[1][: s.changed] += math.log1p(s.planted)
    return sides if s.other == NONE else add(rng, s.other, sides, s.changed)


def simulate(kind: str, scenario: Scenario, runs: int, decider: Decider = by_values, seed: int = 0) -> Rates:
    rng = np.random.default_rng(seed)
    false_alarms = inconclusive = 0
    changed: Counter[str] = Counter()
    longest, typical = [], []
    for _ in range(runs):
        verdicts, pairs, others = decider(*draw_turns(rng, scenario, kind), scenario.margin, rng)
        false_alarms += others or "regressed" in verdicts[scenario.changed :]
        inconclusive += "inconclusive" in verdicts
        changed.update(verdicts[: scenario.changed])
        longest.append(max(pairs))
        typical.append(np.mean(pairs))
    total = max(1, changed.total())
    return Rates(
        false_alarms / runs,
        inconclusive / runs,
        changed["regressed"] / total,
        changed["unchanged"] / total,
        float(np.mean(longest)),
        float(np.mean(typical)),
    )


SCENARIOS = {
    "nothing changed": Scenario(),
    "one cell slower by 6 %, twice the margin": Scenario(planted=0.06, changed=1),
    "one cell slower by 4 %, the margin and 1 point": Scenario(planted=0.04, changed=1),
    "16 cells slower by 6 %": Scenario(planted=0.06, changed=16),
    "margin 1 %, one cell slower by 2 %": Scenario(margin=0.01, planted=0.02, changed=1),
    "time for 8 pairs, one cell slower by 6 %": Scenario(planted=0.06, changed=1, pairs=8),
    "time for 4 pairs, one cell slower by 6 %": Scenario(planted=0.06, changed=1, pairs=4),
    "ended after 2 pairs, one cell slower by 6 %": Scenario(planted=0.06, changed=1, pairs=2),
    "drift times 5 (0.5 % a turn)": Scenario(drift=0.005, walk=0.005),
    "noise times 3": Scenario(scale=3),
    "noise times 10": Scenario(scale=10),
    "all cells at the margin": Scenario(planted=0.03, changed=100),
    "nothing changed, all four metrics, as records": Scenario(pairs=8),
    "10 cells of two speeds, one slower by 6 %": Scenario(planted=0.06, changed=1, pairs=16, other=Other(modes=10)),
}


HEADING = ("what", "A/Bs with a false regression", "with an open cell", "changed: regressed", "unchanged", "pairs")


def main() -> None:
    asked = options(__doc__, 1000)
    show("ab", asked, HEADING, _rows(asked.runs, asked.only), seed=0)


def _rows(runs: int, only: str) -> Iterator[list[str]]:
    for what, scenario in SCENARIOS.items():
        if only in what:
            decider = by_records if "records" in what else by_values
            rates = [simulate(kind, scenario, runs, decider) for kind in KINDS]
            shown = [both(r.false_alarms for r in rates), both(r.inconclusive for r in rates), "", ""]
            if scenario.changed:
                shown[2:] = [both(r.regressed for r in rates), both(r.unchanged for r in rates)]
            yield [what, *shown, " / ".join(f"{r.longest:.1f} ({r.typical:.1f})" for r in rates)]


if __name__ == "__main__":
    main()
