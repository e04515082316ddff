"""Ratios and their intervals, against exact values, and by simulation against the stated coverage."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats as scipy_stats  # type: ignore[import-untyped]

from attnbench.analysis.compare.machines import Machine, machines
from attnbench.analysis.compare.speed_ratio import EXACTLY_ONE, ROUNDS, TABLE, Ratio, equal_weights, speed_ratio
from attnbench.core.machine import Device
from attnbench.core.record import Measurement, Record, Run
from attnbench.results import uncertainty
from attnbench.results.uncertainty import MEDIAN, NORMAL, Cards, Spread
from builders import H200, case, ok, run

H100 = replace(H200, name="NVIDIA H100")
LENGTHS = (1024, 2048, 4096, 8192)


def a_record(seqlen: int, times: list[float], round: int = 0) -> Record:
    record = ok(case(seqlen), "triton", 500, round=round)
    return replace(record, measurements={**record.measurements, "time": Measurement("s", tuple(times))})


def pair(ours: list[Record], theirs: list[Record]) -> tuple[Machine, Machine]:
    one, other = machines([Path("a"), Path("b")], [run(ours), run(theirs, device=H100)])
    return one, other


def of(ours: list[Record], theirs: list[Record]) -> Ratio:
    one, other = pair(ours, theirs)
    return speed_ratio(one, equal_weights(one.log_rounds), other)


@pytest.fixture(autouse=True)
def no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the spread between processes and between units to 0, except where a test sets it."""
    table(monkeypatch, 0.0, 0.0)


def table(monkeypatch: pytest.MonkeyPatch, processes: float, units: float) -> None:
    known = Spread("a GPU", processes, "a test", False, Cards(all=units))
    monkeypatch.setattr(uncertainty, "MEASURED", {})
    monkeypatch.setattr(uncertainty, "ASSUMED", {"cuda": known})


def test_rounds_of_one_cell_are_students() -> None:
    ours, theirs = [1.00, 1.02, 1.01, 1.03], [2.00, 2.05, 2.10]
    got = of(*([a_record(1024, [t], i) for i, t in enumerate(side)] for side in (ours, theirs)))
    logs = [[math.log(t) for t in side] for side in (ours, theirs)]
    halves = [scipy_stats.sem(side) * scipy_stats.t.ppf(0.975, len(side) - 1) * MEDIAN for side in logs]
    assert got.sources == (ROUNDS,)
    assert got.value == pytest.approx(1.015 / 2.05)  # ratio of the medians over rounds, as in every report
    assert got.low == pytest.approx(got.value * math.exp(-math.hypot(*halves)))
    assert got.high == pytest.approx(got.value * math.exp(math.hypot(*halves)))


def test_samples_of_one_round_are_the_medians_interval() -> None:
    ours = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]  # six values: the range, 1.25 plus or minus 0.25
    got = of([a_record(1024, ours)], [a_record(1024, [0.5] * 6)])
    assert got.sources == (TABLE,)
    assert (got.value, got.low, got.high) == pytest.approx((2.5, 2.5 * math.exp(-0.2), 2.5 * math.exp(0.2)))


def half_of(ours: list[Record], theirs: list[Record]) -> float:
    got = of(ours, theirs)
    assert got.low is not None
    assert got.high is not None
    assert got.high / got.value == pytest.approx(got.value / got.low)
    return math.log(got.high / got.value)


def on_cards(records: list[Record], *cards: str, device: Device = H200) -> list[Run]:
    return [run(records, device=replace(device, uuid=card)) for card in cards]


def ratio_of(ours: list[Run], theirs: list[Run]) -> Ratio:
    one, other = machines([Path(f"{i}") for i in range(len(ours) + len(theirs))], [*ours, *theirs])
    return speed_ratio(one, equal_weights([key for key in one.log_rounds if key in other.log_rounds]), other)


