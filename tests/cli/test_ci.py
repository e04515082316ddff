"""Continuous integration: baselines, the GitHub action, its workflows and the recipes for others, run in bash."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import forked
import pytest
import yaml
from steps import RECIPES, ROOT, Job, action, use_action, use_recipe, use_workflow, with_program, workflow
from tool import Tool

from hostile_folder import hijacked, hostile

OWN = "./mine.py:attention"
BASE_REF = "refs/heads/${{ steps.pull.outputs.base }}"
UPLOAD = "actions/upload-artifact"
WORKFLOWS = ("attention", "attention-comment", "attention-baseline", "attention-site", "attention-run-file")
PINNED = re.compile(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+\n")
# A stand-in for `gh api` and `gh pr`: it records requests, and answers from answers.json through jq, as gh does.
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


def git(tool: Tool, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=tool.folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(tool: Tool, *paths: str) -> str:
    """Commit paths, and return the commit."""
    git(tool, "add", "--", *paths)
    git(tool, "-c", "user.name=a", "-c", "user.email=a", "commit", "--quiet", "--message", "a")
    return git(tool, "rev-parse", "HEAD")


def measure(tool: Tool, file: str, fake: str = "") -> None:
    tool("run", "--device", "fake", "-b", OWN, "--suite", "ci", "--rounds", "2", "--out", file, fake=fake)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkout with mine.py, the run main.jsonl of its attention, and its baseline for the simulated GPU."""
    tool = Tool(tmp_path_factory.mktemp("measured"))
    tool.write("mine.py", "from attnbench.backends.fake import Fake as attention\n")
    git(tool, "init", "--quiet", "--initial-branch", "main")
    commit(tool, "mine.py")
    measure(tool, "main.jsonl")
    done = tool("baseline", "save", "main.jsonl")
    assert done.out.startswith("Saved: baselines/main/simulated-gpu.jsonl (10 cells, 2 rounds, ")
    assert "--rounds 5" in done.err
    commit(tool, "baselines")
    return tool.folder


@pytest.fixture
def repository(measured: Path, tmp_path: Path) -> Tool:
    return Tool(Path(shutil.copytree(measured, tmp_path / "repository")))


@pytest.fixture(scope="module")
def python() -> Iterator[str]:
    """Yield an interpreter that starts at once. Tests of how the action starts Python use a real one."""
    with forked.python() as program:
        yield program


@pytest.fixture
def use(repository: Tool, python: str) -> Use:
    def with_inputs(fake: str = "", **inputs: str) -> Job:
        given = {"python": python, "device": "fake", "backend": OWN, "rounds": "2", **inputs}
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


def test_the_action_passes_what_is_alike(use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The action passes an unchanged kernel, and does not use an older attnbench in the runner's Python."""
    (tmp_path / "earlier" / "attnbench").mkdir(parents=True)
    (tmp_path / "earlier" / "attnbench" / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "earlier"))
    job = use(python=sys.executable)
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
    """The action refuses, before any measurement, a Python with an attnbench from another place."""
    repository.write("python", "#!/bin/bash\necho 'attnbench 9 from /elsewhere/attnbench (Python 3.12.1)'\n").chmod(
        0o755
    )
    job = use(python=str(repository.folder / "python"))
    assert (job.code, job.ran) == (2, ["Install what attnbench needs"])
    assert "::error title=attnbench::another attnbench" in job.log


def test_the_action_fails_on_a_regression_and_keeps_the_run(use: Use) -> None:
    job = use("speed=0.97", margin="relative_error=20%\n2%\n", artifact="slow")
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


def test_a_line_of_a_margin_becomes_no_option(use: Use) -> None:
    job = use("speed=0.95", margin="9%\n--inconclusive=pass")
    assert job.code == 2, job.log
    assert "attnbench: --margin" in job.log


