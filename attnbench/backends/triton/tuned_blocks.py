"""Find block sizes by timing on this machine, for GPUs without a measured row in block_sizes.py.

The first call that needs a choice makes it: a few candidates are compiled and timed on the tensors of the call, so the
search is part of the call's time. It ends after BUDGET_S seconds, or with the compilation that is then under way.
Choices are kept in a JSON file, by architecture, Triton version, kernel, head dims, dtype, mask, and whether tensor
descriptors can be made; delete it after a change of clocks or driver. A file that cannot be read counts as empty; where
it cannot be written, the next process searches again. ATTNBENCH_TUNE=0 switches the search off, and the first candidate
is taken. The same holds while a CUDA graph is captured, if there is no choice yet.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from attnbench.core.files import below_home, read_plain, write_whole

BUDGET_S = 20.0  # seconds of one search
FORMAT = 3  # version of the file, raised also when the kernels' layouts change; files of other versions are not read

Sizes = TypeVar("Sizes", bound=tuple[Any, ...])  # a tuple of block sizes, such as Blocks


def cache_file() -> Path:
    """Return the file of this user's choices, in ATTNBENCH_CACHE_DIR or else in the user's cache folder.

    For a user without a home folder it is None, and no choice is kept.
    """
    folder = os.environ.get("ATTNBENCH_CACHE_DIR")
    if folder:
        return Path(folder) / "triton-blocks.json"
    root = os.environ.get("XDG_CACHE_HOME")
    cache = Path(root) if root else below_home(".cache")
    return cache / "attnbench" / "triton-blocks.json" if cache else Path(os.devnull)


def search_enabled() -> bool:
    """Return whether candidates may be timed, which ATTNBENCH_TUNE=0 forbids."""
    return os.environ.get("ATTNBENCH_TUNE", "1") != "0"


def read_choices(path: Path) -> dict[str, dict[str, Any]]:
    """Return the choices in a file by key; {} where the file is missing, damaged or of another format."""
    try:
        data = json.loads(read_plain(path))
        choices = data["choices"] if data["format"] == FORMAT else {}
        return {key: entry for key, entry in choices.items() if isinstance(entry["blocks"], list)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def save_choice(path: Path, key: str, blocks: Iterable[Any], seconds: dict[str, float]) -> None:
    """Add a choice to the file, where it can be written. The file is replaced as a whole."""
    choices = read_choices(path) | {key: {"blocks": list(blocks), "seconds": seconds}}
    with contextlib.suppress(OSError):
        write_whole(path, json.dumps({"format": FORMAT, "choices": choices}, indent=1, sort_keys=True).encode())


def search(
    candidates: Sequence[Sizes],
    time_one: Callable[[Sizes], float],
    *,
    budget_s: float = BUDGET_S,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Sizes, dict[str, float]]:
    """Return the fastest candidate, and the seconds of one run of each that was timed, by `sizes_name`.

    A candidate that raises (out of memory, a compiler's error) is left out. If all do, the first is returned.
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
    return best, {sizes_name(c): seconds for c, seconds in taken.items()}


def sizes_name(sizes: Iterable[int]) -> str:
    """Return block sizes as text, such as "64x128x4x3"."""
    return "x".join(str(int(n)) for n in sizes)
