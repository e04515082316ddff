"""How far processes and cards of one model lie apart: what attnbench/results/spreads.json holds, from run files.

    python tests/statistics/spreads.py                                 the entry of the H200, from the files in results/
    python tests/statistics/spreads.py A1.jsonl,A2.jsonl B1.jsonl,...  another: the runs of card A, those of B, ...

Each run is of fresh processes and of the same cells. All figures are of the natural logarithm of a cell's latency in
one round.

- **processes**: the standard deviation between rounds and runs of one card: of each cell the variance, and the root of
  their mean over cells. Only cells of at most MOST_KERNELS kernels count. What moves a kernel averages out over a call
  of many (eager, sdpa-math): those repeat to 0.1 or 0.2 %.
- **units**: the same between cards of one model, less what processes explain; over all cells that two cards have in
  common. Runs that do not name their card (of before 21 November 2026, noon) are left out.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnbench.core import stats
from attnbench.core.record import Run
from attnbench.results import run_file
from attnbench.results.cells import Cell, Key, by_key, cells
from attnbench.results.uncertainty import Spread

RESULTS = Path(__file__).parents[2] / "results"
MOST_KERNELS = 4
H200 = (  # each line: the runs of one card
    ("20261121-030350-default-nvidia-h200.jsonl.gz", "20261121-030731-default-nvidia-h200.jsonl.gz"),
    ("20261121-141028-default-nvidia-h200.jsonl.gz", "20261121-141425-default-nvidia-h200.jsonl.gz"),
    ("20261121-114304-triton-nvidia-h200.jsonl.gz",),
    ("20261121-174520-libraries-nvidia-h200.jsonl.gz",),
    ("20261121-211235-features-nvidia-h200.jsonl.gz",),
)


@dataclass(frozen=True)
class Measured:
    """The logarithms of the latencies of some runs of one card: of each cell one a round and run."""

    logs: dict[Key, list[float]]
    kernels: dict[Key, int]  # of one call, the fewest
    uuid: str | None  # of the card


def card(files: Iterable[str | Path]) -> Measured:
    logs: dict[Key, list[float]] = {}
    kernels: dict[Key, int] = {}
    runs = [run_file.read(RESULTS / file)[0] for file in files]
    for run in runs:
        for cell in cells([run], beside=runs):
            found = cell.rounds("latency") if cell.status == "ok" else {}
            if found:
                logs.setdefault(cell.key, []).extend(map(math.log, found.values()))
                ran = min(sum(row.record.kernels.values()) for row in cell.ok)
                kernels[cell.key] = min(ran, kernels.get(cell.key, ran))
    return Measured(logs, kernels, runs[0].environment.device.uuid)


def variances(one: Measured, most_kernels: float = MOST_KERNELS) -> list[float]:
    """Return the variance between rounds and runs of each cell that has several."""
    keys = (key for key, logs in one.logs.items() if len(logs) > 1 and one.kernels[key] <= most_kernels)
    return [float(np.var(one.logs[key], ddof=1)) for key in keys]


def processes(cards: Iterable[Measured], most_kernels: float = MOST_KERNELS) -> float:
    """Return the standard deviation between processes of one card."""
    return math.sqrt(np.mean([v for one in cards for v in variances(one, most_kernels)]))


def between(one: Measured, other: Measured) -> tuple[list[float], float]:
    """Return the cells' differences between two cards, and the part of their variance that processes explain, for a
    standard deviation of 1 between these."""
    keys = [key for key in one.logs if key in other.logs]
    apart = [float(np.mean(other.logs[key]) - np.mean(one.logs[key])) for key in keys]
    return apart, float(np.mean([1 / len(one.logs[key]) + 1 / len(other.logs[key]) for key in keys]))


def measured(run: Run, beside: Sequence[Run], spread: Spread | None) -> dict[object, Cell]:
    """Return the measured cells of a run, with the uncertainty that a table with this entry would state; else ours."""
    found = cells([run], beside=beside)
    if spread:
        found[0].source.__dict__["spread"] = spread
    return {key: cell for key, cell in by_key(found).items() if cell.status == "ok"}


def covered(runs: Iterable[tuple[Run, Run]], spread: Spread | None = None) -> tuple[float, float, float]:
    """Return the share of differences that the stated uncertainties of both runs explain, and their medians: that of
    one figure and that of a difference."""
    hits, halves, both = [], [], []
    for runs_of_pair in runs:
        one, other = (measured(run, runs_of_pair, spread) for run in runs_of_pair)
        for a, b in ((one[key], other[key]) for key in one if key in other):
            ours, theirs = a.value("ci"), b.value("ci")
            if ours and theirs:
                hits.append(a.alike(b))
                halves += [ours, theirs]
                both.append(math.hypot(ours, theirs))
    return sum(hits) / len(hits), stats.median(halves), stats.median(both)


def pairs(cards: Iterable[Measured]) -> list[tuple[Measured, Measured]]:
    """Return each two cards that are named and differ."""
    return [(a, b) for a, b in itertools.combinations(cards, 2) if a.uuid and b.uuid and a.uuid != b.uuid]


def units(cards: Iterable[Measured], of_processes: float) -> float:
    """Return the standard deviation between cards, with that between processes taken off; pairs count by cells."""
    found, cells = [], []
    for one, other in pairs(cards):
        apart, share = between(one, other)
        found.append((np.mean(np.square(apart)) - share * of_processes**2) / 2)
        cells.append(len(apart))
    return math.sqrt(max(0.0, float(np.average(found, weights=cells))))


def main(arguments: Sequence[str]) -> None:
    arguments = [",".join(str(Path(file).resolve()) for file in word.split(",")) for word in arguments]
    cards = [card(word.split(",")) for word in arguments] or [card(files) for files in H200]
    for number, one in enumerate(cards, start=1):
        for most, what in ((MOST_KERNELS, f"cells of at most {MOST_KERNELS} kernels"), (math.inf, "all cells")):
            if found := variances(one, most):
                print(f"card {number}, {what}: {len(found)}, processes {math.sqrt(np.mean(found)):.2%}")
        if moved := [logs[1] - logs[0] for logs in one.logs.values() if len(logs) == 2]:
            at = np.percentile(np.abs(moved), (50, 95, 100))
            print(
                f"card {number}, two runs, {len(moved)} cells: mean {np.mean(moved):+.2%}, {at[0]:.2%} median, ", end=""
            )
            print(f"{at[1]:.2%} p95, {at[2]:.2%} worst")
    for number, word in enumerate(arguments or map(",".join, H200), start=1):
        runs = [run_file.read(RESULTS / file)[0] for file in word.split(",")]
        if len(runs) > 1:
            share, half, both = covered(itertools.combinations(runs, 2))
            print(
                f"card {number}, {len(runs)} runs in pairs: {share:.1%} of the differences are within what is stated, ",
                end="",
            )
            print(f"{half:.2%} for the median figure, {both:.2%} for the median difference")
    for one, other in pairs(cards):
        i, j = cards.index(one) + 1, cards.index(other) + 1
        apart = np.abs(between(one, other)[0])
        at = np.percentile(apart, (50, 95, 100))
        print(f"cards {i} and {j}, {len(apart)} cells: {at[0]:.2%} median, {at[1]:.2%} p95, {at[2]:.2%} worst")
    found = processes(cards)
    print(f"processes {found:.4f}")
    if pairs(cards):
        print(f"units {units(cards, found):.4f}")


if __name__ == "__main__":
    main(sys.argv[1:])
