"""Refusal of numpy and scipy under a low limit of memory, where their OpenBLAS would end the process or hang."""

from __future__ import annotations

import os
import sys

# Bytes that the imports of numpy and scipy take, by the limit that counts them; bytes for each thread of their two
# OpenBLAS libraries.
TAKES, EACH_THREAD = {"RLIMIT_AS": 200 * 2**20, "RLIMIT_DATA": 80 * 2**20}, 80 * 2**20
MOST_THREADS = 64  # the most threads of an OpenBLAS
LEAST = 16 * 2**20  # bytes of RLIMIT_DATA that every command needs; with less, hashlib prints tracebacks


def refuse_without_memory() -> None:
    """Make imports of numpy and scipy raise MemoryError where a limit is too low for them.

    Raises MemoryError where the limit is too low for any command.
    """
    try:
        import resource
    except ImportError:  # Windows
        return
    if 0 <= resource.getrlimit(resource.RLIMIT_DATA)[0] < LEAST:  # -1: no limit
        raise MemoryError
    if _is_too_little():
        sys.meta_path.insert(0, _Refusal)


class _Refusal:
    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name in ("numpy", "scipy"):
            raise MemoryError


def _is_too_little() -> bool:
    import resource

    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = [os.environ.get(name, "") for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")]
    given = (int(text) for text in asked if text.isdecimal() and len(text) < 5)
    threads = min(cpus, MOST_THREADS, *filter(None, given))
    limits = ((resource.getrlimit(getattr(resource, name))[0], least) for name, least in TAKES.items())
    return any(0 <= limit < least + threads * EACH_THREAD for limit, least in limits)  # -1: no limit
