"""The cause that ended a search, from its records, and the growth of memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnbench.analysis.capacity.document import document
from attnbench.analysis.capacity.findings import findings, fit_growth
from attnbench.core.record import Measurement, Record, Run, Search
from builders import case, job, run

GIB = 2**30
SEARCH = Search(of="batch", call_limit=10.0)


def search(largest: int, following: int, in_use: float) -> Run:
    """Return a run whose search found the batch `largest`, with GiB in use, and no memory for `following`."""
    base = replace(case(1024), shape=replace(case(1024).shape, batch=1))
    fits = replace(base, shape=replace(base.shape, batch=largest))
    stops = replace(base, shape=replace(base.shape, batch=following))
    taken = {
        name: Measurement("B", (value * GIB,)) for name, value in (("memory_inputs", 0.0), ("memory_peak", in_use))
    }
    taken["call"] = Measurement("s", (0.1,))
    records = (
        Record(fits, "fa3", 0, "ok", measurements=taken),
        Record(stops, "fa3", 0, "oom", reason="CUDA out of memory"),
    )
    return replace(run(records), search=SEARCH, plan=(job(base, "fa3"),))


@pytest.mark.parametrize(("in_use", "limit"), [(135.0, "memory"), (75.0, "unchecked")])
def test_a_search_that_left_much_of_the_device_was_ended_by_its_check(in_use: float, limit: str) -> None:
    (found,) = findings([search(304, 318, in_use)])
    assert (found.largest, found.limit) == (304, limit)


def test_of_searches_for_the_same_the_furthest_is_left() -> None:
    (found,) = findings([search(173, 181, 75.0), search(304, 318, 135.0), search(64, 67, 70.0)])
    assert found.largest == 304


def test_memory_that_calls_leave_allocated_is_a_caution() -> None:
    found = search(304, 318, 135.0)
    leak = "each call leaves 8.0 MiB more allocated, until no memory is left"
    noted = replace(found, records=(replace(found.records[0], notes=(leak,)), *found.records[1:]))
    assert [leak in str(caution) for caution in document([noted]).cautions] == [True]
    assert not document([found]).cautions


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
