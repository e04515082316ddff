"""The table of spreads equals the run files', and stated uncertainties cover the differences of fresh processes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import spreads

from attnbench.core.policy import METHOD
from attnbench.core.record import Run
from attnbench.results import run_file, uncertainty
from attnbench.results.uncertainty import NO_CARDS, NORMAL, Cards

TABLE = Path(uncertainty.__file__).with_name("spreads.json")
EXPERIMENT = spreads.RESULTS / "ci-experiment"
Pair = tuple[spreads.Measured, spreads.Measured]
ENTRY = uncertainty.MEASURED["H200 SXM"]


@pytest.fixture(scope="module")
def cards() -> dict[str, dict[int, list[spreads.Measured]]]:
    return spreads.cards(spreads.FILES)


def test_the_table_is_what_the_files_give(cards: dict[str, dict[int, list[spreads.Measured]]]) -> None:
    assert {*cards} == {*uncertainty.MEASURED}
    twice = uncertainty.ASSUMED["cuda"]
    assert twice.processes == pytest.approx(2 * ENTRY.processes)
    assert twice.cards == pytest.approx([2 * part for part in ENTRY.cards])
    parts = spreads.parts(spreads.FILES)
    for name, by_method in cards.items():
        entry = uncertainty.MEASURED[name]
        assert entry.cards == pytest.approx(parts[name], abs=1e-4)
        every = [one for of_method in by_method.values() for one in of_method]
        assert entry.processes == pytest.approx(spreads.processes(every), abs=5e-5)


def repeated(cards: Iterable[spreads.Measured]) -> list[spreads.Measured]:
    """Return the cards with enough repeated cells to determine the spread of processes."""
    return [one for one in cards if len(spreads.differences(one)) >= spreads.LEAST_CELLS]


def read(name: str | Path) -> Run:
    return run_file.read(spreads.RESULTS / name)[0]


def test_pairs_of_fresh_runs_are_covered(cards: dict[str, dict[int, list[spreads.Measured]]]) -> None:
    """Stated uncertainties cover the differences of all pairs of five fresh runs of each card, and two of method 1."""
    every = [one for by_method in cards.values() for of_method in by_method.values() for one in of_method]
    several = repeated(every)
    assert len(several) == 6
    for one in several:
        share, half, difference = spreads.covered(itertools.combinations(one.runs, 2))
        device = one.runs[0].environment.device
        print(f"{device}: {share:.1%} covered, median {half:.2%} of a figure, {difference:.2%} of a difference")
        assert share >= 0.93
        assert half <= 0.012


def experiment() -> list[list[Run]]:
    """Return the unchanged runs of the experiment, by card."""
    found: dict[str | None, list[Run]] = {}
    for path in sorted(EXPERIMENT.glob("alike-*.jsonl")):
        run = read(path)
        found.setdefault(run.environment.device.uuid, []).append(run)
    return [*found.values()]


def first_rounds(runs: Sequence[Run], number: int) -> list[Run]:
    return [replace(run, records=[r for r in run.records if r.round < number]) for run in runs]


@pytest.mark.parametrize(("rounds", "most"), [(1, 0.01), (5, 0.004)])
def test_runs_that_the_table_was_not_made_from_are_covered(rounds: int, most: float) -> None:
    """All pairs of the experiment's runs of a card, from which the table was not made, are covered, by rounds."""
    pairs = [pair for runs in experiment() for pair in itertools.combinations(first_rounds(runs, rounds), 2)]
    share, half, difference = spreads.covered(pairs)
    print(f"{len(pairs)} pairs, {share:.1%} covered, median {half:.2%} of a figure, {difference:.2%} of a difference")
    assert share >= 0.93
    assert half <= most


def test_two_cards_differ_by_more_than_processes_do(cards: dict[str, dict[int, list[spreads.Measured]]]) -> None:
    """Two cards differ by more than processes do, so a comparison of cards needs the part between units."""
    for name, by_method in cards.items():
        entry, pairs = uncertainty.MEASURED[name], [*itertools.combinations(by_method[METHOD], 2)]

        def within(of_cards: Cards, pairs: Sequence[Pair] = pairs, processes: float = entry.processes) -> float:
            """Return the share of differences that the table explains, with the same weight for each pair of cards."""
            hits = []
            for one, other in pairs:
                keys = spreads.fastest(one, other)
                loads = [(one.loads[key] + other.loads[key]) / 2 for key in keys]
                hits.append(
                    [
                        abs(d) <= NORMAL * math.hypot(math.sqrt(share) * processes, math.sqrt(2) * of_cards.units(load))
                        for (d, share), load in zip(spreads.between(one, other, keys), loads, strict=True)
                    ]
                )
            return sum(sum(of) / len(of) for of in hits if of) / sum(map(bool, hits))

        alone, covered = within(NO_CARDS), within(entry.cards)
        print(f"{name}: {len(pairs)} pairs, {alone:.1%} within that of processes, {covered:.1%} in all")
        assert alone < 0.9
        assert 0.94 <= covered <= 0.99
