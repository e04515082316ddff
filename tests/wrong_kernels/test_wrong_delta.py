"""Gated delta rules that are wrong in one way each are found, in a forward, a backward and a step of decoding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from measuring_device import ALL_ROWS, QUICK, MeasuringDevice, judged_device
from wrong_delta import Delta, Fault, faults

from attnbench.backends.pytorch.delta import DeltaTorch
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device
from pairs import pairs

FEW = 20_000  # score elements, for a sample of heads
PROMPT = Case(Shape(3, 50, 50, 6, 2, 32, 16), "fp32", "fwd", True, kind="gdn")
CASES = {
    "gdn": PROMPT,
    "gdn-bf16": replace(PROMPT, dtype="bf16"),
    "gdn-backward": replace(PROMPT, direction="fwd_bwd"),
    "kda": replace(PROMPT, kind="kda"),
    "kda-bf16": replace(PROMPT, kind="kda", dtype="bf16"),
    "kda-backward": replace(PROMPT, kind="kda", dtype="bf16", direction="bwd"),
    "decode": replace(PROMPT, dtype="bf16", shape=replace(PROMPT.shape, seqlen_q=1, seqlen_k=1)),
    "decode-kda": replace(PROMPT, dtype="bf16", kind="kda", shape=replace(PROMPT.shape, seqlen_q=1, seqlen_k=1)),
}
# Faults that change nothing in a step of one token, or in a backward, which begins without a state and returns none
NONE_AT_ONE_TOKEN = {"lost_state"}
NONE_IN_A_BACKWARD = {"ignored_state", "old_state", "stale_gate"}


def can_be_seen(case: Case, name: str) -> bool:
    """Return whether a fault changes any result of a case."""
    none = NONE_IN_A_BACKWARD if case.has_backward else NONE_AT_ONE_TOKEN if case.shape.seqlen_q == 1 else ()
    return name not in none


@pairs(case=list(CASES.values()), backend=[Delta(), DeltaTorch()], budget=[ALL_ROWS, FEW])
def test_right_rules_pass(steady_cpu: MeasuringDevice, case: Case, backend: Any, budget: int) -> None:
    """No fault."""
    steady_cpu.passes(backend, case, QUICK, budget)


@pytest.mark.parametrize(
    ("case", "fault", "budget"),
    [
        pytest.param(case, fault, budget, id=f"{of}-{name}-{budget}")
        for of, case in CASES.items()
        for name, fault in faults().items()
        for budget in ((ALL_ROWS, FEW) if of == "gdn" else (ALL_ROWS,))
        if can_be_seen(case, name)
    ],
)
def test_each_fault_is_found(steady_cpu: MeasuringDevice, case: Case, fault: Fault, budget: int) -> None:
    """Fault: the state is lost at a chunk's border, a gate squared, beta forgotten, and others. Found: wrong."""
    steady_cpu.finds_wrong(Delta(fault), case, QUICK, budget)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("kind", ["gdn", "kda"])
def test_on_a_gpu(kind: Any) -> None:
    """Faults: as above, with the heads of Qwen3-Next and Kimi Linear. Found: wrong; the right rule passes."""
    properties = torch.cuda.get_device_properties(0)
    memory = properties.total_memory
    gpu = judged_device(Device("cuda", 0, properties.name, memory, memory, torch.cuda.get_device_capability()), QUICK)
    shape = Shape(1, 256, 256, 32, 16, 128, 128) if kind == "gdn" else Shape(1, 256, 256, 32, 32, 128, 128)
    case = Case(shape, "bf16", "fwd", True, kind=kind)
    gpu.passes(Delta(), case, QUICK)
    for name, fault in faults().items():
        if not (name == "other_head" and shape.nheads == shape.nheads_k):
            gpu.finds_wrong(Delta(fault), case, QUICK)
