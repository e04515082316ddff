"""The growth of memory: which term is named, and how well the fit forecasts."""

from __future__ import annotations

import pytest

from attnbench.analysis.capacity.memory_growth import fit_growth

SIZES = (1024, 4096, 16384, 65536, 80000)


def test_names_the_growth() -> None:
    for name, of in (
        ("linear", lambda n: 2**20 + 512 * n),
        ("quadratic", lambda n: 2**20 + 512 * n + 4 * n * n),
        ("constant", lambda n: 2**30),
    ):
        found = fit_growth([(n, of(n)) for n in SIZES])
        assert found is not None
        assert found.name == name
        assert found.at(200_000) == pytest.approx(of(200_000), rel=0.01)


def test_rounding_of_blocks_is_no_quadratic_term() -> None:
    found = fit_growth([(n, -(-(512 * n + 1000) // 2**21) * 2**21) for n in (16384, 65536, 80000, 130_000, 262_144)])
    assert found is not None
    assert found.name == "linear"


def test_two_sizes_do_not_tell() -> None:
    assert fit_growth([(1, 1.0), (2, 2.0)]) is None
