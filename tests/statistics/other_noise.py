"""Noise of other kinds than an H200's: what CPUs, other GPUs and other days do to two runs. Each is added to that of
h200_noise.py, with nothing changed.

- **modes**: some cells run at one of two speeds, 4 to 8 % apart, and each process draws its own, as where memory lands
  differs between processes (Mytkowicz et al., "Producing Wrong Data Without Doing Anything Obviously Wrong!", ASPLOS
  2009; Kalibera and Jones, "Rigorous Benchmarking in Reasonable Time", ISMM 2013).
- **offset**: each cell of a run is off by an amount of its own, which all rounds of the run share.
- **disturbed**: another program slows a third of the cells in one round of the current run.
- **quantum**: the timer counts in steps, and what a cell takes is rounded to them. `time.perf_counter` counts in steps
  of up to 1 us, CUDA events in steps of about 0.5 us ("CUDA Runtime API", cudaEventElapsedTime).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

LATENCY = 1e-3  # seconds, of every cell: a gate sees ratios only
GAPS = (0.04, 0.08)
LATENCIES = (20e-6, 10e-3)  # but where the timer counts in steps
STEPS = 100  # of the timer that a changed cell takes at least: what is planted must be larger than a step


@dataclass(frozen=True)
class Other:
    """What to add to two runs."""

    modes: int = 0  # cells, the last ones, that have two speeds
    offset: float = 0.0  # standard deviation in either run
    disturbed: float = 0.0  # 0.05: slower by 5 %
    quantum: float = 0.0  # seconds


NONE = Other()


def add(
    rng: np.random.Generator, other: Other, before: np.ndarray, after: np.ndarray, changed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the logarithms of two runs, cells x rounds, with the noise added; the first cells are the changed ones."""
    cells = len(before)
    gaps = np.where(np.arange(cells) < cells - other.modes, 0.0, np.log1p(rng.uniform(*GAPS, cells)))[:, None]
    seconds = np.exp(rng.uniform(*np.log(LATENCIES), cells)) if other.quantum else np.full(cells, LATENCY)
    seconds[:changed] = np.maximum(seconds[:changed], STEPS * other.quantum)
    slow = np.zeros(after.shape)
    if other.disturbed:
        slow[rng.random(cells) < 1 / 3, after.shape[1] // 2] = math.log1p(other.disturbed)
    sides = []
    for side in (before, after + slow):
        values = side + gaps * (rng.random(side.shape) < 0.5) + other.offset * rng.standard_normal((cells, 1))
        values += np.log(seconds)[:, None]
        if other.quantum:
            values = np.log(np.maximum(np.round(np.exp(values) / other.quantum), 1) * other.quantum)
        sides.append(values)
    return sides[0], sides[1]
