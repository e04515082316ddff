"""The noise between rounds of an H200, fitted to two run files. As a script it prints the fit, also for other files.

The files are two runs in fresh processes, four minutes apart, of the same 307 cells with one round each. So there is
one difference d = ln(b / a) for each cell. Effects within a round (bursts, throttled samples) reach a gate only through
the round's median, so d includes them. The model has these parts, for cells that NVML saw limited and for the others:

- **own**: d without the common parts. A single d for each cell cannot show whether cells differ in noise or all have
  rare bad rounds, so both extremes are simulated: "cells" gives each simulated cell the standard deviation |d| /
  sqrt(2) of a measured one, "rounds" gives each round d / sqrt(2) of a measured one with a random sign. In both the
  root mean square of a difference is the measured one, and the tails are no lighter.
- **drift**: d moves slowly over the run's order: the mean of blocks of 30 cells, minus the part that own noise
  explains. It is simulated as a level for each block and round.
- **clock step**: the clock moves in steps of 15 MHz of 1980 (0.76 %), and a part of d of the limited cells follows it
  (least squares of d on the difference of ln clock; own noise is the residual). `stepped` is the share of readings held
  at a lower step. The harshest interpretation is simulated: in a round, with this chance, all limited cells are a step
  slower.
- **run shift**: the common part of all rounds of a run, which no number of rounds shows. In the only pair of runs no
  backend as a whole moved by more than this; it is taken as the standard deviation between runs.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from attnbench.core import stats
from attnbench.core.record import Record, Run
from attnbench.results import metrics, run_file
from attnbench.results.rows import Row, Source

RESULTS = Path(__file__).parents[2] / "results"
FILES = ("20261121-030350-default-nvidia-h200.jsonl.gz", "20261121-030731-default-nvidia-h200.jsonl.gz")
BLOCK = 30  # cells of a block
STEP = 15e6 / 1980e6


@dataclass(frozen=True)
class Noise:
    """The parts of the model, as logarithms: 0.001 is 0.1 %."""

    limited: np.ndarray  # own differences of limited cells
    free: np.ndarray  # own differences of other cells
    drift: float  # standard deviation of a block's level in one round
    step: float  # effect of a step of the clock on a limited cell's latency
    stepped: float  # chance of a round's step
    difference: float  # root mean square of the measured differences
    shift: float  # standard deviation between runs
    first_call: np.ndarray  # differences of ln first call
    first_calls: np.ndarray  # seconds of first calls


@lru_cache
def measured(files: tuple[str, ...] = FILES) -> Noise:
    a, b = (run_file.read(RESULTS / name)[0] for name in files)
    pairs = _pairs(a, b)
    d = np.array([math.log(y["latency"] / x["latency"]) for x, y, _, _ in pairs])
    limited = np.array([touched for _, _, touched, _ in pairs])
    blocks = np.array_split(d, round(len(d) / BLOCK))
    explained = float(np.mean([block.var(ddof=1) / len(block) for block in blocks]))
    drift = math.sqrt(max(0.0, float(np.var([block.mean() for block in blocks], ddof=1)) - explained) / 2)
    clock = np.array([math.log(y["clock_held"] / x["clock_held"]) for x, y, _, _ in pairs])
    slope = -float(np.polyfit(clock[limited], d[limited], 1)[0])
    own = (
        d
        + np.where(limited, slope * clock, 0.0)
        - np.concatenate([np.full(len(block), np.median(block)) for block in blocks])
    )
    held = np.array([r["clock_held"] for x, y, touched, _ in pairs if touched for r in (x, y)])
    backends = sorted({backend for *_, backend in pairs})
    moved = [
        stats.median([v for v, (*_, backend) in zip(d, pairs, strict=True) if backend == name]) for name in backends
    ]
    return Noise(
        limited=own[limited],
        free=own[~limited],
        drift=drift,
        step=slope * STEP,
        stepped=float(np.mean(held < 1980e6 * (1 - STEP / 2))),
        difference=float(np.sqrt(np.mean(d**2))),
        shift=max(map(abs, moved)),
        first_call=np.array([math.log(y["first_call"] / x["first_call"]) for x, y, _, _ in pairs]),
        first_calls=np.array([x["first_call"] for x, _, _, _ in pairs]),
    )


def _pairs(a: Run, b: Run) -> list[tuple[dict[str, float], dict[str, float], bool, str]]:
    """Return (values in a, values in b, whether either was limited, backend) of each cell, in the run's order."""
    later = {r.id: r for r in b.records if r.status == "ok"}
    return [
        (
            _values(x, a),
            _values(y, b),
            bool(x.limits or y.limits),
            x.backend,
        )
        for x in a.records
        if x.status == "ok" and (y := later.get(x.id))
    ]


