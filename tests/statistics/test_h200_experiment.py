"""h200_experiment.py on a simulated device: it plants the slowdowns it names, counts them, and can be resumed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
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
from attnbench.results import run_file
from hostile.call import call

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
    whole = tmp_path / "runs" / "alike-01.jsonl"
    lines = whole.read_text().splitlines(keepends=True)
    whole.write_text("".join(lines[:-1]))
    assert h200_experiment.main(arguments) == 0
    assert len(run_file.read(whole)[0].records) == 4
    times = [json.loads(line) for line in (tmp_path / "runs" / "times.jsonl").read_text().splitlines()]
    assert [(t["run"], t["resumed"]) for t in times] == [
        ("alike-00", False),
        ("slow-5", False),
        ("alike-01", False),
        ("alike-01", True),
    ]
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


def experiment(*gpus: str) -> h200_experiment.Experiment:
    return h200_experiment.Experiment(Path(), "auto", "triton", "ci", 5, 20, (0.02, 0.05, 0.1), (0.01,), gpus)


def test_a_run_that_is_slowed_comes_after_one_that_is_not() -> None:
    """It needs that run's cycles; and this way an early stop leaves runs of all kinds."""
    names = experiment("").names()
    assert names[:7] == ["alike-00", "slow-2", "alike-01", "slow-5", "alike-02", "slow-10", "alike-03"]
    assert (names[-1], len(names)) == ("shipped", 24)


def test_each_gpu_measures_whole_pairs() -> None:
    one, two, three = experiment("0", "1", "3").lanes()
    assert one == ["alike-00", "slow-2", *(f"alike-{i:02}" for i in (1, 6, 7, 12, 13, 18, 19))]
    assert two == ["alike-02", "slow-5", *(f"alike-{i:02}" for i in (3, 8, 9, 14, 15)), "shipped"]
    assert three == ["alike-04", "slow-10", *(f"alike-{i:02}" for i in (5, 10, 11, 16, 17))]


def test_gpus_measure_at_a_time_each_seeing_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of two units are not compared. They are one run, with the name and the unit of each."""
    started, meet = [], threading.Barrier(2, timeout=60)
    (tmp_path / "few.yaml").write_text("name: few\naxes: {seqlen: 1k, headdim: 128}\n")
    few = ["--suite", str(tmp_path / "few.yaml"), "--rounds", "2"]
    measured = tmp_path / "measured"
    assert call(["run", "--device", "fake", "--backend", "fake", *few, "--out", str(measured)]).code == 0

    def seen(command: list[str], env: dict[str, str], **_: Any) -> Any:
        name = Path(command[command.index("--out") + 1]).stem
        started.append((env["CUDA_VISIBLE_DEVICES"], name))
        if name in ("alike-00", "alike-02"):
            meet.wait()
        header, *rest = measured.read_text().splitlines(keepends=True)
        said = json.loads(header)
        said["environment"]["device"]["uuid"] = f"unit {env['CUDA_VISIBLE_DEVICES']}"
        (tmp_path / f"{name}.jsonl").write_text("".join([json.dumps(said) + "\n", *rest]))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", seen)
    few += ["--alike", "4", "--slowdowns", "5"]
    assert h200_experiment.main([str(tmp_path), "--device", "fake", "--base", "fake", "--gpus", "4,7", *few]) == 0
    assert [name for gpu, name in started if gpu == "4"] == ["alike-00", "slow-5", "alike-01"]
    assert [name for gpu, name in started if gpu == "7"] == ["alike-02", "alike-03"]
    text = (tmp_path / "tables.md").read_text()
    assert text.splitlines()[0].endswith("on 2 units")
    assert {row[0] for row in rows(text) if row[1] == "3%"} == {"2 disjoint", "2 all, not independent"}
    assert {row[3] for row in rows(text) if row[0] == "5%"} == {"the one before", "all 2"}


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
