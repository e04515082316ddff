"""A worker before its first job: the workers that import and open the device, and the loaded modules."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnbench.backends import BACKENDS
from attnbench.core.backend import Signature, Workspace
from attnbench.core.json import to_json
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Forecast, Job, Measurement
from attnbench.judge import inputs
from attnbench.worker import serve
from attnbench.worker.serve import Worker
from attnbench.worker.torch_defaults import undo
from builders import case, ended, ok

CPU = Device("cpu", 0, "CPU", 2**30, 2**30)


@pytest.mark.parametrize(
    ("name", "spec", "wanted"),
    [
        ("eager", BACKENDS["eager"], ["imported", "opened"]),
        ("fake", BACKENDS["fake"], []),  # simulated
        ("fa3", BACKENDS["fa3"], []),  # not installed
        ("none", "no_such_module_of_ours:f", []),
    ],
)
def test_only_a_worker_that_will_measure_imports_and_opens(
    name: str, spec: str, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []
    monkeypatch.setattr(serve, "import_for_measuring", lambda: done.append("imported"))
    monkeypatch.setattr(Worker, "measurer", lambda self, device: done.append("opened"))
    worker = Worker()
    try:
        worker.answer({"op": "load", "name": name, "spec": spec})
    except ModuleNotFoundError:
        assert name == "none"
    assert worker.answer({"op": "import"}) == worker.answer({"op": "ready", "device": to_json(CPU)}) == {}
    assert done == wanted


@pytest.mark.parametrize(("name", "compiler"), [("flashinfer-fa3", True), ("flashinfer-cudnn", False), ("fake", False)])
def test_load_tells_whether_the_backend_starts_a_compiler(name: str, compiler: bool) -> None:
    assert Worker().answer({"op": "load", "name": name, "spec": BACKENDS[name]})["compiler"] is compiler


@pytest.mark.parametrize(
    ("attribute", "value", "said"),
    [
        ("workspace", lambda _: Workspace(nbytes=float("nan")), "nbytes=nan, not a whole number of bytes"),  # type: ignore[arg-type]
        ("workspace", lambda _: Workspace(nbytes=-5), "nbytes=-5, not a whole number"),
        ("workspace", lambda _: Workspace(passes=float("inf")), "passes=inf, not a number of passes"),
        (
            "signature",
            lambda *_: Signature(runs=("(",)),
            "'(' of its kernels is not a regular expression: missing )",
        ),
    ],
)
def test_what_a_backend_declares_of_another_kind_is_refused_by_its_name(attribute: str, value: Any, said: str) -> None:
    worker = Worker()
    worker.answer({"op": "load", "name": "eager", "spec": BACKENDS["eager"]})
    setattr(worker.backend, attribute, value)
    with pytest.raises(ValueError, match=rf"^eager.*{re.escape(said)}"):
        worker.survey(case(direction="fwd"), CPU)


def test_instruments_opened_before_the_rates_get_them_later() -> None:
    worker = Worker()
    measurer: Any = worker.measurer(CPU)
    assert measurer.bandwidth == 1e10
    assert worker.measurer(Device("cpu", 0, "CPU", 2**30, 2**30, copy=3e10)) is measurer
    assert measurer.bandwidth == 3e10
    assert measurer.device_info.copy == 3e10


def test_what_is_imported_when() -> None:
    """Opening the device imports nothing more; torch.profiler would import torch._inductor for more than a second.

    A backend that compiles imports torch._inductor when it is loaded, so that its first call does not include it.
    """
    code = """
