"""FlashMLA's own layout of an fp8 cache, and the rows of its lists of chosen keys, by a stand-in of its calls."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench.backends.flashmla import FlashMla, chosen_rows
from attnbench.core.case import Case, Shape
from attnbench.core.renewed_inputs import InputRenewal
from attnbench.judge import inputs
from attnbench.judge.exact_attention import visible_keys

FP8 = Case(
    Shape(2, 2, 300, 64, 1, 576, 512), "bf16", "fwd", True, page_size=64, latent=True, mask="topk:64", cache_dtype="fp8"
)


def values_of(cache: Tensor) -> Tensor:
    """Return the rows of an fp8 cache of FlashMLA, by its documentation."""
    values = cache[..., :512].view(torch.float8_e4m3fn).float().unflatten(-1, (4, 128))
    factors = cache[..., 512:528].contiguous().view(torch.float32)[..., None]
    return torch.cat([(values * factors).flatten(-2), cache[..., 528:].view(torch.bfloat16).float()], -1)


def test_the_fp8_cache_holds_the_values_of_the_case_and_of_renewed_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The renewal changes the copy in FlashMLA's layout, columns in 8 and in 16 bits, and leaves the inputs' own k."""
    caches = list[Tensor]()

    def call(q: Tensor, cache: Tensor, *_: Any, **__: Any) -> tuple[Tensor]:
        caches.append(cache)
        return (q[..., :512],)

    library = SimpleNamespace(get_mla_metadata=lambda: (None, None), flash_mla_with_kvcache=call)
    monkeypatch.setitem(sys.modules, "flash_mla", library)
    given, fresh = inputs.make(FP8, "cpu", 0), inputs.make(FP8, "cpu", 0)
    prepared = FlashMla().prepare(FP8, given)
    assert prepared.canonical(prepared.launch())["out"].shape == (2, 2, 64, 512)
    factor, before = given.descale[0], given.k.float()
    torch.testing.assert_close(values_of(caches[0]), before * factor, rtol=2**-8, atol=0)
    renewal = InputRenewal(FP8, given, prepared, 5)
    renewal.renew()
    assert torch.equal(given.k.float(), before)
    assert renewal.now
    with renewal.now.of(FP8, fresh) as changed:
        torch.testing.assert_close(values_of(caches[0]), changed.k.float() * factor, rtol=2**-8, atol=0)
        assert not torch.equal(changed.k.float(), before)


@pytest.mark.parametrize("page_size", [0, 64])
def test_chosen_rows_are_the_keys_that_the_case_leaves_each_query(page_size: int) -> None:
    case = Case(Shape(2, 3, 300, 4, 1, 48, 32), "fp32", "fwd", True, page_size=page_size, latent=True, mask="topk:16")
    given = inputs.make(case, "cpu", 0)
    rows = chosen_rows(case, given)
    keys, tables = given.k.flatten(0, 2), given.page_table
    of_each = list(given.k) if tables is None else [given.k[table[:5].long()].flatten(0, 1) for table in tables]
    in_order = [t[:300, 0] for t in of_each]
    seen = visible_keys(case, torch.arange(3))
    for sequence in range(2):
        for query in range(3):
            assert torch.equal(keys[rows[sequence, query].long()], in_order[sequence][seen[query]])
