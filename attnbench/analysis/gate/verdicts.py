"""A finding: the verdict on one metric of a cell, or on the cell as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from attnbench.analysis.gate.margins import RULES
from attnbench.core import stats
from attnbench.core.case import Case
from attnbench.core.formats import FAR, digits
from attnbench.results.case_names import full_name

Verdict = Literal[
    "wrong", "newly-failing", "missing", "regressed", "inconclusive", "improved", "newly-working", "unchanged"
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)  # the most severe first
_METRICS = (None, *RULES)  # in the order of a report


@dataclass(frozen=True)
class Decision:
    """The verdict on one metric of one cell. Figures are relative: a change of 0.01 is 1 % worse.

    Where nothing is known of the noise, `low`, `high` and `noise` are None.
    """

    verdict: Verdict
    change: float
    low: float | None  # the ends of the interval that decided
    high: float | None
    noise: float | None  # standard deviation of one round, or of the difference of one pair
    more: int | None = None  # if inconclusive: rounds to add to both sides; None where even 100 would hardly decide
    more_current: int | None = None  # if inconclusive: rounds to add to the current run alone; None as for `more`
    between: float = 0.0  # standard deviation of a change between runs, beyond what rounds show
    jumping: int = 0  # number of cells with two speeds, where these are why it is inconclusive
    level: float | None = None  # confidence of the interval; None where it is exact
    # Number of cells that differ between runs of the baseline by a third of the change or more, which rounds do not
    # explain, where that is why it is inconclusive.
    jumped: int = 0
    slow_rounds: int = 0  # number of rounds beyond the margin, where the mean change is within it
    in_common: float | None = None  # the common change, where it is why more rounds would not decide


@dataclass(frozen=True)
class Finding:
    """The verdict on one metric of a cell, or on the whole cell where `metric` is None."""

    case: Case
    backend: str
    metric: str | None
    verdict: Verdict
    rounds: tuple[int, int]  # number of rounds with a value, in the baseline and in the current run
    values: tuple[Sequence[float], Sequence[float]] = ((), ())  # of these rounds, in the metric's unit
    margin: float | None = None
    decision: Decision | None = None
    reason: str = ""
    in_turns: bool = False  # decided by an A/B, as the gate left it open
    held_down: bool = False  # a limit kept the clock below its best on either side, and so made the latency longer

    @property
    def baseline(self) -> float | None:
        """The typical value of the baseline's rounds, in the metric's unit: the two sides' ratio is the change."""
        return _typical(self.values[0])

    @property
    def current(self) -> float | None:
        """The typical value of the current run's rounds, in the metric's unit."""
        return _typical(self.values[1])

    @property
    def name(self) -> str:
        """The cell's full name."""
        return full_name(self.backend, self.case)

    @property
    def unmeasured(self) -> bool:
        """Whether this is a cell that an A/B had no time to measure."""
        return self.verdict == "inconclusive" and self.metric is None

    @property
    def unjudged(self) -> bool:
        """Whether there are too few rounds for a test of this metric, so that nothing was judged."""
        return self.verdict == "inconclusive" and self.decision is not None and self.decision.noise is None

    @property
    def word(self) -> str:
        """The verdict as a reader sees it."""
        return "not judged" if self.unjudged else self.verdict


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings with the most severe verdict first, then by metric, then the largest change first."""

    def rank(finding: Finding) -> tuple[int, int, float]:
        change = finding.decision.change if finding.decision else 0.0
        size = change if finding.verdict == "improved" else -change
        return VERDICTS.index(finding.verdict), _METRICS.index(finding.metric), size

    return tuple(sorted(findings, key=rank))


def signed(change: float) -> str:
    """Return a change as +1.23%: three significant digits, so that an interval's end can be told from the margin."""
    change = change if abs(change) >= 1e-6 else 0.0
    return f"{'-' if change < 0 else '+'}{digits(100 * abs(change))}%"


def interval(decision: Decision) -> str:
    """Return the interval of a change as "+1.23% to +4.56%", with words for an end beyond a factor of FAR.

    Few noisy rounds have such intervals: with three pairs of turns Student's t is 19 or more at the levels of an A/B.
    """
    low, high = decision.low, decision.high
    if low is None or high is None:
        return "unknown"
    if 1 + high <= FAR * (1 + decision.change):
        return f"{signed(low)} to {signed(high)}{_level(decision)}"
    least, most = _end(low), _end(high)
    if least == most:
        return least
    return f"{least} to {most}{_level(decision)}" if "%" in least + most else "not known"


def _level(decision: Decision) -> str:
    """Return the confidence of an interval, rounded down: " at 90%", " at 99.71%"."""
    if decision.level is None:
        return ""
    missing = round(100 * (1 - decision.level), 6)
    places = max(0, 1 - math.floor(math.log10(missing))) if 0 < missing < 10 else 0
    return f" at {math.floor(round((100 - missing) * 10**places, 3)) / 10**places:.{places}f}%"


def _end(change: float) -> str:
    if 1 + change > FAR:
        return f"more than {FAR} times"
    return signed(change) if 1 + change >= 1 / FAR else f"less than 1/{FAR}"


def _typical(values: Sequence[float]) -> float | None:
    """Return the geometric mean, as logarithms are compared; the median where a value is 0."""
    if not values:
        return None
    return stats.geomean(values) if min(values) > 0 else stats.median(values)
