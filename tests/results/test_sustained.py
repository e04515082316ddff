"""Bursts and runs without pauses that rank two backends differently."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from attnbench.analysis.report.cautions import cautions
from attnbench.core.record import Record
from attnbench.results.cells import cells
from attnbench.results.sustained import rank_changes
from attnbench.results.uncertainty import MEASURED, NORMAL, STEADY
from builders import case, ok, run

PROCESSES = MEASURED["H200 SXM"].processes


def a_cell(backend: str, bursts: float, sustained: float, round: int = 0) -> Record:
    """Return a record with these milliseconds of a call, in bursts and without pauses."""
    return ok(case(), backend, 300, round=round, time=(bursts * 1e-3,) * 10, sustained=(sustained * 1e-3,) * 10)


def test_a_rank_that_changes_beyond_the_uncertainty_is_told() -> None:
    made = run([a_cell("fa4", 1.0, 1.3), a_cell("sdpa-cudnn", 1.02, 1.25), a_cell("triton", 2.0, 2.1)])
    (found,) = rank_changes(cells([made]))
    assert (found.in_bursts.backend, found.sustained.backend) == ("fa4", "sdpa-cudnn")
    assert (found.lead_in_bursts, found.lead_sustained) == pytest.approx((0.02, 0.04))
    (said,) = [c for c in cautions(cells([made]), [made]) if "without pauses" in c.what]
    assert said.what == (
        "Bursts and runs without pauses rank backends differently in 1 pair of cells: fa4 1k d128 full fwd is faster "
        "than sdpa-cudnn by 2% in bursts, slower by 4% without pauses."
    )


@pytest.mark.parametrize(
    ("bursts", "sustained"),
    [
        ((1.0, 1.02), (1.3, 1.35)),  # the same rank
        ((1.0, 1.005), (1.3, 1.25)),  # alike in bursts
        ((1.0, 1.02), (1.26, 1.25)),  # alike without pauses
    ],
)
def test_ranks_that_are_alike_are_not(bursts: tuple[float, float], sustained: tuple[float, float]) -> None:
    records = [
        a_cell(name, *of) for name, of in zip(("fa4", "eager"), zip(bursts, sustained, strict=True), strict=True)
    ]
    assert rank_changes(cells([run(records)])) == []
    waiting = replace(a_cell("sdpa-cudnn", 1.02, 1.25), host_bound=True)
    assert rank_changes(cells([run([a_cell("fa4", 1.0, 1.3), waiting])])) == [], "power has no part in what waits"
    assert rank_changes(cells([run([ok(case(), "fa4", 300), records[1]])])) == []


def test_the_uncertainty_without_pauses() -> None:
    (cell,) = cells([run([a_cell("fa4", 1.0, 1.3)])])
    assert cell.half_interval("sustained_latency") == pytest.approx(((NORMAL * PROCESSES) ** 2 + STEADY**2) ** 0.5)
    (cell,) = cells([run([a_cell("fa4", 1.0, 1.3, i) for i in range(3)])])
    known = cell.uncertainty_of("sustained_latency")
    assert known
    assert (known.rounds, known.within) == (3, None)


def a_reading(watts: float, error: float | None, round: int = 0) -> Record:
    found = {"sustained_power_error": error} if error is not None else {}
    return ok(case(), "fa4", 300, round=round, time=1e-3, sustained=2e-3, sustained_power=watts, **found)


def test_the_uncertainty_of_energy_is_that_of_time_and_power() -> None:
    (cell,) = cells([run([a_reading(600, 0.01)])])
    assert cell.half_interval("joules") == pytest.approx(math.hypot(NORMAL * PROCESSES, STEADY, 0.01))
    (cell,) = cells([run([a_reading(600, None)])])
    assert cell.half_interval("joules") is None
    assert cell.half_interval("sustained_latency") is not None
    (cell,) = cells([run([a_reading(watts, 0.01, i) for i, watts in enumerate((600, 630, 615))])])
    known, of_time = cell.uncertainty_of("joules"), cell.uncertainty_of("sustained_latency")
    assert known
    assert of_time
    assert (known.rounds, known.within) == (3, None)
    assert known.total > 2 * of_time.total  # times were alike, but not power