def test_the_action_in_a_hostile_checkout(use: Use, repository: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages in a hostile checkout replace no others. Only the pull request's own kernel is loaded, in a worker.

    A kernel beside packages named torch and numpy is not measured.
    """
    hostile(repository.folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(("", ".", "./")))
    refused = use("speed=0.97", artifact="refused", python=sys.executable)
    assert refused.code == 2
    assert "torch would be imported in place of torch; give it another name" in refused.log
    for name in ("torch", "numpy"):
        shutil.rmtree(repository.folder / name)
    job = use("speed=0.97", margin="relative_error=20%,2%", python=sys.executable)
    assert hijacked(repository.folder) == ""
    assert (job.code, job.outputs["exit-code"]) == (1, "1"), job.log


def test_the_action_fails_on_a_wrong_result(use: Use) -> None:
    """The action fails on a wrong result even if the gate passes, and writes the gate's report."""
    job = use("wrong@8k", artifact="wrong", missing="pass")
    assert job.code == int(job.outputs["exit-code"]) in (1, 5), job.log
    assert Path(job.outputs["report"]).is_file()
    assert use("wrong@8k", artifact="measured", baseline="").code == 5


def test_the_action_without_a_gate(use: Use) -> None:
    job = use(baseline="", rounds="0")
    assert job.code == 2
    assert job.outputs["exit-code"] == ""
    assert job.ran == ["Install what attnbench needs", "Measure", "Keep the run file"]


ATTNBENCH = """#!/bin/bash
[ "$1" = gate ] && [ -n "$GATE_ENDS_WITH" ] && exit "$GATE_ENDS_WITH"
[ "$1" = run ] && set -- "${{@/,sdpa-flash/}}" --device fake
exec {python} -m attnbench "$@"
"""
AGENT = """#!/bin/bash
echo "$*" >> agent.log
[ "$1" != annotate ] || cat > annotation.md
"""


@pytest.fixture
def recipe(repository: Tool, python: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs a recipe in the checkout of a change with a slower kernel and its own baselines."""
    git(repository, "clone", "--quiet", "--bare", ".", "../origin.git")
    origin = (repository.folder.parent / "origin.git").as_uri()
    git(repository, "remote", "add", "origin", origin)
    own = "baselines/main/simulated-gpu.jsonl"
    measure(repository, "a.jsonl", "speed=0.5")
    repository("baseline", "save", "a.jsonl")
    for copy in ("main/simulated-gpu.jsonl", "baselines/main/zzz.jsonl"):
        (repository.folder / copy).parent.mkdir(exist_ok=True)
        shutil.copy(repository.folder / own, repository.folder / copy)
    left = ("current.jsonl", "gate.md", "gate.xml")
    for file in left:
        repository.write(file, "passed")
    commit(repository, own, "main", "baselines/main/zzz.jsonl", *left)
    path = with_program(repository, "attnbench", ATTNBENCH.format(python=python))
    with_program(repository, "buildkite-agent", AGENT)
    environment = {
        "PATH": path,
        "BACKEND": OWN,
        "CHANGE_TARGET": "main",
        "BUILDKITE_PULL_REQUEST_BASE_BRANCH": "main",
        "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
        "CI_REPOSITORY_URL": "https://gitlab-ci-token:secret@gitlab.example/fork/kernels.git",
        "CI_MERGE_REQUEST_PROJECT_URL": "https://gitlab.example/us/kernels",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{origin}.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://gitlab-ci-token:secret@gitlab.example/us/kernels.git",
    }
    return lambda name, **more: use_recipe(repository, name, "speed=0.5", **environment, **more)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_judges_by_the_baselines_of_the_target(
    name: str, recipe: Callable[..., subprocess.CompletedProcess[str]], repository: Tool
) -> None:
    """A recipe judges by the target's baselines, drops the change's reports, and fails where the gate is undecided."""
    assert recipe(name, GATE_ENDS_WITH="3").returncode == 3
    assert not {"gate.md", "gate.xml"} & {path.name for path in repository.folder.iterdir()}
    git(repository, "checkout", "--quiet", "--", ".")
    done = recipe(name)
    assert done.returncode == 1, done.stdout + done.stderr
    assert not (repository.folder / "baselines" / "main" / "zzz.jsonl").exists()
    assert ElementTree.parse(repository.folder / "gate.xml").getroot().find(".//failure") is not None
    report = (repository.folder / "gate.md").read_text()
    assert "attnbench gate: FAIL" in report.splitlines()[0]
    if name == "buildkite":
        assert (repository.folder / "annotation.md").read_text() == report
    scripts, last = RECIPES[name]()
    assert not any("attnbench run" in script and "attnbench gate" in script for script in scripts)
    assert {"gate.md", "gate.xml"} >= {*last.get("artifacts", {}).get("paths", ()), *last.get("artifact_paths", ())}
    assert not {"allow_failure", "soft_fail", "retry"} & {*last}


def test_a_jenkinsfile_takes_no_failure_for_success() -> None:
    text = (ROOT / "examples" / "jenkins" / "Jenkinsfile").read_text()
    assert not any(word in text for word in ("catchError", "returnStatus", "unstable"))


def test_every_workflow_is_one() -> None:
    """Every workflow is valid, has permissions and time limits, and pins other people's actions to a commit."""
    files = [*(ROOT / ".github" / "workflows").glob("*.yml"), *(ROOT / "examples" / "github").glob("*.yml")]
    assert {file.stem for file in files} == {"ci", "site", "release", *WORKFLOWS}
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
            assert not re.search(r"\buses:", line) or "OWNER/attnbench@REF" in line or PINNED.search(line), line
    assert yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["version"] == 2


def test_no_checkout_keeps_credentials() -> None:
    """No checkout keeps credentials, which a kernel or an installed package could read in .git/config."""
    for file in [*(ROOT / ".github" / "workflows").glob("*.yml"), *(ROOT / "examples" / "github").glob("*.yml")]:
        for job in yaml.safe_load(file.read_text())["jobs"].values():
            checkouts = [step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@")]
            assert all(step["with"]["persist-credentials"] is False for step in checkouts), file


def test_only_jobs_that_run_no_kernel_may_write() -> None:
    for name in WORKFLOWS:
        spec = workflow(name)
        for job in spec["jobs"].values():
            writes = "write" in {**spec["permissions"], **job.get("permissions", {})}.values()
            assert not writes or job["runs-on"] == "ubuntu-latest"
            checkouts = [step.get("with", {}) for step in job["steps"] if "checkout" in step.get("uses", "")]
            if writes:  # only the target branch is checked out, nothing of the pull request
                assert all("repository" not in given for given in checkouts)
                assert {given["ref"] for given in checkouts if "ref" in given} <= {BASE_REF}
    gate, comment = workflow("attention"), workflow("attention-comment")
    assert comment["on"]["workflow_run"]["workflows"] == [gate["name"]]
    assert {*gate["jobs"]["attention"]["steps"][-1]["with"]} <= {*action()["inputs"]}


@pytest.fixture
def artifacts(repository: Tool) -> Path:
    """Return the folder of two downloaded artifacts: a slower run, and a file that is no run."""
    folder = repository.folder / "temp" / "artifacts"
    for name in ("attnbench-gpu-1", "attnbench-gpu-2 $(touch pwned)"):
        (folder / name).mkdir(parents=True)
    slow = str(folder / "attnbench-gpu-1" / "run.jsonl")
    measure(repository, slow, "speed=0.9")
    (folder / "attnbench-gpu-2 $(touch pwned)" / "run.jsonl").write_text("<img src=x> @everyone\n")
    return folder


def programs(tool: Tool, python: str, attnbench: str = "") -> str:
    """Return a PATH with this attnbench or a stand-in, and a stand-in for GitHub's `gh`."""
    with_program(tool, "attnbench", attnbench or f'#!/bin/bash\nexec {python} -m attnbench "$@"\n')
    return with_program(tool, "gh", GH.format(python=sys.executable, folder=str(tool.folder)))


def asked_of_github(tool: Tool) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tool.folder / "asked.jsonl").read_text().splitlines()]


EVENT = "github.event.workflow_run."
OURS = {"user": {"login": "github-actions[bot]"}, "body": "<!-- attnbench gate -->\n### Before", "id": 7}
FORGED = {"user": {"login": "mallory"}, "body": "<!-- attnbench gate -->", "id": 6}
PULLS = [{"number": 1, "head": {"sha": "older"}}, {"number": 12, "head": {"sha": "abc"}, "base": {"ref": "main"}}]
jq = pytest.mark.skipif(not shutil.which("jq"), reason="gh's --jq is run by jq")
# writes 55 kB of markdown to the file of the last option
LONG_GATE = """#!/bin/bash
file=${@: -1}
printf '### attnbench gate: FAIL\\n\\n' > "${file#md=}"
for i in {1..600}; do printf '| row %080d |\\n' "$i"; done >> "${file#md=}"
exit 1
"""
Comment = Callable[..., tuple[Job, list[dict[str, Any]]]]


@pytest.fixture
def comment(repository: Tool, python: str) -> Comment:
    """Return a function that runs the comment workflow on commit abc and returns the job and its requests to GitHub."""

    def run(
        *,
        action: str = "completed",
        conclusion: str = "failure",
        title: str = "attention of #12",
        pulls: list[dict[str, Any]] = PULLS,
        head: str = "abc",
        earlier: bool = True,
        failing: str = "",
        attnbench: str = "",
    ) -> tuple[Job, list[dict[str, Any]]]:
        of_one = {f"/pulls/{pull['number']} ": {"head": {"sha": head}} for pull in pulls}
        answers = {**of_one, "/pulls": pulls, "/comments": [FORGED, *[OURS] * earlier]}
        repository.write("answers.json", json.dumps(answers))
        known = {
            EVENT + "head_repository.owner.login": "mallory",
            EVENT + "head_branch": "$(touch pwned)",
            EVENT + "head_sha": "abc",
            EVENT + "display_title": title,
            "github.event.action": action,
            EVENT + "conclusion": conclusion,
            EVENT + "html_url": "https://its/run",
        }
        environment = {
            "PATH": programs(repository, python, attnbench),
            "GITHUB_REPOSITORY": "us/kernels",
            "GITHUB_RUN_ID": "5",
        }
        (repository.folder / "temp").mkdir(exist_ok=True)
        environment["GITHUB_SERVER_URL"] = "https://github.example"
        job = use_workflow(repository, "attention-comment", "comment", known, failing, **environment)
        assert not [*repository.folder.rglob("pwned")]
        return job, asked_of_github(repository)

    return run


def status_of(asked: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """Return the commit of a status, and the status' fields."""
    path, fields = asked["arguments"][3], [a for a in asked["arguments"][4:] if a != "-f"]
    return path.rpartition("/")[2], dict(field.split("=", 1) for field in fields)


@jq
@pytest.mark.usefixtures("artifacts")
def test_the_comment_on_a_pull_request(comment: Comment) -> None:
    """The comment and the commit's status have the verdict of this job, and name the commit."""
    job, (find, status, _, _, say) = comment()
    assert job.code == 0, job.log
    assert "head=mallory:$(touch pwned)" in find["arguments"]
    assert say["arguments"][1:4] == ["--method", "PATCH", "repos/us/kernels/issues/comments/7"]
    said = say["body"]
    assert said.startswith(
        "<!-- attnbench gate -->\nCommit abc, against the baselines of `main` ([measurement](https://its"
    )
    assert "### ❌ attnbench gate: FAIL" in said
    assert "a run could not be judged" in said
    assert "everyone" not in said
    sha, fields = status_of(status)
    assert sha == "abc"
    assert fields["state"] == "failure"
    assert fields["context"] == "attnbench gate: main"
    assert fields["target_url"] == "https://github.example/us/kernels/actions/runs/5"
    assert job.used["actions/checkout"]["ref"] == "refs/heads/main"


@jq
@pytest.mark.parametrize(("conclusion", "state"), [("success", "success"), ("failure", "failure")])
def test_only_a_measurement_that_succeeded_can_pass(
    conclusion: str, state: str, comment: Comment, repository: Tool
) -> None:
    """Only a successful measurement can pass, because a job of a matrix may fail before it writes a run file."""
    (repository.folder / "temp" / "artifacts" / "attnbench-gpu").mkdir(parents=True)
    shutil.copy(
        repository.folder / "main.jsonl", repository.folder / "temp" / "artifacts" / "attnbench-gpu" / "run.jsonl"
    )
    job, (_, status, *_, say) = comment(conclusion=conclusion)
    assert job.code == 0, job.log
    assert status_of(status)[1]["state"] == state
    first = say["body"].split("\n\n")[1]
    assert first.startswith("### ✅" if state == "success" else "### ❌")


@jq
@pytest.mark.parametrize(
    ("happened", "state", "text"),
    [
        ({"action": "requested"}, "pending", "to be measured"),
        (
            {"conclusion": "cancelled"},
            "error",
            "no verdict: not measured or not judged; the measurement ended with cancelled",
        ),
        ({"failing": "Install attnbench"}, "error", "no verdict: not measured or not judged"),
    ],
)
def test_a_commit_without_a_verdict_replaces_the_comment_of_an_earlier_one(
    happened: dict[str, str], state: str, text: str, comment: Comment
) -> None:
    _, (_, status, _, _, say) = comment(**happened)
    assert say["arguments"][2:4] == ["PATCH", "repos/us/kernels/issues/comments/7"]
    assert "\nCommit abc, " in say["body"]
    assert f"### ❔ attnbench gate: {text}" in say["body"]
    sha, fields = status_of(status)
    assert (sha, fields["state"]) == ("abc", state)


@jq
@pytest.mark.parametrize("title", ["attention of #12", "attention of #13", "forged #1", "forged"])
def test_two_pull_requests_of_one_commit_have_a_comment_each(title: str, comment: Comment) -> None:
    """Pull requests of one commit have a comment each; the run's title says which of those that GitHub names."""
    pulls = [*PULLS, {"number": 13, "head": {"sha": "abc"}, "base": {"ref": "release"}}]
    job, asked = comment(action="requested", title=title, pulls=pulls, earlier=False)
    assert job.code == 0, job.log
    if "forged" in title:
        assert len(asked) == 1
    else:
        number, base = {"2": ("12", "main"), "3": ("13", "release")}[title[-1]]
        assert asked[-1]["arguments"][1:4] == ["--method", "POST", f"repos/us/kernels/issues/{number}/comments"]
        assert status_of(asked[1])[1]["context"] == f"attnbench gate: {base}"


@jq
def test_no_comment_on_a_pull_request_that_has_moved_on(comment: Comment) -> None:
    job, asked = comment(pulls=[{"number": 12, "head": {"sha": "newer"}}])
    assert job.code == 0, job.log
    assert "no open pull request" in job.log
    assert len(asked) == 1


@jq
def test_a_push_while_it_is_judged_keeps_its_own_comment(comment: Comment) -> None:
    job, asked = comment(head="newer")
    assert job.code == 0, job.log
    assert [one["arguments"][3] for one in asked if "POST" in one["arguments"]] == ["repos/us/kernels/statuses/abc"]


@jq
def test_a_long_comment_is_cut_with_a_word(comment: Comment, repository: Tool) -> None:
    for name in ("attnbench-1", "attnbench-2"):
        (repository.folder / "temp" / "artifacts" / name).mkdir(parents=True)
        (repository.folder / "temp" / "artifacts" / name / "run.jsonl").write_text("")
    _, asked = comment(attnbench=LONG_GATE)
    said = asked[-1]["body"]
    assert len(said.encode()) < 65536
    left = re.search(r"\n\n\*\*(\d+) lines left out", said)
    assert left
    assert said.count("| row ") + int(left[1]) == 2 * 600


@pytest.fixture
def propose(repository: Tool, artifacts: Path, python: str) -> Callable[[], str]:
    """Return a function that runs the baseline workflow on a slower run and returns the pull request's text."""
    shutil.rmtree(artifacts / "attnbench-gpu-2 $(touch pwned)")
    git(repository, "init", "--quiet", "--bare", "../origin")
    git(repository, "remote", "add", "origin", "../origin")
    known = {"inputs.reason || 'the monthly measurement'": "torch 2.14"}
    known["github.event.repository.default_branch"] = "main"
    environment = {"PATH": programs(repository, python), "GITHUB_RUN_ID": "5"}

    def run() -> str:
        job = use_workflow(repository, "attention-baseline", "propose", known, **environment)
        assert job.code == 0, job.log
        (made,) = asked_of_github(repository)
        assert made["arguments"][:6] == ["pr", "create", "--head", "attention-baseline-5", "--base", "main"]
        return str(made["body"])

    return run


def test_the_baseline_is_proposed(propose: Callable[[], str], repository: Tool) -> None:
    body = propose()
    assert body.startswith("Why: torch 2.14.")
    assert "regress" in body
    show = ["git", "show", "--stat", "--format=", "attention-baseline-5"]
    pushed = subprocess.run(show, cwd=repository.folder.parent / "origin", capture_output=True, text=True, check=True)
    assert "baselines/main/simulated-gpu.jsonl" in pushed.stdout


@pytest.mark.parametrize("committed", [True, False])
def test_another_kernel_is_meant_where_its_file_changed_on_main(
    committed: bool, propose: Callable[[], str], repository: Tool, artifacts: Path
) -> None:
    """Another kernel is intended only if a commit since the baseline changed its file; else it is not comparable."""
    baseline = repository.folder / "baselines" / "main" / "simulated-gpu.jsonl"
    measured_at = git(repository, "rev-parse", "--short=12", "HEAD^")
    # added here, because the simulated device records no commit
    baseline.write_text(baseline.read_text().replace('"python":', f'"git":"{measured_at}","python":', 1))
    commit(repository, "baselines")
    repository.write("mine.py", "# faster\nfrom attnbench.backends.fake import Fake as attention\n")
    run = artifacts / "attnbench-gpu-1" / "run.jsonl"
    run.unlink()
    measure(repository, str(run), "speed=0.9")
    if committed:
        commit(repository, "mine.py")
    else:
        repository.write("other.py", "")
        commit(repository, "other.py")
    body = propose()
    assert ("as expected: attention" in body) == committed
    assert ("NOT COMPARABLE" in body) != committed
    assert ("regressed" in body) == committed


GOOD = ROOT / "results" / "20261125-223921-paged-decode-nvidia-h100.jsonl.gz"
OF_METHOD_1 = ROOT / "results" / "20261121-175359-first-call-nvidia-h200.jsonl"


@pytest.fixture
def adds(tool: Tool, python: str) -> Callable[..., Job]:
    """Return the check of a pull request that adds files (name -> content) to a repository with one run file."""
    git(tool, "init", "--quiet", "--initial-branch", "main")
    (tool.folder / "results").mkdir()
    shutil.copy(ROOT / "results" / "20261126-135725-several-gpus-nvidia-h200.jsonl.gz", tool.folder / "results")
    commit(tool, "results")
    (tool.folder / "temp").mkdir()

    def run(files: dict[str, bytes], **env: str) -> Job:
        for name, content in files.items():
            (tool.folder / name).write_bytes(content)
        commit(tool, *files)
        path = programs(tool, python)
        return use_workflow(tool, "attention-run-file", "check", {}, PATH=path, **env)

    return run


@jq
def test_a_run_file_is_taken(adds: Callable[..., Job], tool: Tool) -> None:
    job = adds({"results/mine.jsonl.gz": GOOD.read_bytes()})
    assert job.code == 0, job.log
    assert "results/mine.jsonl.gz: 1 cells, each round counted" in job.log
    assert (tool.folder / "temp" / "site" / "run-mine.html").is_file()
    assert job.used["actions/upload-artifact"]["path"]


def _changed(old: bytes, new: bytes) -> bytes:
    content = gzip.decompress(GOOD.read_bytes())
    assert old in content
    return gzip.compress(content.replace(old, new))


@jq
@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"results/mine.jsonl.gz": gzip.compress(OF_METHOD_1.read_bytes())}, "no run file of schema 2 and method 2"),
        ({"results/mine.jsonl.gz": b"<html>"}, "is not an attnbench run file"),
        ({"results/mine.jsonl.gz": _changed(b'"status":"ok"', b'"status":"wrong"')}, "a result is wrong"),
        ({"results/mine.jsonl.gz": _changed(b'"status":"ok"', b'"status":"oom"')}, "nothing was measured"),
        ({"results/mine.jsonl.gz": _changed(b'"round":0', b'"round":"0"')}, "cannot be read in whole"),
        ({"results/mine.jsonl": gzip.decompress(GOOD.read_bytes())}, "only adds files"),
        ({"results/$(touch pwned).jsonl.gz": GOOD.read_bytes()}, "only adds files"),
        ({"kernel.py": b"import os\n"}, "only adds files"),
        ({"results/20261126-135725-several-gpus-nvidia-h200.jsonl.gz": GOOD.read_bytes()}, "only adds files"),
    ],
)
def test_what_is_no_good_run_file_is_not_taken(
    adds: Callable[..., Job], tool: Tool, files: dict[str, bytes], why: str
) -> None:
    job = adds(files)
    assert job.code == 1, job.log
    assert why in job.log
    assert not [*tool.folder.rglob("pwned")]
    assert "Make the site with them" not in job.ran


@jq
def test_a_run_file_that_is_too_large_is_not_taken(adds: Callable[..., Job]) -> None:
    job = adds({"results/mine.jsonl.gz": GOOD.read_bytes()}, MOST_BYTES="1000")
    assert job.code == 1
    assert "more than 1000 bytes" in job.log
