"""Improved, unchanged, regressed or inconclusive: the statistics of all cells and metrics of a gate together.

**Values.** A round is a fresh process and gives one value a cell; iterations within it are not replicates. A value is
the logarithm of a reading, larger is worse. The change of a cell is the difference d of the two means, its standard
error se = s sqrt(1/n + 1/m), with s and its degrees of freedom from `moderate`; so d / se is Student's.

**The margin** M = ln(1 + margin) is what a change must exceed to matter, and stands in the hypotheses:

- regressed: d <= M is rejected. p = P(T > (d - M) / se), of all cells and metrics together by Benjamini and Hochberg's
  step-up at FDR = 1 %. So of the regressions reported at most 1 % are expected to lie within the margin, and where
  nothing has worsened beyond it at most 1 % of gates report any, however large the noise between rounds. Benjamini and
  Hochberg, JRSS B 57(1), 1995; cells that share a machine's moods depend positively, which it allows: Benjamini and
  Yekutieli, Annals of Statistics 29(4), 2001.
- improved: the same for -d, a family of its own.
- unchanged: d <= -M and d >= M are both rejected at 5 % (two one-sided tests: Schuirmann, Journal of Pharmacokinetics
  and Biopharmaceutics 15, 1987). So a cell that is slower by the margin or more is called unchanged with 5 % at most.
  No correction for many cells: that all are unchanged is only claimed where each is shown to be, an
  intersection-union test (Berger, Technometrics 24(4), 1982).
- inconclusive: none of these.

Rounds that differ by their place in a run, as where the first one fills a cache for the rest, are compared in pairs: d
is the mean of their differences.

**The interval** of a cell is the one that decided: with 5 % beyond either end where d lies within the margin, and with
FDR R/m where it lies outside, R of m tests being rejected (R + 1 where this one is not): Benjamini and Yekutieli's
intervals for what was selected, JASA 100, 2005. So regressed is an interval wholly beyond the margin, unchanged one
wholly within, inconclusive one that crosses it, always.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from attnbench.gate.moderate import TIE, Prior, moderated, prior, stand_in

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]

Verdict = Literal["improved", "unchanged", "regressed", "inconclusive"]

FDR = 0.01
EQUIVALENCE = 0.05
POWER = 0.80  # with which the rounds that are asked for would settle it
MORE = (*range(1, 21), 25, 30, 40, 50, 70, 100)  # rounds to ask for


@dataclass(frozen=True)
class Rounds:
    """One metric of one cell: logarithms of its rounds' values, larger is worse."""

    baseline: Sequence[float]
    current: Sequence[float]
    margin: float  # relative: 0.03 is 3 %
    family: str = ""  # tests of one family help each other to know the noise; "" for a metric without noise
    paired: bool = False  # the rounds of the two sides belong together one by one, and only their differences count

    def weight(self, more: int = 0) -> float:
        """The variance of the change over that of one round (of one difference), with so many more rounds a side."""
        n, m = len(self.baseline) + more, len(self.current) + more
        return 1 / n if self.paired else 1 / n + 1 / m

    def freedom(self, more: int = 0) -> int:
        n, m = len(self.baseline) + more, len(self.current) + more
        return n - 1 if self.paired else n + m - 2


@dataclass(frozen=True)
class Decision:
    """Relative figures: a change of 0.01 is 1 % worse. Without any knowledge of the noise there is no interval."""

    verdict: Verdict
    change: float
    low: float | None
    high: float | None
    noise: float | None  # standard deviation of one round (of one difference)
    more: int | None = None  # rounds a side to add, if inconclusive; None where even 100 would hardly do
    weak: bool = False  # one round on a side


