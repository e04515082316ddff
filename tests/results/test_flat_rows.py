"""CSV and JSON: every cell with every metric, and they read back."""

from __future__ import annotations

import io
import json
from dataclasses import fields

import pandas
import pytest

from attnbench.core.case import Shape
from attnbench.report.export import flat_rows
from attnbench.results.metrics import METRICS
from builders import case, decode, forwards, ok, run


def test_json_is_valid_and_flat() -> None:
    records = [
        *forwards(),
        ok(case(), "fa4", 300.0, n=1),
        ok(case(), "fa4", 310.0, round=1, limits=("power cap", "thermal"), kernels={"flash_fwd": 1, "fill, 2": 2}),
        decode(4096, "fa4", 9.0, ceiling_matmul=6e14),
    ]

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    rows = json.loads(flat_rows.json_text([run(records)]), parse_constant=refuse)
    assert len(rows) == len(records)
    assert all(row.keys() == rows[0].keys() for row in rows)
    row = next(r for r in rows if r["backend"] == "fa4" and r["round"] == 1)
    assert (row["seqlen_k"], row["headdim"], row["causal"], row["window_left"]) == (1024, 128, False, None)
    assert (row["tflops"], row["status"], row["limits"]) == (pytest.approx(310), "ok", "power cap; thermal")
    assert row["speedup"] == pytest.approx(310 / 32.1)
    assert (row["kernels"], row["bound"]) == ("flash_fwd; fill, 2", "compute")
    assert row["utilization_ceiling"] == pytest.approx(310 / 600)
    decoded = next(r for r in rows if r["seqlen_q"] == 1)
    assert decoded["bound"] == "memory"
    assert decoded["roofline"] == pytest.approx(decoded["bandwidth_utilization"])
    assert set(METRICS) <= set(row)
    assert list(row)[list(row).index("reason") + 1 : list(row).index("dtype")] == [f.name for f in fields(Shape)]
    skipped = next(r for r in rows if r["backend"] == "sdpa-math")
    assert (skipped["status"], skipped["reason"], skipped["tflops"]) == ("skipped", "needs a CUDA GPU", None)


def test_csv_reads_back() -> None:
    frame = flat_rows.dataframe([run(forwards())])
    again = pandas.read_csv(io.StringIO(flat_rows.csv([run(forwards())])))
    assert list(again.columns) == list(frame.columns)
    assert len(again) == 24
    assert again["tflops"].max() == pytest.approx(414.2 * 1.5)
    assert again.loc[again["status"] == "ok", "memory_peak"].min() == 64 * 2**20
    assert str(frame["memory_peak"].dtype) == "Int64"
    assert str(frame["latency"].dtype) == "float64"
    assert set(again["bound"]) == {"compute"}


def test_a_run_without_records_keeps_the_columns() -> None:
    (header,) = flat_rows.csv([run([])]).splitlines()
    assert header.split(",") == list(next(flat_rows.rows([run(forwards())])))
    assert list(flat_rows.dataframe([run([])]).columns) == header.split(",")
