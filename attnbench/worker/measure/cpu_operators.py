"""What ran on a CPU: the operators that one call went through, from torch's profiler.

The dtype of a matrix product's operands is part of its name, "aten::bmm<float>", as it is of a GPU kernel's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from attnbench.worker.measure.profiler_session import recorded_events, session

MATRIX_PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm")


class Operator(NamedTuple):
    """One operator, and what it called: its name, and when it began and ended in seconds of the profiler's clock."""

    name: str
    start: float
    end: float


def operator_names(launch: Callable[[], Any]) -> list[str]:
    """Names of torch's operators in one call, in order; what runs outside torch is not seen."""
    return [operator.name for operator in trace_operators(launch)]


def trace_operators(launch: Callable[[], Any]) -> list[Operator]:
    """The same with their times."""
    with session(shapes=True) as profiler:
        launch()
    events = sorted(recorded_events(profiler), key=lambda e: int(e.start_ns()))
    return [Operator(_named(e), e.start_ns() / 1e9, e.end_ns() / 1e9) for e in events if "::" in e.name()]


def _named(event: Any) -> str:
    name = str(event.name())
    dtypes = [d for d in event.dtypes() if d] if name in MATRIX_PRODUCTS else []
    return f"{name}<{dtypes[0]}>" if dtypes else name
