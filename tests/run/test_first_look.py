"""Lists and dry runs import only libraries that may run here, and give the answers of a worker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from attnbench.backends import BACKENDS, load
from attnbench.backends.pytorch.eager import Eager
from attnbench.core.backend import Probe
from attnbench.core.case import Case
from attnbench.core.machine import Device
from attnbench.run import numpy_rates
from attnbench.run.first_look import first_look
from attnbench.run.plan import CaseSupport
from attnbench.run.support_matrix import PLAIN
from attnbench.run.workers import WorkerPool
from attnbench.worker import environment, serve
from builders import CPU, H200

NAMES = ("eager", "flex", "sdpa-flash", "fa2", "hf-sdpa")
CASES = (replace(PLAIN, dtype="fp32"), replace(PLAIN, dtype="fp32", direction="bwd"))
without_gpu = pytest.mark.skipif(not environment.no_gpu_here(), reason="here is a GPU")


@dataclass
class RecordingPool(WorkerPool):
    """A pool without workers that records the backends for which it would start one."""

    asked: list[str] = field(default_factory=list)

    def probe(self) -> dict[str, Probe]:
        self.asked.extend(self.specs)
        return {name: Probe(version="by a worker") for name in self.specs}

    def survey(
        self, probes: Mapping[str, Probe], cases: Iterable[Case], device: Device
    ) -> dict[str, list[CaseSupport]]:
        assert {*probes} == {*self.specs}
        return {name: [CaseSupport() for _ in cases] for name in probes}


def looked(device: Device, interpreters: Mapping[str, str] | None = None, **more: str) -> tuple[Any, Any, list[str]]:
    pool = RecordingPool({**{name: BACKENDS[name] for name in NAMES}, **more}, interpreters or {})
    probes, answers = first_look(pool, CASES, device)
    assert [*probes] == [*answers] == [*pool.specs]
    return probes, answers, pool.asked


@pytest.fixture
def with_transformers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Install a transformers that cannot be imported."""
    (tmp_path / "transformers.py").write_text("raise SystemExit('imported')")
    (tmp_path / "transformers-5.1.dist-info").mkdir()
    (tmp_path / "transformers-5.1.dist-info" / "METADATA").write_text("Name: transformers\nVersion: 5.1\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("with_transformers")
def test_on_a_cpu_a_worker_is_asked_only_for_a_library_that_may_run_there() -> None:
    probes, answers, asked = looked(CPU)
    assert asked == ["hf-sdpa"]
    assert probes["hf-sdpa"].version == "by a worker"
    assert probes["eager"].version.startswith("torch ")
    assert [answer.reason for answer in answers["eager"]] == [None, None]
    assert {answer.reason for answer in answers["flex"]} == {"needs a CUDA GPU"}
    assert probes["fa2"].install in answers["fa2"][0].reason


@pytest.mark.usefixtures("with_transformers")
def test_on_a_gpu_a_worker_is_asked_for_all_installed_libraries() -> None:
    assert looked(H200)[2] == ["hf-sdpa"]
    assert looked(replace(H200, kind="fake"))[2] == [*NAMES]


def test_other_interpreters_and_other_peoples_code_are_asked_in_workers() -> None:
    _, _, asked = looked(CPU, {"fa2": "/opt/python"}, mine="mine.py:attention")
    assert asked == ["fa2", "mine"]
    assert looked(CPU, eager="mine.py:eager")[2] == ["eager"]  # attnbench's name with a person's code


def test_a_backend_with_a_probe_of_its_own_is_asked_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Eager, "probe", lambda _: Probe(version="its own"))
    assert looked(CPU)[2] == ["eager"]


@pytest.mark.parametrize("name", BACKENDS)
def test_what_is_known_without_an_import_is_what_an_import_tells(name: str) -> None:
    backend: Any = load(name, BACKENDS[name])
    found = backend.installed()
    if found and not (found.usable and backend.probe_imports):
        assert found == backend.probe()


@pytest.mark.parametrize(("device", "kind"), [("auto", "cpu"), ("cpu", "cpu"), ("cuda:0", None)])
@without_gpu
def test_a_worker_knows_without_torch_that_there_is_no_gpu(device: str, kind: str | None) -> None:
    code = f"""
import sys
from attnbench.worker.serve import Worker
answer = Worker().answer({{"op": "environment", "device": {device!r}, "with_torch": False}})
assert "torch" not in sys.modules
print(answer["environment"]["device"]["kind"] if "environment" in answer else answer["refused"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == kind or "sees no CUDA device here" in done.stdout


def test_a_cpu_described_without_torch_lacks_what_torch_alone_knows() -> None:
    with_torch, without = (
        serve.Worker().answer({"op": "environment", "device": "cpu", "with_torch": with_torch})["environment"]
        for with_torch in (True, False)
    )
    assert with_torch["device"].pop("threads") >= 1
    assert with_torch["device"].pop("instructions")
    for described in (with_torch, without):
        described.pop("cuda", None)
        del described["device"]["free"]
    assert with_torch == without


def test_numpys_rates() -> None:
    timed = numpy_rates.with_numpy_rates(CPU)
    assert 1e9 < timed.matmul["fp32"] < 1e14
    assert 1e8 < (timed.copy or 0) < 1e13
    assert numpy_rates.suffice(CPU, CASES)
    assert not numpy_rates.suffice(CPU, [*CASES, PLAIN])
    assert not numpy_rates.suffice(H200, CASES)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("backends",), "right results on"),
        (("run", "--dry-run", "-b", "eager,sdpa-*,flex,fa2"), "Nothing was measured"),
        (("run", "--device", "fake", "-b", "fake", "--seqlen", "1k", "--causal", "--pass", "fwd"), "Simulated GPU"),
        (("run", "--device", "cuda:0"), "sees no CUDA device"),
        (("profile", "-b", "eager", "--device", "cuda:0"), "sees no CUDA device"),
    ],
)
@without_gpu
def test_quick_commands_do_not_import_torch(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """Quick commands do not import torch, which alone takes longer than their limit of 1 s."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    folders = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "attnbench", *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": folders},
        cwd=tmp_path,
        timeout=120,
    )
    assert said in done.stdout + done.stderr
    assert "torch was imported" not in done.stdout + done.stderr
    assert done.returncode == (2 if "cuda:0" in options else 0)
