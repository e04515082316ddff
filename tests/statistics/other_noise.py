"""Noise of other kinds than an H200's: what CPUs, other GPUs and other days do to runs. Each is added to that of
h200_noise.py, with nothing changed.

- **modes**: some cells run at one of two speeds, 4 to 8 % apart, and each process draws its own, as where memory lands
  differs between processes (Mytkowicz et al., "Producing Wrong Data Without Doing Anything Obviously Wrong!", ASPLOS
  2009; Kalibera and Jones, "Rigorous Benchmarking in Reasonable Time", ISMM 2013).
- **slow_process**: all cells of a process are 5 % slower, by this chance.
- **offset**: each cell of a run is off by an amount of its own, which all rounds of the run share.
- **shift** of a **group**: this share of the cells is off by one amount in all rounds of a run.
- **off**: this share of the cells, others in each run, is off by OFF in all rounds of a run, in either direction.
- **disturbed**: another program slows a share of the cells in some rounds of the current run.
- **quantum**: the timer counts in steps, and what a cell takes is rounded to them. `time.perf_counter` counts in steps
  of up to 1 us, CUDA events in steps of about 0.5 us ("CUDA Runtime API", cudaEventElapsedTime).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

S = TypeVar("S")
LATENCY = 1e-3  # seconds, of every cell: a gate sees ratios only
GAPS = (0.04, 0.08)
SLOWER, OFF = 0.05, 0.03
LATENCIES = (20e-6, 10e-3)  # but where the timer counts in steps
STEPS = 100  # of the timer that a changed cell takes at least: what is planted must be larger than a step


@dataclass(frozen=True)
class Other:
    """What to add to runs."""

    modes: int = 0  # cells, the last ones, that have two speeds
    slow_process: float = 0.0  # chance
    offset: float = 0.0  # standard deviation in each run
    shift: float = 0.0  # likewise
    group: float = 1.0  # share of the cells
    heavy: bool = False  # offsets and shifts have Student's distribution with 3 degrees of freedom, of that scale
    off: float = 0.0  # share of the cells
    disturbed: float = 0.0  # 0.05: slower by 5 %
    rounds: int = 1  # that are disturbed
    share: float = 1 / 3  # of the cells
    quantum: float = 0.0  # seconds


NONE = Other()


def add(rng: np.random.Generator, other: Other, runs: Sequence[np.ndarray], changed: int) -> list[np.ndarray]:
    """Return the logarithms of runs, cells x rounds, with the noise added; the first cells are the changed ones."""
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


def asked_for(doc: str | None, scenarios: Mapping[str, S], runs: int) -> Iterator[tuple[str, S, int]]:
    """Yield name and scenario of those that the options --runs and --only ask for, and how many runs of each."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--runs", type=int, default=runs)
    parser.add_argument("--only", default="", metavar="TEXT", help="the scenarios with this text in their names")
    asked = parser.parse_args()
    yield from ((what, scenario, asked.runs) for what, scenario in scenarios.items() if asked.only in what)
