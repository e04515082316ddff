"""How often `cluster report` is wrong, by the simulations whose table docs/cluster.md has (fewer of them)."""

from __future__ import annotations

import pytest
import simulate_cluster as simulated

from attnbench.analysis.cluster.outliers import FALSE_ALARM, judge, qn


@pytest.mark.parametrize("units", [3, 8, 32])
def test_units_that_differ_as_the_table_says_are_rarely_named(units: int) -> None:
    assert simulated.simulate("nothing", "as the table says", units, 400).false <= 2 * FALSE_ALARM


@pytest.mark.parametrize(("units", "least"), [(8, 0.5), (32, 0.95)])
def test_a_unit_that_is_slower_is_found(units: int, least: float) -> None:
    got = simulated.simulate("one unit is 5 % slower", "half of that", units, 200)
    assert got.found >= least
    assert got.false <= 2 * FALSE_ALARM


def test_of_two_units_nobody_knows_which_is_off() -> None:
    assert judge([0.0, 0.5], 0.005, True, 2) is None


def test_qn_is_the_standard_deviation_and_half_of_the_units_do_not_move_it() -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    for units in (3, 4, 8, 9, 30, 31):
        assert np.mean([qn(rng.normal(0, 1, units).tolist()) for _ in range(2000)]) == pytest.approx(1, abs=0.05)
    spoilt = rng.normal(0, 1, 40)
    spoilt[:15] += 100
    assert qn(spoilt.tolist()) < 4
