"""The uncertainty of a latency: its parts, the formula with rounds, and its coverage by simulation."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from scipy import stats as scipy_stats  # type: ignore[import-untyped]

from attnbench.results import uncertainty
from attnbench.results.cells import cells
from attnbench.results.uncertainty import FREEDOM, HARDLY_KNOWN, NORMAL, Spread, apart, contest, within_process
from attnbench.results.uncertainty import uncertainty as of
from builders import CPU, H200, case, ok, run

SOME = Spread("a GPU", 0.004, "a test", True)
NONE = Spread("nothing", 0.0, "a test", False)


def test_of_one_round_what_sets_processes_apart_is_added_in_quadrature() -> None:
    found = of([[0.9, 0.95, 1.0, 1.0, 1.05, 1.1]], SOME)
    assert found
    assert found.within == pytest.approx(0.1)
    assert found.processes == pytest.approx(NORMAL * 0.004)
    assert found.total == pytest.approx(math.hypot(0.1, NORMAL * 0.004))
    assert str(found) == "between processes: a GPU, measured: a test"
    assert of([[1.0]], SOME) is None, "one sample says nothing of its process"
    assert of([[0.0] * 6], SOME) is None


def test_below_six_samples_it_is_students() -> None:
    few = [1.0, 1.1, 1.2]
    half = scipy_stats.sem([math.log(t) for t in few]) * scipy_stats.t.ppf(0.975, 2)
    assert within_process(few) == pytest.approx(half)
    for odd in ([1.0], [math.nan, -1.0], [1.0, math.inf], [0.0, 1.0]):
        assert within_process(odd) is None


def test_rounds_are_students_where_nothing_is_known_beside() -> None:
    logs = [0.01, 0.02]
    found = of([[math.exp(log)] for log in logs], NONE)
    assert found
    assert found.total == pytest.approx(scipy_stats.sem(logs) * scipy_stats.t.ppf(0.975, 1))
    assert (found.within, found.rounds, str(found)) == (None, 2, "from 2 rounds")


@pytest.mark.parametrize(("rounds", "number"), [(1, 10), (2, 40), (5, 10)])
def test_it_holds_the_truth_as_often_as_it_says(rounds: int, number: int) -> None:
    """The interval covers 95 % for cells with noise from the prior, with the table's prior and with the run's."""
    rng, held, halves = random.Random(f"{rounds}/{number}"), 0, []
    entry = uncertainty.MEASURED["H200 SXM"]
    runs = 2000 // number
    for _ in range(runs):
        records = []
        for n in range(number):
            sigma = math.sqrt(FREEDOM * entry.prior.variance / rng.gammavariate(FREEDOM / 2, 2))
            times = [math.exp(rng.gauss(0, sigma)) for _ in range(rounds)]
            records += [ok(case(64 * (n + 1)), "triton", 300, round=i, time=[t] * 6) for i, t in enumerate(times)]
        for cell in cells([run(records)]):
            latency, half = cell.value("latency"), cell.value("ci")
            assert latency is not None
            assert half is not None
            held += abs(math.log(latency)) <= half
            halves.append(half)
    share = held / len(halves)
    print(f"{rounds} rounds, {number} cells: {share:.1%} held")
    # 2000 cells. A prior fitted to 40 variances is uncertain, and gives narrow intervals where it is too small; medians
    # of rounds give rather wide ones.
    assert 0.93 <= share <= 0.985


def test_each_device_has_an_entry_and_says_which() -> None:
    assert str(uncertainty.spread(H200)).startswith("H200 SXM, measured: ")
    assert str(uncertainty.spread(replace(H200, name="NVIDIA H300"))) == (
        "not measured on this device; GPUs, assumed: twice the H200's"
    )
    assert not uncertainty.spread(CPU).measured
    assert uncertainty.spread(replace(CPU, kind="fake")).processes == 0
    measured, assumed = uncertainty.MEASURED["H200 SXM"], uncertainty.ASSUMED["cuda"]
    assert assumed.processes == 2 * measured.processes


def test_two_figures_are_apart_beyond_both_uncertainties() -> None:
    assert not apart(1.0, 1.013, 0.01, 0.01)
    assert apart(1.0, 1.015, 0.01, 0.01)
    assert apart(1.015, 1.0, 0.01, 0.01)
    assert apart(1.0, 1.001, None, 0.01), "unknown: nothing is called alike without a reason"
    assert not apart(1.0, 1.0, None, None)


def test_samples_at_two_speeds_are_known_to_what_lies_between() -> None:
    fast, slow = [1.035 + 1e-4 * i for i in range(13)], [1.235 + 1e-4 * i for i in range(35)]
    between = math.log(1.235 / 1.035)
    assert within_process([*fast, *slow]) == pytest.approx(between, abs=0.01)
    assert within_process([*fast, *slow[:4]]) == pytest.approx(between, abs=0.01), "the median at the other speed"
    assert (within_process([*slow, *fast[:3]]) or 0.0) < 0.01, "some fast calls are no second speed"
    assert (within_process([1.0 + 1e-3 * i for i in range(40)]) or 0.0) < 0.02
    assert within_process([1.0] * 30) == 0.0


def test_the_best_is_among_what_is_known_and_what_ties_with_it() -> None:
    def found(*rivals: tuple[float, float | None], higher: bool = False) -> list[float]:
        one_card = contest(rivals, lambda r: r[0], lambda r: r[1], lambda a, b: 0.0, higher=higher)
        return [value for value, _ in one_card.winners]

    assert found((2.0, 0.01), (1.01, 0.01), (1.0, 0.01)) == [1.0, 1.01]
    assert found((2.0, 0.01), (1.01, 0.01), (1.0, 0.01), higher=True) == [2.0]
    assert found((2.0, 0.01), (4.0, HARDLY_KNOWN), (1.9, 0.4)) == [1.9, 2.0]
    assert found((1.3, 0.01), (1.1, 0.01), (1.0, 0.3)) == [1.0, 1.1], "what one that ties beats is not the best"
    assert found((2.0, 0.01), (1.0, HARDLY_KNOWN), (1.9, 0.4)) == [], "what reads better is hardly known"
    assert found((2.0, 0.01), (3.1, HARDLY_KNOWN)) == [2.0]
    assert found((2.0, 0.01), (2.9, HARDLY_KNOWN)) == [], "what reads worse may be better"
    assert found((2.0, 0.01), (300.0, None)) == [], "of which nothing is known"
    assert found((2.0, 0.01), (3.0, HARDLY_KNOWN), higher=True) == found((2.0, 0.01), (1.0, None)) == []
    assert found((1.0, HARDLY_KNOWN)) == found() == []
