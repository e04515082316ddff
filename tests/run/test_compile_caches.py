"""Fresh caches: the worker of a cold first call finds no compiled kernel and leaves none behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Forecast, Job, Record
from attnbench.run import compile_caches, job_order
from attnbench.run.suite import load_suite, parse_options, resolve
from attnbench.run.workers import WorkerPool
from builders import case

DEVICE = Device("fake", 0, "Simulated GPU", 2**36, 2**36)
COMPILES = """
import os
from pathlib import Path
from attnbench.backends.fake import Fake

class Compiles(Fake):
    '''Finds its kernel in Triton's cache or puts it there. Its peak memory is its process id.'''
    def prepare(self, case, inputs):
        kernel = Path(os.environ["TRITON_CACHE_DIR"], "kernel")
        if case.shape.seqlen_q == 3:
            raise RuntimeError(f"in {kernel.parent}")
        prepared = super().prepare(case, inputs)
        prepared.simulation.memory["memory_peak"] = os.getpid()
        prepared.simulation.memory["memory_driver"] = int(kernel.exists())
        kernel.write_text("compiled")
        return prepared
"""


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerPool]:
    (tmp_path / "own_compiles.py").write_text(COMPILES)
    (tmp_path / "usual").mkdir()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "usual"))
    made = WorkerPool({"own": f"{tmp_path}/own_compiles.py:Compiles"})
    yield made
    made.close()


def records(pool: WorkerPool, policy: Policy, *seqlens: int) -> list[Record]:
    jobs = [Job(case(n, headdim=64), "own", 0, Forecast(0.01, 0.001, 1)) for n in seqlens]
    return [record for _, record in job_order.measure_jobs(jobs, pool, policy, DEVICE) if record]


def found_compiled(record: Record) -> bool:
    return bool(record.measurements["memory_driver"].values[0])


def pid(record: Record) -> float:
    return record.measurements["memory_peak"].values[0]


def test_each_cell_is_cold_and_the_usual_caches_are_not_touched(pool: WorkerPool, tmp_path: Path) -> None:
    first, failed, second = records(pool, Policy(caches="fresh"), 1, 3, 2)
    assert not found_compiled(first)
    assert not found_compiled(second)
    assert pid(first) != pid(second)
    folder = Path(str(failed.reason).partition(" in ")[2].partition(" (own_compiles.py:")[0])
    assert folder.name == "triton"
    assert not folder.parent.exists()
    assert not any((tmp_path / "usual").iterdir())


def test_kept_caches_are_the_users(pool: WorkerPool, tmp_path: Path) -> None:
    first, second = records(pool, Policy(), 1, 2)
    assert [found_compiled(first), found_compiled(second)] == [False, True]
    assert pid(first) == pid(second)
    assert (tmp_path / "usual" / "kernel").exists()


def test_folders_are_empty_and_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLASHINFER_WORKSPACE_BASE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with compile_caches.fresh_caches() as variables:
        assert {*variables} == {*compile_caches.VARIABLES}
        assert len({*variables.values()}) == len(variables)
        assert all(os.listdir(folder) == [] for folder in variables.values())
    assert not any(os.path.exists(folder) for folder in variables.values())


def test_what_was_downloaded_is_no_compiled_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads are no compiled kernels: a fresh cache has them, and they stay afterwards."""
    usual = tmp_path / ".cache/flashinfer/cubins"
    usual.mkdir(parents=True)
    (usual / "binary").write_text("downloaded")
    (usual.parent / "0.6.13").mkdir()
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", str(tmp_path))
    with compile_caches.fresh_caches() as variables:
        cache = Path(variables["FLASHINFER_WORKSPACE_BASE"], ".cache/flashinfer")
        assert (cache / "cubins" / "binary").read_text() == "downloaded"
        assert os.listdir(cache) == ["cubins"]
    assert (usual / "binary").exists()


def test_option_and_suite_say_so() -> None:
    assert resolve(load_suite("first-call"), "cuda").policy.caches == "fresh"
    quick = load_suite("quick")
    assert resolve(quick, "cuda").policy.caches == "kept"
    assert resolve(quick, "cuda", parse_options({"policy": {"caches": "fresh"}})).policy.caches == "fresh"
