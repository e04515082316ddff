"""Kernels with wrong pages, lengths or scale of a cache. Each is found by all rows and by a sample."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import wrong_paged
from measuring_device import ALL_ROWS, QUICK, MeasuringDevice, judged_device
from wrong_paged import Cascade, Paged

from attnbench.backends.pytorch.eager import Eager
from attnbench.core.case import Case, Shape, sizes_of
from attnbench.core.machine import Device
from pairs import pairs

BUDGETS = (ALL_ROWS, 60_000)
SERVED = ((1, 96, 96), (3, 1, 150), (2, 16, 80))  # a prefill, decode steps, chunks
DECODE = Case(Shape(3, 1, 150, 8, 2, 32, 32), "bf16", "fwd", page_size=16)
CHUNKS = Case(Shape(2, 24, 150, 4, 2, 32, 32), "fp16", "fwd", True, page_size=16)
MIXED = Case(Shape(*sizes_of(SERVED), 4, 2, 32, 32), "bf16", "fwd", True, lengths=SERVED, page_size=16)
MLA = Case(Shape(3, 1, 150, 16, 1, 144, 128), "bf16", "fwd", page_size=16, latent=True, scale=0.12)
PREFIX = replace(DECODE, causal=True, shared_prefix=wrong_paged.PREFIX)
PREFIX_CHUNKS = replace(CHUNKS, shared_prefix=wrong_paged.PREFIX)
CASES = {
    "decode": DECODE,
    "chunks": CHUNKS,
    "mixed": MIXED,
    "mla": MLA,
    **{f"{name}-append": replace(case, append=True) for name, case in (("decode", DECODE), ("mixed", MIXED))},
    **{f"{name}-fp8": replace(case, cache_dtype="fp8") for name, case in (("decode", DECODE), ("mla", MLA))},
}


@pytest.fixture(autouse=True)
def _one_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fix the sample's seed, because in 1 of 150 samples no row of 21 reads a wrong page."""
    monkeypatch.setattr("attnbench.judge.result_check.draw_seed", lambda: 0)


@pairs(case=CASES.values(), backend=[Paged(), Eager()], budget=BUDGETS)
def test_right_kernels_pass(steady_cpu: MeasuringDevice, case: Case, backend: Any, budget: int) -> None:
    steady_cpu.passes(backend, case, QUICK, budget)


@pairs(
    case=[DECODE, CHUNKS, CASES["mixed-append"], CASES["mla-fp8"]],
    changes=[
        wrong_paged.in_order,
        wrong_paged.stale_page,
        wrong_paged.neighbours_page,
        wrong_paged.whole_pages,
        wrong_paged.one_key_less,
    ],
    budget=BUDGETS,
)
def test_other_pages_or_lengths(steady_cpu: MeasuringDevice, changes: Any, case: Case, budget: int) -> None:
    """Fault: pages in another order, one that is stale or a neighbour's, or a length that is off. Found: wrong."""
    steady_cpu.finds_wrong(Paged(changes), case, budget=budget)


@pairs(case=[PREFIX, PREFIX_CHUNKS], backend=[Cascade(), Paged(), Eager()], budget=BUDGETS)
def test_right_kernels_of_a_shared_prefix_pass(
    steady_cpu: MeasuringDevice, case: Case, backend: Any, budget: int
) -> None:
    """No fault, also where the outputs of two parts are rounded before they are merged."""
    steady_cpu.passes(backend, case, QUICK, budget)


@pairs(
    case=[PREFIX, PREFIX_CHUNKS],
    backend=[
        Paged(wrong_paged.neighbours_own_page),
        Paged(wrong_paged.another_page_of_the_prefix),
        Paged(wrong_paged.prefix_left_out),
        Paged(wrong_paged.prefix_twice),
        Cascade(wrong_paged.by_another_base),
        Cascade(wrong_paged.without_weights),
        Cascade(wrong_paged.swapped),
    ],
    budget=BUDGETS,
)
def test_a_shared_prefix(steady_cpu: MeasuringDevice, backend: Any, case: Case, budget: int) -> None:
    """Fault: a page of another sequence, a prefix left out or read twice, a wrong merge. Found: wrong."""
    steady_cpu.finds_wrong(backend, case, budget=budget)


def test_a_causal_mask_of_the_prefix(steady_cpu: MeasuringDevice) -> None:
    """Fault: the causal mask applies to the prefix as if it ended with the queries. Found: wrong."""
    steady_cpu.finds_wrong(Cascade(causal_prefix=True), PREFIX_CHUNKS)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("own", [128, 1024])
@pytest.mark.parametrize(
    "merge", [wrong_paged.by_weights, wrong_paged.by_another_base, wrong_paged.without_weights, wrong_paged.swapped]
)
def test_a_served_prefix(merge: Any, own: int) -> None:
    """Fault: as above, after a prefix of 8k tokens. Found: wrong; the right kernel passes."""
    properties = torch.cuda.get_device_properties(0)
    memory = properties.total_memory
    gpu = judged_device(Device("cuda", 0, properties.name, memory, memory, torch.cuda.get_device_capability()), QUICK)
    shape = Shape(8, 1, 8192 + own, 32, 8, 128, 128)
    case = Case(shape, "bf16", "fwd", True, page_size=16, shared_prefix=8192)
    if merge is wrong_paged.by_weights:
        gpu.passes(Cascade(), case, QUICK)
    else:
        gpu.finds_wrong(Cascade(merge), case, QUICK)


@pairs(
    case=["decode-append", "mixed-append"],
    append=[wrong_paged.not_appended, wrong_paged.keys_alone, wrong_paged.also_elsewhere],
    budget=BUDGETS,
)
def test_keys_that_do_not_come_to_their_places(
    steady_cpu: MeasuringDevice, append: Any, case: str, budget: int
) -> None:
    """Fault: new keys or values are not written, or keys of others are overwritten. Found: wrong."""
    steady_cpu.finds_wrong(Paged(append=append), CASES[case], budget=budget)


def test_the_scale_of_the_wrong_head_dim(steady_cpu: MeasuringDevice) -> None:
    """Fault: MLA with the root of the row's width as scale, as a public benchmark has it. Found: wrong."""
    steady_cpu.finds_wrong(Paged(scale_of=144), MLA)


@pytest.mark.parametrize("case", ["decode-fp8", "mla-fp8"])
def test_a_cache_without_its_factors(steady_cpu: MeasuringDevice, case: str) -> None:
    """Fault: numbers of an e4m3 cache are not multiplied by their factor. Found: wrong."""
    steady_cpu.finds_wrong(Paged(descale=False), CASES[case])
