"""The intervals of a comparison cover what two cards of one model differ by, over all pairs of cards in results/."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from attnbench.analysis.compare.common_cells import common
from attnbench.analysis.compare.machines import File, Machine, Version, machine_of, model, version_of
from attnbench.analysis.compare.speed_ratio import Ratio, equal_weights, speed_ratio
from attnbench.core.policy import METHOD
from attnbench.results import run_file
from attnbench.results.cells import Key

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def pairs() -> list[tuple[Machine, Machine]]:
    """Two cards of one model each, as machines of their own, measured by the present method."""
    by_card: dict[object, list[File]] = {}
    for path in sorted([*RESULTS.glob("*.jsonl.gz"), *RESULTS.glob("spreads/*.jsonl.gz")]):
        run = run_file.read(path)[0]
        if run.method == METHOD and not run.search and run.environment.device.uuid:
            by_card.setdefault((model(run), run.environment.device.uuid), []).append(File(path, run))
    cards = [machine_of(str(card), files) for card, files in by_card.items()]
    return [(one, other) for one, other in itertools.combinations(cards, 2) if one.model == other.model]


def alike(one: Machine, other: Machine) -> list[Key]:
    """Return the cells that two cards measured alike: on one device, by one version of a backend.

    Without attnbench's own kernels, whose code changed between these runs.
    """
    both = common((one.log_rounds, other.log_rounds))
    both = [key for key in both if key[0].ranks == 1 and key[1].removeprefix("ulysses-") not in ("triton", "gluon")]
    return [key for key in both if version(one, key) == version(other, key)]


def version(machine: Machine, key: Key) -> Version:
    row = machine.cells[key].ok[0]
    return version_of(row.source.run, row.record)


def overall(one: Machine, other: Machine, cells: list[Key]) -> Ratio | None:
    """Return the ratio over all cases, each with the fastest backend that each card has of these."""
    fastest = one.fastest_of(cells), other.fastest_of(cells)
    cases = common(fastest)
    ours, theirs = (equal_weights([of[case] for case in cases]) for of in fastest)
    return speed_ratio(one, ours, other, theirs) if cases else None


def share(ratios: list[Ratio]) -> float:
    """Return the share of ratios whose interval holds 1."""
    known = [(ratio.low, ratio.high) for ratio in ratios if ratio.low and ratio.high]
    return sum(low <= 1 <= high for low, high in known) / len(known)


def test_two_cards_of_a_model_are_told_apart_as_seldom_as_stated(pairs: list[tuple[Machine, Machine]]) -> None:
    """Over all cases at once, in the fastest backend of each case alone, and in any cell; each pair counts alike."""
    found = [(pair, cells) for pair in pairs if (cells := alike(*pair))]
    every = [ratio for pair, cells in found if (ratio := overall(*pair, cells))]
    shares = {"overall": share(every)}
    fastest = [(pair, [*pair[0].fastest_of(cells).values()]) for pair, cells in found]
    for what, of_pairs in (("the fastest of a case", fastest), ("any cell", found)):
        each = [
            share([speed_ratio(one, equal_weights([key]), other) for key in keys])
            for (one, other), keys in of_pairs
            if keys
        ]
        shares[what] = sum(each) / len(each)
    print(len(every), "pairs:", ", ".join(f"{what} {of:.1%}" for what, of in shares.items()))
    assert len(every) > 90
    assert all(0.93 <= of <= 0.99 for of in shares.values()), shares
