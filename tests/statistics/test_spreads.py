"""The table of spreads is what the run files give, and stated uncertainties cover what fresh processes differ by."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import spreads

from attnbench.core import gpus
from attnbench.core.record import Run
from attnbench.results import run_file, uncertainty

ENTRY = uncertainty.MEASURED["H200 SXM"]
TABLE = Path(uncertainty.__file__).with_name("spreads.json")
EXPERIMENT = spreads.RESULTS / "ci-experiment"
PAIRS = spreads.H200[:2]


def test_the_table_is_what_the_files_give() -> None:
    cards = [*map(spreads.card, spreads.H200)]
    of_processes = spreads.processes(cards)
    assert ENTRY.processes == pytest.approx(of_processes, abs=5e-5)
    assert ENTRY.units == pytest.approx(spreads.units(cards, of_processes), abs=5e-5)
    assert ENTRY.source.startswith("four runs on two cards, four cards against each other, by method 1 (")
    assert [len(files) for files, one in zip(spreads.H200, cards, strict=True) if spreads.variances(one)] == [2, 2]
    assert len({id(one) for pair in spreads.pairs(cards) for one in pair}) == 4


def test_entries_are_of_known_devices() -> None:
    """By the names of core/gpus.json."""
    assert {*uncertainty.MEASURED} <= {gpu.name for gpu in gpus.GPUS}
    assert [{*entry} for entry in json.loads(TABLE.read_text())["measured"]] == [
        {"device", "processes", "units", "source"}
    ]


def read(name: str | Path) -> Run:
    return run_file.read(spreads.RESULTS / name)[0]


def test_pairs_of_fresh_runs_are_covered() -> None:
    share, half, difference = spreads.covered([(read(a), read(b)) for a, b in PAIRS])
    print(f"{share:.1%} covered, median {half:.2%} of a figure, {difference:.2%} of a difference")
    assert share >= 0.93
    assert difference <= 0.01


@pytest.mark.parametrize(("fitted", "tested"), [(0, 1), (1, 0)])
def test_a_spread_of_one_card_covers_another(fitted: int, tested: int) -> None:
    """The table's entry made from the runs of one card, tried on those of another day and card."""
    other = replace(ENTRY, processes=spreads.processes([spreads.card(PAIRS[fitted])]))
    share, half, difference = spreads.covered([(read(PAIRS[tested][0]), read(PAIRS[tested][1]))], other)
    print(f"{share:.1%} covered, median {half:.2%} of a figure, {difference:.2%} of a difference")
    assert share >= 0.93
    assert difference <= 0.01


def experiment() -> list[list[Run]]:
    """Return the runs of the experiment in which nothing was slowed, by card."""
    found: dict[str | None, list[Run]] = {}
    for path in sorted(EXPERIMENT.glob("alike-*.jsonl")):
        run = read(path)
        found.setdefault(run.environment.device.uuid, []).append(run)
    return [*found.values()]


def first_rounds(runs: Sequence[Run], number: int) -> list[Run]:
    return [replace(run, records=[r for r in run.records if r.round < number]) for run in runs]


@pytest.mark.parametrize(("rounds", "most"), [(1, 0.01), (2, 0.007), (5, 0.004)])
def test_runs_that_the_table_was_not_made_from_are_covered(rounds: int, most: float) -> None:
    """All pairs of the experiment's runs of one card, of one, two and five rounds each: more rounds are surer."""
    pairs = [pair for runs in experiment() for pair in itertools.combinations(first_rounds(runs, rounds), 2)]
    share, half, difference = spreads.covered(pairs)
    print(f"{len(pairs)} pairs, {share:.1%} covered, median {half:.2%} of a figure, {difference:.2%} of a difference")
    assert share >= 0.93
    assert half <= most


def test_two_cards_differ_by_more_than_processes_do() -> None:
    """So the part between units is needed where cards are compared, and is enough there."""
    cards = [*map(spreads.card, spreads.H200)]
    found = [spreads.between(*pair) for pair in spreads.pairs(cards)]
    apart = [(d, share) for differences, share in found for d in differences]
    without = sum(abs(d) <= 1.96 * ENTRY.processes * math.sqrt(s) for d, s in apart) / len(apart)
    within = sum(abs(d) <= 1.96 * math.sqrt(s * ENTRY.processes**2 + 2 * ENTRY.units**2) for d, s in apart) / len(apart)
    print(f"of {len(apart)} differences {without:.1%} are within that of processes, {within:.1%} with that of units")
    assert without < 0.9
    assert within >= 0.93
