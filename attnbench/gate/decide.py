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

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from attnbench.gate.moderate import TIE, Prior, moderated, prior, stand_in

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]

Verdict = Literal["improved", "unchanged", "regressed", "inconclusive"]

_BASELINE, _CURRENT = attrgetter("baseline"), attrgetter("current")
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

    change, variance, freedom = _seen(tests)
    weight = np.array([t.weight() for t in tests])
    exact = np.zeros(len(tests), bool)
    families: dict[str, list[int]] = {}
    for i, test in enumerate(tests):
        families.setdefault(test.family, []).append(i)
    for family, some in families.items():
        paired = np.array([tests[i].paired for i in some])
        common = _prior(change[some], variance[some], freedom[some], weight[some], paired) if family else Prior()
        variance[some], freedom[some] = moderated(variance[some], freedom[some], common)
        # Without noise what is seen is so: a metric that ties in all rounds. Without knowledge of it nothing is known.
        exact[some] = ((freedom[some] > 0) | (not family)) & (variance[some] <= TIE)
    known = exact | (freedom > 0)
    going = ~np.array(settled or [False] * len(tests))
    error = np.sqrt(variance * weight)
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
    verdicts = np.select([regressed, improved, unchanged], ["regressed", "improved", "unchanged"], "inconclusive")
    columns = [np.expm1(change), np.expm1(change - half), np.expm1(np.minimum(change + half, 700.0)), np.sqrt(variance)]
    found = []
    for i, (test, verdict, is_known, moved, low, high, spread) in enumerate(
        zip(tests, verdicts.tolist(), known.tolist(), *(column.tolist() for column in columns), strict=True)
    ):
        more = None
        if verdict == "inconclusive" and is_known and going[i]:
            distance = abs(abs(change[i]) - margin[i])
            more = _more_rounds(test, distance, variance[i], freedom[i], tail[i])
        weak = min(len(test.baseline), len(test.current)) == 1
        if not is_known:
            low = high = spread = None
        found.append(Decision(verdict, moved, low, high, spread, more, weak))
    return found


def _seen(tests: Sequence[Rounds]) -> tuple[Floats, Floats, Floats]:
    """Of each test the change, the variance of one round, pooled over both sides (of one difference where they are
    paired), and its degrees of freedom."""
    import numpy as np

    alike: dict[tuple[int, int, bool], list[int]] = {}
    for i, test in enumerate(tests):
        alike.setdefault((len(test.baseline), len(test.current), test.paired), []).append(i)
    change, variance, freedom = np.zeros((3, len(tests)))
    for (n, m, paired), some in alike.items():
        if not n or not m:
            raise ValueError("a round is needed on either side")
        before, after = (np.array([side(tests[i]) for i in some]) for side in (_BASELINE, _CURRENT))
        groups = (after - before,) if paired else (before, after)
        means = [group.mean(axis=1) for group in groups]
        squares = sum(((g - mean[:, None]) ** 2).sum(axis=1) for g, mean in zip(groups, means, strict=True))
        change[some] = means[-1] - sum(means[:-1])
        freedom[some] = tests[some[0]].freedom()
        variance[some] = squares / max(tests[some[0]].freedom(), 1)
    return change, variance, freedom


def _prior(change: Floats, variance: Floats, freedom: Floats, weight: Floats, paired: Any) -> Prior:
    """Of a family. Pairs of one round have no stand-in: what sets them apart from other rounds may be no noise."""
    if freedom.any():
        return prior(variance, freedom)
    return stand_in(change[~paired].tolist(), weight[~paired].tolist())


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