import sys
from attnbench.backends import BACKENDS
from attnbench.core.machine import Device
from attnbench.worker.serve import Worker, import_for_measuring
import_for_measuring()
known = set(sys.modules)
Worker().measurer(Device("cpu", 0, "CPU", 2**30, 2**30))
print(*(m for m in set(sys.modules) - known if m.startswith(("attnbench", "torch", "sympy"))), "end")
for name in ("sdpa", "flex"):
    Worker().answer({"op": "load", "name": name, "spec": BACKENDS[name]})
    print("torch._inductor" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["end", "False", "True"], done.stderr


@pytest.mark.parametrize(("busy", "others"), [(0.0, ("a",)), (0.9, ("a", "train (pid 7)")), (None, ("a",))])
def test_a_look_at_what_others_do_is_in_the_record(busy: float | None, others: tuple[str, ...]) -> None:
    worker = Worker()
    state = SimpleNamespace(busy_with_others=lambda: busy, other_processes=lambda _: ("a", "train (pid 7)"))
    worker._measurer = SimpleNamespace(state=state, alone_on_device=lambda: None)
    found = worker.with_other_work(ok(case(), "eager", 30.0, others=("a",)))
    assert found.others == others
    assert found.measurements.get("busy") == (None if busy is None else Measurement("", (busy,)))
    skipped = ended(case(), "eager", "skipped", "no")
    assert worker.with_other_work(skipped) == skipped


SETS = {
    "set_grad_enabled(False)": (
        True,
        torch.float32,
        "cpu",
        False,
        False,
    ),  # needs gradients, because a backward is measured
    "set_default_dtype(torch.float64)": (True, torch.float64, "cpu", False, False),
    "set_default_device('meta')": (True, torch.float32, "meta", False, False),
    "autocast('cpu', torch.bfloat16).__enter__()": (True, torch.float32, "cpu", True, False),
    "inference_mode().__enter__()": (True, torch.float32, "cpu", False, False),
}


def state_of_torch() -> tuple[Any, ...]:
    device, kept = torch.get_default_device().type, torch.is_inference_mode_enabled()
    return torch.is_grad_enabled(), torch.get_default_dtype(), device, torch.is_autocast_enabled("cpu"), kept


@pytest.mark.parametrize("sets", SETS)
@pytest.mark.parametrize("when", ["import", "call"])
def test_what_a_file_sets_in_torch_is_for_its_own_calls(when: str, sets: str, tmp_path: Path) -> None:
    """Settings that a file makes in torch hold for its own calls, and settings of a call end with its job."""
    at_import, in_call = (f"held = torch.{sets}", "") if when == "import" else ("", f"globals()['held'] = torch.{sets}")
    (tmp_path / "mine.py").write_text(f"""
import torch
{at_import}
def attention(q, k, v, *, causal, softmax_scale):
    said.append(state())
    {in_call or "pass"}
    return q
said = []
""")
    small = {"dtype": "fp32", "seqlen": 8, "nheads": 1, "batch": 1, "headdim": 16}
    worker, which, plain = Worker(), case(**small), state_of_torch()
    try:
        worker.answer({"op": "load", "name": "own", "spec": f"{tmp_path}/mine.py:attention"})
        assert state_of_torch() == plain
        backend: Any = worker.backend
        own = backend.fn.__globals__
        own["state"] = state_of_torch
        backend.prepare(which, inputs.make(which, "cpu", 0)).launch()
        undo()
        assert state_of_torch() == plain
    finally:
        undo()
    assert own["said"] == [SETS[sets] if when == "import" else plain]


COMPILED = """
import torch

def body(q, k, v, *, causal, softmax_scale):
    if not torch.compiler.is_compiling():
        raise RuntimeError("it runs as it stands")
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * softmax_scale
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)

attention = torch.compile(body, backend="eager", dynamic=False)
"""


def test_a_compiled_kernel_is_compiled_for_each_case(tmp_path: Path) -> None:
    """A compiled kernel is compiled for each case; torch.compile would stop after some shapes of one function."""
    (tmp_path / "mine.py").write_text(COMPILED)
    worker = Worker()
    worker.answer({"op": "load", "name": "own", "spec": f"{tmp_path}/mine.py:attention"})
    cases = [case(dtype="fp32", seqlen=8 * n, nheads=1, batch=1, headdim=16) for n in (1, 2, 3)]
    jobs = [Job(each, "own", 0, Forecast(0.0, 0.0, 0)) for each in cases]
    with torch._dynamo.config.patch(recompile_limit=2):
        found = [worker.run(job, Policy(), CPU, op="check") for job in jobs]
    assert [(record.status, record.reason) for record in found] == [("ok", None)] * 3
