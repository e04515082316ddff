"""A quickly opened session of torch's profiler, through torch.autograd.profiler.profile.

torch.profiler.profile does the same on the device (torch 2.13, torch/profiler/profiler.py). But its first start imports
torch._inductor and torch.distributed, which takes 1.4 s on a CPU at 2.5 GHz, and with acc_events each stop makes a
Python object of every event. The instruments need neither. profile_call.py, where time does not matter, uses
torch.profiler itself.
"""

from __future__ import annotations

from typing import Any


def session(*, cpu: bool = True, cuda: bool = False, memory: bool = False, shapes: bool = False) -> Any:
    """Return a context manager that profiles its block, for `recorded_events` afterwards.

    `cpu` traces the host's calls, `cuda` the device's work, `memory` allocations, `shapes` the dtypes of operands.
    """
    from torch.autograd.profiler import profile

    return profile(
        use_cpu=cpu,
        use_device="cuda" if cuda else None,
        profile_memory=memory,
        record_shapes=shapes,
        use_kineto=True,
    )


def recorded_events(ended: Any) -> list[Any]:
    """Return Kineto's events of an ended session; [] where the profiler is not available."""
    return list(ended.kineto_results.events()) if ended.kineto_results else []
