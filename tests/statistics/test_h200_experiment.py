"""h200_experiment.py on a simulated device: it plants the slowdowns it names, counts them, and can go on."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h200_experiment
import pytest
from planted import VARIABLE, Planted

from attnbench import backends
from attnbench.core.backend import Prepared
from attnbench.core.case import Case, Shape

CASE = Case(Shape(1, 64, 64, 1, 1, 64, 64), "bf16", "fwd")
NewPlanted = Callable[..., Planted]


def rows(text: str) -> list[list[str]]:
    return [[entry.strip() for entry in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


def test_a_dry_try(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "few.yaml").write_text("name: few\naxes: {seqlen: [1k, 2k], headdim: 128}\n")
    few = f"--suite {tmp_path / 'few.yaml'} --rounds 2 --alike 2 --slowdowns 5 --margins 3,9".split()
    arguments = [str(tmp_path / "runs"), "--device", "fake", "--base", "fake", *few]
    assert h200_experiment.main([*arguments, "--minutes", "0"]) == 1
    assert "Fewer than two runs" in capsys.readouterr().out
    assert h200_experiment.main(arguments) == 0
    times = [json.loads(line) for line in (tmp_path / "runs" / "times.jsonl").read_text().splitlines()]
    assert [t["run"] for t in times] == ["alike-00", "slow-5", "alike-01"]
    found = rows((tmp_path / "runs" / "tables.md").read_text())
    assert found[2] == ["1 disjoint", "3%", "0", "8", "0", "0", "8", "0"]
    slowed = {(row[2], row[3]): (row[0], *row[4:]) for row in found if row[0] == "5%"}
    assert slowed == {
        ("3%", "the one before"): ("5%", "2", "2", "0", "0", "0"),
        ("3%", "all 2"): ("5%", "4", "4", "0", "0", "0"),
        ("9% (within)", "the one before"): ("5%", "2", "0", "0", "2", "0"),
        ("9% (within)", "all 2"): ("5%", "4", "0", "0", "4", "0"),
    }
    header = (tmp_path / "runs" / "slow-5.jsonl").read_text().splitlines()[0]
    assert json.loads(header)["specs"] == {"Planted": "planted:Planted"}
    for path in (tmp_path / "runs").glob("*-*.jsonl"):  # as on a machine that does all within one second
        path.write_text(re.sub(r'"started":"[^"]*"', '"started":"2026-11-21T00:00:00+00:00"', path.read_text()))
    assert h200_experiment.main(arguments) == 0
    assert rows((tmp_path / "runs" / "tables.md").read_text()) == found
    last = tmp_path / "runs" / "alike-01.jsonl"
    last.write_text("".join(last.read_text().splitlines(keepends=True)[:-1]))  # of a run that was stopped
    assert h200_experiment.main([*arguments, "--minutes", "0"]) == 1
    assert "left: alike-01; call it again" in capsys.readouterr().out


def test_the_tables_of_the_runs_in_results() -> None:
    """They are of three units, of which only runs of one are compared."""
    folder = Path(__file__).parents[2] / "results" / "ci-experiment"
    of_suite = ("auto", "triton", "ci", 5, 20, (0.02, 0.05, 0.1))
    experiment = h200_experiment.Experiment(folder, *of_suite, margins=(0.05,))
    assert [*experiment.names()[:4], experiment.names()[-1]] == ["alike-00", "slow-2", "alike-01", "slow-5", "shipped"]
    known = (folder / "tables.md").read_text().splitlines()
    assert {*"\n".join(h200_experiment.tables(experiment)).splitlines()} <= {*known}


class Base:
    """A backend to slow; a test sets its launch."""

    efficiency = 0.7
    launch: Callable[[], Any] = staticmethod(lambda: "out")

    def prepare(self, case: Case, inputs: Any) -> Prepared:
        return Prepared(self.launch, lambda out: {"out": out})


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NewPlanted:
    def make(**said: Any) -> Planted:
        file = tmp_path / "plan.json"
        file.write_text(json.dumps({"base": "triton", "share": 0.0, "cycles": {}, **said}))
        monkeypatch.setenv(VARIABLE, str(file))
        monkeypatch.setattr(backends, "load", lambda *_: Base())
        return Planted()

    return make


def on(kind: str) -> Any:
    return SimpleNamespace(q=SimpleNamespace(device=SimpleNamespace(type=kind)))


def test_on_a_gpu_each_call_is_followed_by_its_cycles(planted: NewPlanted, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cycle where nothing is planted, so that the additional kernel is in every run."""
    done: list[Any] = []
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(_sleep=done.append)))
    monkeypatch.setattr(Base, "launch", staticmethod(lambda: done.append("launch") or "out"))
    for cycles in ({}, {CASE.key: 41_000}):
        backend = planted(cycles=cycles)
        assert backend.prepare(CASE, on("cuda")).launch() == "out"
        assert backend.efficiency == 0.7
    assert done == ["launch", 1, "launch", 41_001]


def test_on_a_cpu_each_call_takes_that_share_longer(planted: NewPlanted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Base, "launch", staticmethod(lambda: time.sleep(0.02)))
    launch = planted(share=1.0).prepare(CASE, on("cpu")).launch
    began = time.perf_counter()
    launch()
    assert time.perf_counter() - began >= 0.04
