"""The gate's test: improved, unchanged, regressed or inconclusive, for all cells and metrics of a gate together.

**Values.** A round is a fresh process and gives one value per cell; iterations within a round are not replicates. A
value is the logarithm of what was measured, larger is worse. The change of a cell is the difference d of the two sides'
means. Its squared error se^2 is the sum of three parts:

- of the rounds: s^2 (1/n + 1/m), with s and its degrees of freedom from noise.py; beside several runs of a baseline the
  current run's own s where it is larger;
- between runs: from run_effects.py;
- of a timer that counts in steps q: q^2 / 12 on either side, however many rounds tie, and s^2 is q^2 / 12 at least (the
  rectangular distribution of a reading: JCGM 100:2008, "Guide to the expression of uncertainty in measurement",
  F.2.2.1).

d / se has nearly Student's distribution, with the degrees of freedom of Welch and Satterthwaite (the same, G.4.1).

**The margin** M = ln(1 + margin) is what a change must exceed to matter. It stands in the hypotheses:

- regressed: d <= M is rejected, for d as it is and for d less the change common to all cells (run_effects.py), which
  the machine may cause; or for d as it is, with the variance of the common part between runs in se^2.
  p = P(T > (d - M) / se), of all cells and metrics together by Benjamini and Hochberg's
  step-up procedure at a false discovery rate of FDR = 1 %. So of the regressions reported at most 1 % are expected to
  lie within the margin, and where nothing has worsened beyond it at most 1 % of gates report any, however large the
  noise between rounds. Benjamini and Hochberg, JRSS B 57(1), 1995; cells that share the state of a machine depend
  positively on each other, which it allows: Benjamini and Yekutieli, Annals of Statistics 29(4), 2001.
- improved: the same for -d, as a family of its own.
- unchanged: d <= -M and d >= M are both rejected at 5 % (two one-sided tests: Schuirmann, Journal of Pharmacokinetics
  and Biopharmaceutics 15, 1987). So a cell that is slower by the margin or more is called unchanged in at most 5 % of
  the cases. No correction for many cells: that all are unchanged is claimed only where each is shown to be, an
  intersection-union test (Berger, Technometrics 24(4), 1982). It must hold with and without the common
  change. A cell with SLOW_ROUNDS rounds that are slower by about the margin is not called unchanged.
- inconclusive: none of these; or a change that cells with two speeds make too likely (two_speeds.py), or one that
  differences between runs of the baseline explain (run_effects.py).

Rounds that differ by their place in a run (the first one may fill a cache for the others) are compared in pairs: d is
the mean of the pairs' differences.

**The interval** of a cell is the one that decided: with 5 % beyond either end where d lies within the margin, and with
FDR R/m where it lies outside, R of m tests being rejected (R + 1 where this one is not): Benjamini and Yekutieli's
intervals for selected parameters, JASA 100, 2005. So the interval of a regressed cell always lies wholly beyond the
margin, the interval of an unchanged cell wholly within it, and the interval of an inconclusive cell crosses it, except
where only its slow rounds keep it from being called unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special  # type: ignore[import-untyped]

from attnbench.analysis.gate.change_noise import Noise, error_of, estimated, freedom_of, weight_of
from attnbench.analysis.gate.rounds import Rounds
from attnbench.analysis.gate.verdicts import Decision
from attnbench.core import stats

if TYPE_CHECKING:
    from attnbench.results.noise import Floats

FDR = 0.01
EQUIVALENCE = 0.05
SLOW_ROUNDS = 2  # of the current run that are slower by NEARLY the margin: such a cell is not called unchanged
NEARLY = 0.95
POWER = 0.80  # the probability with which the rounds that are asked for would decide
MORE_ROUNDS = (*range(1, 21), 25, 30, 40, 50, 70, 100)  # numbers of additional rounds that may be asked for


def decide(tests: Sequence[Rounds], share: float = 1.0, settled: Sequence[bool] = ()) -> list[Decision]:
    """Return one decision for each test, in order; each depends on the others.

    `share` is the part of the error rates that is spent here, where this is one look of several (repeated_looks.py).
    Tests that an earlier look has `settled` contribute to the common noise and count as hypotheses, but are not
    rejected again. Raises ValueError where a side has no round.
    """
    if not tests:
        return []
    seen = estimated(tests, share)
    change, net = seen.change, seen.change - seen.common
    margin = np.log1p(np.array([t.margin for t in tests]))
    going = ~np.array(settled or [False] * len(tests))
    held = np.zeros(len(tests), bool)
    held[[*seen.jumping]] = True
    off = (margin < np.abs(change)) & (seen.jumped > 0)
    slow = np.array([_slow_rounds(t, mean) for t, mean in zip(tests, change, strict=True)])
    exact, known = seen.exact, seen.exact | (seen.freedom > 0)
    parts = seen.variance, seen.freedom, seen.between, seen.of_between, seen.tick
    error, joint = error_of(seen.weight, *parts)
    whole, of_whole = error_of(seen.weight, *parts, seen.joined, seen.of_joined)

    def p_beyond(distance: Floats, error: Floats = error, joint: Floats = joint) -> Floats:
        """Return the p values of the hypothesis that the true distance is not above 0."""
        scaled = np.divide(distance, error, out=np.zeros_like(distance), where=error > 0)
        p = np.where(exact, np.where(distance > 0, 0.0, 1.0), special.stdtr(joint, -scaled))
        return np.where(known & going, p, 1.0)

    def p_changed(sign: int) -> tuple[Floats, Any]:
        """Return the p values of the hypothesis that a cell is not worse (better) than the margin by its code.

        Return too which p values rest on the whole change, whose common part may come from the code.
        """
        raw = p_beyond(sign * change - margin)
        apart = np.maximum(raw, p_beyond(sign * net - margin))
        alone = np.where(seen.controlled, 1.0, np.maximum(raw, p_beyond(sign * change - margin, whole, of_whole)))
        return np.minimum(apart, alone), alone < apart

    noisy = known & ~exact
    (p_worse, worse_alone), (p_better, better_alone) = p_changed(1), p_changed(-1)
    regressed, tail_worse = _step_up(p_worse, noisy, FDR * share)
    improved, tail_better = _step_up(p_better, noisy, FDR * share)
    lowest, highest = np.minimum(change, net), np.maximum(change, net)
    within = np.maximum(p_beyond(margin - highest), p_beyond(margin + lowest)) <= EQUIVALENCE * share
    unchanged = np.where(exact, np.abs(change) <= margin, within & (slow < SLOW_ROUNDS))
    tail = np.where(change > margin, tail_worse, np.where(change < -margin, tail_better, EQUIVALENCE * share))
    as_is = np.where(change > margin, worse_alone & regressed, better_alone & improved)
    half, half_as_is = (
        np.where(exact, 0.0, special.stdtrit(freedom, 1 - tail) * of)
        for of, freedom in ((error, joint), (whole, of_whole))
    )
    half_own = np.where(as_is, np.maximum(half, half_as_is), half)
    lower, upper = np.where(exact | as_is, (change - half_own, change + half_own), (lowest - half, highest + half))
    crosses = held | off
    lower, upper = np.where(crosses, (np.minimum(lower, 0.0), np.maximum(upper, 0.0)), (lower, upper))
    called = [regressed & ~crosses, improved & ~crosses, unchanged]
    verdicts = np.select(called, ["regressed", "improved", "unchanged"], "inconclusive")

    is_open = verdicts == "inconclusive"
    undecided = np.flatnonzero(is_open & known & going)
    beyond, sign = np.abs(change) > margin, np.sign(change)
    distance = np.where(beyond, np.minimum(np.abs(change), sign * net) - margin, margin - np.maximum(highest, -lowest))
    as_it_is = np.where(beyond & ~seen.controlled, np.abs(change) - margin, -1.0)
    routes = [(distance, parts), (as_it_is, (*parts, seen.joined, seen.of_joined))]
    more, current = _rounds_to_add(seen, undecided, tail, routes)
    together = is_open & (distance <= 0) & (np.abs(seen.common) > margin / 3)
    none = np.array(None)
    columns = {
        "verdict": verdicts,
        "change": _expm1(change),
        "low": np.where(known, _expm1(lower), none),
        "high": np.where(known, _expm1(upper), none),
        "noise": np.where(known, np.sqrt(seen.variance), none),
        "level": np.where(known & ~exact, 1 - 2 * tail, none),
        "between": np.sqrt(seen.between),
        "jumped": np.where(is_open & off, seen.jumped, 0),
        "slow_rounds": np.where(is_open & within, slow, 0),
        "in_common": np.where(together, _expm1(seen.common), none),
    }
    decisions = []
    for i, figures in enumerate(zip(*(column.tolist() for column in columns.values()), strict=True)):
        jumping, to_add = seen.jumping.get(i, (0, more.get(i)))
        of_current = None if jumping or seen.paired[i] else current.get(i)
        named = dict(zip(columns, figures, strict=True))
        decisions.append(Decision(**named, more=to_add, more_current=of_current, jumping=jumping))
    return decisions


def _expm1(logarithms: Any) -> Any:
    """Return the changes of ratios' logarithms, as stats.expm1 does."""
    return np.expm1(np.minimum(logarithms, stats.LARGEST_EXPONENT))


