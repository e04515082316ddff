"""The length from which a hybrid's layer of a delta rule takes less time than its layer of softmax attention.

Both layers are of the fastest measured step of a length, each on its fastest backend. A step without delta rules would
have the layer of softmax attention in their place, so the hybrid pays where its own layer takes less time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from attnbench.analysis.models.findings import BOTH, StepTime
from attnbench.core.case import Case
from attnbench.core.formats import percent
from attnbench.core.groups import grouped
from attnbench.core.models import Model
from attnbench.core.sizes import format_size
from attnbench.results.cells import Cell


@dataclass(frozen=True)
class Crossover:
    """The ratios of one kind of steps, by length."""

    kind: str  # of the delta rule
    steps: tuple[StepTime, ...]  # the fastest step of each length, the shortest first
    ratios: tuple[float, ...]  # the time of a layer of softmax attention over the time of a layer of the delta rule
    halves: tuple[float, ...]  # half the 95 % interval of each ratio's logarithm; infinite where it is unknown

    @property
    def lengths(self) -> tuple[int, ...]:
        """The keys of each step's layers of softmax attention."""
        return tuple(step.case.shape.seqlen_k for step in self.steps)

    @property
    def work(self) -> str:
        """The dtype, the pass and the batch of its steps, for a sentence."""
        case = self.steps[0].case
        return f"{case.dtype}, {'decode' if case.is_decode else self.steps[0].direction}, batch {case.shape.batch}"

    @property
    def since(self) -> int | None:
        """The index of the first length from which on the delta rule takes less time at every length, beyond doubt."""
        sure = [math.log(ratio) > half for ratio, half in zip(self.ratios, self.halves, strict=True)]
        after_last_doubt = max((i + 1 for i, one in enumerate(sure) if not one), default=0)
        return after_last_doubt if after_last_doubt < len(sure) else None

    def __str__(self) -> str:
        step, lengths, at = self.steps[-1], [*map(format_size, self.lengths)], self.since
        layer = f"In {self.work} on {step.device} a layer of {self.kind} takes"
        if at is None:
            longer = "longer than" if math.log(self.ratios[-1]) < -self.halves[-1] else "about as long as"
            return f"{layer} {longer} a layer of softmax attention at {lengths[-1]}, the longest measured"
        all_measured = f"at every length measured, {' to '.join(dict.fromkeys((lengths[0], lengths[-1])))}"
        since = f"from a length between {lengths[at - 1]} and {lengths[at]} on" if at else all_measured
        gain = f"{percent(1 / self.ratios[-1])} of its time at {lengths[-1]}"
        return f"{layer} less time than a layer of softmax attention {since}: {gain}"


def crossovers(times: Sequence[StepTime], model: Model) -> list[Crossover]:
    """Return the crossovers of a hybrid, one for each kind of steps without a shared prefix; [] for another model."""
    if not model.is_hybrid:
        return []
    of_passes = [time for time in times if time.direction != BOTH and not time.case.shared_prefix]
    return [_crossover(of) for of in grouped(of_passes, _kind_of_steps).values()]


def _kind_of_steps(time: StepTime) -> tuple[str, Case]:
    """Return a step's device, and its case without lengths."""
    shape = replace(time.case.shape, seqlen_q=min(time.case.shape.seqlen_q, 2), seqlen_k=2)
    return time.device, replace(time.case, shape=shape)


def _crossover(times: Sequence[StepTime]) -> Crossover:
    by_length = sorted(grouped(times, lambda time: time.case.shape.seqlen_k).items())
    steps = tuple(min(of, key=lambda time: time.seconds) for _, of in by_length)
    pairs = [layers_of(step) for step in steps]
    kind, halves = pairs[0][1].case.kind, tuple(_half(*pair) for pair in pairs)
    return Crossover(kind, steps, tuple(map(layer_ratio, steps)), halves)


def layer_ratio(step: StepTime) -> float:
    """Return the time of a layer of softmax attention over the time of a layer of a delta rule in a hybrid's step."""
    full, rule = (cell.value("latency") or math.nan for cell in layers_of(step))
    return full / rule


def layers_of(step: StepTime) -> tuple[Cell, Cell]:
    """Return the cells of a layer of softmax attention and of a delta rule in a hybrid's step."""
    cells = [cell for _, cell in step.parts]
    return next(c for c in cells if not c.case.is_delta), next(c for c in cells if c.case.is_delta)


def _half(full: Cell, rule: Cell) -> float:
    halves = full.half_interval("latency"), rule.half_interval("latency")
    known = [half for half in halves if half is not None]
    return math.hypot(*known, full.between_cards(rule)) if len(known) == 2 else math.inf
