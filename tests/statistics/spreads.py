"""Compute attnbench/results/spreads.json, the spread of processes and cards of one model, from run files.

    python tests/statistics/spreads.py                         the devices of results/ and results/spreads/
    python tests/statistics/spreads.py MINE/*.jsonl.gz         the devices of other run files

Each run has fresh processes. Runs with one UUID of the device are of one card. Runs without a UUID are left out, and so
are searches (attnbench capacity), which time no cells. Methods are separate. Cells of several devices are left out,
because their communication is not a card's. All figures are of the natural logarithm of a cell's latency in one round.

- **processes**: between rounds and runs of one card, the least standard deviation with which 95 % of the differences
  between two of them are within 1.96 standard deviations, for the card where it is largest. Some cells repeat to 0.1 %
  and some to 1 %, so a mean of their variances would cover less. Only cells of at most MOST_KERNELS kernels count,
  because noise of kernels averages out over a call of many (eager, sdpa-math), which repeats to 0.1 or 0.2 %. Cards
  with fewer than LEAST_CELLS repeated cells do not count.
- **cards**: the spread of cards in its parts, for sums of cells (attnbench/results/pool.py), by the present method,
  from all cells that depend on nothing but a card's speed. The tests compare it with the differences of two cards in
  the cells of a comparison: in each case the fastest backend that both measured in one version. Cells of attnbench's
  own kernels are left out there, because their code changes between the runs of two cards.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnbench.analysis.compare.machines import File, machine_of
from attnbench.core import gpus, stats
from attnbench.core.case import Case
from attnbench.core.policy import METHOD
from attnbench.core.record import Run
from attnbench.results import run_file
from attnbench.results.cells import Cell, by_key, cells
from attnbench.results.pool import reml
from attnbench.results.together import together
from attnbench.results.uncertainty import NORMAL, Cards, Spread

RESULTS = Path(__file__).parents[2] / "results"
FILES = [*sorted(RESULTS.glob("*.jsonl.gz")), *sorted((RESULTS / "spreads").glob("*.jsonl.gz"))]
OWN_KERNELS = ("triton", "gluon", "tilelang", "helion")
MOST_KERNELS = 4
LEAST_CELLS = 30
COVERED = 0.95

Versioned = tuple[Case, str, str]  # a cell and the version of its backend


@dataclass(frozen=True)
class Measured:
    """The runs of one card, and the logarithms of their latencies: for each cell one in each round and run."""

    runs: Sequence[Run]
    logs: dict[Versioned, list[float]]
    kernels: dict[Versioned, int]  # fewest kernels of a call
    loads: dict[Versioned, float]  # from 0 to 1 (Cell.load)


def cards(files: Iterable[Path]) -> dict[str, dict[int, list[Measured]]]:
    """Return the cards by device, by the names of core/gpus.json, and by method, in the order of their UUIDs."""
    found: dict[tuple[str, int, str], list[Run]] = {}
    for file in files:
        run = run_file.read(file)[0]
        device = run.environment.device
        if (
            run.search is None
            and device.uuid
            and (gpu := gpus.find(device.name, device.memory, device.multiprocessors))
        ):
            found.setdefault((gpu.name, run.method, device.uuid), []).append(run)
    by_device: dict[str, dict[int, list[Measured]]] = {}
    for (name, method, _), runs in sorted(found.items()):
        by_device.setdefault(name, {}).setdefault(method, []).append(card(runs))
    return by_device


def card(runs: Sequence[Run]) -> Measured:
    """Return the measurements of some runs of one card."""
    logs: dict[Versioned, list[float]] = {}
    kernels: dict[Versioned, int] = {}
    loads: dict[Versioned, float] = {}
    for run in runs:
        for cell in cells([run], beside=together(runs)):
            found = cell.rounds("latency") if cell.status == "ok" and cell.case.ranks == 1 else {}
            if found:
                key = (*cell.key, cell.ok[0].record.version or run.versions.get(cell.backend, ""))
                logs.setdefault(key, []).extend(map(math.log, found.values()))
                ran = min(sum(row.record.kernels.values()) for row in cell.ok)
                kernels[key], loads[key] = min(ran, kernels.get(key, ran)), cell.load
    return Measured(runs, logs, kernels, loads)


def differences(one: Measured, most_kernels: float = MOST_KERNELS) -> dict[Versioned, list[float]]:
    """Return the differences between two rounds or runs, of each cell that has several."""
    found = {key: logs for key, logs in one.logs.items() if len(logs) > 1 and one.kernels[key] <= most_kernels}
    return {key: [a - b for a, b in itertools.combinations(logs, 2)] for key, logs in found.items()}


def processes(cards: Iterable[Measured]) -> float:
    """Return the standard deviation between processes of one card that covers COVERED of differences on any card."""
    of_cards = (found for one in cards if len(found := differences(one)) >= LEAST_CELLS)
    return max(map(_of_card, of_cards), default=0.0)


def _of_card(of_cells: Mapping[Versioned, Sequence[float]]) -> float:
    apart = [abs(difference) for of_cell in of_cells.values() for difference in of_cell]
    return float(np.quantile(apart, COVERED)) / NORMAL / math.sqrt(2)


def in_common(one: Measured, other: Measured) -> list[Versioned]:
    """Return the cells that two cards measured in one version, without attnbench's own kernels."""
    return [key for key in one.logs if key in other.logs and key[1].removeprefix("ulysses-") not in OWN_KERNELS]


