"""The error rates of `attnbench ab` are within its promises, with fewer runs than simulate_ab.py."""

from __future__ import annotations

import numpy as np
import pytest
from other_noise import Other
from simulate_ab import Scenario, by_records, by_values, draw_turns, simulate
from simulate_gate import KINDS

RUNS = 40


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_changed_is_no_regression_however_often_it_is_looked_at(kind: str) -> None:
    """Without a change there is no regression after any number of looks; with three times the noise there are many."""
    found = simulate(kind, Scenario(scale=3), 2 * RUNS)
    assert found.longest > 6
    assert found.false_alarms == 0


@pytest.mark.parametrize("kind", KINDS)
def test_twice_the_margin_is_a_regression(kind: str) -> None:
    found = simulate(kind, Scenario(planted=0.06, changed=16), RUNS)
    assert found.regressed > 0.95
    assert found.false_alarms < 0.02


@pytest.mark.parametrize("kind", KINDS)
def test_the_margin_and_a_point_is_not_called_unchanged(kind: str) -> None:
    assert simulate(kind, Scenario(planted=0.04, changed=16), RUNS // 2).unchanged < 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_at_the_margin_seven_looks_together_err_as_seldom_as_one_may(kind: str) -> None:
    """At the margin seven looks together have the error rate of one; 5 % for each look would err in over a tenth."""
    found = simulate(kind, Scenario(planted=0.03, changed=20, cells=20), RUNS)
    assert found.unchanged < 0.06
    assert found.regressed < 0.02


def test_a_machine_that_drifts_is_no_regression() -> None:
    """A machine that drifts, here by 16 % over the A/B, is no regression."""
    assert simulate("cells", Scenario(drift=0.005, walk=0.005), RUNS).false_alarms == 0


def test_cells_of_two_speeds_are_no_regression() -> None:
    """Cells of two speeds are no regression; four pairs would give 4 % of A/Bs a false one."""
    found = simulate("rounds", Scenario(planted=0.06, changed=4, pairs=12, other=Other(modes=10)), RUNS)
    assert found.false_alarms == 0
    assert found.regressed > 0.95


@pytest.mark.parametrize("kind", KINDS)
def test_records_and_values_are_decided_alike(kind: str) -> None:
    rng = np.random.default_rng(1)
    a, b = draw_turns(rng, Scenario(cells=40, pairs=8, planted=0.08, changed=6), kind)
    assert by_records(a, b, 0.03, rng)[:2] == by_values(a, b, 0.03, rng)[:2]
