"""Kernels that are wrong where sequences of a ragged batch meet. Each is found, whatever rows are compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import wrong_ragged
from measuring_device import QUICK, MeasuringDevice
from wrong_ragged import Ragged

from attnbench.backends.pytorch.eager import Eager
from attnbench.core.case import Case, Shape, sizes_of
from attnbench.worker import reference

UNLIKE = ((2, 40, 40), (1, 7, 7), (1, 130, 130), (2, 33, 33))
SERVED = ((1, 96, 96), (3, 1, 150), (2, 16, 80))  # a prefill, decode steps, chunks


def ragged(lengths: Any = UNLIKE, direction: Any = "fwd", dtype: Any = "fp32", causal: bool = True) -> Case:
    return Case(Shape(*sizes_of(lengths), 4, 2, 16, 16), dtype, direction, causal, lengths=lengths)


@pytest.fixture(params=["all rows", "sampled"])
def few_or_all(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "sampled":
        monkeypatch.setitem(reference.SCORE_BUDGET, "cpu", 60_000)


@pytest.mark.usefixtures("few_or_all")
@pytest.mark.parametrize("lengths", [UNLIKE, SERVED], ids=["unlike", "served"])
@pytest.mark.parametrize("direction", ["fwd", "bwd", "fwd_bwd"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", [Ragged(), Eager()], ids=["by sequence", "eager"])
def test_right_kernels_pass(
    steady_cpu: MeasuringDevice, lengths: Any, direction: str, dtype: str, causal: bool, backend: Any
) -> None:
    """No fault."""
    record = steady_cpu.measure(backend, ragged(lengths, direction, dtype, causal), QUICK)
    assert record.status == "ok", record.reason


@pytest.mark.usefixtures("few_or_all")
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "starts", [wrong_ragged.off_by_one_key, wrong_ragged.off_by_one_query, wrong_ragged.two_as_one]
)
def test_sequences_that_begin_elsewhere(steady_cpu: MeasuringDevice, starts: Any, direction: str, causal: bool) -> None:
    """Fault: a cu_seqlens is off by one, or two sequences see each other's keys. Found: wrong."""
    record = steady_cpu.measure(Ragged(starts), ragged(direction=direction, dtype="bf16", causal=causal))
    assert record.status == "wrong"


@pytest.mark.usefixtures("few_or_all")
def test_results_in_another_order(steady_cpu: MeasuringDevice) -> None:
    """Fault: two sequences of one length get each other's results. Found: wrong."""
    assert steady_cpu.measure(Ragged(swaps=True), ragged(dtype="bf16")).status == "wrong"


def test_a_mask_that_is_aligned_at_the_top(steady_cpu: MeasuringDevice) -> None:
    """Fault: the causal mask of chunks begins at their first key. Found: wrong."""

    class TopLeft(Ragged):
        def prepare(self, case: Case, inputs: Any) -> Any:
            longest = max(of.seqlen_k - of.seqlen_q for of in case.sequences)
            return super().prepare(replace(case, causal=False), inputs) if longest else super().prepare(case, inputs)

    assert steady_cpu.measure(TopLeft(), ragged(SERVED)).status == "wrong"
