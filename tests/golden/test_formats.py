"""The formats for programs, made from real runs: their schema, and equal values in all formats of an answer."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from attnbench.core.case import Shape
from attnbench.results import run_file
from attnbench.results.cells import cells
from attnbench.results.export_rows import COLUMNS
from attnbench.results.metrics import METRICS
from golden import AGAIN, DEFAULT, FILES, LIBRARIES, ROOT, in_the_root, run

KINDS = ("default", "features", "masks", "serving", "approximate", "step", "capacity", "several-gpus", "layouts")
RUNS = [next(name for name in sorted(FILES) if f"-{kind}-" in name) for kind in KINDS]
EXPERIMENT = [f"results/ci-experiment/{name}.jsonl" for name in ("alike-00", "slow-10")]
NAMES = ("device", "suite", "started", "backend", "status", "dtype", "direction", "layout", "data", "case")
FLAGS = ("causal", "sink", "alibi", "append", "latent")
SIZES = (*(field.name for field in fields(Shape)), "round", "page_size", "ranks")


def printed(*arguments: str) -> str:
    with in_the_root():
        return run([*arguments])


def written(folder: Path, *arguments: str) -> tuple[str, str, str]:
    """The output of a command as JSON, CSV and HTML."""
    files = [folder / name for name in ("csv", "html")]
    found = printed(*arguments, "-f", "json", "-f", f"csv={files[0]}", "-f", f"html={files[1]}")
    return found, *(file.read_text(encoding="utf-8") for file in files)


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "input", "br", "line", "path", "rect", "circle", "link"):
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.opened:
            assert self.opened.pop() == tag


def data_of(page: str) -> Any:
    """Return the data in a page, once every element of it is closed."""

    (parser := _Elements()).feed(page)
    assert parser.opened == []
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(found[1]) if found else None


@pytest.mark.parametrize("name", RUNS)
def test_a_report(name: str, tmp_path: Path) -> None:
    text, table, page = written(tmp_path, "report", FILES[name])
    rows = json.loads(text)
    found = cells([run_file.read(ROOT / FILES[name])[0]])
    told = {(cell.case.key, cell.backend, row.record.round): row for cell in found for row in cell.rows}
    assert {(row["case"], row["backend"], row["round"]) for row in rows} == {*told}
    for row in rows:
        assert tuple(row) == COLUMNS
        of = told[row["case"], row["backend"], row["round"]]
        assert all(isinstance(row[column], str) for column in NAMES)
        assert all(isinstance(row[column], bool) for column in FLAGS)
        assert all(isinstance(row[column], int) for column in SIZES)
        left, right = of.case.window_size
        assert (row["window_left"], row["window_right"], row["l2"]) == (left, right, of.record.l2)
        for metric, kind in METRICS.items():
            value = kind.formula(of) if of.ok else None
            assert row[metric] == (value if value is None or not kind.whole else int(value))
            assert value is None or math.isfinite(value)
    read = list(csv.DictReader(io.StringIO(table)))
    assert [*map(tuple, read)] == [COLUMNS] * len(rows)
    assert [*read] == [{column: "" if value is None else str(value) for column, value in row.items()} for row in rows]
    drawn = data_of(page)
    if drawn is None:  # a page without figures, as of capacity
        return
    measured = [cell for cell in found if cell.status == "ok"]
    assert len(measured) <= drawn["number"] <= len(found)  # nothing of a case that no backend was measured on
    for metric in ("latency", "ci", "memory_peak"):
        shown = sorted(value for value in drawn["fields"][metric] if value is not None)
        assert shown == pytest.approx(sorted(filter(None, (cell.value(metric) for cell in measured))), rel=1e-5)


def test_a_gate() -> None:
    found = json.loads(printed("gate", *EXPERIMENT, "--json"))
    text = printed("gate", *EXPERIMENT)
    assert (found["verdict"], found["exit_code"]) == ("fail", 1)
    assert sum(found["counts"].values()) == len(found["findings"])
    for finding in found["findings"]:
        if finding["metric"] == "latency":
            change = finding["current"] / finding["baseline"] - 1
            assert finding["change"] == pytest.approx(change, abs=0.01)
            assert finding["low"] < finding["change"] < finding["high"]
    regressed = {finding["cell"] for finding in found["findings"] if finding["verdict"] == "regressed"}
    assert len(regressed) == found["counts"]["regressed"] > 0
    assert all(name.rpartition(" bf16")[0] in text for name in regressed)
    suites = ElementTree.fromstring(printed("gate", *EXPERIMENT, "-f", "junit"))
    cases = suites.findall(".//testcase")
    assert {case.get("name") for case in cases if case.find("failure") is not None} == regressed
    assert sum(int(suite.get("tests", 0)) for suite in suites) == len(cases) == len(found["findings"])


def test_a_comparison(tmp_path: Path) -> None:
    pair = FILES[DEFAULT], FILES[AGAIN]
    text, table, page = written(tmp_path, "compare", *pair)
    found = json.loads(text)
    first, other = found["machines"]
    assert (first["ratio"], found["reference"]) == (1.0, first["name"])
    assert other["ratio_low"] < other["ratio"] < other["ratio_high"]
    assert f"{other['ratio']:.3f}x" in printed("compare", *pair)
    assert f"{other['ratio']:.3f}x" in page
    sides = [{cell.key: cell for cell in cells([run_file.read(ROOT / file)[0]])} for file in pair]
    ok = [key for key in sides[0] if all(side[key].status == "ok" for side in sides if key in side) and key in sides[1]]
    rows = list(csv.DictReader(io.StringIO(table)))
    assert rows
    assert {(row["case"], row["backend"]) for row in rows} >= {(case.key, backend) for case, backend in ok}


def test_a_recommendation(tmp_path: Path) -> None:
    text, table, page = written(tmp_path, "recommend", FILES[LIBRARIES])
    rows = json.loads(text)["recommendations"]
    found = {(cell.case.key, cell.backend): cell for cell in cells([run_file.read(ROOT / FILES[LIBRARIES])[0]])}
    for row in rows:
        if row["step"] == row["direction"] and row["use"]:
            best = found[row["case"], row["use"]]
            assert row["latency"] == best.value("latency")
            measured = [found[row["case"], name] for name in row["measured"].split("; ")]
            assert all(cell.value("latency") >= best.value("latency") or best.alike(cell) for cell in measured)
            assert row["use"] in page
    read = list(csv.DictReader(io.StringIO(table)))
    assert [row["use"] for row in read] == [row["use"] for row in rows]
