"""Wrong rows of cases with sampled rows, which the screen of all rows finds."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import right_attention
import torch
import wrong_results
from measuring_device import CPU, QUICK, MeasuringDevice, case
from torch import Tensor

from attnbench import judge
from attnbench.backends.pytorch.eager import Eager
from attnbench.backends.pytorch.sdpa import Efficient, Flash, Math
from attnbench.core.backend import Inputs, Signature
from attnbench.core.case import Case, Shape, sizes_of
from attnbench.core.machine import Device
from attnbench.core.record import Accuracy
from attnbench.judge import inputs, screen
from pairs import pairs
from torch_switches import SDP

SAMPLED = 2**8
GPU = Device("cuda", 0, "GPU", 2**36, 2**36, capability=(9, 0))
HEADS = {"batch": 2, "nheads": 4, "nheads_k": 2, "headdim": 32, "headdim_v": 32}


@pytest.fixture(autouse=True)
def _sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the check recompute few scores, so that it samples 16 rows of each head."""
    monkeypatch.setitem(judge.SCORE_BUDGET, "cpu", SAMPLED)


def right_out(which: Case, given: Inputs) -> Tensor:
    """Return the right result in the case's dtype, rounded once."""
    q, k, v = (t.double() for t in (given.q, given.k, given.v))
    options = {"causal": which.causal, "softmax_scale": which.softmax_scale}
    return right_attention.attention(q, k, v, **options).to(given.q.dtype)


def screened(which: Case, given: Inputs, out: Tensor) -> Accuracy | None:
    return judge.find_wrong_rows(which, given, out, Signature())


@pairs(dtype=["bf16", "fp16", "fp32"], causal=[False, True], direction=["fwd", "fwd_bwd"])
def test_a_wrong_tile_in_one_head(dtype: str, causal: bool, direction: str) -> None:
    """Fault: 64 of 1024 rows of one head of one batch entry are zeros, or 10 % too large. Found: each of 5 of them.
    No fault: a right result passes.
    """
    which = case(direction, dtype=dtype, causal=causal, seqlen=1024, **HEADS)
    given = inputs.make(which, "cpu", 0)
    right = right_out(which, given)
    assert screened(which, given, right) is None
    passed = []
    for seed in range(5):
        chance = random.Random(seed)
        tile = (chance.randrange(2), slice(start := 64 * chance.randrange(16), start + 64), chance.randrange(4))
        out = right.clone()
        out[tile] *= chance.choice([0.0, 1.1])
        if (found := screened(which, given, out)) is None or found.ok:
            passed.append((seed, tile))
    assert passed == []


@pytest.mark.parametrize("causal", [False, True])
def test_a_wrong_tile_in_a_ragged_batch(causal: bool) -> None:
    """Fault: 30 rows in the middle of one of 9 sequences are 10 % too large. Found. No fault: a right result passes."""
    lengths = ((3, 100, 100), (1, 700, 700), (4, 55, 55), (1, 300, 300))
    which = Case(Shape(*sizes_of(lengths), 4, 2, 32, 32), "bf16", "fwd", causal, lengths=lengths)
    given = inputs.make(which, "cpu", 0)
    prepared = Eager().prepare(replace(which, dtype="fp32"), Inputs(given.q.float(), given.k.float(), given.v.float()))
    out = prepared.canonical(prepared.launch())["out"].to(given.q.dtype)
    assert screened(which, given, out) is None
    for start in (130, 480, 1030, 1400):
        wrong = out.clone()
        wrong[0, start : start + 30, 3] *= 1.1
        assert screened(which, given, wrong) is not None


@pytest.mark.parametrize("causal", [False, True])
def test_a_wrong_row_between_two_tiles(causal: bool) -> None:
    """Fault: a single row is zeros. Found."""
    which = case(dtype="bf16", causal=causal, seqlen=1024, **HEADS)
    given = inputs.make(which, "cpu", 0)
    out = right_out(which, given)
    out[1, 700, 2] = 0
    assert screened(which, given, out) is not None


