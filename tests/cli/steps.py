"""Run action.yml, the workflows of examples/github and the recipes for GitLab, Jenkins and Buildkite in bash.

They run step by step, as far as possible without a runner."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tool import Tool

ROOT = Path(__file__).parent.parent.parent
GITHUB_SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")  # the meaning of `shell: bash` on GitHub
EXPRESSION = re.compile(r"\$\{\{\s*(.+?)\s*\}\}")
WORKSPACE = ""  # workspace of the runner; by default the Tool's folder
MATRIX = "join(matrix.*, '-')"


@dataclass
class Job:
    """The results of an action or a job: outputs, steps that ran, and inputs of other actions."""

    code: int = 0
    log: str = ""
    outputs: dict[str, str] = field(default_factory=dict)
    summary: str = ""
    ran: list[str] = field(default_factory=list)  # names of steps
    used: dict[str, dict[str, str]] = field(default_factory=dict)  # action -> its inputs


def action() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    return found


def workflow(name: str) -> dict[str, Any]:
    """Return a workflow of examples/github. PyYAML reads YAML 1.1, in which the key `on` is true."""
    found: dict[Any, Any] = yaml.safe_load((ROOT / "examples" / "github" / f"{name}.yml").read_text())
    found["on"] = found.pop(True)
    return found


def use_workflow(tool: Tool, name: str, job_name: str, known: dict[str, str], failing: str = "", **env: str) -> Job:
    """Run the scripts of a job whose conditions hold, except the installation of attnbench.

    An expression that is not in `known` is empty. The step called `failing` fails.
    """
    job, known = Job(), dict(known)
    for step in workflow(name)["jobs"][job_name]["steps"]:
        if not _holds(step.get("if", ""), known, failed=job.code != 0):
            continue
        job.ran.append(step.get("name", step.get("uses")))
        if "uses" in step:
            job.used[step["uses"].partition("@")[0]] = {
                name: _substitute(str(value), known) for name, value in step["with"].items()
            }
        if step.get("name") == failing:
            job.code = 1
        if "run" not in step or step["name"] in ("Install attnbench", failing):
            continue
        assert "${{" not in step["run"], "what is pasted into a script runs as code"
        own = {name: _substitute(value, known) for name, value in step["env"].items()}
        code, log, outputs = _github_step(tool, step["run"], "", {**own, **env}, job)
        known |= {f"steps.{step.get('id')}.outputs.{name}": value for name, value in outputs.items()}
        job.log += log
        job.code = job.code or code
    return job


def use_action(tool: Tool, fake: str = "", matrix: str = "", **given: str) -> Job:
    """Run every step of the action whose condition holds, with the `inputs`, `steps` and `if` that action.yml uses."""
    spec, job = action(), Job()
    assert {name.replace("_", "-") for name in given} <= {*spec["inputs"]}
    known = {f"inputs.{name}": str(said.get("default", "")) for name, said in spec["inputs"].items()}
    known |= {f"inputs.{name.replace('_', '-')}": value for name, value in given.items()} | {MATRIX: matrix}
    for step in spec["runs"]["steps"]:
        if not _holds(step.get("if", ""), known, failed=job.code != 0):
            continue
        job.ran.append(step["name"])
        if "uses" in step:
            job.used[step["uses"].partition("@")[0]] = {
                name: _substitute(value, known) for name, value in step["with"].items()
            }
            continue
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], "an input that is pasted into a script runs as code"
        own = {name: _substitute(value, known) for name, value in step["env"].items()}
        code, log, outputs = _github_step(tool, step["run"], fake, own, job)
        known |= {f"steps.{step.get('id')}.outputs.{name}": value for name, value in outputs.items()}
        job.log += log
        job.code = job.code or code
    job.outputs = {name: _substitute(said["value"], known) for name, said in spec["outputs"].items()}
    return job


def _github_step(tool: Tool, script: str, fake: str, own: dict[str, str], job: Job) -> tuple[int, str, dict[str, str]]:
    output, summary = tool.folder / "github_output", tool.folder / "github_summary"
    output.write_text("")
    summary.write_text("")
    files = {
        "GITHUB_OUTPUT": str(output),
        "GITHUB_STEP_SUMMARY": str(summary),
        "RUNNER_TEMP": str(tool.folder / "temp"),
        "GITHUB_WORKSPACE": WORKSPACE or str(tool.folder),
        "GITHUB_ACTION_PATH": f"{ROOT}/.",
    }
    env = tool.env(fake, GITHUB_ACTIONS="true", GITHUB_JOB="gpu", **{**files, **own})
    done = _bash(script, tool, env)
    job.summary += summary.read_text()
    pairs = (line.partition("=")[::2] for line in output.read_text().splitlines())
    return done.returncode, done.stdout + done.stderr, dict(pairs)


def _holds(condition: str, known: dict[str, str], *, failed: bool) -> bool:
    """Return the value of a condition: `always()` and `name != ''`, joined by &&."""
    parts = [part.strip() for part in condition.split("&&") if part.strip()]
    if failed and "always()" not in parts:
        return False
    for part in parts:
        if part != "always()":
            name, sign, empty = part.split()
            assert (sign, empty) == ("!=", "''")
            if not known.get(name):
                return False
    return True


def _substitute(text: str, known: dict[str, str]) -> str:
    """Replace the expressions in a text. An undeclared input fails the test; an output that no step wrote is empty."""
    return EXPRESSION.sub(lambda m: known[m[1]] if m[1].startswith("inputs.") else known.get(m[1], ""), text)


def gitlab() -> tuple[list[str], dict[str, Any]]:
    """Return the scripts of the jobs in examples/gitlab, in their order, and the last job."""
    jobs: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "gitlab" / "attention.yml").read_text())
    return ["\n".join(job["script"]) for job in jobs.values()], [*jobs.values()][-1]


def jenkins() -> tuple[list[str], dict[str, Any]]:
    """Return the scripts in the Jenkinsfile, without backslashes, which Groovy would read first."""
    scripts = re.findall(r"sh '''\n(.+?)'''", (ROOT / "examples" / "jenkins" / "Jenkinsfile").read_text(), re.S)
    assert not any("\\" in script for script in scripts)
    return scripts, {}


def buildkite() -> tuple[list[str], dict[str, Any]]:
    """Return the scripts of the pipeline's steps, as after an upload, and the last step."""
    steps = yaml.safe_load((ROOT / "examples" / "buildkite" / "pipeline.yml").read_text())["steps"]
    scripts = ["\n".join(step["commands"]) for step in steps]
    assert not any(re.search(r"(?<!\$)\$(?!\$)", script.replace("$$", "")) for script in scripts), (
        "it would run as code"
    )
    return [script.replace("$$", "$") for script in scripts], steps[-1]


RECIPES = {"gitlab": gitlab, "jenkins": jenkins, "buildkite": buildkite}


def use_recipe(tool: Tool, name: str, fake: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run the scripts of a recipe one after the other, each in its own shell, until one fails."""
    scripts, _ = RECIPES[name]()
    for script in scripts:
        done = _bash(script, tool, tool.env(fake, **env))
        if done.returncode:
            break
    return done


def with_program(tool: Tool, name: str, script: str) -> str:
    """Write a program, and return a PATH with its folder first."""
    (tool.folder / "bin").mkdir(exist_ok=True)
    tool.write(f"bin/{name}", script).chmod(0o755)
    return f"{tool.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"


def _bash(script: str, tool: Tool, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*GITHUB_SHELL, script], cwd=tool.folder, env=env, capture_output=True, text=True, timeout=120
    )
