"""The operators that ran in one call on a CPU, from torch's profiler. They take the place of a GPU's kernels.

The name of a matrix product gets the dtype of its operands, "aten::bmm<float>", which a GPU kernel's name has too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnbench.core.activity import Activity
from attnbench.worker.measure.profiler_session import recorded_events, session

MATRIX_PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm")


def operator_names(launch: Callable[[], Any]) -> list[str]:
    """Return the names of torch's operators in one call, in order of start. Work outside torch is not seen."""
    return [operator.name for operator in trace_operators(launch)]


def trace_operators(launch: Callable[[], Any]) -> list[Activity]:
    """Return torch's operators in one call, in order of start; their times are the profiler's, callees included.

    Ranges that code marks for the profiler are left out, since such a name says nothing about the work.
    """
    with session(shapes=True) as profiler:
        launch()
    events = sorted(recorded_events(profiler), key=lambda e: int(e.start_ns()))
    return [
        Activity(_named(e), e.start_ns() / 1e9, e.end_ns() / 1e9)
        for e in events
        if "::" in e.name() and not e.is_user_annotation()
    ]


def _named(event: Any) -> str:
    name = str(event.name())
    dtypes = [d for d in event.dtypes() if d] if name in MATRIX_PRODUCTS else []
    return f"{name}<{dtypes[0]}>" if dtypes else name
