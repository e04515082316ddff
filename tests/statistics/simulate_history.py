"""How often `history` finds what is there, and what is not: seeded simulations, whose table docs/history.md has.

    python tests/statistics/simulate_history.py

Each row is of HISTORIES histories of ten cells. A run's latency differs from that of other runs by NOISE (a standard
deviation), which is what five rounds on an H200 leave of what processes differ by (results/spreads.json), doubled; the
uncertainty that `history` is told is that of spreads.json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnbench.analysis.history.change_points import LEAST, Levels, levels, prior_of

CELLS = 10
NOISE = 0.004
HALF = 1.96 * 0.0034 / 5**0.5
HISTORIES = 400

Noise = Callable[[Any, int], Any]  # of the logarithms of one history: (generator, runs) -> (cells, runs)
NOISES: dict[str, Noise] = {
    "normal": lambda rng, runs: rng.normal(0, NOISE, (CELLS, runs)),
    "and runs differ as a whole by 0.4 %": lambda rng, runs: (
        rng.normal(0, NOISE, (CELLS, runs)) + rng.normal(0, 0.004, runs)
    ),
    "heavy tails (t, 3 degrees of freedom)": lambda rng, runs: NOISE * rng.standard_t(3, (CELLS, runs)),
    "and 1 in 100 runs is 6 % slower": lambda rng, runs: (
        rng.normal(0, NOISE, (CELLS, runs)) + 0.06 * (rng.random((CELLS, runs)) < 0.01)
    ),
}
SIGNALS: dict[str, Callable[[int], Any]] = {  # what happens to every cell, by the number of runs
    "nothing": lambda runs: np.zeros(runs),
    "creep of 0.5 % a run": lambda runs: np.log(1.005) * np.arange(runs),
    "step of 2 % in the middle": lambda runs: np.log(1.02) * (np.arange(runs) >= runs // 2),
    f"step of 2 %, {LEAST} runs ago": lambda runs: np.log(1.02) * (np.arange(runs) >= runs - LEAST),
}


@dataclass(frozen=True)
class Result:
    """Shares of histories with any change, and of cells with a change and with a creep."""

    any: float
    cells: float
    creeps: float


def simulate(signal: str, noise: str = "normal", runs: int = 12, histories: int = HISTORIES, seed: int = 1) -> Result:
    rng = np.random.default_rng(seed)
    found: list[list[Levels]] = []
    for _ in range(histories):
        seconds = 1e-3 * np.exp(NOISES[noise](rng, runs) + SIGNALS[signal](runs))
        prior = prior_of(seconds.tolist(), [HALF])
        all_cells = (levels(row, prior, CELLS) for row in seconds.tolist())
        found.append([one for one in all_cells if one])
    cells = [one for history in found for one in history]
    return Result(
        sum(any(one.changes for one in history) for history in found) / len(found),
        sum(bool(one.changes) for one in cells) / len(cells),
        sum(one.creep is not None for one in cells) / len(cells),
    )


def main() -> None:
    print("| what happens | noise | runs | histories with a change | cells with a change | called a creep |")
    print("| :--- | :--- | ---: | ---: | ---: | ---: |")
    for signal in SIGNALS:
        for noise in NOISES if signal == "nothing" else ("normal",):
            for runs in (12, 30):
                found = simulate(signal, noise, runs)
                shares = " | ".join(f"{100 * share:.1f} %" for share in (found.any, found.cells, found.creeps))
                print(f"| {signal} | {noise} | {runs} | {shares} |")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
