"""Tests of what long sums on tensor cores may lose: how much, and in out on hard inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench.core.case import Case, Shape
from attnbench.worker.reference import HardInputsCheck, truncation

KEYS = 256
MOST = 0.008  # of a sum over KEYS keys


def case(dtype: Any = "fp16", causal: bool = False, **more: Any) -> Case:
    """Return a forward of KEYS queries and keys, 2 heads."""
    return Case(Shape(1, KEYS, KEYS, 2, 2, 32, 32), dtype, "fwd", causal, **more)


def test_how_much_a_sum_may_lose() -> None:
    """Half a unit in the last place for each 8 terms: of the rows that a key sees, in all heads of its group."""
    share = truncation.most_cut_off
    assert share(case("bf16"), 8 * 1024) == 2**10 * 2**-24
    assert share(case("fp16"), 8 * 1024, 4) == 4 * 2**10 * 2**-24
    assert share(case("bf16", causal=True, window_size=(1023, None)), 8 * 1024) == 2**7 * 2**-24
    assert share(case("bf16", window_size=(1023, 1024)), 8 * 1024) == 2**8 * 2**-24
    assert share(case("bf16", window_size=(1023, None)), 8 * 1024) == 2**10 * 2**-24
    with_first_keys = case("bf16", causal=True, window_size=(1023, None), mask="sink_tokens:4")
    assert share(with_first_keys, 8 * 1024) == 2**10 * 2**-24
    assert share(case("fp32"), 8 * 1024) == 0
    assert share(case("bf16"), 2**20, 128) == truncation.MOST_CUT_OFF


@pytest.mark.parametrize("causal", [False, True])
def test_out_may_lose_what_the_sums_over_its_keys_do(monkeypatch: pytest.MonkeyPatch, causal: bool) -> None:
    """A row that sees fewer keys may lose less. Wrong are twice as much, as much too large, and a part of a row."""
    monkeypatch.setattr(truncation, "ADDED_AT_ONCE", KEYS * truncation.FLOAT32_UNIT / MOST)
    check = HardInputsCheck(case(causal=causal), torch.device("cpu"))
    exact = torch.cat([part.exact["out"] for part in check.reference.parts])[:, :, 0].transpose(0, 1)[None]
    keys = torch.arange(1, KEYS + 1) if causal else torch.full((KEYS,), KEYS)
    lost = (0.9 * MOST * keys / KEYS)[None, :, None, None]

    def holds(factor: Tensor | float) -> bool:
        return check.check_first({"out": (exact * factor).half()}).ok

    assert holds(1.0)
    assert holds(1 - lost)
    assert not holds(1 - 2 * lost)
    assert not holds(1 + lost)
    assert not holds(1 - lost * (torch.arange(32) < 16))
    early = torch.arange(KEYS)[None, :, None, None] < KEYS // 4
    assert not holds(1 - lost - MOST * early)
    monkeypatch.setattr(truncation, "ADDED_AT_ONCE", float("inf"))
    assert not holds(1 - lost)
