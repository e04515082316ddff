"""Lies about fp8: coarser than e4m3 makes it, and finer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from measuring_device import MeasuringDevice, case
from wrong_fp8 import Clips, Fp8, InBf16, Operands, ScalesLater, Unscaled, WithRemainders, mantissa

SIZES = {"batch": 1, "dtype": "fp8"}


@pytest.mark.parametrize(
    ("narrow_out", "sizes"),
    [(False, {}), (True, {"seqlen_k": 100, "causal": True}), (True, {"seqlen_q": 1, "seqlen_k": 200})],
    ids=["bf16 out", "e4m3 out", "e4m3 out of one query"],
)
def test_the_honest_one_passes(steady_cpu: MeasuringDevice, narrow_out: bool, sizes: dict[str, Any]) -> None:
    """No lie: e4m3 operands and probabilities. Its error is some 5 %, which the report says."""
    record = steady_cpu.measure(Fp8(narrow_out), case(**{**SIZES, **sizes}))
    assert record.status == "ok", record.reason
    assert steady_cpu.cautions(record) == []
    error = steady_cpu.cell(record).value("relative_error")
    assert error is not None
    assert 0.03 < error < 0.08


@pytest.mark.parametrize("causal", [False, True])
def test_fewer_bits_than_fp8(steady_cpu: MeasuringDevice, causal: bool) -> None:
    """Lie: what it reads as e4m3 is rounded to one bit of mantissa, as fp4 (e2m1) has. Caught as wrong."""
    record = steady_cpu.measure(Operands("qkv", mantissa(1)), case(**SIZES, causal=causal))
    assert record.status == "wrong"
    assert "out is off by" in str(record.reason)


def test_e5m2_inside_is_not_caught_but_seen(steady_cpu: MeasuringDevice) -> None:
    """Lie: v is rounded to the two bits of mantissa of e5m2. Twice the error of honest fp8 is allowed, and this makes
    it half as large again: it is not caught, and stands beside the speed."""
    fp8_cell, coarse = (steady_cpu.measure(kernel, case(**SIZES)) for kernel in (Fp8(), Operands("v", mantissa(2))))
    assert (fp8_cell.status, coarse.status) == ("ok", "ok")
    assert steady_cpu.cell(coarse).value("relative_error") > 1.3 * steady_cpu.cell(fp8_cell).value("relative_error")  # type: ignore[operator]


@pytest.mark.parametrize("causal", [False, True])
def test_clipped(steady_cpu: MeasuringDevice, causal: bool) -> None:
    """Lie: the scales are those of smaller tensors, so that large values are cut off. Caught as wrong."""
    assert steady_cpu.measure(Clips(), case(**SIZES, causal=causal)).status == "wrong"


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_scale_left_out(steady_cpu: MeasuringDevice, name: str) -> None:
    """Lie: one operand is not multiplied by its scale. Caught as wrong."""
    assert steady_cpu.measure(Unscaled(name), case(**SIZES)).status == "wrong"


def test_no_fp8_at_all(steady_cpu: MeasuringDevice) -> None:
    """Lie: it computes in more bits from the inputs as they are. Caught as wrong-kernel: it names no e4m3 copies."""
    record = steady_cpu.measure(InBf16(unused_copies=False), case(**SIZES))
    assert record.status == "wrong-kernel"
    assert "no e4m3 copy of q" in str(record.reason)


@pytest.mark.parametrize("kernel", [InBf16(unused_copies=True), WithRemainders()], ids=["decoys", "remainders"])
@pytest.mark.parametrize("causal", [False, True])
def test_too_good_for_fp8(steady_cpu: MeasuringDevice, kernel: Fp8, causal: bool) -> None:
    """Lie: it names e4m3 copies and computes with more bits. Caught as wrong-kernel: rounding costs what it costs."""
    record = steady_cpu.measure(kernel, case(**SIZES, causal=causal))
    assert record.status == "wrong-kernel"
    assert "it computed with other operands" in str(record.reason)


def test_more_bits_made_to_look_like_fp8(steady_cpu: MeasuringDevice) -> None:
    """Lie: as before, with noise that fp8 might make. Caught as wrong: its copies change, and its results do not."""
    torch.manual_seed(0)
    record = steady_cpu.measure(InBf16(unused_copies=True, noise=0.02), case(**SIZES))
    assert record.status == "wrong"
    assert "renewed in place" in str(record.reason)


def test_scaled_after_the_time(steady_cpu: MeasuringDevice) -> None:
    """Lie: the output is scaled while it is only to be named. Caught as wrong-kernel."""
    record = steady_cpu.measure(ScalesLater(), case(**SIZES))
    assert record.status == "wrong-kernel"
    assert "ran after the launch" in str(record.reason)
