"""Indexers that choose wrong keys are found, in a prompt and in decoding; right ones of any shape pass."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from measuring_device import QUICK, MeasuringDevice, judged_device
from wrong_indexer import Fault, Indexer, faults

from attnbench import judge
from attnbench.backends import BACKENDS, load
from attnbench.backends.pytorch.indexer import IndexerTorch
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device
from attnbench.judge import indexer_check, inputs
from pairs import pairs

PROMPT = Case(Shape(2, 60, 90, 8, 1, 32, 32), "fp32", "fwd", True, mask="topk:12", kind="indexer")
DECODE = replace(PROMPT, dtype="bf16", shape=replace(PROMPT.shape, batch=8, seqlen_q=1, seqlen_k=300))
CASES = {
    "prompt": PROMPT,
    "prompt-bf16": replace(PROMPT, dtype="bf16"),
    "prompt-fp8": replace(PROMPT, dtype="fp8"),
    "square": replace(PROMPT, dtype="bf16", shape=replace(PROMPT.shape, seqlen_q=70, seqlen_k=70)),
    "decode": DECODE,
    "decode-fp8": replace(DECODE, dtype="fp8"),
}
FEW = 30 * 90  # scores, for a sample of query rows


def can_be_seen(case: Case, name: str) -> bool:
    """Return whether a fault shows in a case.

    Only keys in fp8 have scales, and their q and k are e4m3. Rounding changes the choice in few rows of a small case.
    """
    return {
        "forgotten_scale": case.dtype == "fp8",
        "rounded": case.dtype != "fp8" and not case.is_decode,
    }.get(name, True)


@pytest.fixture(params=[None, FEW], ids=["all-rows", "sample"])
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setitem(indexer_check.SCORES, "cpu", request.param)


@pytest.mark.usefixtures("rows")
@pairs(case=list(CASES.values()), backend=[Indexer(), IndexerTorch()])
def test_right_indexers_pass(steady_cpu: MeasuringDevice, case: Case, backend: Any) -> None:
    """No fault."""
    steady_cpu.passes(backend, case, QUICK)


@pytest.mark.parametrize(
    ("case", "fault"),
    [
        pytest.param(case, fault, id=f"{of}-{name}")
        for of, case in CASES.items()
        for name, fault in faults().items()
        if can_be_seen(case, name)
    ],
)
def test_each_fault_is_found(
    steady_cpu: MeasuringDevice, monkeypatch: pytest.MonkeyPatch, case: Case, fault: Fault
) -> None:
    """Fault: a key left out, twice or of the future, relu or a weight forgotten, and others. Found: wrong."""
    monkeypatch.setitem(indexer_check.SCORES, "cpu", FEW)
    steady_cpu.finds_wrong(Indexer(fault), case, QUICK)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("twice", "query row 0 of sequence 0 has a key twice, as have 60 in all"),
        ("future", "has a key that it does not see"),
        ("too_few", "has another number of keys than it must have, as have"),
        ("left_out", "by score, in"),
    ],
)
def test_the_reason_names_the_fault(name: str, said: str) -> None:
    case = replace(PROMPT, shape=replace(PROMPT.shape, batch=1, seqlen_k=60))
    given = inputs.make(case, "cpu", seed=0)
    prepared = Indexer(faults()[name]).prepare(case, given)
    problem = judge.make_check(case, given, 0).check_first(prepared.canonical(prepared.launch())).problem()
    assert said in problem
    assert "\n" not in problem


@pytest.mark.parametrize("seed", range(20))
def test_right_indexers_of_random_shapes_pass(seed: int) -> None:
    """No fault: scores of neighbouring ranks may be nearly equal, and rounding decides between them."""
    draw = random.Random(seed)
    seqlen_k = draw.randint(1, 400)
    shape = Shape(draw.randint(1, 3), draw.randint(1, seqlen_k), seqlen_k, draw.choice((1, 3, 8, 32)), 1, 64, 64)
    case = Case(shape, draw.choice(("fp32", "fp16", "bf16", "fp8")), "fwd", True, mask="topk:32", kind="indexer")
    given = inputs.make(case, "cpu", seed)
    check = judge.make_check(case, given, seed)
    for backend in (load("indexer-torch", BACKENDS["indexer-torch"]), Indexer()):
        prepared = backend.prepare(case, given)
        accuracy = check.check_first(prepared.canonical(prepared.launch()))
        assert accuracy.ok, accuracy.problem()


def test_the_tolerance_is_a_small_part_of_the_spread_of_scores() -> None:
    """The scores of keys far from the N-th are further from it than the tolerance, in each dtype."""
    for dtype, most in (("fp32", 1e-4), ("fp16", 0.008), ("bf16", 0.06), ("fp8", 0.06)):
        case: Any = replace(PROMPT, dtype=dtype, shape=replace(PROMPT.shape, nheads=64, headdim=128, headdim_v=128))
        exact = indexer_check.exact_scores(case, inputs.make(case, "cpu", seed=0))
        share = exact.allowed / exact.scores[:, :30].std(1)  # all queries see these keys
        assert share.max() < most, dtype


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_on_a_gpu(dtype: Any) -> None:
    """Faults: as above, with the heads of DeepSeek-V3.2. Found: wrong; right indexers pass."""
    properties = torch.cuda.get_device_properties(0)
    memory = properties.total_memory
    gpu = judged_device(Device("cuda", 0, properties.name, memory, memory, torch.cuda.get_device_capability()), QUICK)
    case = Case(Shape(1, 300, 1000, 64, 1, 128, 128), dtype, "fwd", True, mask="topk:128", kind="indexer")
    for name in ("indexer-torch", "indexer-triton"):
        gpu.passes(load(name, BACKENDS[name]), case, QUICK)
    gpu.passes(Indexer(), case, QUICK)
    for name, fault in faults().items():
        if can_be_seen(case, name):
            gpu.finds_wrong(Indexer(fault), case, QUICK)
