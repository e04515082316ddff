"""The error rates of a gate that continues are within its promises, with fewer gates than simulate_settle.py."""

from __future__ import annotations

import pytest
from other_noise import Other
from simulate_gate import KINDS, Scenario
from simulate_settle import simulate

RUNS = 20


@pytest.mark.parametrize("kind", KINDS)
def test_turns_settle_what_differs_between_runs_and_more_rounds_do_not(kind: str) -> None:
    """Turns find a cell slower by twice the margin where each cell is 1 % off in either run; more rounds do not."""
    off = Scenario(planted=0.06, changed=1, other=Other(offset=0.01))
    alone, more, turns = simulate(kind, off, RUNS)
    assert alone["regressed"] < 0.5 * RUNS
    assert more["regressed"] < 0.5 * RUNS
    assert turns["regressed"] > 0.95 * RUNS
    assert turns["open"] < 0.2 * RUNS
    assert turns["false"] == more["false"] == alone["false"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_margin_and_a_point_is_not_called_unchanged_at_a_second_look(kind: str) -> None:
    found = simulate(kind, Scenario(planted=0.04, changed=8, cells=20), RUNS)
    assert max(count["unchanged"] for count in found) < 0.05 * 8 * RUNS
    assert [count["false"] for count in found] == [0, 0, 0]
