"""The order of the turns of an A/B, and the choice of cells that fit the time. Nothing here measures or waits."""

from __future__ import annotations

from collections.abc import Mapping

from attnbench.core.errors import EXIT_REGRESSION, EXIT_WRONG_RESULT
from attnbench.results.cells import Key

LOOKS = (4, 6, 8, 12, 16, 24, 32)  # the looks: numbers of pairs of turns after which all cells are judged

# Forecast seconds until the workers of a turn are ready, by kind of device; later turns use the measured time.
START = {"cuda": 10.0, "cpu": 3.0, "fake": 0.2}


def order(pair: int) -> tuple[int, int]:
    """Return the first and the second side of a pair of turns, 0 for A and 1 for B: A B, B A, B A, A B, ...

    Over every four pairs this order (the Thue-Morse sequence) cancels linear and quadratic drift.
    """
    return (0, 1) if pair.bit_count() % 2 == 0 else (1, 0)


def to_look(pair: int) -> int:
    """Return the number of pairs until the next of LOOKS, this pair included."""
    return next(look for look in LOOKS if look > pair) - pair


def affordable(costs: Mapping[Key, float], start: float, pairs: int, left: float) -> set[Key]:
    """Return the cells that can be measured in `left` seconds, the cheapest first.

    They must fit in all `pairs` until the next look. Where not even one cell does, cells must fit in the next pair, and
    the look is early. `costs` has the seconds of each cell on both sides together, `start` the seconds until the
    workers of one turn are ready.
    """
    for wanted in dict.fromkeys((pairs, 1)):
        room = left / wanted - 2 * start
        kept = set()
        for key in sorted(costs, key=lambda k: costs[k]):
            if costs[key] > room:
                break
            room -= costs[key]
            kept.add(key)
        if kept:
            return kept
    return set()


def certain(exit_code: int, at_look: bool) -> bool:
    """Return whether more rounds cannot improve an exit code, so that measuring them is useless.

    A wrong result ends an A/B after its pair of turns. A cell that fails, is missing or has regressed ends it at a
    look, when all other cells are judged too; a regression found at a look is final. Ending early only leaves out
    looks, so the error rates hold (gate/repeated_looks.py).
    """
    return exit_code == EXIT_WRONG_RESULT or (at_look and exit_code == EXIT_REGRESSION)
