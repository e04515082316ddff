"""Continuous integration: baselines, the GitHub action, its workflows and the GitLab snippet, run in bash."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from steps import ROOT, Job, action, gitlab_job, use_action, use_gitlab, use_workflow, with_program, workflow
from tool import Tool

from hostile_folder import hijacked, hostile

OWN = "./mine.py:attention"
UPLOAD = "actions/upload-artifact"
WORKFLOWS = ("attention", "attention-comment", "attention-baseline")
PINNED = re.compile(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+\n")
# `gh api` and `gh pr`: keeps what it was asked, and answers from answers.json through jq, as gh does
GH = """#!{python}
import json, pathlib, subprocess, sys
here = pathlib.Path({folder!r})
arguments = sys.argv[1:]
bodies = [a.partition("@")[2] for a in arguments if a.startswith("body=@")]
bodies += [v for a, v in zip(arguments, arguments[1:]) if a == "--body-file"]
asked = {{"arguments": arguments, "body": "".join(pathlib.Path(b).read_text() for b in bodies)}}
with (here / "asked.jsonl").open("a") as file:
    print(json.dumps(asked), file=file)
if "--jq" in arguments:
    answer = next(v for k, v in json.loads((here / "answers.json").read_text()).items() if k in " ".join(arguments))
    command = ["jq", "-r", arguments[arguments.index("--jq") + 1]]
    sys.exit(subprocess.run(command, input=json.dumps(answer), text=True).returncode)
"""
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
    assert kept["name"] == job.outputs["artifact"] == "attnbench-gpu"
    assert f" from {ROOT}/attnbench (Python " in job.log
    assert "::warning title=attnbench::this action lies in the checkout" not in job.log


def test_the_artifact_is_named_by_job_and_matrix(use: Use) -> None:
    job = use(matrix="H200/sxm-3.12", artifact="long", baseline="", device="none")
    assert job.used[UPLOAD]["name"] == "long-gpu-H200-sxm-3.12"


def test_the_action_says_that_it_lies_in_the_checkout(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steps.WORKSPACE", str(ROOT.parent))
    job = use(baseline="", device="none")
    assert "::warning title=attnbench::this action lies in the checkout" in job.log


def test_the_action_runs_no_other_attnbench(use: Use, repository: Tool) -> None:
    """A Python that answers with an attnbench from elsewhere is refused before anything is measured."""
    repository.write("python", "#!/bin/bash\necho 'attnbench 9 from /elsewhere/attnbench (Python 3.12.1)'\n").chmod(
        0o755
    )
    job = use(python=str(repository.folder / "python"))
    assert (job.code, job.ran) == (2, ["Install what attnbench needs"])
    assert "::error title=attnbench::another attnbench" in job.log


def test_the_action_fails_on_a_regression_and_keeps_the_run(use: Use) -> None:
    job = use("speed=0.97", margin="relative_error=20%,2%", artifact="slow")
    assert (job.code, job.outputs["exit-code"]) == (1, "1"), job.log
    assert "::error title=attention 8k d64 full fwd" in job.log
    findings = json.loads((Path(job.used[UPLOAD]["path"]) / "gate.json").read_text())["findings"]
    margins = {"latency": 0.02, "relative_error": 0.2, "memory_peak": 0.01, "first_call": 0.5}
    assert {f["metric"]: f["margin"] for f in findings} == margins


def test_the_action_judges_what_it_is_told_to(use: Use, repository: Tool) -> None:
    repository.write("margins.yaml", "latency: 9%\n")
    job = use("speed=0.95", metric="latency,relative_error", margins="margins.yaml", missing="pass", artifact="chosen")
    assert job.code == 0, job.log
    findings = json.loads((Path(job.used[UPLOAD]["path"]) / "gate.json").read_text())["findings"]
    assert {f["metric"]: f["margin"] for f in findings} == {"latency": 0.09, "relative_error": 0.5}


def test_the_action_runs_its_own_code(use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier version that is installed in the runner's Python is not used."""
    (tmp_path / "earlier" / "attnbench").mkdir(parents=True)
    (tmp_path / "earlier" / "attnbench" / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "earlier"))
    job = use()
    assert job.code == 0, job.log


