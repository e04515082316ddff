"""The gain of a faster attention kernel in a step of a model: predicted from the share of attention, and measured.

A step takes L, of which the kernels of attention run for a, and the device waits for the host for w: implementations
that read a number back from the device, or launch many kernels, make it wait. The rest, L - a - w, does not depend on
the implementation of attention, if the prediction holds: with another implementation, of a' and w', the step takes
L - a - w + a' + w'. A kernel that is f times as fast makes the step 1 / (1 - s + s / f) times as fast, s = a / L
(Amdahl, "Validity of the single processor approach", AFIPS 1967).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.core.case import Case
from attnbench.core.groups import grouped
from attnbench.results.cells import Cell

FASTER = 1.5  # the factor of the example in the answer


@dataclass(frozen=True)
class Timed:
    """A measured step of one implementation, times in s."""

    cell: Cell
    latency: float
    attention: float | None  # time in which the kernels of attention ran
    idle: float = 0.0  # time in which the device waited for the host

    @property
    def share(self) -> float | None:
        """The share of the step that is attention."""
        return None if self.attention is None else self.attention / self.latency

    def predicted(self, other: Timed) -> float | None:
        """Return the seconds of this step if it had the attention and idle time of another step."""
        if self.attention is None or other.attention is None:
            return None
        return self.latency - self.attention - self.idle + other.attention + other.idle

    def off(self, other: Timed) -> float | None:
        """Return the error of the prediction of another step, as a share of the measured time of that step."""
        seconds = self.predicted(other)
        return None if seconds is None else seconds / other.latency - 1


def amdahl(share: float, factor: float = FASTER) -> float:
    """Return the speedup of a step if attention, this share of its time, becomes `factor` times as fast."""
    return 1 / (1 - share + share / factor)


def timed_steps(cells: Sequence[Cell]) -> dict[tuple[str, Case], list[Timed]]:
    """Return the measured steps of each device and case, the fastest first."""
    found = [
        Timed(cell, latency, cell.value("attention_time"), cell.value("idle_time") or 0.0)
        for cell in cells
        if cell.case.step and (latency := cell.value("latency"))
    ]
    steps = grouped(found, lambda timed: (timed.cell.device, timed.cell.case))
    return {key: sorted(own, key=lambda timed: timed.latency) for key, own in steps.items()}
