"""Continuous integration: baselines in a repository, the GitHub action and the GitLab snippet, run in bash."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from steps import Job, action, gitlab_job, use_action, use_gitlab
from tool import Tool

from hostile_folder import hijacked, hostile

OWN = "./mine.py:attention"
UPLOAD = "actions/upload-artifact@v4"
Use = Callable[..., Job]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with mine.py, the run main.jsonl of its attention, and a baseline of that for the simulated GPU."""
    tool = Tool(tmp_path_factory.mktemp("measured"))
    tool.write("mine.py", "from attnbench.backends.fake import Fake as attention\n")
    tool("run", "--device", "fake", "-b", OWN, "--suite", "ci", "--rounds", "2", "--out", "main.jsonl")
    done = tool("baseline", "save", "main.jsonl")
    assert done.out.startswith("Saved: baselines/main/simulated-gpu.jsonl (10 cells, 2 rounds, ")
    assert "--rounds 5" in done.err
    return tool.folder


@pytest.fixture
def repository(measured: Path, tmp_path: Path) -> Tool:
    return Tool(Path(shutil.copytree(measured, tmp_path / "repository")))


@pytest.fixture
def use(repository: Tool) -> Use:
    def with_inputs(fake: str = "", **inputs: str) -> Job:
        given = {"python": sys.executable, "device": "fake", "backend": OWN, "rounds": "2", **inputs}
        return use_action(repository, fake, **given)

    return with_inputs


def test_the_action_is_an_action() -> None:
    spec = action()
    assert spec["runs"]["using"] == "composite"
    for said in spec["inputs"].values():
        assert isinstance(said["description"], str)
        assert isinstance(said["default"], str)
    assert {"backend", "suite", "baseline", "margin", "rounds", "python"} <= {*spec["inputs"]}
    assert all("shell" in step or "uses" in step for step in spec["runs"]["steps"])


def test_the_action_passes_what_is_alike(use: Use) -> None:
    job = use()
    assert job.code == 0, job.log
    assert "attnbench: baseline: baselines/main/simulated-gpu.jsonl" in job.log
    assert job.outputs["exit-code"] == "0"
    assert job.summary.startswith("### ")
    assert Path(job.outputs["report"]).read_text() == job.summary
    kept = job.used[UPLOAD]
    assert {p.name for p in Path(kept["path"]).iterdir()} == {"run.jsonl", "gate.md", "gate.json", "gate.xml"}
    assert kept["name"] == "attnbench"


def test_the_action_fails_on_a_regression_and_keeps_the_run(use: Use) -> None:
    job = use("speed=0.97", margin="error=20%,2%", artifact="slow")
    assert (job.code, job.outputs["exit-code"]) == (1, "1"), job.log
    assert "::error title=attention 8k d64 full fwd" in job.log
    findings = json.loads((Path(job.used[UPLOAD]["path"]) / "gate.json").read_text())["findings"]
    margins = {"latency": 0.02, "error": 0.2, "memory_peak": 0.01, "first_call": 0.5}
    assert {f["metric"]: f["margin"] for f in findings} == margins


def test_the_action_judges_what_it_is_told_to(use: Use, repository: Tool) -> None:
    repository.write("margins.yaml", "latency: 9%\n")
    job = use("speed=0.95", metric="latency,error", margins="margins.yaml", missing="pass", artifact="chosen")
    assert job.code == 0, job.log
    findings = json.loads((Path(job.used[UPLOAD]["path"]) / "gate.json").read_text())["findings"]
    assert {f["metric"]: f["margin"] for f in findings} == {"latency": 0.09, "error": 0.1}


def test_the_action_runs_its_own_code(use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier version that is installed in the runner's Python is not used."""
    (tmp_path / "earlier" / "attnbench").mkdir(parents=True)
    (tmp_path / "earlier" / "attnbench" / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "earlier"))
    job = use()
    assert job.code == 0, job.log


def test_the_action_in_a_hostile_checkout(use: Use, repository: Tool) -> None:
    """The checkout's packages replace nothing. Only the pull request's own kernel is loaded from it, in a worker."""
    hostile(repository.folder)
    job = use("speed=0.97", margin="error=20%,2%")
    assert hijacked(repository.folder) == ""
    assert (job.code, job.outputs["exit-code"]) == (1, "1"), job.log


def test_the_action_fails_on_a_wrong_result(use: Use) -> None:
    """It does so even if the gate passes, and the gate's report is written."""
    job = use("wrong@8k", artifact="wrong", missing="pass")
    assert job.code == int(job.outputs["exit-code"]) in (1, 5), job.log
    assert Path(job.outputs["report"]).is_file()
    assert use("wrong@8k", artifact="measured", baseline="").code == 5


def test_the_action_without_a_gate(use: Use) -> None:
    job = use(baseline="", rounds="0")
    assert job.code == 2
    assert job.outputs["exit-code"] == ""
    assert job.ran == ["Install what attnbench needs", "Measure", "Keep the run file"]


def test_the_gitlab_job(repository: Tool) -> None:
    job = gitlab_job()
    assert job["allow_failure"] == {"exit_codes": [3]}
    done = use_gitlab(repository, "speed=0.5", BACKEND=OWN)
    assert done.returncode == 1, done.stderr
    report = ElementTree.parse(repository.folder / job["artifacts"]["reports"]["junit"]).getroot()
    assert report.find(".//failure") is not None
    assert all((repository.folder / path).is_file() for path in job["artifacts"]["paths"])
