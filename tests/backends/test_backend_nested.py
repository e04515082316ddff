"""Ragged batches as nested tensors in SDPA: torch's code, with kernels on a CPU in place of the GPU's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nested._internal import sdpa as nested_sdpa
from torch.nn.attention import SDPBackend

from attnbench.core.case import Case, Shape, sizes_of
from attnbench.judge import inputs
from standins import torch_attention
from standins.contract import UNLIKE, backend, cases, check

CHOICES = {
    "sdpa-flash": SDPBackend.FLASH_ATTENTION,
    "sdpa-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
}


def ragged(lengths: Any = UNLIKE, nheads_k: int = 4, causal: bool = False, **fields: Any) -> Case:
    fields = {"dtype": "bf16", "direction": "fwd", **fields}
    return Case(Shape(*sizes_of(lengths), 4, nheads_k, 64, 64), causal=causal, lengths=lengths, **fields)


@pytest.fixture
def kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the choice of a kernel and the kernels; masks are aligned top-left, as in some of torch's."""
    for kernel in ("flash", "efficient", "cudnn"):
        operator = f"{kernel}_attention_forward"
        monkeypatch.setattr(torch.ops.aten, f"_{operator}", getattr(torch_attention, operator))
    monkeypatch.setattr(nested_sdpa, "_select_sdp_backend", lambda *_: CHOICES[name])


@pytest.mark.usefixtures("kernels")
@cases((*CHOICES,), where=lambda case: case.is_ragged)
def test_contract(name: str, case: Case) -> None:
    check(backend(name), case)


@pytest.mark.parametrize("name", ["sdpa-flash"])
@pytest.mark.usefixtures("kernels")
def test_the_kernel_gets_offsets_as_they_are_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets are made in int32, because a conversion in each call would be timed."""
    seen: list[Tensor] = []
    flash = torch_attention.flash_attention_forward
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", lambda *a, **o: seen.append(a[3]) or flash(*a, **o))
    prepared = backend(name).prepare(ragged(), inputs.make(ragged(), "cpu", seed=0))
    prepared.launch()
    prepared.launch()
    assert seen[0].data_ptr() == seen[1].data_ptr()
