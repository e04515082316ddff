"""Estimates the effects of a whole run, which its rounds cannot show: of all cells together, and of each cell.

docs/gate.md ("What rounds cannot show") has the idea.

**All cells together.** The median change of the cells, or of the controls, where there are enough. Its variance without
a change of the code comes from the baseline's runs; with fewer than SEVERAL runs, from single rounds.

**One cell.** The variance of a cell's mean between the baseline's runs, less the common part, with as many degrees of
freedom as there are runs after the first, moderated by the variance of all cells (results/noise.py). The prior has
FREEDOM degrees of freedom at most: cells of one backend may move together, and then the cells are fewer than they seem.
With a baseline of one run, the scatter of the changes takes the place of that variance (`noise.between_runs`): of the
controls' changes where there are enough controls, as changes of the code would count as noise.

**Jumps.** A jump is a difference of a cell between the baseline's runs that rounds do not explain. It explains changes
of any cell up to TIMES_A_JUMP its size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from attnbench.results.noise import (
    CELL_FREEDOM,
    MIN_SCATTER,
    SPREAD_FREEDOM,
    between_runs,
    moderated,
    prior_from_variances,
)

if TYPE_CHECKING:
    from attnbench.analysis.gate.rounds import Rounds
    from attnbench.results.noise import Floats

SEVERAL = 3  # runs of a baseline that suffice to estimate the variance between runs
FREEDOM = 4.0  # most degrees of freedom of the prior
EXPLAINED = 4.0  # standard errors: rounds explain a difference between runs up to this
TIMES_A_JUMP = 3.0


@dataclass(frozen=True)
class Effects:
    """Variances and changes of logarithms."""

    between: Floats  # variance of each cell's change beyond its rounds and the common part
    freedom: Floats  # degrees of freedom of `between`
    common: float = 0.0  # change of all cells together, or of the controls
    common_variance: float = 0.0  # variance of `common` where the code is the same
    common_freedom: float = 1.0
    controlled: bool = False  # whether `common` is of the controls
    jumps: Floats = field(default_factory=lambda: np.zeros(0))  # largest of each cell that has one, sorted


def run_effects(tests: Sequence[Rounds], change: Floats, rounds: Floats, noise: Floats) -> Effects:
    """Return the effects of whole runs, from the cells of one family.

    For each cell: its `change`, the variance of that change by its `rounds`, and the variance of one round (`noise`).
    """
    controls = np.array([test.control for test in tests])
    controlled = bool(controls.sum() >= MIN_SCATTER)
    reference = controls if controlled else np.ones(len(tests), bool)
    several = bool(reference.sum() >= MIN_SCATTER)
    common = float(np.median(change[reference])) if several else 0.0
    number = max(len(test.runs) for test in tests)
    of_rounds = _variance_of_levels(tests, reference, number, noise) if several else (0.0, 1.0)
    if number == 1:
        seen = max(len(test.runs[0]) + len(test.current) for test in tests) > 2
        slower, faster = between_runs(change[reference], rounds[reference]) if seen else (0.0, 0.0)
        between = np.where(change > 0, slower, faster)
        freedom = np.full(len(tests), max(CELL_FREEDOM * reference.sum(), 1.0))
        return Effects(between, freedom, common, 2 * of_rounds[0], of_rounds[1], controlled)
    means, counts = _means(tests, number)
    runs = np.isfinite(means).sum(axis=1)
    apart = means - np.nanmean(means, axis=1, keepdims=True)
    whole = reference & (runs == number)
    shifts = np.median(apart[whole], axis=0) if whole.sum() >= MIN_SCATTER else np.zeros(number)
    own = apart - shifts
    variance = np.nansum(own**2, axis=1) / np.maximum(runs - 1, 1)
    prior = prior_from_variances(variance, runs - 1.0, FREEDOM)
    variance, freedom = moderated(variance, runs - 1.0, prior)
    each = np.where(counts > 0, 1 / np.maximum(counts, 1), 0.0)
    beyond = np.maximum(variance - noise * each.sum(axis=1) / runs, 0.0)
    shares = (counts / counts.sum(axis=1, keepdims=True)) ** 2  # of the runs in the mean of all rounds
    of_runs = float((shifts**2).sum()) / (number - 1), number - 1.0
    if number < SEVERAL:
        of_runs = max(of_runs, of_rounds)
    return Effects(
        between=beyond * (1 + shares.sum(axis=1)),
        freedom=np.maximum(freedom, 1.0),
        common=common,
        common_variance=of_runs[0] * (1 + 1 / number),
        common_freedom=of_runs[1],
        controlled=controlled,
        jumps=_jumps(own, counts, runs, noise),
    )


def _variance_of_levels(tests: Sequence[Rounds], reference: Any, number: int, noise: Floats) -> tuple[float, float]:
    """Return the variance between the levels of single rounds, and its degrees of freedom.

    The level of a round is the median of the cells that have all rounds of its run. With one round a side no difference
    is seen, and the variance of the median cell takes its place.
    """
    squares, freedom = 0.0, 0
    of_cells = [test for test, chosen in zip(tests, reference, strict=True) if chosen]
    for run in (*range(number), None):
        sides = [t.current if run is None else t.runs[run] for t in of_cells if run is None or len(t.runs) > run]
        most = max(map(len, sides))
        values = np.array([side for side in sides if len(side) == most])
        squares += float((np.median(values - values.mean(axis=1, keepdims=True), axis=0) ** 2).sum())
        freedom += most - 1
    return (squares / freedom, float(freedom)) if freedom else (float(np.median(noise)), SPREAD_FREEDOM)


def _means(tests: Sequence[Rounds], number: int) -> tuple[Floats, Floats]:
    """Return the mean of each run of each cell (NaN where the run lacks the cell), and the number of its rounds."""
    means, counts = np.full((len(tests), number), np.nan), np.zeros((len(tests), number))
    for i, test in enumerate(tests):
        for run, values in enumerate(test.runs):
            if len(values):
                means[i, run], counts[i, run] = math.fsum(values) / len(values), len(values)
    return means, counts


def _jumps(own: Floats, counts: Floats, runs: Any, noise: Floats) -> Floats:
    """Return the largest jump of each cell that has one, sorted.

    A jump is a difference of a run of the baseline from the other runs of its cell that rounds do not explain.
    """
    others = counts.sum(axis=1, keepdims=True) - counts
    size = np.abs(own) * (runs / np.maximum(runs - 1, 1))[:, None]
    error = np.sqrt(noise[:, None] * (1 / np.maximum(counts, 1) + 1 / np.maximum(others, 1)))
    seen = np.where((counts > 0) & (others > 0) & (size > EXPLAINED * error), size, 0.0).max(axis=1)
    found: Floats = np.sort(seen[seen > 0])
    return found
