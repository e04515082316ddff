"""The error rates of `history`: found changes and false ones, by seeded simulations.

    python tests/statistics/simulate_history.py [--runs 400] [--only TEXT]

Each row is for 400 histories of ten cells. Latencies of runs differ by NOISE, a standard deviation: twice the
spread of processes that remains with five rounds on an H200 (results/spreads.json). `history` gets the uncertainty of
spreads.json.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from printed import options, show

from attnbench.analysis.history.change_points import LEAST_NOISE, Levels, levels, prior_of
from attnbench.analysis.history.change_tests import judged

CELLS = 10
NOISE = 0.004
HALF = 1.96 * 0.0034 / 5**0.5
RUNS = (12, 30)


def normal(rng: Any, runs: int) -> Any:
    return rng.normal(0, NOISE, (CELLS, runs))


def alike(rng: Any, rho: float, shape: tuple[int, ...]) -> Any:
    """Return noise of size NOISE, of which each run keeps the share rho of the last run's."""
    drawn = rng.normal(0, NOISE, shape)
    for run in range(1, shape[-1]):
        drawn[..., run] = rho * drawn[..., run - 1] + (1 - rho**2) ** 0.5 * drawn[..., run]
    return drawn


def speeds(rng: Any, runs: int, share: float, cells: float) -> Any:
    """Return runs of which a share is 5 % slower, in the first `cells` cells."""
    slow = 0.05 * (rng.random(runs) < share)
    return normal(rng, runs) + slow * (np.arange(CELLS) < cells * CELLS)[:, None]


Noise = Callable[[Any, int], Any]  # (generator, runs) -> noise of the logarithms of one history, (cells, runs)
NOISES: dict[str, Noise] = {
    "normal": normal,
    "and runs differ as a whole by 0.4 %": lambda rng, runs: normal(rng, runs) + rng.normal(0, 0.004, runs),
    "heavy tails (t, 3 degrees of freedom)": lambda rng, runs: NOISE * rng.standard_t(3, (CELLS, runs)),
    "and 1 in 100 runs is 6 % slower": lambda rng, runs: normal(rng, runs) + 0.06 * (rng.random((CELLS, runs)) < 0.01),
    "AR(1) of 0.5, each cell": lambda rng, runs: alike(rng, 0.5, (CELLS, runs)),
    "AR(1) of 0.8, each cell": lambda rng, runs: alike(rng, 0.8, (CELLS, runs)),
    "and AR(1) of 0.5, all cells": lambda rng, runs: normal(rng, runs) + alike(rng, 0.5, (runs,)),
    "and AR(1) of 0.8, all cells": lambda rng, runs: normal(rng, runs) + alike(rng, 0.8, (runs,)),
    "and AR(1) of 0.8, all cells, of 1.2 %": lambda rng, runs: normal(rng, runs) + 3 * alike(rng, 0.8, (runs,)),
}
for _share in (0.2, 0.3, 0.5):
    for _cells, _who in ((1.0, "all cells"), (1 / 3, "a third of the cells")):
        NOISES[f"two speeds, {100 * _share:.0f} % of runs 5 % slower, {_who}"] = lambda rng, runs, s=_share, c=_cells: (
            speeds(rng, runs, s, c)
        )

SIGNALS: dict[str, Callable[[int], Any]] = {  # change of a cell, by the number of runs
    "nothing": lambda runs: np.zeros(runs),
    "creep of 0.5 % a run": lambda runs: np.log(1.005) * np.arange(runs),
    "step of 2 % in the middle": lambda runs: np.log(1.02) * (np.arange(runs) >= runs // 2),
    "step of 5 % in the middle": lambda runs: np.log(1.05) * (np.arange(runs) >= runs // 2),
    "step of 5 %, 5 runs ago": lambda runs: np.log(1.05) * (np.arange(runs) >= runs - 5),
    "step of 5 %, 3 runs ago": lambda runs: np.log(1.05) * (np.arange(runs) >= runs - 3),
    "step of 5 %, 2 runs ago": lambda runs: np.log(1.05) * (np.arange(runs) >= runs - 2),
}
WHERE: dict[str, int] = {"one cell": 1, "4 of 10 cells": 4, "all cells": CELLS}


@dataclass(frozen=True)
class Result:
    """The shares of histories with any change, and of changed cells (all, if none changes) with a step and a creep.

    `wrong` is the share of the steps whose range good..bad does not contain the run at which the cell changed.
    """

    any: float
    cells: float
    creeps: float
    wrong: float


def history_of(logs: Any) -> list[Levels]:
    """Return the findings of `history` for logarithms (cells, runs)."""
    (outcome,) = judged([logs], [LEAST_NOISE])
    seconds = (1e-3 * np.exp(logs)).tolist()
    prior = prior_of(seconds, [HALF])
    pairs = zip(outcome.changed.tolist(), outcome.kept.tolist(), strict=True)
    told = (
        levels(row, prior, CELLS, changed=changed, kept=kept if changed else 0.0)
        for row, (changed, kept) in zip(seconds, pairs, strict=True)
    )
    return [one for one in told if one]


def simulate(
    signal: str,
    noise: str = "normal",
    runs: int = 12,
    histories: int = 400,
    seed: int = 1,
    where: str = "all cells",
) -> Result:
    rng = np.random.default_rng(seed)
    happens, some = SIGNALS[signal](runs), np.arange(CELLS) < WHERE[where]
    found = [history_of(NOISES[noise](rng, runs) + some[:, None] * happens) for _ in range(histories)]
    cells = [one for history in found for one in history[: WHERE[where]]]
    true = int(np.argmax(happens > 0)) if signal.startswith("step") else 0
    steps = [change for one in cells if one.creep is None for change in one.changes]
    return Result(
        sum(any(one.changes for one in history) for history in found) / len(found),
        sum(bool(one.changes) for one in cells) / len(cells),
        sum(one.creep is not None for one in cells) / len(cells),
        sum(not change.first <= true <= change.last for change in steps) / len(steps) if true and steps else 0.0,
    )


HEADING = ("what happens", "noise", "runs", "histories with a change", "cells with a change", "a creep", "misplaced")


def main() -> None:
    asked = options(__doc__, 400)
    show("history", asked, HEADING, _rows(asked.runs, asked.only), seed=1)


def _rows(histories: int, only: str) -> Iterator[list[str]]:
    asked = {("nothing", noise): ("nothing", "all cells", noise) for noise in NOISES}
    asked |= {
        (f"{signal}, {where}", "normal"): (signal, where, "normal")
        for signal in SIGNALS
        if signal != "nothing"
        for where in WHERE
    }
    for (what, noise), (signal, where, _) in asked.items():
        if only in f"{what} {noise}":
            for runs in RUNS:
                found = simulate(signal, noise, runs, histories, where=where)
                shares = (found.any, found.cells, found.creeps, found.wrong)
                yield [what, noise, str(runs), *(f"{100 * share:.1f} %" for share in shares)]


if __name__ == "__main__":
    main()
