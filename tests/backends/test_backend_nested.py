"""Ragged batches as nested tensors in SDPA: torch's own code, with kernels on a CPU instead of those for a GPU."""

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
from standins.contract import CPU, HOPPER, UNLIKE, backend, cases, check, shared

CHOICES = {
    "sdpa-flash": SDPBackend.FLASH_ATTENTION,
    "sdpa-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
}
SERVED = shared.LENGTHS["served"]


def ragged(lengths: Any = UNLIKE, nheads_k: int = 4, causal: bool = False, **fields: Any) -> Case:
    fields = {"dtype": "bf16", "direction": "fwd", **fields}
    return Case(Shape(*sizes_of(lengths), 4, nheads_k, 64, 64), causal=causal, lengths=lengths, **fields)


@pytest.fixture
def kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the choice of a kernel and the kernels, aligned top-left as some of torch's are."""
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
    """A copy to int32 in each call would be timed; they are made in int32."""
    seen: list[Tensor] = []
    flash = torch_attention.flash_attention_forward
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", lambda *a, **o: seen.append(a[3]) or flash(*a, **o))
    prepared = backend(name).prepare(ragged(), inputs.make(ragged(), "cpu", seed=0))
    prepared.launch()
    prepared.launch()
    assert seen[0].data_ptr() == seen[1].data_ptr()


@pytest.mark.parametrize(
    ("name", "case", "reason"),
    [
        ("sdpa-flash", ragged(causal=True), None),
        ("sdpa-flash", ragged(SERVED), None),
        ("sdpa-flash", ragged(SERVED, causal=True), "causal for seqlen_q == seqlen_k in each sequence only"),
        ("sdpa-flash", ragged(((1, 1, 9), (2, 1, 7)), causal=True), None),
        ("sdpa-efficient", ragged(nheads_k=2), "no grouped heads"),
        ("sdpa-cudnn", ragged(nheads_k=2), "nested tensors has no grouped heads"),
        ("sdpa-math", ragged(dtype="fp32", direction="bwd"), None),
        ("sdpa-math", ragged(causal=True), "math has no causal mask of nested tensors"),
    ],
)
def test_what_it_refuses(name: str, case: Case, reason: str | None) -> None:
    said = backend(name).unsupported(case, HOPPER)
    assert (said is None) if reason is None else (said is not None and reason in said)


def test_on_a_cpu_math_alone_computes_them() -> None:
    assert backend("sdpa-math").unsupported(ragged(), CPU) is None
    assert backend("sdpa-flash").unsupported(ragged(), CPU) == "no ragged batches"
