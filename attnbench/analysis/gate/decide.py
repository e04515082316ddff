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
from typing import TYPE_CHECKING, Any, Literal

from attnbench.analysis.gate import rounds
from attnbench.analysis.gate.moderate import TIE, Prior, moderated, prior, stand_in
from attnbench.analysis.gate.rounds import AllRounds, Rounds
from attnbench.results.made import Made

if TYPE_CHECKING:
    from attnbench.results.arrays import Floats

Verdict = Literal["improved", "unchanged", "regressed", "inconclusive"]

FDR = 0.01
EQUIVALENCE = 0.05
POWER = 0.80  # with which the rounds that are asked for would settle it
MORE = (*range(1, 21), 25, 30, 40, 50, 70, 100)  # rounds to ask for


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


@dataclass(frozen=True, eq=False)
class Decisions(Made[Decision]):
    """By column: a Decision is made when it is asked for."""

    tests: AllRounds
    verdicts: list[Verdict]
    changes: list[float]
    lows: list[float]
    highs: list[float]
    noises: list[float]
    known: list[bool]  # whether there is any knowledge of the noise, and so an interval
    going: list[bool]  # not settled before
    distance: Floats  # from the margin; this and what follows in logarithms
    variance: Floats  # of one round (of one difference)
    freedom: Floats
    tail: Floats  # that the interval leaves out on either side

    def __len__(self) -> int:
        return len(self.verdicts)

    def make(self, i: int) -> Decision:
        verdict, weak = self.verdicts[i], bool(min(self.tests.n[i], self.tests.m[i]) == 1)
        if not self.known[i]:
            return Decision(verdict, self.changes[i], None, None, None, None, weak)
        more = self._more_rounds(i) if verdict == "inconclusive" and self.going[i] else None
        return Decision(verdict, self.changes[i], self.lows[i], self.highs[i], self.noises[i], more, weak)

    def _more_rounds(self, i: int) -> int | None:
        """The fewest of MORE a side that leave the margin out of the interval with POWER, if the change stays."""
        import numpy as np
        from scipy import special  # type: ignore[import-untyped]

        n, m, paired = self.tests.n[i], self.tests.m[i], self.tests.paired[i]
        error = np.sqrt(self.variance[i] * rounds.weight(n + MORE, m + MORE, paired))
        freedoms = self.freedom[i] + (rounds.freedom(n + MORE, m + MORE, paired) - rounds.freedom(n, m, paired))
        quantiles = special.stdtrit(freedoms, 1 - self.tail[i]) + special.stdtrit(freedoms, POWER)
        enough = error * quantiles <= self.distance[i]
        return MORE[int(np.argmax(enough))] if enough.any() else None


def decide(every: Sequence[Rounds], share: float = 1.0, settled: Sequence[bool] = ()) -> Decisions:
    """One decision a test, in order; what is said of one depends on the others.

    `share` is how much of the error rates is to be spent here, where this is one look of several (looks.py). Tests that
    an earlier look has `settled` tell of the noise and count as hypotheses, and cannot be rejected anew.
    """
    import numpy as np
    from scipy import special

    tests = rounds.of(every)
    change, variance, freedom = _seen(tests)
    weight = rounds.weight(tests.n, tests.m, tests.paired)
    exact = np.zeros(len(tests), bool)
    for family in np.unique(tests.family):
        some = np.flatnonzero(tests.family == family)
        common = Prior()
        if family:
            common = _prior(change[some], variance[some], freedom[some], weight[some], tests.paired[some])
        variance[some], freedom[some] = moderated(variance[some], freedom[some], common)
        # Without noise what is seen is so: a metric that ties in all rounds. Without knowledge of it nothing is known.
        exact[some] = ((freedom[some] > 0) | (not family)) & (variance[some] <= TIE)
    known = exact | (freedom > 0)
    going = ~np.array(settled or [False] * len(tests), bool)
    error = np.sqrt(variance * weight)
    margin = np.log1p(tests.margin)
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
    figures = np.expm1(change), np.expm1(change - half), np.expm1(np.minimum(change + half, 700.0)), np.sqrt(variance)
    columns = [column.tolist() for column in (verdicts, *figures, known, going)]
    return Decisions(tests, *columns, np.abs(np.abs(change) - margin), variance, freedom, tail)  # type: ignore[call-arg]


def _seen(tests: AllRounds) -> tuple[Floats, Floats, Floats]:
    """Of each test the change, the variance of one round, pooled over both sides (of one difference where they are
    paired), and its degrees of freedom."""
    import numpy as np

    if not (tests.n.all() and tests.m.all()):
        raise ValueError("a round is needed on either side")
    change, variance = np.zeros((2, len(tests)))
    freedom = rounds.freedom(tests.n, tests.m, tests.paired)
    for n, m, paired in {*zip(tests.n.tolist(), tests.m.tolist(), tests.paired.tolist(), strict=True)}:
        some = np.flatnonzero((tests.n == n) & (tests.m == m) & (tests.paired == paired))
        before, after = np.ascontiguousarray(tests.baseline[some, :n]), np.ascontiguousarray(tests.current[some, :m])
        groups = (after - before,) if paired else (before, after)
        means = [group.mean(axis=1) for group in groups]
        squares = sum(((g - mean[:, None]) ** 2).sum(axis=1) for g, mean in zip(groups, means, strict=True))
        change[some] = means[-1] - sum(means[:-1])
        variance[some] = squares / np.maximum(freedom[some], 1)
    return change, variance, freedom.astype(float)


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
