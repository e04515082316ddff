"""The error rates of `attnbench bisect`, by simulation with the noise of an H200.

    python tests/statistics/simulate_bisect.py [--runs 400] [--only TEXT]

The noise of rounds is simulate_ab.py's, for one cell: a cell keeps its noise in all A/Bs of a bisection, on a machine
that drifts from turn to turn. Every bisection runs the code that searches and decides, without git, builds and workers.
test_bisect_error_rates.py asserts figures with fewer runs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from h200_noise import draw
from printed import options, show
from simulate_ab import drift_in_turns
from simulate_gate import KINDS, both

from attnbench.analysis.bisect.run_bisect import Bisection, Outcome, Request
from attnbench.analysis.bisect.search import Step
from attnbench.analysis.gate.repeated_looks import decide_in_looks
from attnbench.analysis.gate.rounds import Rounds
from attnbench.analysis.gate.verdicts import Finding
from attnbench.core.case import Case, Shape
from attnbench.run.ab.schedule import LOOKS
from attnbench.run.commits import Commit

PAIRS, CASE = LOOKS[-1], Case(Shape(1, 1024, 1024, 1, 1, 64, 64), "bf16", "fwd")


@dataclass(frozen=True)
class Scenario:
    commits: int = 8
    slowdowns: tuple[float, ...] = (0.03,)  # each is planted in a random commit
    margin: float = 0.01
    broken: float = 0.0  # the share of the commits that do not build
    scale: float = 1.0  # factor on the noise
    drift: float = 0.001  # change of the machine in each turn, in one direction (logarithm)
    walk: float = 0.001  # random change: standard deviation in each turn


@dataclass(frozen=True)
class Rates:
    """The results: shares of all bisections, and means."""

    right: float  # a commit with a planted slowdown is named
    wrong: float  # another commit is named
    within: float  # a range with such a commit remains, or the answer is a spread slowdown
    missed: float  # a range without such a commit remains
    steps: float  # A/Bs
    pairs: float  # in all A/Bs of a bisection


@dataclass
class Simulated(Bisection):
    """A bisection whose A/Bs are drawn."""

    scenario: Scenario = field(default_factory=Scenario)
    levels: Any = None  # change of the logarithm in each commit
    builds_at_all: Any = None
    noise: Any = None
    rng: Any = None

    def _step(self, a: Commit, b: Commit, margin: float, ahead: int, ending: str = "") -> Step:
        s, (first, second) = self.scenario, (self.outcome.commits.index(commit) for commit in (a, b))
        if not self.builds_at_all[second]:
            return Step(a, b, margin, reason="does not build")
        start = PAIRS * len([step for step in self.outcome.every if step.finding])
        sides = [side[0, start : start + PAIRS].copy() for side in self.noise]
        drift_in_turns(self.rng, sides, s.drift, s.walk)
        sides[1] += self.levels[second] - self.levels[first]
        test = Rounds(sides[0].tolist(), sides[1].tolist(), margin, "latency", paired=True)
        [(decision, pairs)] = decide_in_looks([test])
        return Step(a, b, margin, Finding(CASE, "x", "latency", decision.verdict, (pairs, pairs), decision=decision))


def simulate(kind: str, scenario: Scenario, runs: int, seed: int = 0) -> Rates:
    rng = np.random.default_rng(seed)
    counts: Counter[str] = Counter()
    steps = pairs = 0
    s = scenario
    for _ in range(runs):
        culprits = rng.choice(np.arange(1, s.commits + 1), len(s.slowdowns), replace=False)
        change = np.zeros(s.commits + 1)
        change[culprits] = np.log1p(s.slowdowns)
        fine = rng.random(s.commits + 1) >= s.broken
        fine[[0, -1]] = True
        commits = [Commit(f"{i:040x}", "2026-01-01", "") for i in range(s.commits + 1)]
        outcome = Outcome(Request("", margin=s.margin), commits, Path(), high=s.commits)
        noise = draw(rng, 1, PAIRS * (s.commits + 3), kind, s.scale, 0.0)  # type: ignore[arg-type]
        none: Any = None
        Simulated(outcome, none, none, time.monotonic, 0.0, 0, s, np.cumsum(change), fine, noise, rng).run()
        steps += len([step for step in outcome.every if step.finding])
        pairs += sum(step.finding.rounds[0] for step in outcome.every if step.finding)
        if outcome.found:
            counts["right" if outcome.high in culprits else "wrong"] += 1
        else:
            inside = any(outcome.low < culprit <= outcome.high for culprit in culprits)
            counts["within" if inside or not len(culprits) else "missed"] += 1
    return Rates(*(counts[name] / runs for name in ("right", "wrong", "within", "missed")), steps / runs, pairs / runs)


SCENARIOS = {
    "3 % in one of 8 commits": Scenario(),
    "3 % in one of 64 commits": Scenario(commits=64),
    "2 % in one of 8 commits": Scenario(slowdowns=(0.02,)),
    "10 % in one of 8 commits": Scenario(slowdowns=(0.1,)),
    "3 % in one of 8 commits, of which a quarter do not build": Scenario(broken=0.25),
    "3 % in one of 8 commits, noise times 3": Scenario(scale=3),
    "6 % in one of 8 commits and 2 % in another": Scenario(slowdowns=(0.06, 0.02)),
    "2 % in each of 2 of 8 commits": Scenario(slowdowns=(0.02, 0.02)),
    "nothing in 8 commits": Scenario(slowdowns=()),
}


HEADING = ("what", "right commit", "wrong commit", "none: a range with it", "none: a range without", "A/Bs", "pairs")


def main() -> None:
    asked = options(__doc__, 400)
    show("bisect", asked, HEADING, _rows(asked.runs, asked.only), seed=0)


def _rows(runs: int, only: str) -> Iterator[list[str]]:
    for what, scenario in SCENARIOS.items():
        if only in what:
            rates = [simulate(kind, scenario, runs) for kind in KINDS]
            shares = [both(getattr(of, name) for of in rates) for name in ("right", "wrong", "within", "missed")]
            means = [" / ".join(f"{getattr(of, name):.1f}" for of in rates) for name in ("steps", "pairs")]
            yield [what, *shares, *means]


if __name__ == "__main__":
    main()
