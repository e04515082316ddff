"""Kernels with wrong limits of sequences in a ragged batch. Each is found by all rows and by a sample."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import wrong_ragged
from measuring_device import ALL_ROWS, QUICK, MeasuringDevice
from wrong_ragged import Ragged

from attnbench.backends.pytorch.eager import Eager
from attnbench.core.case import Case, Shape, sizes_of
from pairs import pairs

BUDGETS = (ALL_ROWS, 60_000)
UNLIKE = ((2, 40, 40), (1, 7, 7), (1, 130, 130), (2, 33, 33))
SERVED = ((1, 96, 96), (3, 1, 150), (2, 16, 80))  # a prefill, decode steps, chunks


def ragged(lengths: Any = UNLIKE, direction: Any = "fwd", dtype: Any = "fp32", causal: bool = True) -> Case:
    return Case(Shape(*sizes_of(lengths), 4, 2, 16, 16), dtype, direction, causal, lengths=lengths)


@pairs(
    lengths=[UNLIKE, SERVED],
    direction=["fwd", "bwd", "fwd_bwd"],
    dtype=["fp32", "bf16"],
    causal=[False, True],
    backend=[Ragged(), Eager()],
    budget=BUDGETS,
)
def test_right_kernels_pass(
    steady_cpu: MeasuringDevice, lengths: Any, direction: str, dtype: str, causal: bool, backend: Any, budget: int
) -> None:
    steady_cpu.passes(backend, ragged(lengths, direction, dtype, causal), QUICK, budget)


@pairs(
    starts=[wrong_ragged.off_by_one_key, wrong_ragged.off_by_one_query, wrong_ragged.two_as_one],
    direction=["fwd", "bwd"],
    causal=[False, True],
    budget=BUDGETS,
)
def test_sequences_that_begin_elsewhere(
    steady_cpu: MeasuringDevice, starts: Any, direction: str, causal: bool, budget: int
) -> None:
    """Fault: a cu_seqlens is off by one, or two sequences see each other's keys. Found: wrong."""
    steady_cpu.finds_wrong(Ragged(starts), ragged(direction=direction, dtype="bf16", causal=causal), budget=budget)


@pytest.mark.parametrize("budget", BUDGETS)
def test_results_in_another_order(steady_cpu: MeasuringDevice, budget: int) -> None:
    """Fault: two sequences of one length get each other's results. Found: wrong."""
    steady_cpu.finds_wrong(Ragged(swaps=True), ragged(dtype="bf16"), budget=budget)


def test_a_mask_that_is_aligned_at_the_top(steady_cpu: MeasuringDevice) -> None:
    """Fault: the causal mask of chunks begins at their first key. Found: wrong."""

    class TopLeft(Ragged):
        def prepare(self, case: Case, inputs: Any) -> Any:
            longest = max(of.seqlen_k - of.seqlen_q for of in case.sequences)
            return super().prepare(replace(case, causal=False), inputs) if longest else super().prepare(case, inputs)

    steady_cpu.finds_wrong(TopLeft(), ragged(SERVED))
