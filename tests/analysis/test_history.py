"""The findings of `history` in series with known changes, and the kinds of change that it separates."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest

from attnbench.analysis.history.acknowledged import Acknowledgement, acknowledged
from attnbench.analysis.history.change_points import LEAST_NOISE, Levels, levels
from attnbench.analysis.history.change_tests import LEAST, judged
from attnbench.analysis.history.document import Request, document
from attnbench.analysis.history.findings import Trend, trends
from attnbench.analysis.history.series import Series, of_branch, series, since
from attnbench.core.errors import UserError
from attnbench.core.record import Run
from attnbench.render.document import Plot, Table
from attnbench.results.noise import Prior
from attnbench.results.uncertainty import FREEDOM
from builders import H200, case, environment, ok, run

pytest.importorskip("ruptures")
NOISE = 0.004
FIRST = datetime(2026, 1, 1, 3, 17, tzinfo=timezone.utc)


def found(logs: Sequence[float], seed: int = 0, noise: float = NOISE) -> Levels:
    """Return the findings on a cell in a history with nine other cells, which do not change."""
    rng = np.random.default_rng(seed)
    unit = rng.normal(0, noise, (10, len(logs)))
    unit[0] += logs
    (outcome,) = judged([unit], [LEAST_NOISE])
    changed, kept = bool(outcome.changed[0]), float(outcome.kept[0])
    prior, seconds = Prior(noise**2, FREEDOM), 1e-3 * np.exp(unit[0])
    got = levels(seconds.tolist(), prior, 10, changed=changed, kept=kept, least=LEAST_NOISE)
    assert got
    return got


def test_a_creep_of_half_a_per_cent_a_run() -> None:
    """A creep of half a per cent a run is found, although a gate at 3 % passes each run against the run before."""
    for seed in range(10):
        got = found([0.005 * i for i in range(16)], seed)
        assert got.creep == pytest.approx(0.005, abs=0.002)
        assert got.total() == pytest.approx(1.005**15 - 1, abs=0.02)


def test_a_step_of_two_per_cent() -> None:
    for seed in range(20):
        got = found([0.02 * (i >= 8) for i in range(16)], seed, noise=0.002)
        (change,) = got.changes
        assert got.creep is None
        assert change.first == change.at == change.last == 8
        assert abs(change.change - 0.02) < 2 * got.half(0, 1)


def test_a_level_of_one_or_two_runs_is_not_told_at_another_run() -> None:
    for size in (0.05, 0.5, -0.06):
        for new in (1, 2):
            got = found([size * (i >= 24 - new) for i in range(24)], noise=0.002)
            assert not got.changes
            assert got.pending
            assert got.pending.at == 24 - new
            assert got.pending.change == pytest.approx(np.expm1(size), abs=0.01)
        (change,) = found([size * (i >= 21) for i in range(24)], noise=0.002).changes
        assert change.first <= 21 <= change.last


def test_what_ends_slower_is_not_called_faster() -> None:
    """A series that ends slower is not called faster, with short levels or with a line through several levels."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        cuts, logs = sorted(rng.choice(range(1, 24), 3, replace=False)), np.zeros(24)
        for cut in cuts:
            logs[cut:] += rng.choice([-0.1, -0.06, 0.06, 0.1])
        got, ends = found(logs.tolist(), noise=0.002), logs[-1] - np.median(logs[:LEAST])
        trend = Trend(Series("", "fa2", case(4096), "latency", ()), got)
        if trend.moved and abs(ends) > 0.03:
            assert trend.change * ends > 0


def test_ruptures_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ruptures", None)
    with pytest.raises(UserError, match=r"history needs ruptures .*: pip install ruptures"):
        levels([1e-3] * 12, Prior(), 1)


def test_what_is_no_change() -> None:
    for place in (0, 5, 11):  # one bad run
        assert not found([0.08 * (i == place) for i in range(12)], place, noise=0.002).changes
    assert not found([0.0] * 12, noise=0).changes, "a simulated device repeats exactly"
    assert [c.at for c in found([0.005 * (i >= 6) for i in range(12)], noise=0).changes] == [6]
    assert not found([0.05 * (i >= 8) - 0.02 * (i >= 16) for i in range(24)], noise=0.002).came_back()


def nightly(number: int, speed: Callable[[int], float], **changes: object) -> list[Run]:
    """Return runs of two cells, one a day; `speed` maps the number of a run to the first cell's speed."""
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
    assert shown.answer[0] == "Of 2 cells 1 became worse (latency of 1), 0 better, 1 did not change."
    assert "Worst: triton 4k d128 full fwd bf16 b4 h16, latency +3." in shown.answer[1]
    assert "in one step at 2026-01-09 03:17 (000000000007..000000000008)" in shown.answer[1]
    steps, _ = shown.blocks
    assert isinstance(steps, Table)
    assert steps.rows[0][-1] == "triton was triton 3.4 and is triton 3.5"
    (plot,) = shown.appendix[0].blocks
    assert isinstance(plot, Plot)
    assert (len(plot.dots), len(plot.levels)) == (14, 2)
    assert all(0 <= dot.y <= 1 and 0 <= dot.x <= 1 for dot in plot.dots)


