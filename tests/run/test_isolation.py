"""Nothing in the working directory replaces code of attnbench, in the parent, in workers and in other children."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

import attnbench
from attnbench.backends import BACKENDS
from attnbench.core.case import Case, Shape
from attnbench.core.json import to_json
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Forecast, Job
from attnbench.run.process import child_environment
from attnbench.run.profile import ncu
from attnbench.run.workers import WorkerPool
from hostile_folder import hijacked, hostile

SOURCE = Path(attnbench.__file__).parents[1]
SCRIPT = Path(sys.executable).with_name("attnbench")
CASE = Case(Shape(1, 16, 16, 1, 1, 8, 8), "fp32", "fwd")
FAKE = Device("fake", 0, "Simulated GPU", 2**36, 2**36)
OWN = """
from {sibling} import scale

def attention(q, k, v, *, causal, softmax_scale):
    return scale * q
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the hostile working directory, which is also in PYTHONPATH, as an empty entry and as "."."""
    folder = hostile(tmp_path / "checkout")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", ".", str(tmp_path / "named"), "./"]))
    yield folder
    assert hijacked(folder) == ""


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command with the tested code, independent of the installation."""
    command = [str(SCRIPT), *arguments]
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, timeout=120
    )


@pytest.mark.skipif(not SCRIPT.exists(), reason="attnbench is not installed")
def test_the_command_and_its_workers(here: Path) -> None:
    done = run_script("run", "--device", "fake", "-b", "fake", "--seqlen", "1k", "--out", "run.jsonl")
    assert done.returncode == 0, done.stderr
    done = run_script("gate", "run.jsonl", "run.jsonl")
    assert done.returncode in (0, 3), done.stderr
    assert (here / "run.jsonl").exists()


def test_python_m(tmp_path: Path) -> None:
    """`python -m` is safe, although attnbench/__init__.py imports typing before __main__.py removes the directory."""
    folder = hostile(tmp_path / "checkout")
    for name in ("attnbench", "typing"):
        (folder / name).rename(folder / f"other-{name}")
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-m", "attnbench", "suites"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert hijacked(folder) == ""


@pytest.mark.usefixtures("here")
def test_a_worker_in_an_interpreter_without_attnbench(tmp_path: Path) -> None:
    """A worker in an interpreter without attnbench runs the parent's, and searches a person's PYTHONPATH."""
    venv.EnvBuilder(symlinks=True).create(tmp_path / "env")
    (tmp_path / "named").mkdir()
    (tmp_path / "named" / "own_backend.py").write_text("from attnbench.backends.fake import Fake\n")
    python = str(tmp_path / "env" / "bin" / "python")
    pool = WorkerPool({"fake": BACKENDS["fake"], "own": "own_backend:Fake"}, {"fake": python, "own": python})
    try:
        assert [probe.usable for probe in pool.probe().values()] == [True, True]
        job = Job(CASE, "own", 0, Forecast(1.0, 1.0, 1))
        assert pool.measure(job, Policy(), FAKE).status == "ok"
    finally:
        pool.close()


@pytest.mark.usefixtures("here")
def test_the_launch_for_nsight_compute(tmp_path: Path) -> None:
    """The launch for Nsight Compute uses the real torch, whose message reports the lack of CUDA or of a driver."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("the launch would succeed")
    program = tmp_path / "ncu"
    program.write_text(f"#!{sys.executable} -I\nimport os, sys\nos.execv(sys.argv[-4], sys.argv[-4:])\n")
    program.chmod(0o755)
    device = Device("cuda", 0, "x", 2**30, 2**30, l2=2**20)
    request = {"name": "eager", "spec": BACKENDS["eager"], "case": to_json(CASE), "device": to_json(device)}
    with pytest.raises(ncu.NotCounted, match=r"(?i)cuda|nvidia driver"):
        ncu.measure(str(program), None, request)


@pytest.mark.parametrize("spec", ["./mine.py:attention", "package.mine:attention"])
def test_a_persons_own_kernel_is_found_and_imports_its_neighbour(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    for file, sibling in (("mine.py", "neighbour"), ("package/mine.py", "package.neighbour")):
        Path(file).write_text(OWN.format(sibling=sibling))
        Path(file).with_name("neighbour.py").write_text("scale = 1.0\n")
    pool = WorkerPool({"own": spec})
    try:
        (probe,) = pool.probe().values()
        assert probe.usable, probe
    finally:
        pool.close()


def test_a_childs_pythonpath_leaves_out_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, kept in (("", None), (":", None), (".", None), ("/a::/b:.:./", "/a:/b"), ("src:..", "src:..")):
        monkeypatch.setenv("PYTHONPATH", given.replace(":", os.pathsep))
        assert child_environment().get("PYTHONPATH") == (kept and kept.replace(":", os.pathsep))
    monkeypatch.delenv("PYTHONPATH")
    assert "PYTHONPATH" not in child_environment()
