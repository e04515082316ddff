"""Compare two halves of the cards of one model, and count the false differences, from the run files of results/.

    python tests/statistics/split_cards.py                   40 splits of each model, and all pairs of one card each
    python tests/statistics/split_cards.py --runs 5

Both halves are the same model, so the true ratio is 1, and a 95 % interval should contain it in about 95 % of cases. A
split halves the cards at random; each half is joined as `attnbench compare` joins the files of a machine. Cells count
that both halves measured in one version. Every split or pair has the same weight, whatever its number of cells.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from printed import options, show

from attnbench.analysis.compare.common_cells import common
from attnbench.analysis.compare.machines import File, Machine, machine_of, model
from attnbench.analysis.compare.speed_ratio import Ratio, equal_weights, speed_ratio
from attnbench.core.policy import METHOD
from attnbench.results import run_file
from attnbench.results.cells import Key

RESULTS = Path(__file__).parents[2] / "results"
Cards = Mapping[str, Sequence[File]]  # UUID -> the run files of a card


def cards() -> list[Cards]:
    """Return the cards of each model in results/, by the present method of measuring."""
    found: dict[object, dict[str, list[File]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted([*RESULTS.glob("*.jsonl.gz"), *RESULTS.glob("spreads/*.jsonl.gz")]):
        run = run_file.read(path)[0]
        uuid = run.environment.device.uuid
        if run.method == METHOD and not run.search and uuid:
            found[model(run)][uuid].append(File(path, run))
    return [of for of in found.values() if len(of) > 1]


def machine(files: Iterable[Sequence[File]]) -> Machine:
    return machine_of("half", [file for of_card in files for file in of_card])


def splits(of: Cards, number: int, seed: int = 0) -> Iterator[tuple[Machine, Machine]]:
    """Yield `number` random splits of the cards into halves."""
    names, rng = sorted(of), random.Random(seed)
    for _ in range(number):
        rng.shuffle(names)
        half = len(names) // 2
        yield machine(of[name] for name in names[:half]), machine(of[name] for name in names[half:])


def alike(one: Machine, other: Machine) -> list[Key]:
    """Return the cells that two machines measured alike: on one device, by one version of a backend."""
    both = [key for key in common((one.log_rounds, other.log_rounds)) if key[0].ranks == 1]
    return [key for key in both if one.versions[key] == other.versions[key]]


def _over(one: Machine, other: Machine, keys: Sequence[Key]) -> list[Ratio]:
    """Return the ratio of two machines over all cases that some cells cover, with each machine's fastest backend."""
    fastest = one.fastest_of(keys), other.fastest_of(keys)
    cases = common(fastest)
    ours, theirs = (equal_weights([of[case] for case in cases]) for of in fastest)
    return [speed_ratio(one, ours, other, theirs)] if cases else []


def _each(one: Machine, other: Machine, keys: Iterable[Key]) -> list[Ratio]:
    return [speed_ratio(one, equal_weights([key]), other) for key in keys]


ASKED: Mapping[str, Callable[[Machine, Machine, Sequence[Key]], list[Ratio]]] = {
    "all cases": _over,
    "forward": lambda one, other, keys: _over(one, other, [key for key in keys if key[0].direction == "fwd"]),
    "backward": lambda one, other, keys: _over(one, other, [key for key in keys if key[0].direction != "fwd"]),
    "the fastest of a case": lambda one, other, keys: _each(one, other, one.fastest_of(keys).values()),
    "any cell": _each,
}


def coverage(compared: Iterable[tuple[Machine, Machine]]) -> dict[str, tuple[float, int]]:
    """Return for each question the share of intervals that contain 1, and the number of comparisons."""
    held = defaultdict[str, list[float]](list)
    for one, other in compared:
        keys = alike(one, other)
        for name, ratios in ASKED.items():
            known = [(r.low, r.high) for r in ratios(one, other, keys) if r.low and r.high] if keys else []
            if known:
                held[name].append(sum(low <= 1 <= high for low, high in known) / len(known))
    return {name: (sum(shares) / len(shares), len(shares)) for name, shares in held.items()}


def pairs(of: Cards) -> Iterator[tuple[Machine, Machine]]:
    """Yield all pairs of cards."""
    yield from itertools.combinations([machine([files]) for files in of.values()], 2)


HEADING = ("of one model", *ASKED)


def main() -> None:
    asked = options(__doc__, 40)
    show("split-cards", asked, HEADING, _rows(asked.runs, asked.only), seed=0)


def _rows(number: int, only: str) -> Iterator[list[str]]:
    for of in cards():
        name = next(iter(of.values()))[0].run.environment.device.name
        for what, compared in (("halves", splits(of, number)), ("pairs of cards", pairs(of))):
            if only in f"{len(of)} {name}, {what}":
                shares = coverage(compared)
                known = [f"{shares[asked][0]:.1%} of {shares[asked][1]}" if asked in shares else "-" for asked in ASKED]
                yield [f"{len(of)} {name}, {what}", *known]


if __name__ == "__main__":
    main()
