"""The verdicts on the bits of a cell, derived from the comparisons that `attnbench run --bitwise` stores.

A cell is **deterministic** where all results of each launch have the same bits, in every process. It is
**batch-invariant** where a sequence has the same bits with and without the rest of its batch. A result that differs
between launches says nothing about the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from attnbench.core.record import Bitwise
from attnbench.core.text import listed


def deterministic(rounds: Sequence[Bitwise]) -> bool | None:
    """Return the verdict from the rounds of a cell; None where no two processes were compared, and nothing differs."""
    if any(any(of.differing.values()) or of.process for of in rounds) or _unlike(rounds):
        return False
    return True if len(rounds) > 1 or any(not of.no_process for of in rounds) else None


def batch_invariant(rounds: Sequence[Bitwise]) -> bool | None:
    """Return the verdict from the rounds of a cell; None where no sequence was computed alone, or it says nothing."""
    if any(not of.differing.get(name) for of in rounds for name in of.alone):
        return False
    tried = [of for of in rounds if not of.not_alone]
    return True if tried and not any(any(of.differing.values()) for of in tried) else None


VERDICTS: Mapping[str, Callable[[Sequence[Bitwise]], bool | None]] = {
    "deterministic": deterministic,
    "batch_invariant": batch_invariant,
}


def differences(rounds: Sequence[Bitwise]) -> str:
    """Return what differs, by result: "dq differs in 3 of 7 further launches"; "" where nothing does."""
    return "; ".join(dict.fromkeys(_differences(rounds)))


def _differences(rounds: Sequence[Bitwise]) -> Iterator[str]:
    for of in rounds:
        for name, number in of.differing.items():
            if number:
                yield f"{name} differs in {number} of {of.launches - 1} further launches"
    for of in rounds:
        if names := [name for name in of.process if not of.differing.get(name)]:
            yield f"{_differ(names)} between processes"
    if names := [name for name in _unlike(rounds) if not any(of.differing.get(name) for of in rounds)]:
        yield f"{_differ(names)} between processes"
    for of in rounds:
        if names := [name for name in of.alone if not of.differing.get(name)]:
            yield f"{_differ(names)} with the batch"


def untried(rounds: Sequence[Bitwise]) -> str:
    """Return why there is no comparison with another process or of a sequence alone; "" where there are both."""
    alone = [of.not_alone for of in rounds] if all(of.not_alone for of in rounds) else []
    process = [of.no_process for of in rounds] if len(rounds) == 1 and rounds[0].no_process else []
    parts = [*(f"no sequence alone: {why}" for why in alone), *(f"no other process: {why}" for why in process)]
    return "; ".join(dict.fromkeys(parts))


def _unlike(rounds: Sequence[Bitwise]) -> list[str]:
    """Return the results whose bits differ between rounds, each of which has a process of its own."""
    names = dict.fromkeys(name for of in rounds for name in of.digests)
    return [name for name in names if len({of.digests.get(name) for of in rounds}) > 1]


def _differ(names: Sequence[str]) -> str:
    return f"{listed(names)} {'differs' if len(names) == 1 else 'differ'}"
