"""Other noise than an H200's: the effects of CPUs, other GPUs and other days, each added to h200_noise.py's.

- **modes**: some cells run at one of two speeds, 4 to 8 % apart, which each process draws, for example because memory
  has other addresses in each process (Mytkowicz et al., "Producing Wrong Data Without Doing Anything Obviously Wrong!",
  ASPLOS 2009; Kalibera and Jones, "Rigorous Benchmarking in Reasonable Time", ISMM 2013).
- **slow_process**: all cells of a process are 5 % slower, by this chance.
- **offset**: each cell of a run is off by its own amount, which all rounds of the run share.
- **shift** of a **group**: this share of the cells is off by one amount in all rounds of a run.
- **off**: this share of the cells, different in each run, is off by OFF in all rounds of a run, in either direction.
- **disturbed**: another program slows a share of the cells in some rounds of the current run.
- **quantum**: the timer counts in ticks, to which times are rounded. `time.perf_counter` has ticks of up to 1 us, CUDA
  events of about 0.5 us ("CUDA Runtime API", cudaEventElapsedTime).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LATENCY = 1e-3  # seconds of every cell: a gate sees ratios only
GAPS = (0.04, 0.08)
SLOWER, OFF = 0.05, 0.03
LATENCIES = (20e-6, 10e-3)  # seconds of cells with a quantum
STEPS = 100  # least ticks of a changed cell, so that the planted change exceeds a tick


@dataclass(frozen=True)
class Other:
    """The noise to add to runs."""

    modes: int = 0  # number of cells, the last ones, with two speeds
    slow_process: float = 0.0  # chance of a slow process
    offset: float = 0.0  # standard deviation of a cell's offset in a run
    shift: float = 0.0  # standard deviation of a group's shift in a run
    group: float = 1.0  # share of the cells
    heavy: bool = False  # offsets and shifts have Student's distribution with 3 degrees of freedom and this scale
    off: float = 0.0  # share of the cells
    disturbed: float = 0.0  # 0.05: slower by 5 %
    rounds: int = 1  # number of disturbed rounds
    share: float = 1 / 3  # of the cells
    quantum: float = 0.0  # seconds


NONE = Other()


def add(rng: np.random.Generator, other: Other, runs: Sequence[np.ndarray], changed: int) -> list[np.ndarray]:
    """Return the logarithms of runs, cells x rounds, with the noise added; the first cells also have a change."""
    cells = len(runs[0])
    gaps = np.where(np.arange(cells) < cells - other.modes, 0.0, np.log1p(rng.uniform(*GAPS, cells)))[:, None]
    seconds = np.exp(rng.uniform(*np.log(LATENCIES), cells)) if other.quantum else np.full(cells, LATENCY)
    seconds[:changed] = np.maximum(seconds[:changed], STEPS * other.quantum)
    group = (rng.permutation(cells) < other.group * cells)[:, None]

    def draws(*shape: int) -> np.ndarray:
        return rng.standard_t(3, shape) if other.heavy else rng.standard_normal(shape)

    found = []
    for run in runs:
        values = run + gaps * (rng.random(run.shape) < 0.5) + other.offset * draws(cells, 1)
        values += SLOWER * (rng.random(run.shape[1]) < other.slow_process)
        values += group * other.shift * draws(1)
        values += OFF * (rng.random((cells, 1)) < other.off) * rng.choice((-1, 1), (cells, 1))
        if run is runs[-1] and other.disturbed:
            first = run.shape[1] // 2
            slow = np.ix_(rng.random(cells) < other.share, range(first, first + other.rounds))
            values[slow] += math.log1p(other.disturbed)
        values += np.log(seconds)[:, None]
        if other.quantum:
            values = np.log(np.maximum(np.round(np.exp(values) / other.quantum), 1) * other.quantum)
        found.append(values)
    return found
