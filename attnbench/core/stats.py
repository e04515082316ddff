"""Summaries of samples and the uncertainty of their median, with no assumption on the distribution.

Times of a kernel are skewed (a floor set by the hardware, a tail of disturbances), often multiples of the timer's
resolution, and sometimes bimodal (two clocks). So the centre is the median, the spread is given by percentiles, and the
interval of the median is computed from ranks alone.

**Percentile**: linear interpolation between the two nearest order statistics, at rank 1 + (n - 1) p / 100: type 7 of
Hyndman and Fan, "Sample Quantiles in Statistical Packages", The American Statistician 50(4), 1996; numpy's default.

**Interval of the median**: each independent sample falls below the true median with probability 1/2, so the number of
samples below it is Binomial(n, 1/2) for any distribution. The interval from the k-th smallest to the k-th largest value
misses the median only if fewer than k samples lie below it or fewer than k above it:

    P(miss) <= 2 P(Binomial(n, 1/2) <= k - 1)

Of all k that keep this at 1 - confidence or less, the largest gives the shortest interval. The coverage is at least
the confidence asked for (more, as ranks are whole numbers, and with ties). Source: David and Nagaraja, "Order
Statistics", 3rd ed. 2003, section 7.1; Le Boudec, "Performance Evaluation of Computer and Communication Systems", 2010,
section 2.2. It holds for independent samples: a clock that drifts during them moves the median itself, which no
interval computed from one such series shows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache

median = statistics.median
LARGEST_EXPONENT = 700.0  # beyond it math.exp raises OverflowError


def exp(logarithm: float) -> float:
    """Return e to the power `logarithm`; above LARGEST_EXPONENT, the value there."""
    return math.exp(min(logarithm, LARGEST_EXPONENT))


def expm1(logarithm: float) -> float:
    """Return the relative change of a ratio from its logarithm, 0.01 for 1 %, limited as in `exp`."""
    return math.expm1(min(logarithm, LARGEST_EXPONENT))


geomean = statistics.geometric_mean  # only for positive ratios, such as speedups


def variance(values: Sequence[float]) -> float:
    """Return the sample variance (n - 1) of at least two values, in floats: the statistics module is slow."""
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def percentile(values: Sequence[float], p: float) -> float:
    """Return the p-th percentile, p from 0 to 100, by linear interpolation (type 7)."""
    ordered = _ordered(values)
    rank = (len(ordered) - 1) * p / 100
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return an interval (low, high) that holds the true median with at least this confidence.

    With n samples even (min, max) misses the median with probability 2 * 2**-n, so below 6 samples there is no interval
    of 95 %. (min, max) is returned then; its confidence is 94 % for 5 samples, 50 % for 2 and 0 for 1.
    """
    ordered = _ordered(values)
    k = max(_interval_rank(len(ordered), confidence), 1)
    return ordered[k - 1], ordered[-k]


def relative_halfwidth(values: Sequence[float]) -> float:
    """Return half the width of the 95 % `median_interval` divided by the median: 0.01 means "within 1 %".

    Values must not be negative. Infinite where the median is 0 and the interval is wider than 0. One sample gives 0, as
    it shows no spread; callers must also require a minimum of samples.
    """
    lo, hi = median_interval(values)
    if lo == hi:
        return 0.0
    middle = median(values)
    return (hi - lo) / 2 / middle if middle else math.inf


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (n - 1) divided by the mean.

    None for fewer than 2 samples, and where the mean is 0.
    """
    n = len(values)
    if n < 2:
        return None
    mean = math.fsum(v / n for v in values)  # divided first, as the sum of very large values may overflow
    if mean == 0:
        return None
    return math.hypot(*(v - mean for v in values)) / math.sqrt(n - 1) / mean


def drift(values: Sequence[float]) -> float:
    """Return the relative change of the median from the first third of a series to the last: -0.5 is "fell by half".

    0 where the 95 % intervals of the two medians overlap (the ranges, where a third has fewer than 6 values), and for
    series of fewer than 6 values.
    """
    if len(values) < 6:
        return 0.0
    third = len(values) // 3
    first, last = values[:third], values[-third:]
    (lo_a, hi_a), (lo_b, hi_b) = median_interval(first), median_interval(last)
    disjoint = hi_a < lo_b or hi_b < lo_a
    return median(last) / median(first) - 1 if disjoint and median(first) else 0.0


def _ordered(values: Sequence[float]) -> list[float]:
    if not values:
        raise ValueError("no values")
    return sorted(values)


@lru_cache(maxsize=4096)
def _interval_rank(n: int, confidence: float) -> int:
    """Return the largest k with 2 P(Binomial(n, 1/2) <= k - 1) <= 1 - confidence; 0 where there is none.

    The interval of the median then runs from the k-th smallest to the k-th largest of n values. The terms
    C(n, k) / 2**n are summed from k = 0 up, each computed from the last by its logarithm, which does not underflow. The
    factor 1 + 1e-9 allows for rounding where a sum equals the limit exactly.
    """
    limit = (1 - confidence) / 2 * (1 + 1e-9)
    k, total, log_term = 0, 0.0, -n * math.log(2)
    while True:
        total += math.exp(log_term)
        if total > limit:
            return k
        log_term += math.log((n - k) / (k + 1))
        k += 1
