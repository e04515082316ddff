"""The order of the turns, and what still fits the time. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from attnbench.analysis.gate.findings import Kind
from attnbench.analysis.gate.gate import Judgement
from attnbench.analysis.gate.looks import LOOKS
from attnbench.analysis.gate.margins import RULES
from attnbench.results.cells import Key

START = {"cuda": 10.0, "cpu": 3.0, "fake": 0.2}  # seconds until the workers of a turn are ready, until one has told


def order(pair: int) -> tuple[int, int]:
    """Who goes first: A B, B A, B A, A B, ... (Thue and Morse), which cancels drift, of the second degree too."""
    return (0, 1) if pair.bit_count() % 2 == 0 else (1, 0)


def to_look(pair: int) -> int:
    """How many pairs there are until the next look, this one included."""
    return next(look for look in LOOKS if look > pair) - pair


def affordable(costs: Mapping[Key, float], start: float, pairs: int, left: float) -> set[Key]:
    """The cells that can be measured in `left` seconds, the cheapest first.

    In all `pairs` until the next look, and where not even one cell can, in the next pair alone: the look is then
    early. `costs` are seconds of both sides together, `start` those until the workers of one turn are ready.
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


def unsettled(judgement: Judgement) -> set[Key]:
    """The cells that more rounds may decide."""

    def open_(kind: Kind) -> bool:
        return kind.verdict == "inconclusive" and kind.metric is not None and not RULES[kind.metric].cached

    return {(f.case, f.backend) for f in judgement.those(open_)}
