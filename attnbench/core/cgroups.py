"""The limits of this process's control groups, of version 1 or 2, its own and those above it (Linux).

`cgroup` is the text of /proc/self/cgroup: "0::/path" for version 2, "4:cpu,cpuacct:/path" for version 1. In a container
the path is often that of the host, and the limits stand at the root.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
_LIMIT, _USED = ("memory.max", "memory.limit_in_bytes"), ("memory.current", "memory.usage_in_bytes")
_CACHE = ("inactive_file", "active_file")  # what the kernel gives back at once where memory is wanted


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
    """Return the bytes that the strictest limit leaves, the page cache counted as free; None where there is none."""
    free = []
    for folder in _folders("memory", cgroup, root):
        with contextlib.suppress(ValueError, IndexError):  # "max", or no limit at this level
            limit, used = _first(folder, _LIMIT), _first(folder, _USED)
            free.append(max(0, limit - max(0, used - _page_cache(folder))))
    return min(free, default=None)


def read_text(path: Path) -> str | None:
    """Return the text of a file without white space around it; None where it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _first(folder: Path, names: Sequence[str]) -> int:
    """Return the number in the first of some files that is there. Raises ValueError where none has one."""
    return int(next(filter(None, (read_text(folder / name) for name in names)), ""))


def _page_cache(folder: Path) -> int:
    lines = (line.split() for line in (read_text(folder / "memory.stat") or "").splitlines())
    found = {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}
    return sum(found.get(f"total_{name}", found.get(name, 0)) for name in _CACHE)  # version 1 has both


def _folders(controller: str, cgroup: str | None, root: Path) -> Iterator[Path]:
    """Yield the folders of the control groups with a controller, the process's own and those above it."""
    for line in (read_text(OWN) or "" if cgroup is None else cgroup).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        base, inside = root / controller if controllers else root, Path(path.lstrip("/"))
        yield from (base / inside, *(base / parent for parent in inside.parents))
