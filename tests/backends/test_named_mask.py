"""The lists of blocks that the Triton kernels visit under a mask by name, compared with the mask of each pair."""

from __future__ import annotations

import pytest
import torch

from attnbench.backends.shared.masks import visibility_mask
from attnbench.backends.triton.named_mask import NamedMask
from attnbench.core.case import Case, Shape

CPU = torch.device("cpu")


@pytest.mark.parametrize("mask", ["prefix:100", "sink_tokens:4", "strided:64", "dilated:3", "random:0.2"])
@pytest.mark.parametrize("lengths", [(256, 256), (300, 300), (70, 300), (1, 300)])
@pytest.mark.parametrize("by_keys", [False, True])
def test_lists(mask: str, lengths: tuple[int, int], by_keys: bool) -> None:
    window = (40, 0) if mask.startswith("sink") else (None, None)
    case = Case(Shape(1, *lengths, 1, 1, 16, 16), "bf16", "fwd", True, window, mask=mask)
    seen = visibility_mask(case, CPU)
    assert seen is not None
    size_m, size_n = 64, 32
    lists = NamedMask(mask, *lengths, CPU, causal=True, window_size=window).lists(size_m, size_n, by_keys=by_keys)
    for row, (whole, some, *others) in enumerate(lists.tolist()):
        for column in range(lists.shape[1] - 2):
            m, n = (column, row) if by_keys else (row, column)
            tile = seen[m * size_m : (m + 1) * size_m, n * size_n : (n + 1) * size_n]
            assert (column in others[: whole + some]) == bool(tile.any())
            inside = by_keys or tile.shape[1] == size_n  # otherwise the kernel must not read keys beyond the last
            assert (column in others[:whole]) == (bool(tile.all()) and inside)


def test_pairs_are_those_of_the_forward_alone() -> None:
    mask = NamedMask("dilated:2", 256, 256, CPU, causal=True)
    assert mask.pairs == 0
    mask.lists(64, 64, by_keys=True)
    mask.lists(128, 64, forward=True)
    mask.rebuild()
    assert mask.pairs == (2 + 4) * 128 * 64


def test_no_more_queries_than_keys() -> None:
    with pytest.raises(ValueError, match="at most as many queries as keys"):
        NamedMask("dilated:2", 4, 3, CPU)
