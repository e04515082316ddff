"""A cap on what one job on a CPU may add to its worker's memory, so that a kernel that takes all fails by itself.

The limit is Linux's RLIMIT_DATA: writable private memory, as VmData in /proc counts it. Address space that torch only
reserves does not count, and a process that a kernel starts has the same limit. Beyond it an allocation fails, and torch
or Python raise; other processes are not slowed, and the worker lives.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from attnbench.core import cgroups
from attnbench.core.sizes import format_bytes
from attnbench.worker.measure.memory import status_bytes

SHARE = 0.9  # of the memory that is free now: the rest of the machine must go on


class Cap(NamedTuple):
    """How many bytes a job may take beside what its worker holds already, and what sets that limit, as a noun."""

    nbytes: int
    limit: str

    def __str__(self) -> str:
        return f"{format_bytes(self.nbytes)}, {self.limit}"


def cap_of_a_job(memory: int | None = None, ranks: int = 1) -> Cap | None:
    """Return the cap of the next job, by the tightest limit in force; None where no limit is known.

    With `memory` a job may take at most so many bytes. It is of one of so many `ranks`, which share what is free.
    """
    caps = [] if memory is None else [Cap(memory, "the memory that was asked for")]
    for free, what in (
        (cgroups.machine_free(), "the memory that was free"),
        (cgroups.free_memory(), "what the memory limit of the control group (cgroup) left"),
    ):
        if free is not None:
            caps.append(Cap(int(SHARE * free) // ranks, f"{SHARE:.0%} of {what}"))
    for resource_name, counted, option in (("RLIMIT_DATA", "VmData", "-d"), ("RLIMIT_AS", "VmSize", "-v")):
        if (left := _left_of(resource_name, counted)) is not None:
            caps.append(Cap(left, f"the rest of the limit by `ulimit {option}`"))
    return min(caps, default=None)


def _left_of(resource_name: str, counted: str) -> int | None:
    """Return the bytes that a limit of this process leaves, of what a field of /proc counts; None without a limit."""
    used = status_bytes(counted)
    if used is None:  # no Linux
        return None
    import resource

    soft, _ = resource.getrlimit(getattr(resource, resource_name))
    return None if soft == resource.RLIM_INFINITY else max(0, soft - used)


def held_bytes() -> int | None:
    """Return the bytes of writable private memory of this process; None where Linux does not tell."""
    return status_bytes("VmData")


@contextmanager
def capped(most: int | None, held: int | None = None) -> Iterator[None]:
    """Let this process, and each that it starts, take at most so many bytes more; None, and no Linux: no limit.

    More than it holds now, or than `held` bytes, where what an earlier job took may not be given back yet.
    """
    held = held or held_bytes()
    if most is None or held is None:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = held + most
    resource.setrlimit(resource.RLIMIT_DATA, (limit if soft == resource.RLIM_INFINITY else min(limit, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
