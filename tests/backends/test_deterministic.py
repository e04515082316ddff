"""Deterministic variants: torch's switch around SDPA, and flash-attn's option."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from attnbench.backends.pytorch import sdpa
from attnbench.backends.shared.libraries import deterministic_option
from attnbench.core.backend import Unsupported
from attnbench.core.case import Case, Shape
from attnbench.judge import inputs

PLAIN = Case(Shape(2, 32, 32, 2, 2, 16, 16), "fp32", "bwd", causal=True)
VARIANT = replace(PLAIN, deterministic=True)


@pytest.mark.parametrize(
    ("backend", "case", "switched"),
    [
        (sdpa.Choice, PLAIN, False),
        (sdpa.Choice, VARIANT, True),
        (sdpa.Flash, VARIANT, True),
        (sdpa.Math, VARIANT, False),
    ],
)
def test_torch_has_deterministic_algorithms_during_a_call_only(
    backend: Any, case: Case, switched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, gradients = [], torch.autograd.grad

    def watched(*given: Any, **options: Any) -> Any:
        seen.append(torch.are_deterministic_algorithms_enabled())
        return gradients(*given, **options)

    monkeypatch.setattr(torch.autograd, "grad", watched)
    prepared = backend().prepare(case, inputs.make(case, "cpu", 0))
    prepared.launch()
    assert seen == [switched]
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


def test_a_call_without_a_deterministic_algorithm_is_refused() -> None:
    def call() -> None:
        raise RuntimeError("cumsum_cuda_kernel does not have a deterministic implementation, but you set\n ...")

    with pytest.raises(Unsupported, match="torch refuses: cumsum_cuda_kernel does not have a determ"):
        sdpa.with_deterministic_algorithms(call)()
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_version_without_the_option_is_refused() -> None:
    def older(q: int, k: int) -> None: ...

    def newer(q: int, *, deterministic: bool = False) -> None: ...

    assert deterministic_option(PLAIN, older) == {}
    assert deterministic_option(VARIANT, newer) == {"deterministic": True}
    with pytest.raises(Unsupported, match="no option deterministic"):
        deterministic_option(VARIANT, older)
