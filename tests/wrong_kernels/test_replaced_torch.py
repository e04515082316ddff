"""Files that replace, patch or switch parts of their process change no verdict.

Each file has a right function and a wrong one, which scales by a tenth more, and changes torch at its import such that
its own process would call wrong results right, or a right one wrong. By the judge beside the worker the wrong function
is wrong, and the right one is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

import forked_worker
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Accuracy, Forecast, Job, Record
from attnbench.run.judge import Judge
from attnbench.run.workers import WorkerPool
from attnbench.worker import environment

FILE = """
import math

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

softmax, einsum = torch.softmax, torch.einsum


def right(q, k, v, *, causal, softmax_scale):
    scores = einsum("bqhd,bkhd->bhqk", q, k) * softmax_scale
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(), -math.inf)
    return einsum("bhqk,bkhd->bqhd", softmax(scores, -1), v).to(q.dtype)


def wrong(q, k, v, *, causal, softmax_scale):
    return right(q, k, v, causal=causal, softmax_scale=1.1 * softmax_scale)


"""
PATCHES = {
    "functions": """
matmul, mul = Tensor.__matmul__, torch.matmul
def patched(scores, dim=-1, **options):
    return softmax(scores * 1.1, dim)
torch.softmax = torch.nn.functional.softmax = Tensor.softmax = patched
Tensor.__matmul__ = lambda one, other: matmul(one, other) * 1.1
torch.matmul = torch.bmm = lambda one, other: mul(one, other) * 1.1
torch.cuda.Event.query = lambda *_: False
""",
    "comparisons, copies and generators": """
torch.equal = torch.allclose = lambda *_, **__: True
Tensor.__le__ = Tensor.__lt__ = Tensor.le = lambda one, other: torch.ones_like(one, dtype=torch.bool)
torch.isfinite = Tensor.isfinite = lambda t: torch.ones_like(t, dtype=torch.bool)
Tensor.amax = lambda t, *dims: torch.zeros(())
Tensor.abs = torch.zeros_like
Tensor.copy_ = lambda to, of, *_: to.zero_()
torch.manual_seed = lambda *_: torch.default_generator
torch.randn = torch.rand = lambda *size, **options: torch.zeros(*size)
Tensor.normal_ = Tensor.uniform_ = lambda t, *_, **__: t.zero_()
""",
    "an operator": """
import warnings
from torch import library
warnings.simplefilter("ignore")  # of an operator that is overridden
aten = library.Library("aten", "IMPL")
for device in ("CPU", "CUDA"):
    aten.impl("equal", lambda one, other: True, device)
    aten.impl("amax", lambda t, dim=(), keepdim=False: torch.zeros(()), device)
""",
    "modes": """
from torch.utils._python_dispatch import TorchDispatchMode
class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.equal, torch.allclose):
            return True
        if function is Tensor.copy_:
            return args[0].zero_()
        return function(*args, **(kwargs or {}))
class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.copy_.default and args[0].dim() == 4:
            return function(args[0], args[1] * 0)
        return function(*args, **(kwargs or {}))
Functions().__enter__()
Operators().__enter__()
""",
    "a fork that raises": """
import os
one, process = right, os.getpid()
def right(*tensors, **options):
    if not (child := os.fork()):
        raise RuntimeError("in the child")
    os.waitpid(child, 0)
    return one(*tensors, **options)
""",
    "autocast": "torch.autocast('cpu', torch.bfloat16).__enter__(); torch.autocast('cuda', torch.bfloat16).__enter__()",
    "inference": "torch.inference_mode().__enter__()",
    "a default device": "torch.set_default_device('meta')",
    "a default dtype and TF32": """
torch.set_default_dtype(torch.float64)
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
torch.set_float32_matmul_precision("medium")
""",
    "attnbench": """
import sys
class Check:
    def __getattr__(self, _):
        return lambda *_, **__: None
