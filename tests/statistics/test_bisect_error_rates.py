"""The error rates of `attnbench bisect` are within its promises, with fewer runs than simulate_bisect.py."""

from __future__ import annotations

import pytest
from simulate_bisect import Scenario, simulate
from simulate_gate import KINDS

RUNS = 40


@pytest.mark.parametrize("kind", KINDS)
def test_a_slowdown_of_3_percent_is_found_and_no_other_commit_blamed(kind: str) -> None:
    found = simulate(kind, Scenario(), RUNS)
    assert found.right > 0.95
    assert found.wrong == 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_hard_to_tell_leaves_a_range_and_blames_no_other_commit(kind: str) -> None:
    """With three times the noise and commits that do not build, a range remains and no other commit is named."""
    found = simulate(kind, Scenario(scale=3, broken=0.25), RUNS)
    assert found.wrong == 0
    assert found.missed < 0.05


def test_nothing_is_blamed_where_nothing_is_slower() -> None:
    found = simulate("rounds", Scenario(slowdowns=()), 2 * RUNS)
    assert (found.right, found.wrong, found.steps) == (0, 0, 1)
