"""Kernels that read other keys than the ones chosen for each query. Each is found by all rows and by a sample."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import wrong_chosen
from measuring_device import ALL_ROWS, QUICK, MeasuringDevice, judged_device
from wrong_chosen import Chosen

from attnbench.backends.pytorch.eager import Eager
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device
from pairs import pairs

BUDGETS = (ALL_ROWS, 60_000)
DECODE = Case(
    Shape(3, 1, 300, 16, 1, 144, 128), "bf16", "fwd", True, page_size=16, latent=True, scale=0.12, mask="topk:64"
)
FEW = replace(DECODE, shape=Shape(3, 4, 50, 16, 1, 144, 128))  # fewer keys than are chosen
FP8 = replace(DECODE, cache_dtype="fp8")
RECENT = replace(DECODE, mask="topk_recent:64")
SERVED = Case(  # as DeepSeek-V3.2 is served
    Shape(4, 1, 2**15, 128, 1, 576, 512), "bf16", "fwd", True, page_size=64, latent=True, scale=0.135, mask="topk:2k"
)
LARGE_FAULTS = (wrong_chosen.one_read_twice, wrong_chosen.one_page_for_all, wrong_chosen.last_part_left_out)
FAULTS = (*LARGE_FAULTS, wrong_chosen.one_left_out, wrong_chosen.another_sequences_key)


@pairs(case=[DECODE, FEW, FP8, RECENT], backend=[Chosen(), Eager()], budget=BUDGETS)
def test_right_kernels_pass(steady_cpu: MeasuringDevice, case: Case, backend: Any, budget: int) -> None:
    """No fault."""
    steady_cpu.passes(backend, case, QUICK, budget)


@pairs(case=[DECODE, FP8, RECENT], changes=FAULTS, budget=BUDGETS)
def test_other_keys(steady_cpu: MeasuringDevice, changes: Any, case: Case, budget: int) -> None:
    """Fault: a chosen key is left out, read twice, of another sequence, at another page. Found: wrong."""
    steady_cpu.finds_wrong(Chosen(changes), case, budget=budget)


def test_entries_without_a_key(steady_cpu: MeasuringDevice) -> None:
    """Fault: where fewer keys are there than are chosen, the rest of the list is read as keys. Found: wrong."""
    steady_cpu.finds_wrong(Chosen(wrong_chosen.no_key_as_first_row), FEW)


def test_a_forgotten_factor_of_a_cache(steady_cpu: MeasuringDevice) -> None:
    """Fault: the factor of an fp8 cache is not used. Found: wrong."""
    steady_cpu.finds_wrong(Chosen(descale=False), FP8)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("changes", [wrong_chosen.right, *LARGE_FAULTS])
@pytest.mark.parametrize("cache_dtype", ["same", "fp8"])
def test_a_served_step(cache_dtype: Any, changes: Any) -> None:
    """Fault: as above, in a served step of 2,048 keys for each query. Found: wrong; the right kernel passes.

    A single key that is left out or of another sequence moves a result as much as its rounding may, and is not sure to
    be found.
    """
    properties = torch.cuda.get_device_properties(0)
    memory = properties.total_memory
    gpu = judged_device(Device("cuda", 0, properties.name, memory, memory, torch.cuda.get_device_capability()), QUICK)
    case = replace(SERVED, cache_dtype=cache_dtype)
    if changes is wrong_chosen.right:
        gpu.passes(Chosen(), case, QUICK)
    else:
        gpu.finds_wrong(Chosen(changes), case, QUICK)
