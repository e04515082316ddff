"""Reports as a whole: layouts of several widths, colours, missing measurements, markdown."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from report_text import report, shown

from attnbench.analysis.report import page
from attnbench.analysis.report.document import complete
from attnbench.core.record import STATUSES, Forecast, Measurement, Record
from attnbench.render import json_and_csv, markdown, terminal
from attnbench.render.export import trackers
from attnbench.render.html.charts import charts
from attnbench.results.cells import cells
from attnbench.results.export_rows import COLUMNS
from attnbench.results.metrics import METRICS
from builders import CPU, H200, UNITS, case, decode, ended, environment, forwards, ok, run


def test_a_cpu_has_no_utilisation_and_no_warning_about_it() -> None:
    records = [ok(case(512, dtype="fp32"), name, t) for name, t in (("eager", 0.1234), ("sdpa-math", 0.0456))]
    text = shown([run(records, device=CPU)])
    assert "   512   *0.123      0.0456\n" in text
    assert "share of the peak" not in text
    assert "Utilisation" not in text


def test_only_skips_make_no_table() -> None:
    text = shown([run([ended(case(), "triton", "skipped", "needs a CUDA GPU")])])
    assert "No cell has a figure for this." in text
    assert "needs a CUDA GPU" in text


def test_an_empty_run() -> None:
    assert shown([]) == shown([run([])]) == "Nothing was measured: there are no records.\n"
    empty = complete(report([run([])]), {"csv"}, [], [], [])
    assert json.loads(json_and_csv.json_text(empty)) == []
    assert json_and_csv.csv_text(empty) == ",".join(COLUMNS) + "\n"


def test_a_wrong_kernel_has_no_figure() -> None:
    reason = "no kernel like 'flash_fwd' ran; instead: sgemm"
    records = [ok(case(), "eager", 32.1), ended(case(), "fa4", "wrong-kernel", reason, kernels={"sgemm": 1})]
    text = shown([run(records)])
    assert "    1k   32.1 3%   KERNEL!\n" in text
    assert f"KERNEL!  fa4 1k d128 full fwd: {reason}\n" in text
    assert "1 cell where a kernel ran that is not the backend's: fa4 1k d128 full fwd." in text


def test_what_a_format_needs_is_computed_for_it_alone() -> None:
    made = run(forwards())
    found = cells([made])
    plain = report([made])
    assert complete(plain, {"table", "md"}, found, [made], [Path("run.jsonl")]) == plain
    rows = complete(plain, {"csv"}, found, [made], [Path("run.jsonl")])
    assert (len(rows.rows), rows.data, rows.page) == (24, rows.rows, None)
    page = complete(plain, {"html"}, found, [made], [Path("run.jsonl")])
    assert (page.rows, [section.name for section in page.appendix]) == ((), ["environment", "reproduce"])
    assert page.page is not None


def odd_records(seed: int) -> list[Record]:
    """Return records with few, empty, zero or infinite measurements, between records that failed."""
    dice = random.Random(seed)
    samples = ([], [0.0] * 7, [1e-5], [1e-5] * 100, [1.0, math.inf], [math.nan] * 7, [0.0, 1e-4], [2e-4] * 20)
    records = []
    kinds = (case(), case(dtype="fp8"), case(window_size=(255, 0), softcap=30.0), decode(4096, "eager", 1.0).case)
    for which, backend, i in itertools.product(kinds, ("eager", "triton", "x|`*<b>"), range(3)):
        if dice.random() < 0.2:
            reason = dice.choice((None, "", "x\n::error::y \x1b[31m|`", "\ud800"))
            records.append(ended(which, backend, dice.choice(STATUSES[1:]), reason, round=i))
            continue
        taken = {name: Measurement(UNITS[name], tuple(dice.choice(samples))) for name in UNITS if dice.random() < 0.6}
        changes = {
            "timer": dice.choice(("events", "cupti", "graph", None)),
            "l2": dice.choice(("cold", "unproven", None)),
            "limits": dice.choice(((), ("power cap",))),
            "host_bound": dice.random() < 0.2,
            "forecast": dice.choice((None, Forecast(0.0, 0.0, 0), Forecast(1.0, 1.0, 1))),
        }
        records.append(replace(ok(which, backend, 1.0, round=i, **changes), measurements=taken))
    return records


@pytest.mark.parametrize("seed", range(2))
def test_no_measurement_however_odd_costs_a_report(seed: int) -> None:
    runs = [run(odd_records(seed)), run(odd_records(seed)[::2], started="2026-07-02T10:00:00+00:00")]
    found = cells(runs)
    document = report(runs, metrics=tuple(METRICS))
    for width in (20, 80):
        assert shown(runs, width, metrics=tuple(METRICS))
    assert terminal.text(document)
    assert markdown.render(document)
    rows = complete(document, {"csv"}, found, [], [])
    assert len(json.loads(json_and_csv.json_text(rows))) == len(rows.rows) == sum(len(cell.rows) for cell in found)
    assert json_and_csv.csv_text(rows)
    for format in trackers.JSON_FORMATS:
        assert json.loads(trackers.content(format, found))
    assert charts(found).rows


def test_commands_to_paste_hold_nothing_of_a_file_but_words() -> None:
    device = replace(H200, name="NVIDIA H200\ntouch /tmp/x #")
    here = environment(device, packages={"x": "1\ntouch /tmp/y"})
    stranger = replace(run([], suite="ci; touch /tmp/z"), environment=here)
    code = str(page.reproduce([stranger], [], []).code).splitlines()
    assert not any(line.startswith("touch") for line in code)
    assert "attnbench run --suite 'ci; touch /tmp/z'" in code
