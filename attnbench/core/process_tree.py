"""The processes that a process has started, and their end, by Linux's /proc. Elsewhere no descendant is known."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

ENDED = "ZX"  # states in /proc of a process that has ended and only waits for its parent to notice
STILL = "TtD"  # states of a process that starts no other: stopped, or within a call of the system
TO_STOP = 5.0  # seconds in which all descendants are stopped, before they are killed in any case
PAUSE = 0.002  # seconds between two looks at processes that are about to end


def descendants(pid: int) -> dict[int, str]:
    """Return the processes that a process has started, and those that they have, as id -> state; without ended ones."""
    state: dict[int, str] = {}
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            one = int(stat.parent.name)
            state[one] = fields[0]
            children.setdefault(int(fields[1]), []).append(one)
    found = [pid]
    for one in found:
        found += children.get(one, ())
    return {one: state[one] for one in found[1:] if state[one] not in ENDED}


def kill_all(pid: int, seconds: float = 10.0) -> list[int]:
    """End a process and all that it has started; return those that still live after `seconds`.

    A process that is killed makes room for another, and its children go to another parent. So all are stopped first: a
    stopped process starts no other and stays where it is. Where processes start others all the time, all are stopped
    again until two looks in turn find none that runs. Only then are they killed, the process itself last.

    A process whose parent has ended is found only where `pid` adopts such processes: it is a keeper (worker/fence.py),
    or has called prctl(PR_SET_CHILD_SUBREAPER). Call it before waiting for `pid`, whose number another process could
    have by then; wait for it afterwards.
    """
    _send(pid, signal.SIGSTOP)
    left = kill_descendants(pid, seconds)
    _send(pid, signal.SIGKILL)
    return left


def kill_descendants(pid: int, seconds: float = 10.0) -> list[int]:
    """End all processes that a process has started, but not itself, as `kill_all` does; return those that live on."""
    ends = time.monotonic() + seconds
    _send_to_all(pid, signal.SIGSTOP, STILL, min(ends, time.monotonic() + TO_STOP))
    _send_to_all(pid, signal.SIGKILL, "", ends)
    return [*descendants(pid)]


def _send_to_all(pid: int, number: int, done: str, ends: float) -> None:
    """Send a signal to all descendants until two looks in turn find each in one of the states `done`."""
    sent: set[int] = set()
    clean = 0
    while clean < 2 and time.monotonic() < ends:
        rest = [one for one, state in descendants(pid).items() if state not in done or one not in sent]
        for one in rest:
            _send(one, number)
        sent.update(rest)
        clean = 0 if rest else clean + 1
        if rest:
            time.sleep(PAUSE)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
