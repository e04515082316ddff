"""The smallest difference between two implementations that readings tell apart, from an A/A test.

Two processes, a and b, measure one implementation in n turns, one reading each a turn, the order swapped every turn.
The test judges the raw differences d_i = ln(b_i / a_i): a and b run the same code, so each is an error,

    d_i = p + e_i,   e_i with sqrt(2) times the standard deviation of a single reading,

where p stays with the pair of processes as long as they live (it depends on where their memory lies, for example).
Slow changes of the machine affect both readings of a turn and cancel, as they do in a run, where the backends of a case
follow each other.

**Noise.** s = 1.0484 median |d_i - d_j| over all pairs i < j, with 1.0484 = 1 / (sqrt(2) Phi^-1(3/4)): Shamos'
estimator; Bickel and Lehmann, "Descriptive Statistics for Nonparametric Models IV: Spread", 1979. It needs no centre,
bears up to 29 % disturbed turns, and knows the spread of normal noise as well as the usual standard deviation of 0.86
times as many values (Rousseeuw and Croux, "Alternatives to the Median Absolute Deviation", JASA 88, 1993). For few
turns s^2 is divided by 1 + 1.5 / n + 3.6 / n^2, which makes its mean right, and it varies as a variance with
0.84 n - 1.4 degrees of freedom does, or 2.65 for 4 turns; both were fitted to simulations of 4 to 40 turns, and
tests/analysis/test_doctor_resolution.py simulates them again. Where most pairs tie (a coarse clock) the usual standard
deviation takes its place.

**Difference of the processes.** p^2 = mean(d)^2 less the part that noise explains, var(d) / n, and not below 0. This is
the usual variance, so that a single disturbed turn cancels. So one difference between two processes, one reading each,
has the variance t^2 = s^2 + p^2.

**The smallest difference** that a two-sided test at 95 % confidence finds with 80 % power. The difference D of two
implementations, over its estimated standard error with f degrees of freedom, follows the noncentral t distribution;
L(f) is its noncentrality at which 80 % lie beyond Student's 97.5 % quantile (2.80 for large f; Bloom, "Minimum
Detectable Effects", Evaluation Review 19(5), 1995; Lehmann and Romano, "Testing Statistical Hypotheses", 2005, chapter
5). With one reading each only this test knows the spread, so f is as above, and D must be L(f) t. Over r rounds, each
in fresh processes, the r differences show the spread themselves: D must be L(r - 1) t / sqrt(r).

**Whether a and b differ** for good: Student's interval of the mean of d, at a confidence that keeps the chance of any
false alarm among all cases at 5 % (Sidak, "Rectangular Confidence Regions", JASA 62, 1967).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from scipy import special  # type: ignore[import-untyped]

from attnbench.core import stats
from attnbench.core.case import Case
from attnbench.run.aa_test import MIN_TURNS, AATest

CONFIDENCE, POWER = 0.95, 0.80
ROUNDS = 5


@dataclass(frozen=True)
class Resolution:
    """The result of the A/A test of one case. All values are relative: 0.01 is 1 %."""

    noise: float  # robust standard deviation of a single reading
    difference: float  # of b from a on average: 0.01 reads "b is 1 % slower"
    low: float  # of the interval of `difference`
    high: float
    by_one_reading: float  # smallest difference that one reading of each implementation shows
    by_rounds: float  # smallest difference that ROUNDS rounds show

    @property
    def differs(self) -> bool:
        """Whether two processes of the same code differ by more than chance."""
        return not self.low <= 0 <= self.high


def resolve(differences: Sequence[float], cases: int = 1) -> Resolution:
    """Return the resolution from the d_i of one case, at least MIN_TURNS; `cases` are tested together.

    Raises ValueError for fewer turns.
    """
    n = len(differences)
    if n < MIN_TURNS:
        raise ValueError(f"at least {MIN_TURNS} turns are needed, got {n}")
    mean = math.fsum(differences) / n
    variance = math.fsum((d - mean) ** 2 for d in differences) / (n - 1)
    noise = spread(differences) or math.sqrt(variance)
    total = math.sqrt(noise**2 + max(0.0, mean**2 - variance / n))
    miss = (1 - CONFIDENCE ** (1 / cases)) / 2
    half = float(special.stdtrit(n - 1, 1 - miss)) * math.sqrt(variance / n)
    return Resolution(
        noise=noise / math.sqrt(2),
        difference=stats.expm1(mean),
        low=stats.expm1(mean - half),
        high=stats.expm1(mean + half),
        by_one_reading=stats.expm1(noncentrality(degrees_of_freedom(n)) * total),
        by_rounds=stats.expm1(noncentrality(ROUNDS - 1) * total / math.sqrt(ROUNDS)),
    )


def spread(values: Sequence[float]) -> float:
    """Return the robust standard deviation by Shamos' estimator, whose square is unbiased for normal values."""
    n = len(values)
    middle = stats.median([abs(a - b) for a, b in itertools.combinations(values, 2)])
    return 1.0484 * middle / math.sqrt(1 + 1.5 / n + 3.6 / n**2)


def degrees_of_freedom(n: int) -> float:
    """Return the degrees of freedom of the square of `spread` of n normal values."""
    return max(2.65, 0.84 * n - 1.4)


@lru_cache(maxsize=64)
def noncentrality(freedom: float) -> float:
    """Return the true difference, in standard errors, that the test finds with POWER; `freedom` as in Student's t.

    The tail beyond -t is negligible and left out.
    """
    threshold = special.stdtrit(freedom, (1 + CONFIDENCE) / 2)
    return float(special.nctdtrinc(freedom, 1 - POWER, threshold))


def resolutions(test: AATest) -> list[tuple[Case, Resolution]]:
    """Return the resolution of each case of an A/A test that has enough turns."""
    long_enough = [c for c in test.cases if len(c.a) >= MIN_TURNS]
    return [(c.case, resolve(c.differences, len(long_enough))) for c in long_enough]


def worst(test: AATest) -> tuple[Case, Resolution] | None:
    """Return the case with the largest smallest difference, which therefore holds for all cases."""
    return max(resolutions(test), key=lambda pair: pair[1].by_one_reading, default=None)