def decide(tests: Sequence[Rounds], share: float = 1.0, settled: Sequence[bool] = ()) -> list[Decision]:
    """One decision a test, in order; what is said of one depends on the others.

    `share` is how much of the error rates is to be spent here, where this is one look of several (looks.py). Tests that
    an earlier look has `settled` tell of the noise and count as hypotheses, and cannot be rejected anew.
    """
    if not tests:
        return []
    import numpy as np
    from scipy import special  # type: ignore[import-untyped]

    seen = [_seen(test) for test in tests]
    priors = _priors(tests, seen)
    noise = [moderated(s.variance, s.freedom, priors[t.family]) for t, s in zip(tests, seen, strict=True)]
    change = np.array([s.change for s in seen])
    variance, freedom = (np.array(column) for column in zip(*noise, strict=True))
    # Without noise what is seen is so: a metric that ties in all rounds. Without knowledge of it nothing is known.
    exact = np.array([(n[1] > 0 or not t.family) and n[0] <= TIE for t, n in zip(tests, noise, strict=True)])
    known = exact | (freedom > 0)
    going = ~np.array(settled or [False] * len(tests))
    error = np.sqrt(variance * np.array([t.weight() for t in tests]))
    margin = np.log1p([t.margin for t in tests])
    freedom = np.where(freedom > 0, freedom, 1.0)

    def p_beyond(distance: Floats) -> Floats:
        """Of the hypothesis that the true distance is not above 0."""
        scaled = np.divide(distance, error, out=np.zeros_like(distance), where=error > 0)
        p = np.where(exact, np.where(distance > 0, 0.0, 1.0), special.stdtr(freedom, -scaled))
        return np.where(known & going, p, 1.0)

    noisy = known & ~exact
    regressed, tail_worse = _step_up(p_beyond(change - margin), noisy, FDR * share)
    improved, tail_better = _step_up(p_beyond(-change - margin), noisy, FDR * share)
    within = np.maximum(p_beyond(margin - change), p_beyond(margin + change)) <= EQUIVALENCE * share
    unchanged = np.where(exact, np.abs(change) <= margin, within)
    tail = np.where(change > margin, tail_worse, np.where(change < -margin, tail_better, EQUIVALENCE * share))
    half = np.where(exact, 0.0, special.stdtrit(freedom, 1 - tail) * error)
    found = []
    for i, test in enumerate(tests):
        verdict: Verdict = "unchanged" if unchanged[i] else "inconclusive"
        if regressed[i] or improved[i]:
            verdict = "regressed" if regressed[i] else "improved"
        more = None
        if verdict == "inconclusive" and known[i] and going[i]:
            distance = abs(abs(change[i]) - margin[i])
            more = _more_rounds(test, distance, variance[i], freedom[i], tail[i])
        found.append(
            Decision(
                verdict,
                change=math.expm1(change[i]),
                low=math.expm1(change[i] - half[i]) if known[i] else None,
                high=math.expm1(min(change[i] + half[i], 700.0)) if known[i] else None,
                noise=math.sqrt(variance[i]) if known[i] else None,
                more=more,
                weak=min(len(test.baseline), len(test.current)) == 1,
            )
        )
    return found


@dataclass(frozen=True)
class _Seen:
    change: float
    variance: float  # of one round, pooled over both sides; of one difference where they are paired
    freedom: int


def _seen(test: Rounds) -> _Seen:
    if not test.baseline or not test.current:
        raise ValueError("a round is needed on either side")
    groups: Sequence[Sequence[float]] = (test.baseline, test.current)
    if test.paired:
        groups = ([y - x for x, y in zip(test.baseline, test.current, strict=True)],)
    means = [math.fsum(group) / len(group) for group in groups]
    squares = math.fsum((v - mean) ** 2 for group, mean in zip(groups, means, strict=True) for v in group)
    freedom = test.freedom()
    return _Seen(means[-1] - sum(means[:-1]), squares / freedom if freedom else 0.0, freedom)


def _priors(tests: Sequence[Rounds], seen: Sequence[_Seen]) -> Mapping[str, Prior]:
    """By family. Pairs of one round have no stand-in: what sets them apart from other rounds may be no noise at all."""
    members: dict[str, list[tuple[Rounds, _Seen]]] = {}
    for test, one in zip(tests, seen, strict=True):
        members.setdefault(test.family, []).append((test, one))
    found = {"": Prior()}
    for family, some in members.items():
        if family and any(s.freedom for _, s in some):
            found[family] = prior([s.variance for _, s in some], [s.freedom for _, s in some])
        elif family:
            alone = [(s.change, t.weight()) for t, s in some if not t.paired]
            found[family] = stand_in([change for change, _ in alone], [weight for _, weight in alone])
    return found


def _step_up(p: Floats, family: Any, rate: float) -> tuple[Any, Floats]:
    """Which hypotheses fall at this false discovery rate, and the tail that each interval leaves out on either side.

    The family is what has a chance of error: a test without noise (p is 0 or 1) is decided by itself.
    """
    import numpy as np

    ordered = np.sort(p[family])
    m = len(ordered)
    passing = np.flatnonzero(ordered * m <= rate * np.arange(1, m + 1))
    count = int(passing[-1]) + 1 if passing.size else 0
    passed = family & (p <= ordered[count - 1]) if count else np.zeros_like(family)
    m = max(m, 1)
    return passed | (~family & (p == 0)), np.where(passed, count, min(count + 1, m)) * rate / m


def _more_rounds(test: Rounds, distance: float, variance: float, freedom: float, tail: float) -> int | None:
    """The fewest of MORE on either side that leave the margin out of the interval with POWER, if the change stays."""
    import numpy as np
    from scipy import special

    error = np.sqrt(variance * np.array([test.weight(more) for more in MORE]))
    freedoms = freedom + np.array([test.freedom(more) - test.freedom() for more in MORE])
    enough = error * (special.stdtrit(freedoms, 1 - tail) + special.stdtrit(freedoms, POWER)) <= distance
    return MORE[int(np.argmax(enough))] if enough.any() else None