def _slow_rounds(test: Rounds, change: float) -> int:
    """Return how many rounds of the current run are slower than the baseline by NEARLY the margin or more."""
    if not test.family or test.paired:
        return 0
    mean = math.fsum(test.current) / len(test.current) - change
    return sum(value - mean >= NEARLY * math.log1p(test.margin) for value in test.current)


def _step_up(p: Floats, family: Any, rate: float) -> tuple[Any, Floats]:
    """Return which hypotheses are rejected at this false discovery rate, and the tail beyond each interval's end.

    `family` marks the tests that can err; a test without noise (its p is 0 or 1) is decided by itself.
    """
    ordered = np.sort(p[family])
    m = len(ordered)
    passing = np.flatnonzero(ordered * m <= rate * np.arange(1, m + 1))
    count = int(passing[-1]) + 1 if passing.size else 0
    passed = family & (p <= ordered[count - 1]) if count else np.zeros_like(family)
    m = max(m, 1)
    return passed | (~family & (p == 0)), np.where(passed, count, min(count + 1, m)) * rate / m


def _rounds_to_add(
    seen: Noise, undecided: Any, tail: Floats, routes: Sequence[tuple[Floats, Sequence[Floats]]]
) -> list[dict[int, int | None]]:
    """Return two maps, undecided test -> fewest rounds to add: to both sides, and to the current run alone.

    The fewest is over `routes` to a decision, each a distance of the change from the margin and the arguments of
    error_of; None where no route has a number.
    """
    found = []
    for alone in (False, True):
        columns = ((seen.n, seen.m, seen.paired, far, tail, *parts) for far, parts in routes)
        ways = [_more_rounds(*(of[undecided] for of in way), of_current=alone) for way in columns]
        fewest = (min(filter(None, rounds), default=None) for rounds in zip(*ways, strict=True))
        found.append(dict(zip(undecided.tolist(), fewest, strict=True)))
    return found


def _more_rounds(
    n: Any, m: Any, paired: Any, distance: Floats, tail: Floats, *parts: Floats, of_current: bool = False
) -> list[int | None]:
    """Return for each test the smallest of MORE_ROUNDS with which the interval would probably not hold the margin.

    So many rounds are added to both sides, or with `of_current` to the current run alone. The margin is then outside of
    the interval with probability POWER, if the change stays as it is. None: the largest of MORE_ROUNDS would not do, or
    the change is on the other side of the margin. `distance`: from the margin to the change, a logarithm; `parts`: the
    arguments of error_of.
    """
    more = np.array(MORE_ROUNDS)
    of_baseline = 0 * more if of_current else more
    n, m, paired, distance, tail = (column[:, None] for column in (n, m, paired, distance, tail))
    variance, freedom, *others = (part[:, None] for part in parts)
    freedom = freedom + (freedom_of(n + of_baseline, m + more, paired) - freedom_of(n, m, paired))
    error, joint = error_of(weight_of(n + of_baseline, m + more, paired), variance, freedom, *others)
    enough = error * (special.stdtrit(joint, 1 - tail) + special.stdtrit(joint, POWER)) <= distance
    return [MORE_ROUNDS[row.argmax()] if row.any() else None for row in enough]
