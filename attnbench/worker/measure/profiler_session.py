"""A session of torch's profiler, without what torch.profiler.profile puts around it.

That runs torch.autograd.profiler.profile, and does nothing else on the device (torch 2.13, torch/profiler/profiler.py).
But its first start imports torch._inductor and torch.distributed, which takes 1.4 s on a CPU at 2.5 GHz, and with
acc_events each stop makes an object of every event. Nothing here needs either. (`attnbench profile`, which is in no
hurry, uses torch.profiler itself.)
"""

from __future__ import annotations

from typing import Any


def session(*, cpu: bool = True, cuda: bool = False, memory: bool = False, shapes: bool = False) -> Any:
    """A context for `recorded`; what is traced: the host's calls, the device's work, allocations, operands' dtypes."""
    from torch.autograd.profiler import profile

    return profile(
        use_cpu=cpu,
        use_device="cuda" if cuda else None,
        profile_memory=memory,
        record_shapes=shapes,
        use_kineto=True,
    )


def recorded_events(ended: Any) -> list[Any]:
    """Kineto's events of a session; none where the profiler is not to be had."""
    return list(ended.kineto_results.events()) if ended.kineto_results else []
