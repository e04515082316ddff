"""The slopes of ALiBi equal the paper's and its authors' code's."""

from __future__ import annotations

import pytest

from attnbench.core.alibi import alibi_slopes


@pytest.mark.parametrize(
    ("nheads", "slopes"),
    [
        (1, [2**-8]),
        (8, [2**-i for i in range(1, 9)]),  # section 3: "for models with 8 heads 1/2^1, 1/2^2, ..., 1/2^8"
        (16, [2 ** (-i / 2) for i in range(1, 17)]),
        (3, [2**-4, 2**-8, 2**-2]),  # the slopes of 2 heads, and every other slope of 4
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
    ],
)
def test_slopes(nheads: int, slopes: list[float]) -> None:
    assert alibi_slopes(nheads) == pytest.approx(slopes)