def test_what_sets_cards_apart_is_common_to_all_cells_of_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """The effect of a card is common to all its cells, on any backend. Cards count only if they measured a cell."""
    table(monkeypatch, 0.0, 0.01)
    ours = [a_record(n, [0.001] * 6) for n in LENGTHS]
    both = [*ours, *(replace(record, backend="sdpa-flash") for record in ours)]
    assert half_of(both, both) == pytest.approx(NORMAL * 0.01 * math.sqrt(2))
    of_one = on_cards(ours, "x", device=H100)
    four = on_cards(ours, "a", "b", "c", "d")
    assert ratio_of(four, of_one).high == pytest.approx(math.exp(NORMAL * 0.01 * math.sqrt(1 / 4 + 1)))
    others = [*on_cards(ours, "a"), *on_cards([a_record(512, [0.001] * 6)], "b", "c", "d")]
    assert ratio_of(others, of_one).high == pytest.approx(math.exp(NORMAL * 0.01 * math.sqrt(2)))
    half = [*on_cards(ours[:1], "a"), *on_cards(ours[:2], "b")]  # the first cell shows the difference of b and a
    assert ratio_of(half, of_one).high == pytest.approx(math.exp(NORMAL * 0.01 * math.sqrt(0.5**2 + 0.5**2 + 1)))
    assert ratio_of(on_cards(ours, "card"), on_cards(ours, "card")) == Ratio(1.0, 1.0, 1.0, (TABLE,))


def test_rounds_show_what_sets_processes_apart_and_not_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds show the spread of processes, not of cards: for two unlike cards the spread of cards is the table's."""
    table(monkeypatch, 0.0, 0.01)
    ours = [
        run([a_record(n, [t], i) for n in LENGTHS for i in range(2)], device=replace(H200, uuid=card))
        for card, t in (("a", 0.001), ("b", 0.002))
    ]
    got = ratio_of(ours, on_cards([a_record(n, [0.001] * 6) for n in LENGTHS], "x", device=H100))
    assert got.sources == (ROUNDS, TABLE)
    assert got.high == pytest.approx(got.value * math.exp(NORMAL * 0.01 * math.sqrt(1 / 2 + 1)))


def test_few_samples_are_students_and_one_says_nothing() -> None:
    few = of([a_record(1024, [1.0, 1.1, 1.2])], [a_record(1024, [1.0] * 6)])
    half = scipy_stats.sem([math.log(t) for t in (1.0, 1.1, 1.2)]) * scipy_stats.t.ppf(0.975, 2)
    assert few.high == pytest.approx(few.value * math.exp(half))
    one = of([a_record(1024, [1.0])], [a_record(1024, [1.0] * 6)])
    assert (one.value, one.low, one.high) == (1.0, None, None)
    assert one.overlaps(EXACTLY_ONE)


def test_a_machine_against_itself_is_one() -> None:
    one, _ = pair([a_record(1024, [1.0, 2.0])], [a_record(1024, [1.0])])
    assert speed_ratio(one, equal_weights(one.log_rounds), one) == Ratio(1.0, 1.0, 1.0, ())


@pytest.mark.parametrize(("rounds", "shared"), [(2, 0.0), (5, 0.01)])
def test_intervals_from_rounds_hold_the_truth_as_often_as_they_say(rounds: int, shared: float) -> None:
    """The interval of a geometric mean of four cells, with noise of cells and rounds, covers 95 % or more."""
    held, times, rng = 0, 150, random.Random(f"{rounds}/{shared}")
    for _ in range(times):
        sides = []
        for truth in (1.5, 1.0):
            of_rounds = [rng.gauss(0, shared) for _ in range(rounds)]
            sides.append(
                [
                    a_record(n, [truth * math.exp(noise + rng.gauss(0, 0.01))], i)
                    for i, noise in enumerate(of_rounds)
                    for n in LENGTHS
                ]
            )
        got = of(*sides)
        assert got.low is not None
        assert got.high is not None
        held += got.low <= 1.5 <= got.high
    assert held / times >= 0.95 - 2.6 * math.sqrt(0.95 * 0.05 / times)


def test_intervals_from_samples_hold_the_truth_as_often_as_they_say() -> None:
    held, times, rng = 0, 150, random.Random(1)
    for _ in range(times):
        sides = [
            [a_record(n, [truth * (1 + rng.expovariate(100)) for _ in range(10)]) for n in LENGTHS]
            for truth in (1.5, 1.0)
        ]
        got = of(*sides)
        assert got.low is not None
        assert got.high is not None
        held += got.low <= 1.5 <= got.high
    assert held / times >= 0.95 - 2.6 * math.sqrt(0.95 * 0.05 / times)
