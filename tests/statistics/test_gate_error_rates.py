"""The error rates that `attnbench gate` promises, with fewer runs than simulate_gate.py; the bounds are promises."""

from __future__ import annotations

import numpy as np
import pytest
from h200_noise import draw, measured
from simulate_gate import KINDS, Scenario, by_records, by_values, simulate

RUNS = 150


@pytest.mark.parametrize("kind", KINDS)
def test_the_noise_is_as_wide_as_measured(kind: str) -> None:
    """One round against one, as the two files have: no quieter than what was measured on the H200, and close to it."""
    rng = np.random.default_rng(0)
    pairs = [draw(rng, 307, 1, kind) for _ in range(100)]  # type: ignore[arg-type]
    found = np.abs(np.concatenate([after - before for before, after in pairs]))
    assert 1.0 <= np.sqrt(np.mean(found**2)) / measured().difference < 1.15
    assert np.percentile(found, 95) > 0.009
    assert np.median([np.abs(after - before).max() for before, after in pairs]) > 0.012


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_changed_is_no_regression(kind: str) -> None:
    """Promised: under 1 % of runs. A gate that is wrong in 5 % would show none in 150 with a chance of 0.05 %."""
    assert simulate(kind, Scenario(), RUNS).false_alarms == 0


@pytest.mark.parametrize("kind", KINDS)
def test_twice_the_margin_is_a_regression(kind: str) -> None:
    """Over 95 % are found; here in 16 cells at once, which gives more of them in fewer runs."""
    found = simulate(kind, Scenario(planted=0.06, changed=16), RUNS)
    assert found.regressed > 0.95
    assert found.false_alarms < 0.02


@pytest.mark.parametrize("kind", KINDS)
def test_the_margin_and_a_point_is_not_called_unchanged(kind: str) -> None:
    assert simulate(kind, Scenario(planted=0.04, changed=16), RUNS).unchanged < 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_noise_as_large_as_the_margin_raises_no_alarm(kind: str) -> None:
    """The rate of 1 % is due to the method, not to a quiet machine."""
    assert simulate(kind, Scenario(scale=10, shift=0.0), RUNS).false_alarms < 0.03


def test_at_the_margin_one_in_twenty_is_called_unchanged_at_most() -> None:
    for kind in KINDS:
        found = simulate(kind, Scenario(planted=0.03, changed=16, shift=0.0), RUNS)
        assert found.unchanged < 0.06
        assert found.regressed < 0.02


@pytest.mark.parametrize("kind", KINDS)
def test_records_and_values_are_decided_alike(kind: str) -> None:
    rng = np.random.default_rng(1)
    before, after = draw(rng, 60, 5, kind)  # type: ignore[arg-type]
    after[:6] += 0.08
    assert by_records(before, after, 0.03, rng)[0] == by_values(before, after, 0.03, rng)[0]
