"""Faults in fp8: arithmetic that is coarser than e4m3, or finer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from measuring_device import MeasuringDevice, case
from wrong_fp8 import (
    AddsRemainders,
    ClippedOperands,
    ComputesInBf16,
    Fp8Backend,
    MissingScale,
    NarrowerOperands,
    ScalesInCanonical,
    mantissa,
)

SIZES = {"batch": 1, "dtype": "fp8"}


@pytest.mark.parametrize(
    ("narrow_out", "sizes"),
    [(False, {}), (True, {"seqlen_k": 100, "causal": True}), (True, {"seqlen_q": 1, "seqlen_k": 200})],
    ids=["bf16 out", "e4m3 out", "e4m3 out of one query"],
)
def test_right_kernels_pass(steady_cpu: MeasuringDevice, narrow_out: bool, sizes: dict[str, Any]) -> None:
    """No fault: e4m3 operands and probabilities. The error is about 5 %, which the report shows."""
    record = steady_cpu.passes(Fp8Backend(narrow_out), case(**{**SIZES, **sizes}))
    assert steady_cpu.cautions(record) == []
    error = steady_cpu.cell(record).value("relative_error")
    assert error is not None
    assert 0.03 < error < 0.08


@pytest.mark.parametrize("causal", [False, True])
def test_fewer_bits_than_fp8(steady_cpu: MeasuringDevice, causal: bool) -> None:
    """Fault: it rounds its e4m3 operands to one bit of mantissa, as fp4 (e2m1) has. Found: wrong."""
    reason = steady_cpu.finds_wrong(NarrowerOperands("qkv", mantissa(1)), case(**SIZES, causal=causal))
    assert "out is off by" in reason


def test_e5m2_operands_are_not_found_but_shown(steady_cpu: MeasuringDevice) -> None:
    """Fault: v is rounded to the two bits of mantissa of e5m2. Not found, but by chance.

    Twice the unavoidable error of fp8 is allowed, and this is half as large again. The report shows it beside the
    speed.
    """
    fp8_cell, coarse = (
        steady_cpu.measure(kernel, case(**SIZES)) for kernel in (Fp8Backend(), NarrowerOperands("v", mantissa(2)))
    )
    assert fp8_cell.status == "ok"
    if coarse.status == "wrong":
        assert "out is off by" in str(coarse.reason)
        return
    assert steady_cpu.cell(coarse).value("relative_error") > 1.3 * steady_cpu.cell(fp8_cell).value("relative_error")  # type: ignore[operator]


@pytest.mark.parametrize("causal", [False, True])
def test_clipped_operands(steady_cpu: MeasuringDevice, causal: bool) -> None:
    """Fault: its scales are right for smaller tensors, so that large values are cut off. Found: wrong."""
    steady_cpu.finds_wrong(ClippedOperands(), case(**SIZES, causal=causal))


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_missing_scale(steady_cpu: MeasuringDevice, name: str) -> None:
    """Fault: one operand is not multiplied by its scale. Found: wrong."""
    steady_cpu.finds_wrong(MissingScale(name), case(**SIZES))


def test_no_fp8_at_all(steady_cpu: MeasuringDevice) -> None:
    """Fault: it computes in more bits from the inputs. Found: wrong-kernel, as it names no e4m3 copies."""
    record = steady_cpu.measure(ComputesInBf16(unused_copies=False), case(**SIZES))
    assert record.status == "wrong-kernel"
    assert "no e4m3 copy of q" in str(record.reason)


@pytest.mark.parametrize(
    "kernel", [ComputesInBf16(unused_copies=True), AddsRemainders()], ids=["unused copies", "remainders"]
)
@pytest.mark.parametrize("causal", [False, True])
def test_an_error_too_small_for_fp8(steady_cpu: MeasuringDevice, kernel: Fp8Backend, causal: bool) -> None:
    """Fault: it names e4m3 copies and computes with more bits. Found: wrong-kernel, as its error is too small."""
    record = steady_cpu.measure(kernel, case(**SIZES, causal=causal))
    assert record.status == "wrong-kernel"
    assert "it computed with other operands" in str(record.reason)


def test_more_bits_with_the_noise_of_fp8(steady_cpu: MeasuringDevice) -> None:
    """Fault: as before, with noise of the size of fp8's error. Found: wrong, as its copies are changed and its results
    do not follow.
    """
    torch.manual_seed(0)
    reason = steady_cpu.finds_wrong(ComputesInBf16(unused_copies=True, noise=0.02), case(**SIZES))
    assert "renewed in place" in reason


def test_scaling_in_canonical(steady_cpu: MeasuringDevice) -> None:
    """Fault: `canonical` scales the output. Found: wrong-kernel."""
    record = steady_cpu.measure(ScalesInCanonical(), case(**SIZES))
    assert record.status == "wrong-kernel"
    assert "ran after the launch" in str(record.reason)
