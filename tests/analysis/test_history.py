"""What `history` finds in series whose changes are known, and what it tells apart."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest

from attnbench.analysis.history.change_points import MIN_RUNS, Levels, levels
from attnbench.analysis.history.document import document
from attnbench.analysis.history.series import series
from attnbench.analysis.history.trends import trends
from attnbench.core.errors import UserError
from attnbench.core.record import Run
from attnbench.report import json_and_csv, markdown
from attnbench.report.document import Plot, Table
from attnbench.report.html import html_page
from attnbench.results.noise import Prior
from attnbench.results.uncertainty import FREEDOM
from builders import H200, case, environment, ok, run

pytest.importorskip("ruptures")
NOISE = 0.004
FIRST = datetime(2026, 1, 1, 3, 17, tzinfo=timezone.utc)


def found(logs: Sequence[float], seed: int = 0, noise: float = NOISE) -> Levels:
    rng = np.random.default_rng(seed)
    seconds = 1e-3 * np.exp(np.asarray(logs) + rng.normal(0, noise, len(logs)))
    got = levels(seconds.tolist(), Prior(noise**2, FREEDOM), 10)
    assert got
    return got


def test_a_creep_of_half_a_per_cent_a_run() -> None:
    """A gate at a margin of 3 % passes each of these runs, against the run before it."""
    for seed in range(20):
        got = found([0.005 * i for i in range(12)], seed)
        assert got.creep == pytest.approx(0.005, abs=0.002)
        assert got.total == pytest.approx(1.005**11 - 1, abs=0.02)


def test_a_step_of_two_per_cent() -> None:
    """It is found at its place, or a run beside it."""
    for seed in range(20):
        got = found([0.02 * (i >= 8) for i in range(16)], seed, noise=0.002)
        (change,) = got.changes
        assert got.creep is None
        assert change.at in (7, 8, 9)
        assert change.change == pytest.approx(0.02, abs=0.006)
        assert abs(change.change - 0.02) < 2 * change.half
        assert got.detectable < 0.02


def test_where_nothing_changes_nothing_is_found() -> None:
    """1 % of histories of ten cells: of 300 cells none is expected. The whole table: statistics/simulate_history.py."""
    assert not any(found([0.0] * runs, seed).changes for runs in (6, 12, 20) for seed in range(100))


def test_one_bad_run_is_no_change() -> None:
    for place in (0, 5, 11):
        logs = [0.08 * (i == place) for i in range(12)]
        assert not found(logs, place, noise=0.002).changes


def test_two_changes_that_cancel() -> None:
    got = found([0.05 * (8 <= i < 16) for i in range(24)], noise=0.002)
    assert [change.at for change in got.changes] == [8, 16]
    assert got.total == pytest.approx(0, abs=0.005)
    assert got.came_back
    assert not found([0.05 * (i >= 8) - 0.02 * (i >= 16) for i in range(24)], noise=0.002).came_back


def test_without_any_noise() -> None:
    """A simulated device repeats exactly."""
    assert not found([0.0] * 8, noise=0).changes
    assert [c.at for c in found([0, 0, 0, 0, 0.005, 0.005, 0.005, 0.005], noise=0).changes] == [4]


def test_few_runs_tell_nothing() -> None:
    assert levels([1e-3] * (MIN_RUNS - 1), Prior(), 1) is None


def test_ruptures_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ruptures", None)
    with pytest.raises(UserError, match=r"history needs ruptures .*: pip install 'attnbench\[history\]'"):
        levels([1e-3] * 6, Prior(), 1)


def nightly(number: int, speed: Callable[[int], float], **changes: object) -> list[Run]:
    """Return runs of two cells, one a day; `speed` is that of the first, by the number of its run."""
    runs = []
    for day in range(number):
        rng = np.random.default_rng(day)
        records = [
            ok(case(4096), name, rate * float(np.exp(rng.normal(0, 0.002))), n=20)
            for name, rate in (("triton", 400 * speed(day)), ("fa2", 300))
        ]
        here = environment(replace(H200, uuid="GPU-1111111122222222"), git=f"{day:012x}")
        made = run(records, environment=here, started=(FIRST + timedelta(days=day)).isoformat())
        runs.append(replace(made, **changes))  # type: ignore[arg-type]
    return runs


def test_a_history_says_what_changed_when_and_with_what() -> None:
    runs = nightly(14, lambda day: 1 / 1.03 if day >= 8 else 1)
    for i, one in enumerate(runs):
        runs[i] = replace(one, versions={"triton": "triton 3.5" if i >= 8 else "triton 3.4"})
    shown = document(list(reversed(runs)))
    assert shown.answer[0] == "Of 2 cells 1 became slower, 0 faster, 1 did not change."
    assert "Most slower: triton 4k d128 full fwd bf16 b4 h16, +3." in shown.answer[1]
    assert "in one step at 2026-01-09 03:17 (000000000008)" in shown.answer[1]
    steps, cells = shown.blocks
    assert isinstance(steps, Table)
    assert isinstance(cells, Table)
    assert steps.rows[0][:3] == ("2026-01-09 03:17", "000000000008", "1 of 2")
    assert steps.rows[0][-1] == "triton was triton 3.4 and is triton 3.5"
    assert len(cells.rows) == 1
    (figures,) = shown.appendix
    (plot,) = figures.blocks
    assert isinstance(plot, Plot)
    assert (len(plot.dots), len(plot.levels)) == (14, 2)
    assert all(0 <= dot.y <= 1 and 0 <= dot.x <= 1 for dot in plot.dots)
    assert [place for place, _ in plot.x_labels] == [0, 1]
    page = html_page.render(shown)
    assert page.count("<circle") == 14
    assert "2026-01-09 03:17 (000000000008): " in page
    assert "| first run after it |" in markdown.render(shown)
    assert len(json_and_csv.csv_text(shown).splitlines()) == 1 + 2 * 14
    assert '"change": 0.0' in json_and_csv.json_text(shown)


def test_a_cell_that_came_back_is_neither_slower_nor_faster() -> None:
    shown = document(nightly(24, lambda day: 1 / 1.05 if 8 <= day < 16 else 1))
    assert shown.answer == ("Of 2 cells 0 became slower, 0 faster, 1 changed and came back, 1 did not change.",)
    assert len([block for block in shown.blocks if isinstance(block, Table)]) == 2  # its steps, and the cell


def test_a_cell_that_is_wrong_or_failed_in_the_latest_run_is_named() -> None:
    runs = nightly(8, lambda _: 1.0)
    assert not document(runs).cautions
    for broken in ([-1], [-1, -2]):  # also where nothing of the runs before it has a figure either
        for i in broken:
            records = [replace(r, status="wrong", reason="bad") if r.backend == "fa2" else r for r in runs[i].records]
            runs[i] = replace(runs[i], records=tuple(records))
        (caution,) = document(runs).cautions
        assert caution.what == (
            "1 cell with a history has no figure in the latest run: fa2 4k d128 full fwd bf16 b4 h16 (WRONG)."
        )
    every = [replace(r, status="failed") for r in runs[-1].records]
    assert document([*runs[:-1], replace(runs[-1], records=tuple(every))]).cautions[0].what.startswith("2 cells")
    assert not document(runs[:-2]).cautions


def test_a_unit_of_one_run_has_one_date() -> None:
    (machine,) = document(nightly(1, lambda _: 1.0)).machines
    assert "1 run, 2026-01-01 03:17 (000000000000)" in str(machine)
    assert " to " not in str(machine)


def test_all_cells_at_once_are_the_machine() -> None:
    runs = nightly(12, lambda day: 1 / 1.05 if day >= 6 else 1)
    for i, one in enumerate(runs):
        records = [ok(r.case, r.backend, 300 / (1.05 if i >= 6 else 1)) for r in one.records]
        here = replace(one.environment, driver="590.10" if i >= 6 else "580.82")
        runs[i] = replace(one, records=records, environment=here)
    (caution,) = document(runs).cautions
    assert caution.what.startswith("2 of 2 cells changed together at 2026-01-07 03:17")
    assert caution.todo == "Between these runs driver was 580.82 and is 590.10."


def test_units_and_methods_are_told_apart() -> None:
    first, second = nightly(6, lambda _: 1.0), nightly(6, lambda _: 1 / 1.1)
    for i, one in enumerate(second):
        other = replace(one.environment, device=replace(one.environment.device, uuid="GPU-9999999900000000"))
        second[i] = replace(one, environment=other, started=one.started.replace("2026-01", "2026-02"))
    found = series([*first, *second])
    assert {one.device for one in found} == {"NVIDIA H200, unit GPU-11111111", "NVIDIA H200, unit GPU-99999999"}
    assert not any(trend.changed for trend in trends([*first, *second]))
    joined = trends([*first, *second], join_units=True)
    assert len(joined) == 2
    assert any(trend.changed for trend in joined)

    third = [replace(one, method=one.method + 1) for one in second]
    labels = {one.device for one in series([*first, *third], join_units=True)}
    assert labels == {"NVIDIA H200, method 1", "NVIDIA H200, method 2"}


def test_too_few_runs_of_each_unit_are_said() -> None:
    runs = nightly(8, lambda _: 1.0)
    for i, one in enumerate(runs):
        device = replace(one.environment.device, uuid=f"GPU-{i % 2}")
        runs[i] = replace(one, environment=replace(one.environment, device=device))
    shown = document(runs)
    assert shown.answer == ("Nothing can be told yet: no cell has 6 runs of one unit and one method.",)
    assert shown.cautions[0].what == "4 cells of 4 have fewer than 6 runs of one unit and method."
    assert "--join-units" in shown.cautions[0].todo
    assert "--join-units" not in document(nightly(3, lambda _: 1.0)).cautions[0].todo


def test_runs_without_a_date_come_in_the_order_given() -> None:
    runs = [replace(one, started="once") for one in nightly(8, lambda day: 1 / 1.2 if day >= 4 else 1)]
    (changed,) = (trend for trend in trends(runs) if trend.changed)
    assert changed.levels
    assert [change.at for change in changed.levels.changes] == [4]
    assert html_page.render(document(runs)).count("<circle") == 8