@pytest.mark.parametrize(("seqlen", "sizes"), [(1, {"seqlen_k": 2048}), (512, {"headdim_v": 16}), (300, {})], ids=str)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_right_results_pass(dtype: str, seqlen: int, sizes: dict[str, int]) -> None:
    """No fault: right results pass on 2 inputs, where torch's kernel takes the case and where it does not."""
    which = case(dtype=dtype, causal=True, seqlen=seqlen, **{**HEADS, **sizes})
    for seed in range(2):
        given = inputs.make(which, "cpu", seed)
        assert screened(which, given, right_out(which, given)) is None


@pytest.mark.parametrize("wrong_kernel", [False, True])
def test_a_wrong_screen(monkeypatch: pytest.MonkeyPatch, wrong_kernel: bool) -> None:
    """Fault: a tile of the screen is wrong or not finite. No kernel is called wrong for it; wrong kernels still are."""
    which = case(dtype="bf16", seqlen=1024, **HEADS)
    given = inputs.make(which, "cpu", 0)
    fused = screen._attend_fused

    def wrong(case: Case, inputs: Inputs, entry: int, kernel: str) -> Tensor:
        out = fused(case, inputs, entry, kernel).clone()
        out[64:96, 1] = 0
        out[256:320, 0] = float("nan")
        return out

    monkeypatch.setattr(screen, "_attend_fused", wrong)
    out = right_out(which, given)
    if wrong_kernel:
        out[0, 512:576, 3] = 0
    assert (screened(which, given, out) is not None) is wrong_kernel


def test_the_screen_is_not_the_backends_own_kernel() -> None:
    """Each backend is screened by a kernel that it does not run, and by none where torch has no other."""

    def chosen(backend: Any, device: Device, direction: str = "fwd") -> list[str]:
        which = case(direction, dtype="bf16", seqlen=1024)
        return screen.other_kernels(torch.device(device.kind), backend.signature(which, device))

    for direction in ("fwd", "bwd", "fwd_bwd"):
        assert chosen(Efficient(), GPU, direction) == ["FLASH_ATTENTION"]
        assert chosen(Flash(), GPU, direction) == ["EFFICIENT_ATTENTION"]
        assert chosen(Math(), GPU, direction)[0] == "FLASH_ATTENTION"
        assert chosen(Flash(), CPU, direction) == []
        assert chosen(Math(), CPU, direction) == ["FLASH_ATTENTION"]
    assert screen.other_kernels(torch.device("cuda"), Signature()) == ["EFFICIENT_ATTENTION", "FLASH_ATTENTION"]


def test_the_operator_that_runs_is_the_one_asked_for() -> None:
    """The screen runs torch's flash on a CPU, whatever the process has chosen, and restores that choice."""
    which = case(dtype="bf16", seqlen=256)
    given = inputs.make(which, "cpu", 0)
    for name in SDP:
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(name == "math")
    with torch.profiler.profile() as profiler:
        assert screened(which, given, right_out(which, given)) is None
    assert any("flash_attention_for_cpu" in event.key for event in profiler.key_averages())
    assert [name for name in SDP if getattr(torch.backends.cuda, f"{name}_sdp_enabled")()] == ["math"]


@pytest.mark.parametrize("changes", [{"softcap": 30.0}, {"window_size": (64, 0)}, {"dropout_p": 0.1}], ids=str)
def test_what_is_not_screened(changes: dict[str, Any]) -> None:
    """Cases are not screened if torch's fused kernels cannot compute them, or if all rows are compared."""
    which = case(dtype="bf16", seqlen=1024)
    device = torch.device("cpu")
    assert screen.is_screened(which, device)
    assert not screen.is_screened(replace(which, **changes), device)
    assert not screen.is_screened(case(causal=True, seqlen=512, seqlen_k=1024), device)
    assert not screen.is_screened(case(seqlen=8, batch=1, nheads=1, nheads_k=1), device)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_wrong_tile_of_a_measured_kernel(steady_cpu: MeasuringDevice, direction: str) -> None:
    """Fault: 64 of 512 rows of one head are zeros, and 16 rows are compared. Found: wrong, in the sample or not."""
    which = case(direction, dtype="bf16", seqlen=512, causal=True, **HEADS)
    steady_cpu.passes(right_attention.attention, which, QUICK)
    assert "out is off by" in steady_cpu.finds_wrong(wrong_results.WrongTile(256, slice(1, 2)), which)
