"""The pool: its equations against plain ones, its variances against planted ones, and the coverage of intervals."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from attnbench.results.pool import LEAST_CARDS, Card, Pool, Reading, of_cards, of_median, reml
from attnbench.results.uncertainty import NORMAL, Cards, Spread, load

PLANTED = Cards(all=0.004, loaded=0.010, cell=0.003, loaded_cell=0.006)
PROCESSES = 0.003
KNOWN = Spread("a GPU", PROCESSES, "a test", True, PLANTED)
CELLS = 30
Readings = dict[int, Reading]


def measured(rng: random.Random, cards: int, name: str = "", share: float = 0.5, rounds: int = 1) -> Readings:
    """Return measurements of several cards, each of a share of the cells, whose true values are all 0."""
    found: dict[int, dict[Card, dict[int, float]]] = {}
    loads = [i % 5 / 4 for i in range(CELLS)]
    for number in range(cards):
        card = Card("GPU", f"{name}{number}")
        every, loaded = rng.gauss(0, PLANTED.all), rng.gauss(0, PLANTED.loaded)
        for cell in range(CELLS):
            own = rng.gauss(0, PLANTED.of_cell(loads[cell]))
            if rng.random() < share:
                at = {
                    100 * number + i: every + loaded * loads[cell] + own + rng.gauss(0, PROCESSES)
                    for i in range(rounds)
                }
                found.setdefault(cell, {})[card] = at
    return {cell: Reading(of, cell, loads[cell]) for cell, of in sorted(found.items())}


def value_and_half(pool: Pool[int], weights: dict[int, float]) -> tuple[float, float]:
    value = math.fsum(weight * pool.values[key] for key, weight in weights.items())
    return value, math.hypot(pool.of_processes(weights), of_cards((pool, weights)))


def mean_of(readings: Readings) -> dict[int, float]:
    return dict.fromkeys(readings, 1 / len(readings))


def test_values_and_their_weights_are_those_of_generalized_least_squares() -> None:
    """Values and weights equal generalized least squares with the whole matrix of covariances."""
    readings = measured(random.Random(1), 4, rounds=3)
    pool = Pool(readings, KNOWN)
    pairs = pool.pairs
    y = np.array([math.log(np.median(np.exp([*readings[k].rounds[c].values()]))) for k, c in pairs])
    loads = np.array([readings[key].load for key, _ in pairs])
    same_card = np.array([[a == b for _, b in pairs] for _, a in pairs])
    covariance = same_card * (PLANTED.all**2 + PLANTED.loaded**2 * np.outer(loads, loads))
    covariance += np.diag(PLANTED.of_cell(loads) ** 2 + PROCESSES**2 * math.pi / 2 / 3)
    cells = np.array([[of == key for key in readings] for of, _ in pairs], float)
    inverse = np.linalg.inv(covariance)
    expected = np.linalg.solve(cells.T @ inverse @ cells, cells.T @ inverse)
    assert [*pool.values.values()] == pytest.approx(expected @ y, abs=1e-12)
    for key, of_pairs in zip(readings, expected, strict=True):
        assert pool.weights({key: 1.0}) == pytest.approx(of_pairs, abs=1e-9)
    weights = mean_of(readings)
    cards_alone = covariance - np.diag(np.full(len(pairs), PROCESSES**2 * math.pi / 2 / 3))
    by = pool.weights(weights)
    assert of_cards((pool, weights)) == pytest.approx(NORMAL * math.sqrt(by @ cards_alone @ by))


def test_a_card_that_others_show_to_be_fast_does_not_make_its_own_cell_fast() -> None:
    """A card that others show to be 3 % faster does not make its own cell, which no other measured, faster."""
    cards = [Card("GPU", name) for name in "abcd"]
    readings = {
        i: Reading({card: {0: -0.03 if card is cards[0] else 0.0} for card in cards}, i, 1.0) for i in range(20)
    }
    alone = {**readings, 20: Reading({cards[0]: {0: -0.03}}, 20, 1.0)}
    found = Pool(alone, KNOWN).values
    assert -0.018 < found[20] < -0.002
    assert found[0] == pytest.approx(-0.03 / 4, abs=0.001)
    assert Pool({20: alone[20]}, KNOWN).values[20] == pytest.approx(-0.03)
    told = {**alone, **{i: replace(of, informs=False) for i, of in readings.items()}}
    assert Pool(told, KNOWN).values[20] == pytest.approx(-0.03)


def test_the_value_of_one_card_is_its_median() -> None:
    rounds = {i: math.log(t) for i, t in enumerate((1.0, 1.1, 1.5))}
    assert math.exp(Pool({0: Reading({Card("GPU", "a"): rounds})}, KNOWN).values[0]) == pytest.approx(1.1)
    assert [of_median(n) for n in (1, 2, 4)] == pytest.approx([1, 1 / 2, math.pi / 8])


@pytest.mark.parametrize(("utilization", "found"), [(None, 1.0), (0.1, 0.0), (0.3, 0.0), (0.45, 0.5), (0.9, 1.0)])
def test_load(utilization: float | None, found: float) -> None:
    assert load(utilization) == pytest.approx(found)


def test_more_cells_of_a_card_make_nothing_surer_that_the_card_moves() -> None:
    """More cells of a card do not reduce the uncertainty from the card; more cards do, and so does a shared card."""

    def half(cells: int, *cards: str) -> float:
        readings = {i: Reading({Card("GPU", name): {0: 0.0} for name in cards}, i, 1.0) for i in range(cells)}
        return of_cards((Pool(readings, KNOWN), mean_of(readings)))

    of_a_card = NORMAL * math.hypot(PLANTED.all, PLANTED.loaded)
    assert half(1, "a") == pytest.approx(math.hypot(of_a_card, NORMAL * PLANTED.loaded_cell))
    assert half(400, "a") == pytest.approx(of_a_card, rel=0.01)
    assert half(400, "a", "b", "c", "d") == pytest.approx(of_a_card / 2, rel=0.01)
    one = Pool({0: Reading({Card("GPU", "a"): {0: 0.0}}, 0, 1.0)}, KNOWN)
    other = Pool({0: Reading({Card("GPU", "a"): {1: 0.1}}, 0, 1.0)}, KNOWN)
    assert of_cards((one, {0: 1.0}), (other, {0: 1.0})) == 0


def test_variances_are_found_again() -> None:
    """Planted variances are recovered from 60 cards, half with several rounds, which separate processes from cards."""
    rng = random.Random(3)
    once, often = measured(rng, 30, "once"), measured(rng, 30, "often", rounds=5)
    both = {i: replace(once[i], rounds={**once[i].rounds, **often[i].rounds}) for i in once}
    found = reml(both, replace(KNOWN, cards=Cards(0.002, 0.002, 0.002, 0.002)))
    assert [*found] == pytest.approx([*PLANTED], rel=0.25)


def test_variances_are_those_of_the_cards_at_hand_from_some_number_on() -> None:
    wrong = replace(KNOWN, cards=Cards(*(part / 3 for part in PLANTED)))
    few, many = (Pool(measured(random.Random(5), cards), wrong).variances for cards in (4, 30))
    assert (few.deviations, few.estimated) == (wrong.cards, False)
    assert many.estimated
    assert [*many.deviations] == pytest.approx([*PLANTED], rel=0.5)


@pytest.mark.parametrize(("cards", "rounds"), [(1, 1), (3, 1), (3, 4), (12, 1)])
def test_intervals_hold_the_truth_as_often_as_they_say(cards: int, rounds: int) -> None:
    """Intervals of the mean of all cells, and of one cell, have the stated coverage: they include cards' effects."""
    rng, times = random.Random(f"{cards}/{rounds}"), 120
    held, without = [0, 0], 0
    for _ in range(times):
        readings = measured(rng, cards, share=0.7, rounds=rounds)
        pool = Pool(readings, KNOWN)
        for i, weights in enumerate((mean_of(readings), {next(iter(readings)): 1.0})):
            value, half = value_and_half(pool, weights)
            held[i] += abs(value) <= half
        if cards < LEAST_CARDS:  # with more cards the variances are estimated
            value, half = value_and_half(Pool(readings, replace(KNOWN, cards=Cards())), mean_of(readings))
            without += abs(value) <= half
    noise = 2.6 * math.sqrt(0.95 * 0.05 / times)
    assert all(0.95 - noise <= of / times <= 0.995 for of in held), held
    if cards < LEAST_CARDS:
        assert without / times < 0.8
