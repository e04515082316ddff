"""The error rates of `cluster report`, by fewer simulations than the table of docs/dev/cluster.md."""

from __future__ import annotations

import pytest
import simulate_cluster as simulated

from attnbench.analysis.cluster.outliers import FALSE_ALARM, judge, qn

REPORTS = 400


@pytest.mark.parametrize("noise", simulated.NOISES)
def test_units_without_a_fault_are_rarely_outliers(noise: str) -> None:
    """Units without a fault are rarely outliers, for any size and any tails of their differences."""
    false = [simulated.simulate("nothing", noise, units, REPORTS).false for units in simulated.UNITS]
    assert max(false) <= 2 * FALSE_ALARM
    assert sum(false) / len(false) <= FALSE_ALARM


@pytest.mark.parametrize("units", simulated.UNITS)
def test_units_that_differ_as_the_table_says_are_rarely_far_off(units: int) -> None:
    assert simulated.simulate("nothing", "as the table says", units, REPORTS).false_far <= 2 * FALSE_ALARM


@pytest.mark.parametrize(("units", "least"), [(8, 0.6), (32, 0.95)])
def test_a_unit_that_is_slower_is_found(units: int, least: float) -> None:
    """Where units differ by half the table's spread, 10 % slower is an outlier, and 5 % slower at least far off."""
    assert simulated.simulate("one unit is 10 % slower", "half of that", units, 200).found >= 0.9
    assert simulated.simulate("one unit is 5 % slower", "half of that", units, 200).found_far >= least


def test_several_slow_units_do_not_hide_each_other_and_many_are_another_kind_of_unit() -> None:
    like = [0.001 * (i % 5 - 2) for i in range(32)]
    for slow in (1, 2, 8):
        judged = judge([*[0.1] * slow, *like[slow:]], simulated.TABLE, 32)
        assert judged is not None
        assert judged.threshold < 0.1 - judged.middle
    judged = judge([*[0.1] * 9, *like[9:]], simulated.TABLE, 32)
    assert judged is not None
    assert judged.far < 0.1 - judged.middle <= judged.threshold


def test_of_two_units_nobody_knows_which_is_off() -> None:
    assert judge([0.0, 0.5], 0.005, 2) is None


def test_qn_is_the_standard_deviation_and_half_of_the_units_do_not_move_it() -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    for units in (3, 4, 8, 9, 30, 31):
        assert np.mean([qn(rng.normal(0, 1, units).tolist()) for _ in range(2000)]) == pytest.approx(1, abs=0.05)
    spoilt = rng.normal(0, 1, 40)
    spoilt[:15] += 100
    assert qn(spoilt.tolist()) < 4
