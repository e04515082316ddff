"""The memory of the machine, and the limits of this process's control groups, its own and those above it (Linux).

Control groups are of version 1 or 2. `cgroup` is the text of /proc/self/cgroup: "0::/path" for version 2,
"4:cpu,cpuacct:/path" for version 1. In a container the path is often the host's, and the limits are found at the root.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PROC, OWN = Path("/proc"), Path("/proc/self/cgroup")
# memory.high counts as a limit, because a process above it is slowed until it is of no use. In version 1
# hierarchical_memory_limit (in memory.stat) is the strictest limit of all levels, also of levels that a container
# cannot see.
_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes", "hierarchical_memory_limit")
_USED = ("memory.current", "memory.usage_in_bytes")
_CACHE = ("inactive_file", "active_file", "slab_reclaimable")  # memory that the system frees at once when it is needed


def cpu_limit(cgroup: str | None = None, root: Path = ROOT) -> float | None:
    """Return how many CPUs this process may use at once by the strictest quota; None where there is none."""
    limits = []
    for folder in _folders("cpu", cgroup, root):
        words = (read_text(folder / "cpu.max") or "").split()
        words = words or [read_text(folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
        with contextlib.suppress(ValueError, IndexError, ZeroDivisionError):  # "max", or no quota at this level
            if (limit := int(words[0]) / int(words[1])) > 0:
                limits.append(limit)
    return min(limits, default=None)


def free_memory(cgroup: str | None = None, root: Path = ROOT) -> int | None:
    """Return the bytes that the strictest limit leaves, with the page cache as free; None where there is no limit."""
    free = []
    for folder in _folders("memory", cgroup, root):
        known = _memory_numbers(folder)
        limits = [known[name] for name in _LIMITS if name in known]
        used = [known[name] for name in _USED if name in known]
        if limits and used:
            # Version 1 has "total_" names too, which include child groups.
            cache = sum(known.get(f"total_{name}", known.get(name, 0)) for name in _CACHE)
            free.append(max(0, min(limits) - max(0, used[0] - cache)))
    return min(free, default=None)


def machine_free() -> int | None:
    """Return the bytes of the whole machine that are available without swapping (Linux); None if unknown."""
    try:
        lines = dict(line.split(":") for line in (read_text(PROC / "meminfo") or "").splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (KeyError, ValueError, IndexError):
        return None


def read_text(path: Path) -> str | None:
    """Return the text of a file without white space around it; None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _memory_numbers(folder: Path) -> dict[str, int]:
    """Return the numbers in memory.stat and in the files of limits and of use, by name; "max" is left out."""
    lines = (read_text(folder / "memory.stat") or "").splitlines()
    lines += [f"{name} {read_text(folder / name)}" for name in (*_LIMITS, *_USED)]
    found = (line.partition(" ") for line in lines)
    return {name: int(text) for name, _, text in found if text.isdecimal()}


def _folders(controller: str, cgroup: str | None, root: Path) -> Iterator[Path]:
    """Yield the folders of the control groups with a controller, the process's own and those above it."""
    for line in (read_text(OWN) or "" if cgroup is None else cgroup).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        inside = Path(path.lstrip("/"))
        # version 1 is mounted under the joined names of its controllers; most systems add a link for each
        for base in {root / controller, root / controllers} if controllers else {root}:
            yield from (base / inside, *(base / parent for parent in inside.parents))
