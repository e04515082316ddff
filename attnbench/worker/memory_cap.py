"""A cap on what one job on a CPU may add to its worker's memory, so that a kernel that takes all fails by itself.

The limit is Linux's RLIMIT_DATA: writable private memory, as VmData in /proc counts it. Address space that torch only
reserves does not count, and a process that a kernel starts has the same limit. Beyond it an allocation fails, and torch
or Python raise; other processes are not slowed, and the worker lives.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from attnbench.core.record import Job
from attnbench.worker.environment import host_free
from attnbench.worker.measure.memory import status_bytes

ROOM = 2 * 2**30  # bytes beside what the plan forecast: what checks take, code that is compiled
THREAD = 2**24  # bytes of the stack and the buffers of one more thread
SCORES = 6  # score matrices in fp32 that the plainest kernel keeps; the plan knows of none in a person's own kernel
SHARE = 0.9  # of the memory that is free now: the rest of the machine must go on


def most_bytes(job: Job) -> int | None:
    """Return how many bytes a job may take beside what its worker holds already; None where that cannot be known."""
    free = host_free()
    if free is None:
        return None
    s = job.case.extent
    scores = 4 * s.batch * s.nheads * s.seqlen_q * s.seqlen_k
    threads = THREAD * (os.cpu_count() or 1)
    return min(ROOM + threads + 2 * job.forecast.nbytes + SCORES * scores, int(SHARE * free))


def most_bytes_to_fit(memory: int | None, ranks: int = 1) -> int | None:
    """Return how many bytes a job may take that looks for the limit of memory, or of `memory` bytes of it.

    It is of one of so many `ranks`, which share what is free.
    """
    free = host_free()
    if free is None:
        return memory
    return min(int(SHARE * free) // ranks, memory or free)


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
