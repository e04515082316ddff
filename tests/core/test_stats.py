"""Statistics against numpy and scipy, and the coverage of the interval of the median."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from attnbench.core import stats
from attnbench.core.stats import (
    coefficient_of_variation,
    drift,
    geomean,
    median,
    median_interval,
    percentile,
    relative_halfwidth,
)

samples = st.lists(st.floats(1e-7, 1e3), min_size=1, max_size=60)


@given(samples)
def test_median_matches_numpy(values):
    assert median(values) == pytest.approx(np.median(values), rel=1e-12)


@given(samples, st.floats(0, 100))
def test_percentile_matches_numpy(values, p):
    assert percentile(values, p) == pytest.approx(np.percentile(values, p), rel=1e-9)


@pytest.mark.parametrize("confidence", [0.5, 0.75, 0.9, 0.95, 0.99, 0.999])
def test_interval_uses_the_ranks_of_the_binomial(confidence):
    for n in [*range(1, 400), 1000, 1001, 5000, 100_000]:
        lo, hi = median_interval(range(1, n + 1), confidence)
        assert lo + hi == n + 1  # symmetric ranks

        def miss(k, n=n):
            return 2 * scipy_stats.binom.cdf(k - 1, n, 0.5)

        allowed = (1 - confidence) * (1 + 1e-6)
        if miss(1) > allowed:
            assert (lo, hi) == (1, n)
        else:
            assert miss(lo) <= allowed
            assert lo + 1 > n / 2 or miss(lo + 1) > allowed  # a shorter interval would miss too often


def test_relative_halfwidth():
    assert relative_halfwidth([9.0, 9.5, 10.0, 10.0, 10.5, 11.0]) == pytest.approx(0.1)
    assert relative_halfwidth([4.0] * 50) == 0
    assert relative_halfwidth([4.0]) == 0
    assert relative_halfwidth([0.0, 0.0, 0.0, 1.0]) == math.inf
    assert relative_halfwidth([0.0] * 4) == 0


@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=60))
def test_coefficient_of_variation_matches_scipy(values):
    assert coefficient_of_variation(values) == pytest.approx(
        float(scipy_stats.variation(values, ddof=1)), rel=1e-9, abs=1e-12
    )


def test_coefficient_of_variation_where_it_is_undefined():
    assert coefficient_of_variation([]) is None
    assert coefficient_of_variation([1.0]) is None
    assert coefficient_of_variation([-1.0, 1.0]) is None


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=60))
def test_geomean_matches_scipy(values):
    assert geomean(values) == pytest.approx(float(scipy_stats.gmean(values)), rel=1e-9)


def test_drift_is_the_move_from_the_first_third_to_the_last():
    falling = [2.0] * 10 + [1.5] * 10 + [1.0] * 10
    assert drift(falling) == pytest.approx(-0.5)
    assert drift(falling[::-1]) == pytest.approx(1.0)
    assert drift([*falling, 1.0]) == pytest.approx(-0.5)  # a remainder of the division belongs to the middle third


def test_no_drift_where_noise_explains_it():
    noisy = [1.0, 1.2] * 15
    assert drift(noisy) == 0
    assert drift([1.0, 1.2] * 5 + [1.1] * 10 + [1.01, 1.21] * 5) == 0  # the intervals overlap
    assert drift([3.0, 2.0, 1.0, 1.0, 1.0]) == 0  # too few values
    assert drift([3.0, 3.0, 2.0, 2.0, 1.0, 1.0]) == pytest.approx(
        -2 / 3
    )  # ranges are compared where a third has fewer than 6 values
    assert drift([0.0] * 6 + [1.0] * 6) == 0  # the first median is 0


def test_the_number_of_a_large_logarithm_is_large() -> None:
    assert stats.exp(1e6) > 1e300
    assert stats.expm1(1e6) > 1e300
    assert stats.exp(-1e6) == 0
    assert stats.expm1(math.log1p(0.01)) == pytest.approx(0.01)
