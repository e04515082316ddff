"""attnbench's Triton kernel of latent rows in its interpreter: keys loaded by pointers and by tensor descriptors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from triton_attention import DEVICE, interpreter  # noqa: F401  a fixture for every test here

from attnbench.backends.triton import paged

LENGTHS, QUERIES, HEADS, HEADDIM, HEADDIM_V = (300, 77), 2, 4, 48, 32


@pytest.mark.parametrize(("page_size", "left", "tma"), [(16, None, False), (64, None, True), (128, 100, True)])
def test_latent_rows(page_size: int, left: int | None, tma: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Latent rows in shuffled pages agree with the definition; the rest of a page is NaN, and so must not be read."""
    launched: list[dict[str, Any]] = []

    def spy(*args: Any, **constants: Any) -> None:
        launched.append(constants)
        launch(*args, **constants)

    launch = paged.launch
    monkeypatch.setattr(paged, "launch", spy)
    pages = [-(-length // page_size) for length in LENGTHS]
    generator = torch.Generator().manual_seed(1)
    cache = torch.full((sum(pages), page_size, 1, HEADDIM), float("nan"))
    order = torch.randperm(len(cache), generator=generator).int()
    table = torch.zeros(len(LENGTHS), max(pages), dtype=torch.int32)
    rows = [torch.randn(length, HEADDIM, generator=generator) for length in LENGTHS]
    for row, k, used in zip(table, rows, order.split(pages), strict=True):
        row[: len(used)] = used
        for page, part in zip(used, k.split(page_size), strict=True):
            cache[page, : len(part), 0] = part
    q = torch.randn(len(LENGTHS) * QUERIES, HEADS, HEADDIM, generator=generator)
    cache, starts = cache.to(DEVICE), torch.arange(0, len(q) + 1, QUERIES, dtype=torch.int32, device=DEVICE)
    sequences = (table.to(DEVICE), torch.tensor(LENGTHS, dtype=torch.int32, device=DEVICE), starts)
    out = paged.attention_paged(
        *(q.to(DEVICE), cache, cache[..., :HEADDIM_V], *sequences, QUERIES, max(LENGTHS)),
        causal=True,
        window_size=(left, 0),
        softmax_scale=0.2,
        latent=True,
    )
    assert launched[0]["TMA"] == tma
    for i, (k, of) in enumerate(zip(rows, q.split(QUERIES), strict=True)):
        distance = torch.arange(len(k) - QUERIES, len(k))[:, None, None] - torch.arange(len(k))
        hidden = (distance < 0) | (distance > (len(k) if left is None else left))
        p = (0.2 * of @ k.T).masked_fill(hidden, float("-inf")).softmax(-1)
        torch.testing.assert_close(out.cpu()[i * QUERIES :][:QUERIES], p @ k[:, :HEADDIM_V], atol=2e-6, rtol=1e-5)