def test_a_cell_that_came_back_is_neither_slower_nor_faster() -> None:
    shown = document(nightly(24, lambda day: 1 / 1.05 if 8 <= day < 16 else 1))
    assert shown.answer == ("Of 2 cells 0 became worse, 0 better, 1 changed and came back, 1 did not change.",)


def test_a_cell_that_is_wrong_or_failed_in_the_latest_run_is_named() -> None:
    runs = nightly(12, lambda _: 1.0)
    assert not document(runs).cautions
    for broken in ([-1], [-1, -2]):  # also where no earlier run has a figure
        for i in broken:
            records = [replace(r, status="wrong", reason="bad") if r.backend == "fa2" else r for r in runs[i].records]
            runs[i] = replace(runs[i], records=records)
        (caution,) = document(runs).cautions
        assert caution.what.startswith("1 cell with a history has no figure in the latest run: fa2 4k d128 full fwd")
        verdict = str(document(runs, Request(fail_on=0.03)).verdict)
        assert "PASS" in verdict
        assert "not decided in the latest run: fa2 4k d128 full fwd bf16 b4 h16 (WRONG)" in verdict
    every = [replace(r, status="failed") for r in runs[-1].records]
    assert document([*runs[:-1], replace(runs[-1], records=tuple(every))]).cautions[0].what.startswith("2 cells")


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
    first, second = nightly(12, lambda _: 1.0), nightly(12, lambda _: 1 / 1.1)
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
    assert shown.answer == ("Nothing is known yet: no cell has 10 runs of one unit and one method.",)
    assert shown.cautions[0].what == "4 cells of 4 have fewer than 10 runs of one unit and method."
    assert "--join-units" in shown.cautions[0].todo


def test_runs_without_a_date_come_in_the_order_given() -> None:
    runs = [replace(one, started="once") for one in nightly(12, lambda day: 1 / 1.2 if day >= 6 else 1)]
    (changed,) = (trend for trend in trends(runs) if trend.changed)
    assert changed.levels
    assert [change.at for change in changed.levels.changes] == [6]
    (plot,) = document(runs).appendix[0].blocks
    assert isinstance(plot, Plot)
    assert len({dot.x for dot in plot.dots}) == 12


def test_memory_and_first_calls_are_followed_too() -> None:
    """Memory and first calls are followed too: the answer counts cells and names the metrics that moved."""
    runs = nightly(14, lambda day: 1 / 1.1 if day >= 8 else 1)
    for day, one in enumerate(runs):
        took = {"memory_peak": 2**30 * (1.5 if day >= 6 else 1.0), "first_call": 2.0 + 0.1 * (day % 3) + (day >= 7)}
        records = [ok(r.case, r.backend, 300 + day % 5, **took) if r.backend == "fa2" else r for r in one.records]
        runs[day] = replace(one, records=tuple(records))
    shown = document(runs)
    assert shown.answer[0] == "Of 2 cells 2 became worse (latency of 1, memory_peak of 1), 0 better, 0 did not change."
    assert "Worst: fa2 4k d128 full fwd bf16 b4 h16, memory_peak +50" in shown.answer[1]
    shown = document(runs, Request(metrics=("first_call",)))
    assert shown.answer[0].startswith("Of 1 cell 1 became worse (first_call of 1)")
    assert {row["metric"] for row in shown.rows} == {"first_call"}


def test_memory_that_was_none_is_a_value() -> None:
    """A call that needs no memory has a history too; what is below the gate's floor of 1 MiB counts as the floor."""
    runs = nightly(14, lambda _: 1.0)
    for day, one in enumerate(runs):
        records = [ok(r.case, r.backend, 300, memory_peak=477 * 2**20 * (day >= 8)) for r in one.records]
        runs[day] = replace(one, records=tuple(records))
    shown = document(runs, Request(fail_on=0.01))
    assert shown.exit_code == 1
    assert "memory_peak +47600%, in one step" in shown.answer[1]
    assert document(runs[:8], Request(fail_on=0.01, metrics=("memory_peak",))).exit_code == 0