@pytest.mark.parametrize("path", ["", ":.:./"])
def test_the_action_in_a_hostile_checkout(
    path: str, use: Use, repository: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkout's packages replace nothing. Only the pull request's own kernel is loaded from it, in a worker."""
    hostile(repository.folder)
    monkeypatch.setenv("PYTHONPATH", path.replace(":", os.pathsep))
    job = use("speed=0.97", margin="relative_error=20%,2%")
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


def test_every_workflow_is_one() -> None:
    """Permissions and time limits are stated, and what others wrote is pinned to a commit."""
    files = [*(ROOT / ".github" / "workflows").glob("*.yml"), *(ROOT / "examples" / "github").glob("*.yml")]
    assert {file.stem for file in files} == {"ci", *WORKFLOWS}
    for file in files:
        spec = yaml.safe_load(file.read_text())
        assert {"name", True, "permissions", "jobs"} <= {*spec}, file  # YAML 1.1 takes the key `on` for true
        assert "pull_request_target" not in file.read_text(), file
        for job in spec["jobs"].values():
            assert {"runs-on", "timeout-minutes", "steps"} <= {*job}, file
            assert all(("run" in step) != ("uses" in step) for step in job["steps"])
            assert not any("${{" in step.get("run", "") for step in job["steps"]), "it would run as code"
    for file in (*files, ROOT / "action.yml"):
        for line in file.read_text().splitlines(keepends=True):
            assert "uses:" not in line or "OWNER/attnbench@REF" in line or PINNED.search(line), line
    assert yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["version"] == 2


def test_only_jobs_that_run_no_kernel_may_write() -> None:
    for name in WORKFLOWS:
        spec = workflow(name)
        for job in spec["jobs"].values():
            writes = "write" in {**spec["permissions"], **job.get("permissions", {})}.values()
            assert writes == (job["runs-on"] == "ubuntu-latest")
            checkouts = [step.get("with", {}) for step in job["steps"] if "checkout" in step.get("uses", "")]
            if writes:  # nothing of a pull request is checked out
                assert all("ref" not in given and "repository" not in given for given in checkouts)
    gate, comment = workflow("attention"), workflow("attention-comment")
    assert comment["on"]["workflow_run"]["workflows"] == [gate["name"]]
    assert {*gate["jobs"]["attention"]["steps"][-1]["with"]} <= {*action()["inputs"]}


@pytest.fixture
def artifacts(repository: Tool) -> Path:
    """The folder that two artifacts were downloaded to: a run that is slower, and what is no run."""
    folder = repository.folder / "temp" / "artifacts"
    for name in ("attnbench-gpu-1", "attnbench-gpu-2 $(touch pwned)"):
        (folder / name).mkdir(parents=True)
    slow = str(folder / "attnbench-gpu-1" / "run.jsonl")
    more = ("--suite", "ci", "--rounds", "2", "--out", slow)
    repository("run", "--device", "fake", "-b", OWN, *more, fake="speed=0.9")
    (folder / "attnbench-gpu-2 $(touch pwned)" / "run.jsonl").write_text("<img src=x> @everyone\n")
    return folder


def programs(tool: Tool) -> str:
    """Return a PATH with this attnbench and a stand-in for GitHub's `gh`."""
    with_program(tool, "attnbench", f'#!/bin/bash\nexec {sys.executable} -m attnbench "$@"\n')
    return with_program(tool, "gh", GH.format(python=sys.executable, folder=str(tool.folder)))


def asked_of_github(tool: Tool) -> list[dict[str, object]]:
    return [json.loads(line) for line in (tool.folder / "asked.jsonl").read_text().splitlines()]


@pytest.mark.skipif(not shutil.which("jq"), reason="gh's --jq is run by jq")
@pytest.mark.usefixtures("artifacts")
@pytest.mark.parametrize("earlier", [True, False])
def test_the_comment_on_a_pull_request(earlier: bool, repository: Tool) -> None:
    mark = {"user": {"login": "github-actions[bot]"}, "body": "<!-- attnbench gate -->\n### Before", "id": 7}
    forged = {"user": {"login": "mallory"}, "body": "<!-- attnbench gate -->", "id": 6}
    pulls = [{"number": 1, "head": {"sha": "older"}}, {"number": 12, "head": {"sha": "abc"}}]
    repository.write("answers.json", json.dumps({"/pulls": pulls, "/comments": [forged, *[mark] * earlier]}))
    event = "github.event.workflow_run."
    known = {event + "head_repository.owner.login": "mallory", event + "head_branch": "$(touch pwned)"}
    environment = {"PATH": programs(repository), "GITHUB_REPOSITORY": "us/kernels"}
    job = use_workflow(repository, "attention-comment", "comment", known | {event + "head_sha": "abc"}, **environment)
    assert job.code == 0, job.log
    find, _, say = asked_of_github(repository)
    assert "head=mallory:$(touch pwned)" in find["arguments"]
    where = ("PATCH", "issues/comments/7") if earlier else ("POST", "issues/12/comments")
    assert say["arguments"][1:4] == ["--method", where[0], f"repos/us/kernels/{where[1]}"]
    said = str(say["body"])
    assert said.startswith("<!-- attnbench gate -->\n### ")
    assert "A run could not be judged" in said
    assert "everyone" not in said
    assert not [*repository.folder.rglob("pwned")]


@pytest.mark.skipif(not shutil.which("jq"), reason="gh's --jq is run by jq")
@pytest.mark.usefixtures("artifacts")
def test_no_comment_on_a_pull_request_that_has_moved_on(repository: Tool) -> None:
    repository.write("answers.json", json.dumps({"/pulls": [{"number": 12, "head": {"sha": "newer"}}]}))
    known = {"github.event.workflow_run.head_sha": "abc"}
    environment = {"PATH": programs(repository), "GITHUB_REPOSITORY": "us/kernels"}
    job = use_workflow(repository, "attention-comment", "comment", known, **environment)
    assert job.code == 0, job.log
    assert "no open pull request" in job.log
    assert len(asked_of_github(repository)) == 1


def test_the_baseline_is_proposed(repository: Tool, artifacts: Path) -> None:
    shutil.rmtree(artifacts / "attnbench-gpu-2 $(touch pwned)")
    commands = (
        ("init", "--quiet", "--initial-branch", "main"),
        ("init", "--quiet", "--bare", "../origin"),
        ("remote", "add", "origin", "../origin"),
        ("add", "baselines"),
        ("-c", "user.name=a", "-c", "user.email=a", "commit", "--quiet", "--message", "a"),
    )
    for command in commands:
        subprocess.run(["git", *command], cwd=repository.folder, check=True)
    reason, branch = "inputs.reason || 'the monthly measurement'", "github.event.repository.default_branch"
    known = {reason: "torch 2.14", branch: "main"}
    environment = {"PATH": programs(repository), "GITHUB_RUN_ID": "5"}
    job = use_workflow(repository, "attention-baseline", "propose", known, **environment)
    assert job.code == 0, job.log
    (made,) = asked_of_github(repository)
    assert made["arguments"][:6] == ["pr", "create", "--head", "attention-baseline-5", "--base", "main"]
    assert str(made["body"]).startswith("Why: torch 2.14.")
    assert "regress" in str(made["body"])
    show = ["git", "show", "--stat", "--format=", "attention-baseline-5"]
    pushed = subprocess.run(show, cwd=repository.folder.parent / "origin", capture_output=True, text=True, check=True)
    assert "baselines/main/simulated-gpu.jsonl" in pushed.stdout
