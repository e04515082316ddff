"""`attnbench check --sanitize` on a GPU: planted faults are found, and nothing is in backends that ship.

Each run of compute-sanitizer takes 10 s and more, so a planted kernel runs under one tool. `pytest -s` prints reasons.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.core.case import Case, Shape
from attnbench.core.json import from_json
from attnbench.core.machine import Device
from attnbench.core.record import Record
from attnbench.run import sanitize

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.skipif(sanitize.find() is None, reason=sanitize.MISSING),
]

PLANTED = Path(__file__).with_name("sanitized_kernels.py")
FOUND = {  # planted function: the tool, and the words of its reason
    "cuda_overrun": ("memcheck", "cuda_overrun writes 4 bytes out of bounds of global memory"),
    "cuda_race": ("racecheck", "cuda_race has a race in shared memory, a write and a read"),
    "cuda_unwritten": ("initcheck", "cuda_unwritten reads 4 bytes of global memory that nothing has written"),
    "cuda_divergent": ("synccheck", "cuda_divergent has a barrier that not all threads of a warp reach"),
    "triton_overrun": ("memcheck", "_triton_overrun writes "),
    "triton_unwritten": ("initcheck", "_triton_unwritten reads "),
}


def looked_at(name: str) -> Record:
    """Return the record of a small case of a planted function after the tools in sanitize.TOOLS."""
    import ncu_request

    program = sanitize.find()
    assert program is not None
    request = ncu_request.request(str(PLANTED), name)
    case = Case(Shape(1, 16, 16, 1, 1, 16, 16), "bf16", "fwd")
    device = from_json(Device, request["device"])
    specs = {name: request["spec"]}
    told = sanitize.results(program, [Record(case, name, 0, "ok")], device, specs, {}, 30.0, print)
    ((_, record),) = told
    print(f"{name}: {record.status}, {record.reason} {record.notes} {dict(record.sanitizer)}")
    return record


@pytest.mark.parametrize("name", FOUND)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tool, words = FOUND[name]
    monkeypatch.setattr(sanitize, "TOOLS", {tool: sanitize.TOOLS[tool]})
    record = looked_at(name)
    assert record.sanitizer == {tool: ""}
    assert record.status == "wrong"
    assert words in (record.reason or "")


def test_nothing_is_found_in_a_clean_function() -> None:
    record = looked_at("clean")
    assert record.sanitizer == dict.fromkeys(sanitize.TOOLS, "")
    assert (record.status, record.reason) == ("ok", None)


def check(*what: str) -> subprocess.CompletedProcess[str]:
    """Return the end of `attnbench check --sanitize` of some backends, in few cases."""
    few = ("--headdim", "64", "--dtype", "bf16", "--sanitize", "--allow-busy")
    done = subprocess.run(
        [sys.executable, "-m", "attnbench", "check", *what, *few],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=3000,
    )
    print(done.stdout, done.stderr)
    return done


@pytest.mark.parametrize("name", ["triton", "gluon", "sdpa-flash", "eager"])
def test_nothing_is_found_in_backends_that_ship(name: str) -> None:
    if name == "gluon" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("gluon needs a Hopper GPU")
    done = check(name)
    assert done.returncode == 0
    assert "memcheck, racecheck, initcheck and synccheck found nothing in " in " ".join(done.stdout.split())


def test_a_race_is_wrong_where_the_result_is_right() -> None:
    done = check(f"{PLANTED}:cuda_race", "--pass", "fwd")
    assert done.returncode == 5
    assert "compute-sanitizer racecheck: cuda_race has a race in shared memory" in " ".join(done.stdout.split())
