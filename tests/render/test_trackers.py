"""Files for other tools have the documented formats of these tools."""

from __future__ import annotations

import io
import json
import math
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attnbench.core.errors import UserError
from attnbench.core.record import Run
from attnbench.render.export import trackers
from attnbench.results.cells import cells
from attnbench.results.export_rows import table_rows
from builders import case, ended, ok, run


def small() -> Run:
    cases = [case(1024), case(1024, causal=True), case(1024, dtype="fp16"), case(1024, window_size=(128, 0))]
    records = [ok(c, "triton", 400, memory_peak=2**30) for c in cases]
    return run([*records, ended(case(2048), "eager", "skipped", "needs 512 GiB")])


def parsed(format: str, *runs: Run) -> Any:
    return json.loads(trackers.content(format, cells(runs)))


def test_a_name_tells_cases_apart_and_stays_the_same() -> None:
    assert [trackers.name(c) for c in cells([small()])] == [
        "triton/bf16-d128-full-fwd-1k-b16-h16",
        "eager/bf16-d128-full-fwd-2k-b8-h16",
        "triton/bf16-d128-causal-fwd-1k-b16-h16",
        "triton/bf16-d128-window (128, 0)-fwd-1k-b16-h16",
        "triton/fp16-d128-full-fwd-1k-b16-h16",
    ]


def test_bmf() -> None:
    """BMF has names, measures, values and bounds (bencher.dev/docs/reference/bencher-metric-format)."""
    found = parsed("bmf", small())
    assert len(found) == 4  # without skipped cells
    (cell,) = [c for c in cells([small()]) if trackers.name(c) == "triton/bf16-d128-causal-fwd-1k-b16-h16"]
    measures = found["triton/bf16-d128-causal-fwd-1k-b16-h16"]
    assert set(measures) == {"latency", "tflops", "peak-memory"}
    assert measures["latency"]["value"] == pytest.approx(cell.value("latency") * 1e9)
    assert measures["tflops"]["value"] == pytest.approx(400)
    assert measures["peak-memory"] == {"value": 2**30}
    for name in ("latency", "tflops"):
        assert measures[name]["lower_value"] < measures[name]["value"] < measures[name]["upper_value"]
        assert measures[name]["upper_value"] < 1.008 * measures[name]["value"]
    assert all(re.fullmatch(r"[a-z0-9-]{1,64}", slug) for m in found.values() for slug in m)


def test_github_action_benchmark() -> None:
    """customSmallerIsBetter is an array of name, unit and value, with range and extra as text."""
    found = parsed("github-action-benchmark", small())
    assert len({entry["name"] for entry in found}) == len(found) == 8
    latency, memory = found[:2]
    assert latency["name"] == "triton/bf16-d128-full-fwd-1k-b16-h16 latency"
    assert (latency["unit"], memory["unit"]) == ("us", "MiB")
    assert latency["value"] == pytest.approx(cells([small()])[0].value("latency") * 1e6)
    assert memory["value"] == 1024
    assert re.fullmatch(r"-0\.\d+% to \+0\.\d+%", latency["range"])
    assert "range" not in memory
    assert latency["extra"] == "NVIDIA H200\n400 TFLOP/s"


def test_pytest_benchmark() -> None:
    found = parsed("pytest-benchmark", small())
    assert set(found) == {"machine_info", "commit_info", "benchmarks", "datetime", "version"}
    first = found["benchmarks"][0]
    samples = small().records[0].measurements["time"].values
    stats = first["stats"]
    assert (first["group"], first["name"]) == ("1k d128 full fwd bf16 b16 h16", "triton/bf16-d128-full-fwd-1k-b16-h16")
    assert stats["data"] == list(samples)
    assert stats["rounds"] == len(samples) == 100
    assert stats["mean"] == pytest.approx(statistics.fmean(samples))
    assert stats["stddev"] == pytest.approx(statistics.stdev(samples))
    assert stats["median"] == pytest.approx(statistics.median(samples))
    assert stats["ops"] == pytest.approx(1 / stats["mean"])
    assert stats["iqr"] == pytest.approx(stats["q3"] - stats["q1"])


def test_pytest_benchmark_itself_compares_it(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(trackers.pytest_benchmark(cells([small()]))))
    command = [sys.executable, "-m", "pytest_benchmark", "compare", str(tmp_path / "run.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "benchmark '1k d128 causal fwd bf16 b16 h16': 1 tests" in done.stdout
    assert "triton/bf16-d128-causal-fwd-1k-b16-h16" in done.stdout


def test_parquet_has_the_rows_of_the_csv() -> None:
    pytest.importorskip("pyarrow")
    import pandas

    found = trackers.content("parquet", cells([small()]))
    assert isinstance(found, bytes)
    read = pandas.read_parquet(io.BytesIO(found))
    rows = list(table_rows(cells([small()])))
    assert list(read.columns) == list(rows[0])
    assert read["latency"].tolist()[0] == rows[0]["latency"]
    assert read["memory_peak"].tolist()[0] == 2**30
    assert read["reason"].tolist()[1] == "needs 512 GiB"


def test_parquet_without_its_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "fastparquet", None)
    with pytest.raises(UserError, match=r"needs pyarrow: pip install pyarrow"):
        trackers.parquet(cells([small()]))


def test_two_devices_do_not_share_names() -> None:
    other = run([ok(case(1024), "triton", 300)], started="2026-07-02T10:00:00+00:00")
    names = list(parsed("bmf", small(), other))
    assert len(names) == 5
    assert all(name.startswith("NVIDIA H200 (run of 2026-07-0") for name in names)
    (doubt,) = trackers.doubts(cells([small(), other]))
    assert "one file at a time" in doubt
    assert not [*trackers.doubts(cells([small()]))]


@pytest.mark.parametrize("format", trackers.JSON_FORMATS)
def test_nothing_measured_is_an_empty_file_of_the_format(format: str) -> None:
    nothing = run([ended(case(), "eager", "failed", "no")])
    found = parsed(format, nothing)
    assert not (found["benchmarks"] if format == "pytest-benchmark" else found)
    (doubt,) = trackers.doubts(cells([nothing]))
    assert doubt.startswith("no cell has a figure")


@pytest.mark.parametrize("format", [*trackers.JSON_FORMATS, "parquet"])
def test_a_run_without_records_is_one_line(format: str) -> None:
    with pytest.raises(UserError, match=r"^no cell has a record, so there is nothing to export"):
        trackers.content(format, cells([run([])]))


@pytest.mark.parametrize("format", trackers.JSON_FORMATS)
def test_latencies_of_0_and_wide_intervals_cost_no_file(format: str) -> None:
    odd = [ok(case(), "triton", 400, time=[0.0] * 9), ok(case(2048), "triton", 400, time=[0.0, 1e-3, math.inf])]
    assert parsed(format, run(odd))
