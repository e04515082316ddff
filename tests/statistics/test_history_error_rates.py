"""The error rates of `history`, by fewer simulations than simulate_history.py."""

from __future__ import annotations

import pytest
import simulate_history as simulated

from attnbench.analysis.history.change_tests import FALSE_ALARM

pytest.importorskip("ruptures")


@pytest.mark.parametrize("noise", simulated.NOISES)
def test_where_nothing_changes_hardly_a_history_shows_a_change(noise: str) -> None:
    """Without a change hardly a history shows one. At the rate FALSE_ALARM, three of 60 or more do in 2 % of tries."""
    assert simulated.simulate("nothing", noise, 12, 60).any * 60 <= 2 + FALSE_ALARM


@pytest.mark.parametrize("where", ["one cell", "all cells"])
def test_a_step_is_found_and_its_range_has_its_run(where: str) -> None:
    got = simulated.simulate("step of 5 % in the middle", runs=12, histories=40, where=where)
    assert got.cells >= 0.95
    assert got.wrong <= 0.01


@pytest.mark.parametrize("runs", simulated.RUNS)
def test_a_step_of_two_runs_ago_is_told_at_no_other_run(runs: int) -> None:
    got = simulated.simulate("step of 5 %, 2 runs ago", runs=runs, histories=40)
    assert got.wrong == got.any == 0
