"""A cap on the memory that one job on a CPU may add to its worker, so that a kernel which takes all memory fails.

The limit is Linux's RLIMIT_DATA: writable private memory, as VmData in /proc counts it. Address space that torch only
reserves does not count, and a process that a kernel starts has the same limit. Beyond it an allocation fails, and torch
or Python raises an error; other processes are not slowed, and the worker continues.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from attnbench.core import cgroups
from attnbench.core.sizes import format_bytes
from attnbench.worker.measure.memory import status_bytes

SHARE = 0.9  # share of the free memory; the rest is for the machine's other work


class Cap(NamedTuple):
    """The bytes that a job may add to its worker's memory, and the cause of that limit, as a noun."""

    nbytes: int
    limit: str

    def __str__(self) -> str:
        return f"{format_bytes(self.nbytes)}, {self.limit}"


def cap_of_a_job(memory: int | None = None, ranks: int = 1) -> Cap | None:
    """Return the cap of the next job, by the tightest limit in force; None where no limit is known.

    With `memory` a job may take at most so many bytes. The job is one of `ranks`, which share the free memory.
    """
    caps = [] if memory is None else [Cap(memory, "the memory that was asked for")]
    for free, what in (
        (cgroups.machine_free(), "the memory that was free"),
        (cgroups.free_memory(), "the rest of the memory limit of the control group (cgroup)"),
    ):
        if free is not None:
            caps.append(Cap(int(SHARE * free) // ranks, f"{SHARE:.0%} of {what}"))
    for resource_name, counted, option in (("RLIMIT_DATA", "VmData", "-d"), ("RLIMIT_AS", "VmSize", "-v")):
        if (left := _left_of(resource_name, counted)) is not None:
            caps.append(Cap(left, f"the rest of the limit by `ulimit {option}`"))
    return min(caps, default=None)


def _left_of(resource_name: str, counted: str) -> int | None:
    """Return the bytes that a limit of this process leaves, by a field of /proc; None without a limit."""
    used = status_bytes(counted)
    if used is None:  # no Linux
        return None
    import resource

    soft, _ = resource.getrlimit(getattr(resource, resource_name))
    return None if soft == resource.RLIM_INFINITY else max(0, soft - used)


def held_bytes() -> int | None:
    """Return the bytes of writable private memory of this process (Linux); None where unknown."""
    return status_bytes("VmData")


@contextmanager
def capped(most: int | None, held: int | None = None) -> Iterator[None]:
    """Let this process, and each that it starts, take at most `most` further bytes; None, or no Linux: no limit.

    The bytes are counted from its present memory, or from `held` bytes, where an earlier job's memory may not yet be
    given back.
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
