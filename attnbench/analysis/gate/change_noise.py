"""Estimates the noise of each change that a gate tests.

It has four parts: between rounds, between runs, of all cells together, and of cells that run at two speeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnbench.analysis.gate.rounds import Rounds
from attnbench.analysis.gate.run_effects import TIMES_A_JUMP, run_effects
from attnbench.analysis.gate.two_speeds import CHANCE, jump, largest_possible, rounds_that_tell
from attnbench.core import stats
from attnbench.results.noise import TIE, Prior, moderated, prior_from_changes, prior_from_variances

if TYPE_CHECKING:
    from attnbench.results.noise import Floats


@dataclass(frozen=True)
class Noise:
    """The changes of all tests of a gate and the estimates of their noise: one element for each test, logarithms."""

    n: Any  # rounds of the baseline
    m: Any  # rounds of the current run
    paired: Any
    change: Floats
    weight: Floats  # the variance of the change over the variance of one round
    variance: Floats  # of one round, or of the difference of one pair
    freedom: Floats  # its degrees of freedom; 0 where nothing is known
    tick: Floats  # of the timer
    between: Floats  # the variance of a change between runs, beyond what rounds show
    of_between: Floats  # its degrees of freedom
    common: Floats  # the change that all cells share
    joined: Floats  # the variance between runs of the change that all cells share
    of_joined: Floats  # the degrees of freedom of `joined`
    exact: Any  # whether the observed change is the true one
    controlled: Any  # whether `common` comes from backends that are the same in both runs
    jumped: Any  # number of cells whose jump between runs of the baseline explains a change of this size
    jumping: dict[int, tuple[int, int]]  # test -> number of cells at two speeds, rounds that would decide


def estimated(tests: Sequence[Rounds], share: float) -> Noise:
    """Return the changes of the tests and their noise; `share` is the part of the error rates that is spent.

    Tests of one family estimate their noise together. Raises ValueError where a side has no round.
    """
    number = len(tests)
    n, m = (np.array([*map(len, side)]) for side in zip(*((t.before, t.current) for t in tests), strict=True))
    paired, tick = np.array([t.paired for t in tests]), np.array([t.tick for t in tests])
    change, variance, freedom = _changes(tests, n, m, paired)
    weight = weight_of(n, m, paired)
    variance = np.where(freedom > 0, np.maximum(variance, tick**2 / 12), variance)
    rest: Any = (*np.zeros((4, number)), np.ones(number), *np.zeros((2, number), bool), np.zeros(number, int), {})
    found = Noise(n, m, paired, change, weight, variance, freedom, tick, *rest)
    families = np.array([t.family for t in tests])
    for family in np.unique(families):
        of = np.flatnonzero(families == family)
        prior = _prior(change[of], variance[of], freedom[of], weight[of], paired[of]) if family else Prior()
        several = freedom[of] > 0
        variance[of], freedom[of] = moderated(variance[of], freedom[of], prior)
        # Without noise the observed change is the true one: a metric whose rounds all tie. That is known only from
        # several rounds, or for a metric that has no noise.
        found.exact[of] = (several | (not family)) & (variance[of] <= TIE)
        if family:
            cells = [i for i in of[several].tolist() if not tests[i].cached]
            found.jumping.update(_jumping(tests, cells, change.tolist(), CHANCE * share))
        alone = of[(freedom[of] > 0) & ~paired[of]]
        if family and alone.size:
            some = [tests[i] for i in alone]
            noise = variance[alone].copy()
            variance[alone], freedom[alone] = _of_unlike_sides(some, n[alone], m[alone], noise, freedom[alone])
            rounds = variance[alone] * weight[alone] + tick[alone] ** 2 / 6
            seen = run_effects(some, change[alone], rounds, noise)
            found.between[alone], found.of_between[alone] = seen.between, seen.freedom
            found.common[alone], found.controlled[alone] = seen.common, seen.controlled
            found.joined[alone], found.of_joined[alone] = seen.common_variance, seen.common_freedom
            smaller = np.searchsorted(TIMES_A_JUMP * seen.jumps, np.abs(change[alone]))
            found.jumped[alone] = len(seen.jumps) - smaller
    return found


def _changes(tests: Sequence[Rounds], n: Any, m: Any, paired: Any) -> tuple[Floats, Floats, Floats]:
    """Return for each test the change, the variance of one round, and the degrees of freedom of that variance.

    The variance is pooled over both sides; of a paired test it is that of one pair's difference.
    """
    if not (n.all() and m.all()):
        raise ValueError("a round is needed on either side")
    change, variance = np.zeros((2, len(tests)))
    freedom = freedom_of(n, m, paired, np.array([len(t.runs) for t in tests]))
    shapes: dict[tuple[int, ...], list[int]] = {}
    for i, test in enumerate(tests):
        shapes.setdefault((test.paired, *map(len, test.runs), len(test.current)), []).append(i)
    for (in_pairs, *_), alike in shapes.items():
        some = [tests[i] for i in alike]
        sides = [np.array(side) for side in zip(*((*t.runs, t.current) for t in some), strict=True)]
        *before, after = [sides[-1] - sides[0]] if in_pairs else sides
        squares = sum(((side - side.mean(axis=1)[:, None]) ** 2).sum(axis=1) for side in (*before, after))
        change[alike] = after.mean(axis=1) - (np.concatenate(before, axis=1).mean(axis=1) if before else 0.0)
        variance[alike] = squares / np.maximum(freedom[alike], 1)
    return change, variance, freedom.astype(float)


def _prior(change: Floats, variance: Floats, freedom: Floats, weight: Floats, paired: Any) -> Prior:
    """Return the prior of the variance in one family of tests.

    Where no cell has two rounds, the changes of unpaired tests give it. Paired tests are left out there: their one pair
    may differ from other rounds by more than noise (a first call that fills a cache).
    """
    if freedom.any():
        return prior_from_variances(variance, freedom)
    return prior_from_changes(change[~paired].tolist(), weight[~paired].tolist())


def _of_unlike_sides(
    tests: Sequence[Rounds], n: Any, m: Any, variance: Floats, freedom: Floats
) -> tuple[Floats, Floats]:
    """Return the variance of one round and its degrees of freedom, with the current run's own where it is larger.

    This matters beside several runs of a baseline: they have most of the rounds, so that a current run that is less
    steady would look as steady as they are.
    """
    if not any(t.earlier for t in tests):
        return variance, freedom
    own = np.array([stats.variance(t.current) if len(t.current) > 1 else 0.0 for t in tests])
    own, of_own = moderated(own, m - 1.0, prior_from_variances(own, m - 1.0))
    worse = (own > variance) & np.array([bool(t.earlier) for t in tests])
    both = (variance / n + np.where(worse, own, variance) / m) / (1 / n + 1 / m)
    return both, np.where(worse, of_own, freedom)


def _jumping(
    tests: Sequence[Rounds], cells: Sequence[int], changes: Sequence[float], rate: float
) -> dict[int, tuple[int, int]]:
    """Return the cells whose change may be a jump between two speeds, judged by the other cells that are seen to jump.

    Each cell has the number of cells that jump, and the number of rounds to add so that false regressions are no more
    frequent than `rate`.
    """
    seen = {i: jump(tests[i].before, tests[i].current, math.log1p(tests[i].margin)) for i in cells}
    jumps = [each for each in seen.values() if each]
    if not jumps:
        return {}
    largest = largest_possible(jumps)
    found = {}
    for i in cells:
        n, m = len(tests[i].before), len(tests[i].current)
        possible = not seen[i] and math.log1p(tests[i].margin) < abs(changes[i]) <= largest
        if possible and (more := rounds_that_tell(jumps, n, m, rate)):
            found[i] = len(jumps), more
    return found


def error_of(
    weight: Floats,
    variance: Floats,
    freedom: Floats,
    between: Floats,
    of_between: Floats,
    tick: Floats,
    common: Floats | float = 0.0,
    of_common: Floats | float = 1.0,
) -> Any:
    """Return the standard error of a change and its degrees of freedom, by Welch and Satterthwaite.

    More rounds lessen one part, `variance` (of one round) times `weight`. They do not lessen the others: `between`
    runs, the rounding of both values to the timer's `tick`, and the change that all cells have in `common`.
    """
    rounds = variance * weight
    total = rounds + between + tick**2 / 6 + common
    unsure = rounds**2 / np.maximum(freedom, 1.0) + between**2 / np.maximum(of_between, 1.0) + common**2 / of_common
    return np.sqrt(total), np.divide(total**2, unsure, out=np.full_like(total, 1e6), where=unsure > 0)


def weight_of(n: Any, m: Any, paired: Any) -> Floats:
    """Return the variance of a change over the variance of one round, or of one pair's difference."""
    found: Floats = np.where(paired, 1 / n, 1 / n + 1 / m)
    return found


def freedom_of(n: Any, m: Any, paired: Any, runs: Any = 1) -> Any:
    """Return the degrees of freedom of the variance of one round, or of one pair's difference.

    The baseline has `n` rounds in `runs` runs, the current run has `m` rounds.
    """
    return np.where(paired, n - 1, n - runs + m - 1)
