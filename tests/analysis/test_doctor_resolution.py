"""The statistics of the A/A test, by simulation: planted differences are found at the promised error rates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from attnbench.analysis.doctor.resolution import (
    MIN_TURNS,
    degrees_of_freedom,
    noncentrality,
    resolve,
    spread,
)

TURNS = (4, 6, 10, 16, 24)
SD = 0.01  # standard deviation of a difference
ANY = st.lists(st.floats(-0.1, 0.1).map(lambda x: round(x, 6)), min_size=MIN_TURNS, max_size=24)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, SD, shape)


@pytest.mark.parametrize("n", [4, 10, 40])
def test_the_spread_of_normal_noise_is_recovered_with_its_degrees_of_freedom(n: int) -> None:
    squares = np.array([spread(row) ** 2 for row in normal(3000, n).tolist()])
    assert squares.mean() == pytest.approx(SD**2, rel=0.05)
    assert 2 * squares.mean() ** 2 / squares.var() == pytest.approx(degrees_of_freedom(n), rel=0.12)


@pytest.mark.parametrize("n", [8, 16, 24])
def test_a_quarter_of_the_turns_may_be_disturbed(n: int) -> None:
    rows = normal(500, n)
    rows[:, : n // 4] += 1.0
    found = np.sqrt(np.mean([spread(row) ** 2 for row in rows.tolist()]))
    assert found < 3 * SD
    assert np.median(rows.std(axis=1)) > 30 * SD


@pytest.mark.parametrize("n", TURNS)
def test_a_and_b_that_are_alike_are_told_apart_at_the_nominal_rate(n: int) -> None:
    """In 5 % of A/A tests of two equal sides a difference is found, in at least one of three cases."""
    tests = normal(3000, 3, n)
    alarms = np.mean([any(resolve(case, 3).differs for case in test) for test in tests.tolist()])
    assert 0.035 < alarms < 0.065


@pytest.mark.parametrize("n", [6, 16])
def test_a_planted_difference_of_the_processes_is_found(n: int) -> None:
    found = [resolve(row) for row in (normal(300, n) + 4 * SD).tolist()]
    assert np.mean([r.differs for r in found]) > 0.95
    assert np.mean([r.difference for r in found]) == pytest.approx(math.expm1(4 * SD), rel=0.05)
    assert np.mean([r.low <= math.expm1(4 * SD) <= r.high for r in found]) == pytest.approx(0.95, abs=0.04)


@pytest.mark.parametrize("n", TURNS)
def test_one_reading_each_tells_the_smallest_difference_apart_in_four_of_five(n: int) -> None:
    """One reading of each side, judged by the spread of the A/A test, shows the smallest difference 4 times in 5."""
    rng = np.random.default_rng(n)
    spreads = np.array([spread(row) for row in normal(4000, n).tolist()])
    threshold = scipy_stats.t.ppf(0.975, degrees_of_freedom(n)) * spreads
    noise = rng.normal(0.0, SD, 4000)
    assert np.mean(np.abs(noise) > threshold) == pytest.approx(0.05, abs=0.015)
    assert np.mean(np.abs(noise + noncentrality(degrees_of_freedom(n)) * SD) > threshold) == pytest.approx(
        0.80, abs=0.03
    )


@pytest.mark.parametrize("offset", [0.0, 3 * SD])
def test_noise_and_the_difference_of_the_processes_make_the_figure(offset: float) -> None:
    n = 16
    rng = np.random.default_rng(1)
    offsets = rng.normal(0.0, offset, (2000, 1)) if offset else 0.0
    found = [resolve(row) for row in (normal(2000, n) + offsets).tolist()]
    one = np.mean([(math.log1p(r.by_one_reading) / noncentrality(degrees_of_freedom(n))) ** 2 for r in found])
    assert one == pytest.approx(SD**2 + offset**2, rel=0.12)
    assert np.mean([r.noise**2 for r in found]) == pytest.approx(SD**2 / 2, rel=0.05)
    assert all(r.by_rounds < r.by_one_reading for r in found)


def test_one_disturbed_turn_is_neither_noise_nor_a_difference_of_the_processes() -> None:
    quiet = normal(1, 16)[0].tolist()
    disturbed = resolve([*quiet[:-1], 1.0])
    assert disturbed.by_one_reading < 1.5 * resolve(quiet).by_one_reading
    assert not disturbed.differs
    still = resolve([0.0] * 6)
    assert (still.noise, still.by_one_reading, still.by_rounds, still.differs) == (0.0, 0.0, 0.0, False)
    assert resolve([0.01] * 6).differs
    with pytest.raises(ValueError, match="at least 4 turns"):
        resolve([0.0] * 3)


@given(ANY, st.integers(1, 5))
def test_swapping_a_and_b_mirrors_the_difference_and_keeps_the_figure(values: list[float], cases: int) -> None:
    found, swapped = resolve(values, cases), resolve([-v for v in values], cases)
    assert swapped.by_one_reading == pytest.approx(found.by_one_reading)
    assert swapped.by_rounds == pytest.approx(found.by_rounds)
    assert math.log1p(swapped.difference) == pytest.approx(-math.log1p(found.difference), abs=1e-12)
    assert math.log1p(swapped.low) == pytest.approx(-math.log1p(found.high), abs=1e-12)
    assert found.low <= found.difference <= found.high