def test_cells_that_change_together_are_one_step_between_two_runs() -> None:
    """Cells that change together are one step, between the two runs that most cells show, not by an uncertain cell."""
    runs = nightly(20, lambda day: 1 / 1.05 if day >= 8 else 1)
    for day, one in enumerate(runs):
        slow = 1.01 if day == 8 else 1.02 if day > 8 else 1.0
        rate = 300 / slow * float(np.exp(np.random.default_rng(day).normal(0, 0.001)))
        records = [ok(r.case, r.backend, rate) if r.backend == "fa2" else r for r in one.records]
        runs[day] = replace(one, records=records)
    shown = document(runs)
    (event,) = shown.data["events"]
    assert event["good"]["git"] == f"{7:012x}"
    assert event["bad"]["git"] in (f"{8:012x}", f"{9:012x}")
    assert len(event["cells"]) == 2


def test_where_one_or_two_runs_are_off_it_is_said_and_not_told() -> None:
    shown = document(nightly(14, lambda day: 1 / 1.05 if day >= 12 else 1))
    assert shown.answer == (
        "Of 2 cells 0 became worse, 0 better, 1 may have begun another level, not certain yet, 1 did not change.",
    )
    assert "may have begun at 2026-01-13 03:17 (00000000000c)" in shown.cautions[0].what
    assert not shown.data["events"]


def test_what_is_worse_by_more_than_is_allowed_fails() -> None:
    runs = nightly(14, lambda day: 1 / 1.05 if day >= 8 else 1)
    assert "FAIL: 1 cell worse by more than 3%: triton" in str(document(runs, Request(fail_on=0.03)).verdict)
    assert "PASS" in str(document(runs, Request(fail_on=0.10)).verdict)
    faster = nightly(14, lambda day: 1.05 if day >= 8 else 1)
    assert "PASS" in str(document(faster, Request(fail_on=0.03)).verdict)
    assert document(runs).verdict is None


def test_an_acknowledged_step_sets_the_level_that_counts(tmp_path: Path) -> None:
    file = tmp_path / "acknowledged.yml"
    file.write_text(
        """- cells: "triton *"
  at: "000000000008"
  reason: deterministic
- {cells: "*", at: 2025-12-24, reason: none, metric: memory_peak}
"""
    )
    entries = acknowledged(file)
    runs = nightly(24, lambda day: 1 / 1.10 if day >= 16 else 1 / 1.05 if day >= 8 else 1)
    shown = document(runs, Request(acknowledged=entries, fail_on=0.06))
    assert "latency +4." in shown.answer[1]
    assert "(00000000000f..000000000010)" in shown.answer[1]
    assert "PASS" in str(shown.verdict)
    assert shown.cautions[-1].what == "1 acknowledgement fit no change: * at 2025-12-24, memory_peak."
    at_another = [Acknowledgement("triton *", "000000000005", "a wrong commit")]
    assert "FAIL" in str(document(runs, Request(acknowledged=at_another, fail_on=0.06)).verdict)


def test_what_is_no_acknowledgement(tmp_path: Path) -> None:
    file = tmp_path / "acknowledged.yml"
    for text, said in (
        ("cells: all", "a list of entries is expected"),
        ("- {cells: x, at: 1234abcd}", "entry 1: reason is missing"),
        ("- {cells: x, at: 12, reason: y}", "entry 1: at: 12 is too short"),
        ("- {cells: x, at: 1234e567, reason: y}", "write the commit in quotes"),
        ("- {cells: x, at: 1234, reason: y, metrics: latency}", "unknown key metrics; did you mean"),
        (r'- {"a\nb": 1}', "unknown key a b; known"),  # on one line
    ):
        file.write_text(text)
        with pytest.raises(UserError, match=said):
            acknowledged(file)


def test_runs_of_a_branch_and_since_a_date_or_commit() -> None:
    runs = nightly(6, lambda _: 1.0)
    for day in (1, 3):
        runs[day] = replace(runs[day], environment=replace(runs[day].environment, branch="main"))
    assert of_branch(runs, "main") == [runs[1], runs[3]]
    with pytest.raises(UserError, match="--branch: no run of dev; there are runs of main"):
        of_branch(runs, "dev")
    with pytest.raises(UserError, match="no run says of which branch it is"):
        of_branch(runs[4:], "main")
    for text in ("000000000004", "2026-01-05", "2026-01-05T01:00"):
        assert since(runs, text) == runs[4:]
    for text, said in (("2027-01-01", "no run was started since"), ("nothing", "neither a date")):
        with pytest.raises(UserError, match=said):
            since(runs, text)


def test_a_cell_that_is_newer_than_others_stands_apart() -> None:
    """A cell that is newer than others is judged alone: earlier runs have no noise for it, so any order is a step."""
    runs = nightly(24, lambda day: 1 / 1.05 if day >= 12 else 1)
    runs[:8] = [replace(one, records=one.records[:1]) for one in runs[:8]]
    runs[20] = replace(runs[20], records=runs[20].records[1:])  # one cell lacks a single run
    one, other = trends(runs)
    assert [len(one.series.points), len(other.series.points)] in ([23, 16], [16, 23])
    assert [trend.series.backend for trend in (one, other) if trend.changed] == ["triton"]
