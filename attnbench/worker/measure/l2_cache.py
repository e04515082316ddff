"""The state of L2 before a sample: cold by overwriting it, and the proof that a promise about it holds.

A read that fits in L2 runs at the cache's speed when its operand lies there and at the memory's when it does not. The
instrument at hand times one as it times a cell, and once more with the operand just read: cold must be slower by what
the memory's bandwidth says, and warm must not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from attnbench.core import stats

if TYPE_CHECKING:
    import torch

MIN_FLUSH = 64 * 2**20  # bytes; where the device does not say how large its L2 is
MIN_GAIN = 0.3  # of the time that the memory needs for the operand; a cache twice as fast gives 0.5
REPEATS = 20


class Instrument(Protocol):
    before: Callable[[], Any]  # runs ahead of each sample, untimed

    def samples(self, launch: Callable[[], Any], n: int) -> list[float]: ...


class L2Flush:
    """Writes a buffer of twice L2's size; one device operation."""

    def __init__(self, device: torch.device, l2_bytes: int, most: int | None = None) -> None:
        import torch

        size = max(2 * l2_bytes, MIN_FLUSH)
        self.buffer = torch.empty(min(size, most or size), dtype=torch.int8, device=device)

    def __call__(self) -> None:
        self.buffer.zero_()


def observed_state(timer: Instrument, device: torch.device, l2_bytes: int, bandwidth: float) -> str:
    """ "cold" or "warm": how `timer` finds operands that were in the cache before its `before` ran.

    `bandwidth` is the memory's, in bytes/s; a third of L2 is read.
    """
    nbytes, read = make_reader(device, l2_bytes)
    read()
    as_promised = _median(timer, read)
    promised, timer.before = timer.before, read
    try:
        cached = _median(timer, read)
    finally:
        timer.before = promised
    return "cold" if as_promised - cached > MIN_GAIN * nbytes / bandwidth else "warm"


def make_reader(device: torch.device, l2_bytes: int) -> tuple[int, Callable[[], None]]:
    """A read of a third of L2, and its bytes. Each has an operand of its own."""
    import torch

    nbytes = max(2**20, min(l2_bytes or MIN_FLUSH, MIN_FLUSH) // 3)
    operand = torch.ones(nbytes // 4, device=device)
    total = torch.empty((), device=device)

    def read() -> None:
        torch.sum(operand, dim=0, out=total)

    return nbytes, read


def _median(timer: Instrument, launch: Callable[[], Any]) -> float:
    values: list[float] = []
    while len(values) < REPEATS:
        values += timer.samples(launch, REPEATS - len(values))
    return stats.median(values)
