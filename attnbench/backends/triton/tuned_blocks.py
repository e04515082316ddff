"""Block sizes that were found by timing on this machine: where block_sizes.py has no measured row for a GPU.

    python -m attnbench.backends.triton.tuned_blocks            print what was found, and where it is kept
    python -m attnbench.backends.triton.tuned_blocks --clear    forget it, as after a change of clocks or driver

A choice is made at the first call that needs it: each of a few candidates is compiled and timed on that call's own
tensors, so the search counts as that call's time. It stops at BUDGET_S; a candidate already begun is finished, since
a compilation cannot be interrupted. Choices are kept in a JSON file, by architecture, Triton version, kernel,
headdims, dtype and mask. A file that cannot be read counts as empty, one that cannot be written only costs the next
process its search. ATTNBENCH_TUNE=0 switches the search off: the first candidate is then taken, as it is by all where
the file was not yet written.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

BUDGET_S = 20.0
FORMAT = 2  # of the file, and of the kernels' layouts that its times are of; another one is not read

Sizes = tuple[Any, ...]  # the fields of a Blocks


def cache_file() -> Path:
    """Where the choices of this user are kept: ATTNBENCH_CACHE_DIR, else the system's place for caches."""
    folder = os.environ.get("ATTNBENCH_CACHE_DIR")
    if folder:
        return Path(folder) / "triton-blocks.json"
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "attnbench" / "triton-blocks.json"


def wanted() -> bool:
    return os.environ.get("ATTNBENCH_TUNE", "1") != "0"


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The choices in a file by key; none where it is missing, damaged or of another format."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        choices = said["choices"] if said["format"] == FORMAT else {}
        return {key: entry for key, entry in choices.items() if isinstance(entry["blocks"], list)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def keep(path: Path, key: str, blocks: Iterable[Any], seconds: dict[str, float]) -> bool:
    """Add a choice to the file, whole or not at all; False where it cannot be written."""
    choices = read(path) | {key: {"blocks": list(blocks), "seconds": seconds}}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"format": FORMAT, "choices": choices}, file, indent=1, sort_keys=True)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError:
        return False
    return True


def search(
    candidates: list[Sizes],
    time_one: Callable[[Sizes], float],
    *,
    budget_s: float = BUDGET_S,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Sizes, dict[str, float]]:
    """(the fastest candidate, the seconds of one run of each that was tried).

    A candidate that fails (no memory for it, a compiler's error) is passed over; with none left it is the first.
    """
    begin = clock()
    taken: dict[Sizes, float] = {}
    for candidate in candidates:
        if taken and clock() - begin > budget_s:
            break
        try:
            taken[candidate] = time_one(candidate)
        except Exception:
            continue
    best = min(taken, key=lambda c: taken[c]) if taken else candidates[0]
    return best, {name(c): seconds for c, seconds in taken.items()}


def name(sizes: Sizes) -> str:
    return "x".join(str(int(n)) if isinstance(n, (bool, int)) else "-" for n in sizes)


def main(arguments: list[str]) -> int:
    path = cache_file()
    if arguments == ["--clear"]:
        path.unlink(missing_ok=True)
        print(f"forgotten: {path}")
        return 0
    if arguments:
        print(__doc__.split("\n\n")[1])
        return 2
    choices = read(path)
    print(f"{path}: {len(choices)} choices found by timing on this machine")
    for key, entry in sorted(choices.items()):
        tried = ", ".join(
            f"{c} {1e6 * s:.0f} us" for c, s in sorted(entry.get("seconds", {}).items(), key=lambda x: x[1])
        )
        print(f"{key}: BLOCK_M x BLOCK_N x warps x stages {name(tuple(entry['blocks'][:4]))}; tried {tried}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
