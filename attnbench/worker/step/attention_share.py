"""The share of attention in one traced step: the kernels launched between its marks.

On a GPU a kernel belongs to the range in which the host launched it, by its correlation id, at whatever time it ran; a
time counts while at least one kernel ran. On a CPU operators take the kernels' place, and a range takes the time
between its marks.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attnbench.core.activity import Activity, busy_seconds
from attnbench.core.backend import Backend, Signature
from attnbench.core.case import Case
from attnbench.core.flops import attention_of
from attnbench.core.machine import Device
from attnbench.core.record import Measurement
from attnbench.worker import kernel_rules
from attnbench.worker.measure.cpu_operators import MATRIX_PRODUCTS
from attnbench.worker.measure.profiler_session import recorded_events, session
from attnbench.worker.step.attention_calls import MARK, marked
from attnbench.worker.timeline import is_on, launch_times, ran_on_device

if TYPE_CHECKING:
    import torch

STEP = f"{MARK}.step"


@dataclass(frozen=True)
class Range:
    """Work between two marks."""

    what: str  # "forward", "backward" or "mask"
    seconds: float
    activities: tuple[Activity, ...]


@dataclass(frozen=True)
class StepTrace:
    """One traced step: its attention by layer and direction, and its busy time."""

    seconds: float  # seconds in which kernels ran
    attention: float  # seconds of attention, with the making of its masks
    ranges: tuple[Range, ...]
    activities: tuple[Activity, ...]

    @property
    def measurements(self) -> dict[str, Measurement]:
        """The measurements for a record."""
        values = {"attention": self.attention, "step_traced": self.seconds}
        return {name: Measurement("s", (value,)) for name, value in values.items()}

    def of(self, what: str) -> list[Range]:
        """Return the ranges of one kind, in the order of their beginnings."""
        return [found for found in self.ranges if found.what == what]


def trace_step(device: torch.device, launch: Callable[[], Any], implementation: str) -> StepTrace:
    """Trace a launch whose attention has marks. Raises ValueError where the trace lacks some."""
    import torch
    from torch.profiler import record_function

    on_gpu = device.type == "cuda"
    with marked(implementation):
        launch()  # compile and load code for the marked functions
        if on_gpu:
            torch.cuda.synchronize()
        with session(cuda=on_gpu, shapes=not on_gpu) as profiler:
            with record_function(STEP):
                launch()
            if on_gpu:
                torch.cuda.synchronize()
    return split(recorded_events(profiler), on_gpu=on_gpu)


def split(events: Sequence[Any], *, on_gpu: bool) -> StepTrace:
    """Return the step from the profiler's events. Raises ValueError where marks do not come in pairs."""
    marks = sorted((e.start_ns(), e.end_ns(), e.name()) for e in events if _is_mark(e) and e.name() != STEP)
    pairs = []
    for (_, begin, first), (end, _, second) in zip(marks[::2], marks[1::2], strict=False):
        what = first.removesuffix(".begin")
        if f"{what}.begin" != first or f"{what}.end" != second:
            raise ValueError(f"the profiler saw {first} before {second}")
        pairs.append((begin, end, what.rpartition(".")[2]))
    if len(marks) % 2:
        raise ValueError(f"the profiler saw {len(marks)} marks, which are not pairs")
    if on_gpu:
        launched = launch_times(events)
        placed = [(launched.get(e.correlation_id(), -1), e) for e in events if ran_on_device(e)]
    else:
        placed = [(e.start_ns(), e) for e in events if "::" in e.name()]
    placed.sort(key=lambda of: (of[0], of[1].start_ns()))
    starts = [at for at, _ in placed]
    ranges = []
    for begin, end, what in pairs:
        inside = [_activity(e) for _, e in placed[bisect.bisect_left(starts, begin) : bisect.bisect_right(starts, end)]]
        seconds = busy_seconds(inside) if on_gpu else (end - begin) / 1e9
        ranges.append(Range(what, seconds, tuple(inside)))
    every = [_activity(e) for _, e in placed]
    whole = [(e.end_ns() - e.start_ns()) / 1e9 for e in events if e.name() == STEP and not is_on(e, "CUDA")]
    total = busy_seconds(every) if on_gpu else sum(whole)
    return StepTrace(total, sum(found.seconds for found in ranges), tuple(ranges), tuple(every))


def wrong_kernels(trace: StepTrace, backend: Backend, case: Case, device: Device) -> str | None:
    """Return the fault of the attention kernels of a step, in one line; None without one.

    Each layer must have run the kernels that the implementation declares, in the forward and in the backward.
    """
    assert case.model_step
    for what in ("forward", "backward") if case.has_backward else ("forward",):
        found, layers = trace.of(what), case.model_step.layers
        if len(found) != layers:
            return f"attention ran {len(found)} times in the {what} of {layers} layers"
        of = replace(attention_of(case, 0), direction="fwd" if what == "forward" else "bwd")
        signature = backend.signature(of, device) if hasattr(backend, "signature") else Signature()
        for number, layer in enumerate(found):
            broken = kernel_rules.find_broken_rule(of, signature, [a.name for a in layer.activities])
            if not broken and device.kind == "cuda":
                broken = kernel_rules.find_low_share(signature, layer.activities)
            if broken:
                return f"{what} {number + 1} of {layers}: {broken}"
    return None


def _is_mark(event: Any) -> bool:
    return not is_on(event, "CUDA") and re.match(rf"{MARK}\.", event.name()) is not None


def _activity(event: Any) -> Activity:
    name = str(event.name())
    dtypes = [d for d in event.dtypes() if d] if name in MATRIX_PRODUCTS else []
    return Activity(f"{name}<{dtypes[0]}>" if dtypes else name, event.start_ns() / 1e9, event.end_ns() / 1e9)