def fastest(one: Measured, other: Measured) -> list[Versioned]:
    """Return the fastest of these cells in each case, over both cards together."""
    best: dict[Case, Versioned] = {}
    for key in sorted(in_common(one, other), key=lambda key: np.mean(one.logs[key]) + np.mean(other.logs[key])):
        best.setdefault(key[0], key)
    return [*best.values()]


def between(one: Measured, other: Measured, keys: Sequence[Versioned]) -> list[tuple[float, float]]:
    """Return the cells' differences between two cards, each with its variance for a spread of processes of 1."""
    return [
        (float(np.mean(other.logs[key]) - np.mean(one.logs[key])), 1 / len(one.logs[key]) + 1 / len(other.logs[key]))
        for key in keys
    ]


def measured(run: Run, beside: Sequence[Run], spread: Spread | None) -> dict[object, Cell]:
    """Return the measured cells of a run, with the uncertainty by a table with `spread`, by default attnbench's."""
    found = cells([run], beside=together(beside))
    if spread:
        found[0].source.__dict__["spread"] = spread
    return {key: cell for key, cell in by_key(found).items() if cell.status == "ok"}


def covered(runs: Iterable[tuple[Run, Run]], spread: Spread | None = None) -> tuple[float, float, float]:
    """Return the share of differences within the stated uncertainties, and the medians of these, single and joint."""
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


def parts(files: Iterable[Path]) -> dict[str, Cards]:
    """Return the parts of the spread of cards of each device, the most likely ones by the cells that cards share."""
    found: dict[str, list[File]] = {}
    for path in files:
        run = run_file.read(path)[0]
        device = run.environment.device
        gpu = gpus.find(device.name, device.memory, device.multiprocessors)
        if gpu and device.uuid and run.search is None and run.method == METHOD:
            found.setdefault(gpu.name, []).append(File(path, run))
    pools = {name: machine_of(name, of).pool for name, of in found.items()}
    return {name: reml(pool.readings, pool.spread) for name, pool in pools.items()}


def main(arguments: Sequence[str]) -> None:
    files = [*map(Path, arguments)] if arguments else FILES
    of_parts = parts(files)
    for device, by_method in cards(files).items():
        for method, of_method in by_method.items():
            print(f"{device}, method {method}: runs of each card {[len(one.runs) for one in of_method]}")
        print(f"{device}: processes {processes([one for of in by_method.values() for one in of]):.4f}")
        print(
            f"{device}: cards {', '.join(f'{name} {value:.4f}' for name, value in of_parts[device]._asdict().items())}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