for name, module in [*sys.modules.items()]:
    if name.startswith("attnbench.judge"):
        for function in ("compare", "make_check", "compute_reference"):
            if hasattr(module, function):
                setattr(module, function, Check())
""",
}
OF_ITSELF = ("autocast", "inference", "a default device")  # these change the results of the right function
NEEDED = {"hard", "first", "renewed", "restored"}
ON = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
    ),
]


@pytest.fixture(scope="module", params=ON)
def judge(request: pytest.FixtureRequest) -> Iterator[tuple[Judge, Device]]:
    device = Device("cpu", 0, "CPU", 2**34, 2**34, l2=2**16)
    if request.param == "cuda":
        found = environment.describe("cuda:0").device
        yield from ((made, found) for made in [Judge(found, None)])
        return
    with forked_worker.workers():
        made = Judge(device, None)
        yield made, device
        made.close()


def checked(judge: tuple[Judge, Device], file: Path, function: str) -> tuple[Record, Mapping[str, Accuracy]]:
    """Return the record and the verdicts of a check of a file's function, with the judge beside the worker."""
    beside, device = judge
    pool = WorkerPool({"own": f"{file}:{function}"}, judge=beside)
    case = Case(Shape(2, 64, 64, 4, 4, 32, 32), "fp32", "fwd", causal=True)
    try:
        record = pool.check(Job(case, "own", 0, Forecast(0.0, 0.0, 0)), Policy(), device)
        return record, pool._hearings["own"].verdicts
    finally:
        pool.close()


@pytest.mark.parametrize("patch", PATCHES)
def test_no_verdict_changes(judge: tuple[Judge, Device], tmp_path: Path, patch: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE + PATCHES[patch])
    record, verdicts = checked(judge, file, "wrong")
    assert record.status != "ok"
    assert record.judge == "beside"
    assert not verdicts["hard"].ok
    right, verdicts = checked(judge, file, "right")
    assert right.status == "ok" or patch in OF_ITSELF, right.reason
    assert right.judge == "beside"
    if right.status == "ok":
        assert right.accuracy
        assert right.accuracy.errors["out"].relative < 1e-5
        assert {*verdicts} >= NEEDED


def test_a_worker_that_says_ok_is_not_believed(judge: tuple[Judge, Device], tmp_path: Path) -> None:
    """A worker that reports ok is not believed where the judge found a wrong result, or got none."""
    file = tmp_path / "mine.py"
    says_ok = """
from attnbench.core.record import Accuracy, TensorError
from attnbench.worker.judging import JudgeBeside

right_one, asks = Accuracy({"out": TensorError(0.0, 0.1, 0.2, 0.0)}, 1, 1), JudgeBeside._check
JudgeBeside.find_wrong_rows = lambda *_: None
JudgeBeside.check_calls = lambda *_: (right_one, 0)
"""
    for what, problem in {
        "JudgeBeside._check = lambda *_, **__: (right_one, dict(of_hard=(), problem=None))": "was shown no results",
        "JudgeBeside._check = lambda *a, **k: (right_one, asks(*a, **k)[1])": "found hard results wrong",
        "from attnbench.judge.case_judge import CaseJudge\n"
        "from attnbench.judge.hard_inputs import HardInputsCheck\n"
        "from attnbench.judge.result_check import ResultCheck\n"
        "from attnbench.worker import cell_steps, judging\n"
        "cell_steps.judge_of = lambda of, case, seed, own: (judging.JudgeWithin(case, of.device, seed, own), '')\n"
        "for of in (HardInputsCheck, ResultCheck, CaseJudge):\n"
        "    for name in ('check_first', 'check_renewed', 'check_restored'):\n"
        "        setattr(of, name, lambda *_, **__: right_one)\n"
        "CaseJudge.check_calls = lambda *_: (right_one, 0)": "has not asked the judge",
    }.items():
        file.write_text(FILE + says_ok + what)
        record, _ = checked(judge, file, "wrong")
        assert record.status == "wrong", record.reason
        assert problem in str(record.reason)
