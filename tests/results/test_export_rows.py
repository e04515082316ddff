"""The table of all cells: every metric of every round, as mappings, CSV, JSON and a DataFrame."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from attnbench.core.record import Accuracy, Approximation, Record, Run, TensorError
from attnbench.results.cells import cells
from attnbench.results.export_rows import CASE_COLUMNS, COLUMNS, case_columns, dataframe, table_rows
from attnbench.results.metrics import METRICS
from builders import case, decode, forwards, ok, run

OFF = TensorError(1.0, 0.1, 0.2, 1.0)


def rows(*runs: Run) -> list[dict[str, Any]]:
    return list(table_rows(cells(runs)))


def records() -> list[Record]:
    return [
        *forwards(),
        ok(case(), "fa4", 300.0, n=1),
        ok(case(), "fa4", 310.0, round=1, limits=("power cap", "thermal"), kernels={"flash_fwd": 1, "fill, 2": 2}),
        decode(4096, "fa4", 9.0, ceiling_matmul=6e14),
    ]


def test_each_round_of_each_cell_is_a_row_with_the_same_columns() -> None:
    found = rows(run(records()))
    assert len(found) == len(records())
    assert all(tuple(row) == COLUMNS for row in found)
    assert set(METRICS) <= set(COLUMNS)
    row = next(r for r in found if r["backend"] == "fa4" and r["round"] == 1)
    assert (row["seqlen_k"], row["headdim"], row["causal"], row["window_left"]) == (1024, 128, False, None)
    assert (row["tflops"], row["status"], row["limits"]) == (pytest.approx(310), "ok", "power cap; thermal")
    assert row["speedup"] == pytest.approx(310 / 32.1)
    assert (row["kernels"], row["bound"]) == ("flash_fwd; fill, 2", "compute")
    assert row["utilization_ceiling"] == pytest.approx(310 / 600)
    assert row["flops_convention"] == "exact"
    decoded = next(r for r in found if r["seqlen_q"] == 1)
    assert decoded["bound"] == "memory"
    assert decoded["roofline"] == pytest.approx(decoded["bandwidth_utilization"])
    skipped = next(r for r in found if r["backend"] == "sdpa-math")
    assert (skipped["status"], skipped["reason"], skipped["tflops"]) == ("skipped", "needs a CUDA GPU", None)


def test_own_code_has_its_gain_over_the_fastest_library() -> None:
    """In its round, where both have it; approximations, wrong results and other own code are no library."""
    own = {"mine": "/mine.py:mine", "other": "/mine.py:other"}
    rough = Approximation("blocks", 0.1, 0.9, 64, 4)
    made = run(
        [
            *(ok(case(), "mine", tflops, round=number) for number, tflops in enumerate((300.0, 330.0))),
            *(ok(case(), "fa3", tflops, round=number) for number, tflops in enumerate((200.0, 220.0))),
            *(ok(case(), name, 100.0) for name in ("eager", "other")),
            ok(case(), "sage", 900.0, approximation=rough),
            replace(ok(case(), "fa4", 800.0), status="wrong"),
        ],
        specs=own,
    )
    found = {(row["backend"], row["round"]): row["gain"] for row in rows(made)}
    assert found["mine", 0] == found["mine", 1] == pytest.approx(1.5)
    assert found["other", 0] == pytest.approx(0.5)
    assert found["fa3", 0] is None


@pytest.mark.parametrize(
    ("record", "failing"),
    [
        (replace(ok(case(), "mine", 1.0), status="wrong", accuracy=Accuracy({"out": OFF}, 1, 1)), "values"),
        (replace(ok(case(), "mine", 1.0), status="wrong", accuracy=Accuracy({"out": OFF}, 1, 1, ("out",))), "finite"),
        (replace(ok(case(), "mine", 1.0), status="wrong", accuracy=Accuracy({}, 1, 1, flaws=("twice",))), "form"),
        (replace(ok(case(), "mine", 1.0), status="wrong-kernel"), "kernel"),
        (ok(case(), "mine", 1.0), ""),
    ],
)
def test_the_failing_property(record: Record, failing: str) -> None:
    assert [row["failing"] for row in rows(run([record]))] == [failing]


def test_the_frame_has_types_and_units() -> None:
    frame = dataframe(cells([run(records())]))
    assert str(frame["memory_peak"].dtype) == str(frame["samples"].dtype) == "Int64"
    assert str(frame["latency"].dtype) == "float64"
    assert frame.attrs["units"] == {name: metric.unit for name, metric in METRICS.items()}
    assert frame.attrs["units"]["latency"] == "s"
    assert frame.attrs["units"]["utilization"] == ""


def test_a_run_without_records_keeps_the_columns() -> None:
    frame = dataframe(cells([run([])]))
    assert list(frame.columns) == list(COLUMNS)
    assert len(frame) == 0
    assert frame["latency"].dtype == "float64"


def test_a_case_in_columns() -> None:
    found = case_columns(case(causal=True, window_size=(1023, None), softcap=30.0))
    assert tuple(found) == CASE_COLUMNS
    assert (found["window_left"], found["window_right"], found["softcap"]) == (1023, None, 30.0)
    assert found["case"] == case(causal=True, window_size=(1023, None), softcap=30.0).key


def test_the_version_is_the_records_own_or_the_runs() -> None:
    made = run([ok(case(), "fa4", 300.0), ok(case(), "fa4", 300.0, round=1, version="4.1")], versions={"fa4": "4.0"})
    assert [row["version"] for row in rows(made)] == ["4.0", "4.1"]


def test_whole_numbers_beyond_64_bits_are_left_out() -> None:
    (row,) = rows(run([ok(case(), "eager", 10.0, memory_peak=1e25)]))
    assert row["memory_peak"] is None
    assert dataframe(cells([run([ok(case(), "eager", 10.0, memory_peak=1e25)])]))["memory_peak"].isna().all()