def _values(record: Record, run: Run) -> dict[str, float]:
    row = Row(record, Source(run))
    return {name: metrics.value(name, row) or math.nan for name in ("latency", "clock_held", "first_call")}


def draw(
    rng: np.random.Generator,
    cells: int,
    rounds: int,
    kind: Literal["cells", "rounds"],
    scale: float = 1.0,
    shift: float | None = None,
    runs: int = 2,
) -> list[np.ndarray]:
    """Draw runs of the same cells without a change: logarithms, cells x rounds each, the current run last.

    `scale` multiplies the machine's noise; `shift` replaces the standard deviation between runs.
    """
    noise = measured()
    limited = rng.random(cells) < len(noise.limited) / (len(noise.limited) + len(noise.free))

    def own(columns: int) -> np.ndarray:
        size = (cells, columns)
        return np.where(limited[:, None], rng.choice(noise.limited, size), rng.choice(noise.free, size)) / math.sqrt(2)

    spread = np.abs(own(1))

    def side() -> np.ndarray:
        if kind == "cells":
            values = spread * rng.standard_normal((cells, rounds))
        else:
            values = own(rounds) * rng.choice((-1, 1), (cells, rounds))
        levels = rng.standard_normal((-(-cells // BLOCK), rounds)) * noise.drift
        values += np.repeat(levels, BLOCK, axis=0)[:cells]
        values += limited[:, None] * (rng.random(rounds) < noise.stepped) * noise.step
        between = rng.standard_normal() * (noise.shift * scale if shift is None else shift)
        return values * scale + between

    return [side() for _ in range(runs)]


def draw_first_calls(rng: np.random.Generator, cells: int, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the seconds of first calls in two runs.

    Each cell has the time of a measured one, and each round is off by a measured difference.
    """
    noise = measured()
    typical = rng.choice(noise.first_calls, (cells, 1))

    def side() -> np.ndarray:
        off = rng.choice(noise.first_call, (cells, rounds)) * rng.choice((-1, 1), (cells, rounds)) / math.sqrt(2)
        return typical * np.exp(off)

    return side(), side()


def main(files: tuple[str, ...]) -> None:
    noise = measured(files)
    for name, own in (("limited", noise.limited), ("other", noise.free)):
        at = np.percentile(np.abs(own), (50, 95, 100))
        print(f"{name:8} {len(own)} cells: own |d| {at[0]:.2%} median, {at[1]:.2%} p95, {at[2]:.2%} worst")
    print(f"drift    {noise.drift:.3%} a block of {BLOCK} cells and round")
    print(
        f"clock    a step of {STEP:.2%} does {noise.step:.2%} to a limited cell, in {noise.stepped:.0%} of the rounds"
    )
    print(f"runs     {noise.shift:.2%} between runs")
    at = np.percentile(np.abs(noise.first_call), (50, 95, 100))
    print(f"first    |d| {at[0]:.1%} median, {at[1]:.0%} p95, {at[2]:.0%} worst")


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or FILES)
