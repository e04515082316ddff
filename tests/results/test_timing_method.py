"""All cells of a case have one timing method: spans if all short cells have them, else events."""

from __future__ import annotations

from attnbench.core.record import Record, Run
from attnbench.results.cells import cells
from attnbench.results.together import together
from builders import case, ended, ok, run

US = 1e-6


def a_cell(backend: str, events: float, span: bool = True, **changes: object) -> Record:
    taken = {"time": (events * US,) * 10, **({"span": ((events - 3) * US,) * 10} if span else {})}
    return ok(case(), backend, 300, **{**taken, **changes})  # type: ignore[arg-type]


def methods(*records: Record, beside: tuple[Run, ...] = ()) -> dict[str, str]:
    made = run(records)
    found = cells([made], beside=together([made, *beside]))
    return {cell.backend: "span" if cell.uses_span else "events" for cell in found if cell.status == "ok"}


def test_all_cells_of_a_short_case_are_timed_by_spans() -> None:
    """All cells of a short case are timed by spans, also cells of 100 us and more."""
    records = [a_cell("triton", 90), a_cell("eager", 400)]
    assert methods(*records) == {"triton": "span", "eager": "span"}
    assert [cell.value("latency") for cell in cells([run(records)])] == [397 * US, 87 * US]


def test_a_case_whose_fastest_cell_is_not_short_is_timed_by_events() -> None:
    assert methods(a_cell("triton", 101), a_cell("eager", 400)) == {"triton": "events", "eager": "events"}


def test_without_a_span_of_one_all_are_timed_by_events() -> None:
    """If one cell has no span, all are timed by events, as in older files, with spans under 100 us only."""
    assert methods(a_cell("triton", 90), a_cell("eager", 110, span=False)) == {"triton": "events", "eager": "events"}


def test_a_cell_so_long_that_the_gap_is_negligible_may_stay_with_events() -> None:
    assert methods(a_cell("triton", 20), a_cell("eager", 1000, span=False)) == {"triton": "span", "eager": "events"}
    assert methods(a_cell("triton", 20), a_cell("eager", 700, span=False)) == {"triton": "events", "eager": "events"}


def test_rounds_of_a_cell_have_one_method() -> None:
    both = [a_cell("triton", 90), a_cell("triton", 105, round=1), a_cell("triton", 95, span=False, round=2)]
    assert methods(*both[:2]) == {"triton": "span"}
    assert methods(*both) == {"triton": "events"}


def test_runs_that_are_compared_have_one_method() -> None:
    short, longer, old = (run([a_cell("triton", t, span=span)]) for t, span in ((99, True), (101, True), (101, False)))
    assert methods(*short.records, beside=(longer,)) == methods(*longer.records, beside=(short,)) == {"triton": "span"}
    assert methods(*short.records, beside=(old,)) == {"triton": "events"}


def test_what_was_not_measured_or_by_another_instrument_decides_nothing() -> None:
    records = [a_cell("triton", 90), ended(case(), "eager", "oom", "no memory")]
    other = run([a_cell("flex", 50, span=False, timer="graph"), a_cell("triton", 90, timer="cupti")])
    assert methods(*records, beside=(other,)) == {"triton": "span"}
    assert together([other]).by_span == frozenset()
    again = [a_cell("triton", 90, span=False), a_cell("triton", 90)]
    assert methods(*again) == {"triton": "span"}, "the last record of a job counts"
