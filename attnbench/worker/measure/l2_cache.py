"""The L2 flush, which makes the cache cold and clean before a sample, and the test whether L2 is cold or warm.

A read that fits in L2 runs at the cache's speed where its operand is in the cache, else at the memory's. A timer times
such a read in three states: as in a cell, with the operand just read, and after another flush twice as large. L2 is
cold where the first time is nearer to the third than to the second. The test needs no known speeds, which are close to
each other on some GPUs: an H200 reads 20 MB from its L2 only 1.5 us faster than from memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnbench.core import stats
from attnbench.worker.measure.sampling import Timer

if TYPE_CHECKING:
    import torch

MIN_FLUSH = 64 * 2**20  # bytes; also the size for a device with an L2 of unknown size
TURNS = 4
REPEATS = 10  # samples of each read in a turn


class L2Flush:
    """A flush that reads a buffer of twice the size of L2, at least 64 MiB.

    A flush that writes would leave L2 full of lines that must be written back during the next launch
    (test_a_writing_flush_slows_the_next_launch).
    """

    def __init__(self, device: torch.device, l2_bytes: int) -> None:
        import torch

        self.buffer = torch.ones(max(2 * l2_bytes, MIN_FLUSH) // 4, device=device)
        self.total = torch.empty((), device=device)
        self._sum = torch.sum

    def __call__(self) -> None:
        self._sum(self.buffer, dim=0, out=self.total)


def observed_state(timer: Timer, device: torch.device, l2_bytes: int) -> str:
    """Return "cold" or "warm", the state in which `timer` finds operands that were in the cache before its `before`.

    It is also "warm" where reads from L2 and from memory take about the same time. The read takes a third of L2.
    """
    _, read = make_reader(device, l2_bytes)
    read()
    before = timer.before
    states: tuple[Callable[[], Any], ...] = before, read, L2Flush(device, 2 * l2_bytes)
    as_set, cached, flushed = found = [], [], []  # type: tuple[list[float], list[float], list[float]]
    try:
        for _ in range(TURNS):  # in turns, since the clock moves
            for timer.before, values in zip(states, found, strict=True):
                values += _samples(timer, read)
    finally:
        timer.before = before
    differ = stats.percentile(flushed, 25) > stats.percentile(cached, 75)
    middle = (stats.median(cached) + stats.median(flushed)) / 2
    return "cold" if differ and stats.median(as_set) > middle else "warm"


def make_reader(device: torch.device, l2_bytes: int) -> tuple[int, Callable[[], None]]:
    """Return the bytes of a third of L2 and a launch that reads as many. Each launch has its own operand."""
    import torch

    nbytes = max(2**20, min(l2_bytes or MIN_FLUSH, MIN_FLUSH) // 3)
    operand = torch.ones(nbytes // 4, device=device)
    total = torch.empty((), device=device)

    def read() -> None:
        torch.sum(operand, dim=0, out=total)

    return nbytes, read


def _samples(timer: Timer, launch: Callable[[], Any]) -> list[float]:
    values: list[float] = []
    while len(values) < REPEATS:
        values += timer.samples(launch, REPEATS - len(values))
    return values
