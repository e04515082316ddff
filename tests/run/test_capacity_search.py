"""The search of run/capacity_search.py on simulated machines, functions from a size to its outcome."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from attnbench.run.capacity_search import Bracket, Outcome, bracket, grid, next_size

SIZES = grid(128)
Machine = Callable[[int], Outcome]


def search(machine: Machine, start: int = 64 * 1024, most: int = 40) -> tuple[Bracket, dict[int, Outcome]]:
    """Search to the end, and assert that no size is tried twice and all are on the grid."""
    known: dict[int, Outcome] = {}
    while (size := next_size(known, SIZES, start)) is not None:
        assert size not in known
        assert size in SIZES
        known[size] = machine(size)
        assert len(known) <= most
    return bracket(known), known


def up_to(limit: int) -> Machine:
    return lambda size: "fits" if size <= limit else "stops"


def test_the_grid_has_multiples_and_powers_of_two() -> None:
    assert all(size % 128 == 0 for size in SIZES)
    assert {2**i for i in range(7, 27)} <= {*SIZES}
    assert max(b / a for a, b in itertools.pairwise(SIZES) if a >= 4096) < 1.07


@pytest.mark.parametrize("start", [128, 8 * 1024, 100_000, 2**20, 2**24])
@pytest.mark.parametrize("limit", [128, 1000, 77_777, 1_234_567])
def test_finds_the_largest_size_wherever_it_starts(limit: int, start: int) -> None:
    found, known = search(up_to(limit), start)
    assert found.fits == max(size for size in SIZES if size <= limit)
    assert found.stops == min(size for size in SIZES if size > limit)
    assert len(known) <= 20


def test_nothing_fits() -> None:
    for outcome in ("stops", "refused", "wrong"):
        found, known = search(lambda _, outcome=outcome: outcome)
        assert found.fits is None
        assert len(known) < 20
        assert min(known) == SIZES[0]


def test_everything_fits() -> None:
    assert search(lambda _: "fits")[0] == Bracket(SIZES[-1], None)


def test_a_wrong_result_ends_the_search_at_the_shortest_wrong_size() -> None:
    found, _ = search(lambda size: "wrong" if size > 50_000 else "fits", start=2**18)
    assert found.fits is not None
    assert found.fits <= 50_000 < (found.stops or 0)


def test_what_fits_above_a_wrong_result_does_not_count() -> None:
    found, known = search(lambda size: "wrong" if 3000 < size < 5000 else up_to(100_000)(size), start=2**16)
    assert found.fits is not None
    assert found.fits <= 3000
    assert known[4096] == "wrong"


def test_what_fits_above_a_lack_of_memory_counts_and_above_a_wrong_result_does_not() -> None:
    """A size that fits above a lack of memory counts, as for a leaner kernel; one above a wrong result does not."""
    known: dict[int, Outcome] = {4096: "stops", 8192: "fits", 16384: "stops"}
    assert bracket(known) == Bracket(8192, 16384)
    assert bracket({128: "fits", 256: "wrong", 512: "fits"}) == Bracket(128, 256)


def test_a_library_that_refuses_all_but_powers_of_two_is_searched_further() -> None:
    def machine(size: int) -> Outcome:
        return up_to(2**18)(size) if size & (size - 1) == 0 else "refused"

    assert search(machine)[0].fits == 2**18


def test_a_search_goes_on_from_what_is_known() -> None:
    _, whole = search(up_to(77_777))
    tried = [*whole]
    for count in range(1, len(tried)):
        known = {size: whole[size] for size in tried[:count]}
        assert next_size(known, SIZES, 64 * 1024) == tried[count]
