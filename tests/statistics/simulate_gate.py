"""The error rates of `attnbench gate`, by simulation with the noise of an H200.

    python tests/statistics/simulate_gate.py [--runs 1000] [--only TEXT] [--between]

Every run goes through the code that decides: `by_records` makes run files' records of all four metrics and judges them
like the command, `by_values`, which is faster, passes the same latencies to the statistics only.
tests/statistics/test_gate_error_rates.py asserts the figures with fewer runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from h200_noise import draw, draw_first_calls
from other_noise import NONE, Other, add
from printed import options, show

from attnbench.analysis.gate.findings import Request, judge
from attnbench.analysis.gate.hypothesis_tests import decide
from attnbench.analysis.gate.margins import DEFAULT, Margins
from attnbench.analysis.gate.rounds import Rounds, smallest_tick
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device, Environment
from attnbench.core.policy import Policy
from attnbench.core.record import Accuracy, Forecast, Job, Measurement, Record, Run, TensorError

KINDS = ("cells", "rounds")
ACCURACY = Accuracy({"out": TensorError(0.001, 0.0015, 0.004, 0.002)}, rows=64, heads=4)
ENVIRONMENT = Environment(Device("cuda", 0, "simulated", 2**37, 2**37), "3.12", "Linux", "2.11", "simulated")


@dataclass(frozen=True)
class Scenario:
    cells: int = 100
    rounds: int = 5
    margin: float = 0.03
    planted: float = 0.0  # slowdown of the changed cells: 0.06 is 6 %
    changed: int = 0  # number of changed cells, the first ones
    scale: float = 1.0
    shift: float | None = None
    other: Other = NONE
    runs: int = 1  # runs of the baseline
    controls: int = 0  # number of control cells, the last ones


@dataclass(frozen=True)
class Rates:
    """The results: shares of all gates, and of the changed cells of all gates."""

    false_alarms: float  # runs with a regression where nothing changed
    inconclusive: float  # runs with an inconclusive cell
    regressed: float  # share of the changed cells
    unchanged: float
    passed: float  # share of passed gates
    covered: float  # share of unchanged cells whose interval covers the truth


Found = tuple[list[tuple[str, float | None, float | None]], bool]
Decider = Callable[[Sequence[np.ndarray], Scenario, np.random.Generator], Found]


def by_values(runs: Sequence[np.ndarray], s: Scenario, _: np.random.Generator) -> Found:
    """Return the verdict and the interval of each cell, and whether any other metric regressed."""
    tick = smallest_tick(np.exp(np.concatenate(runs, axis=1)).tolist()) if s.other.quantum else 0.0
    tests = [
        Rounds(
            x,
            y,
            s.margin,
            "latency",
            tick=tick / math.exp(x[0]),
            earlier=tuple(more),
            control=i >= s.cells - s.controls,
        )
        for i, (x, *more, y) in enumerate(zip(*(run.tolist() for run in runs), strict=True))
    ]
    return [(d.verdict, d.low, d.high) for d in decide(tests)], False


def by_records(runs: Sequence[np.ndarray], s: Scenario, rng: np.random.Generator) -> Found:
    """Decide like `by_values`, but through `judge`, with first calls, and with unchanged errors and memory."""
    before, *more, after = runs
    cases = [Case(Shape(1, i + 1, i + 1, 1, 1, 64, 64), "bf16", "fwd") for i in range(len(before))]
    first = draw_first_calls(rng, *before.shape)
    made = [simulated_run(cases, np.exp(run), calls) for run, calls in zip((before, after), first, strict=True)]
    earlier = [simulated_run(cases, np.exp(run), first[0]) for run in more]
    found = judge(*made, Request(DEFAULT, Margins({"latency": s.margin})), earlier).findings
    verdicts = {
        f.case: (f.verdict, *((f.decision.low, f.decision.high) if f.decision else (None, None)))
        for f in found
        if f.metric == "latency"
    }
    assert len(found) == 4 * len(cases)
    return [verdicts[case] for case in cases], any(f.verdict == "regressed" for f in found if f.metric != "latency")


def simulated_run(cases: Sequence[Case], seconds: np.ndarray, first: np.ndarray) -> Run:
    records = tuple(
        Record(case, "simulated", i, "ok", None, _measurements(seconds[c, i], first[c, i]), ACCURACY, "events", "cold")
        for i in range(seconds.shape[1])
        for c, case in enumerate(cases)
    )
    plan = tuple(Job(r.case, r.backend, r.round, Forecast(1.0, 1e-3, 1)) for r in records)
    return Run(ENVIRONMENT, "simulated", Policy(), plan, records)


def _measurements(seconds: float, first: float) -> dict[str, Measurement]:
    return {
        "time": Measurement("s", (float(seconds),)),
        "first_call": Measurement("s", (float(first),)),
        "memory_peak": Measurement("B", (2.0**28,)),
    }


def simulate(kind: str, scenario: Scenario, gates: int, decider: Decider = by_values, seed: int = 0) -> Rates:
    rng = np.random.default_rng(seed)
    false_alarms = inconclusive = passed = covered = 0
    changed: Counter[str] = Counter()
    s = scenario
    for _ in range(gates):
        runs = draw(rng, s.cells, s.rounds, kind, s.scale, s.shift, s.runs + 1)  # type: ignore[arg-type]
        runs[-1][: s.changed] += math.log1p(s.planted)
        found, others = decider(add(rng, s.other, runs, s.changed), s, rng)
        verdicts = [verdict for verdict, _, _ in found]
        false_alarms += others or "regressed" in verdicts[s.changed :]
        inconclusive += "inconclusive" in verdicts
        passed += {*verdicts} <= {"unchanged", "improved"}
        covered += sum(low is not None and low <= 0 <= high for _, low, high in found[s.changed :])
        changed.update(verdicts[: s.changed])
    total = max(1, changed.total())
    return Rates(
        false_alarms / gates,
        inconclusive / gates,
        changed["regressed"] / total,
        changed["unchanged"] / total,
        passed / gates,
        covered / max(1, gates * (s.cells - s.changed)),
    )


SCENARIOS = {
    "nothing changed": Scenario(),
    "one cell slower by 6 %, twice the margin": Scenario(planted=0.06, changed=1),
    "one cell slower by 4 %, the margin and 1 point": Scenario(planted=0.04, changed=1),
    "16 cells slower by 6 %": Scenario(planted=0.06, changed=16),
    "300 cells in all, one slower by 6 %": Scenario(cells=300, planted=0.06, changed=1),
    "3 rounds, one cell slower by 6 %": Scenario(rounds=3, planted=0.06, changed=1),
    "2 rounds, one cell slower by 6 %": Scenario(rounds=2, planted=0.06, changed=1),
    "1 round, one cell slower by 6 %": Scenario(rounds=1, planted=0.06, changed=1),
    "margin 1 %, one cell slower by 2 %": Scenario(margin=0.01, planted=0.02, changed=1),
    "margin 5 %, one cell slower by 10 %": Scenario(margin=0.05, planted=0.10, changed=1),
    "noise times 3": Scenario(scale=3),
    "noise times 10 (runs then 1.4 % apart)": Scenario(scale=10),
    "runs 0.5 % apart (standard deviation)": Scenario(shift=0.005),
    "runs 1 % apart": Scenario(shift=0.01),
    "runs 2 % apart": Scenario(shift=0.02),
    "all cells at the margin": Scenario(planted=0.03, changed=100),
    "nothing changed, all four metrics, as records": Scenario(),
    "10 cells of two speeds, 5 rounds": Scenario(planted=0.06, changed=1, other=Other(modes=10)),
    "10 cells of two speeds, 6 rounds": Scenario(rounds=6, planted=0.06, changed=1, other=Other(modes=10)),
    "3 cells of two speeds, 5 rounds": Scenario(planted=0.06, changed=1, other=Other(modes=3)),
    "a timer with steps of 1 us": Scenario(planted=0.06, changed=1, other=Other(quantum=1e-6)),
    "one disturbed round": Scenario(planted=0.06, changed=1, other=Other(disturbed=0.05)),
    "each cell 0.5 % off in either run": Scenario(planted=0.06, changed=1, other=Other(offset=0.005)),
    "each cell 1 % off in either run": Scenario(planted=0.06, changed=1, other=Other(offset=0.01)),
    "each cell 1 % off, 10 cells in all": Scenario(cells=10, planted=0.06, changed=1, other=Other(offset=0.01)),
}
BETWEEN_RUNS = {  # noise that all rounds of a run or a process share
    "nothing more": NONE,
    "each process 5 % slower, by a chance of 20 %": Other(slow_process=0.2),
    "by a chance of 50 %": Other(slow_process=0.5),
    "a third of the cells off together, by 2 % (standard deviation)": Other(shift=0.02, group=1 / 3),
    "all cells": Other(shift=0.02),
    "all cells off by 1 %, with heavy tails": Other(shift=0.01, heavy=True),
    "each cell off by its own 1 %": Other(offset=0.01),
    "each cell off by its own 1 %, with heavy tails": Other(offset=0.01, heavy=True),
    "5 % of the cells, others in each run, off by 3 %": Other(off=0.05),
    "10 cells of two speeds": Other(modes=10),
    "one round of the current run 5 % slower in a third of the cells": Other(disturbed=0.05),
    "two rounds twice as slow in all cells": Other(disturbed=1.0, rounds=2, share=1.0),
}


HEADING = ("what", "gates with a false regression", "with an inconclusive cell", "changed: regressed", "unchanged")
OF_RUNS = (
    "what differs",
    "false regression, one run",
    "three",
    "passed, one run",
    "three",
    "6 % found",
    "intervals hold",
)


def main() -> None:
    """Print the table, of noise that stays with cells / with rounds (h200_noise.py), or that of baselines."""
    asked = options(__doc__, 1000, between="baselines of one run and of three")
    if asked.between:
        show("gate-between", asked, OF_RUNS, _between(asked.runs, asked.only), seed=0)
    else:
        show("gate", asked, HEADING, _rows(asked.runs, asked.only), seed=0)


def _rows(gates: int, only: str) -> Iterator[list[str]]:
    for what, scenario in SCENARIOS.items():
        if only in what:
            decider = by_records if "records" in what else by_values
            rates = [simulate(kind, scenario, gates, decider) for kind in KINDS]
            shown = [both(r.false_alarms for r in rates), both(r.inconclusive for r in rates), "", ""]
            if scenario.changed:
                shown[2:] = [both(r.regressed for r in rates), both(r.unchanged for r in rates)]
            yield [what, *shown]


def _between(gates: int, only: str) -> Iterator[list[str]]:
    for what, other in BETWEEN_RUNS.items():
        if only in what:
            of = [simulate("cells", Scenario(cells=307, other=other, runs=runs), gates) for runs in (1, 3)]
            slow = Scenario(cells=307, other=other, runs=3, planted=0.06, changed=1)
            shares = [of[0].false_alarms, of[1].false_alarms, of[0].passed, of[1].passed]
            shares += [simulate("cells", slow, gates // 4).regressed, of[1].covered]
            yield [what, *(f"{100 * share:.3g} %" for share in shares)]


def both(shares: Iterable[float]) -> str:
    """Return the shares for both kinds of noise, as text for a table."""
    return " / ".join(f"{100 * share:.3g} %" for share in shares)


if __name__ == "__main__":
    main()
