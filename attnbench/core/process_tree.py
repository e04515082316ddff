"""The processes that a process has started, and their end, by Linux's /proc. Elsewhere only a group can be ended."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

ENDED = "ZX"  # states in /proc of a process that has ended and waits for its parent to notice
STILL = "TtD"  # states of a process that starts no other: stopped, or within a call of the system
TO_STOP = 5.0  # seconds in which all are stopped, before they are killed in any case
PAUSE = 0.002  # seconds between two looks at processes that are about to stop or end


def family(pid: int) -> dict[int, str]:
    """Return a process, its group and all that they have started, as id -> state in /proc; without ended ones."""
    state: dict[int, str] = {}
    of_parent: dict[int, list[int]] = {}
    found = [pid]
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            now, parent, group = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:3]
            one = int(stat.parent.name)
            state[one] = now
            of_parent.setdefault(int(parent), []).append(one)
            if int(group) == pid != one:
                found.append(one)
    for one in found:
        found += (child for child in of_parent.get(one, ()) if child not in found)
    return {one: state[one] for one in found if state.get(one, "X") not in ENDED}


def kill_all(pid: int, seconds: float = 10.0) -> list[int]:
    """End a process, its group and all that they have started; return those that still live after `seconds`.

    A process behind fences (worker/fence.py) leads a group that none of its processes can leave, also where its parent
    has ended. The system ends a group at once, whatever their number and however fast they start others. Processes
    without fences may be in other groups. So all are stopped first, until two looks in turn find none that runs: a
    stopped process starts no other, and its children stay its children. Then all are killed.

    Call it before waiting for `pid`, also where that process has ended and what it started may not have.
    """
    ends = time.monotonic() + seconds
    _send_to_group(pid, signal.SIGSTOP)
    stopped: set[int] = set()
    clean = 0
    while clean < 2 and time.monotonic() < ends - seconds + TO_STOP:
        rest = [one for one, state in family(pid).items() if state not in STILL or one not in stopped]
        for one in rest:
            _send(one, signal.SIGSTOP)
        stopped.update(rest)
        clean = 0 if rest else clean + 1
        if rest:
            time.sleep(PAUSE)
    _send_to_group(pid, signal.SIGKILL)
    for one in stopped:
        _send(one, signal.SIGKILL)
    while (left := [one for one in stopped if _lives(one)]) and time.monotonic() < ends:
        time.sleep(PAUSE)
    return left


def _lives(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ENDED


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _send_to_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
