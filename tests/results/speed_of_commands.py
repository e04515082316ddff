"""Print how long commands take: wall and CPU seconds of whole processes, each the median of five, the least beside it.

On a machine with nothing else to do; `taskset -c 0,1` before it leaves the commands two cores:

    python tests/results/speed_of_commands.py
    python tests/results/speed_of_commands.py --large    # 100,000 records too, for which no time is promised
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from multiplied import measure_again, multiply

TIMES = 5
RESULTS = Path(__file__).parents[2] / "results"
DEFAULT = RESULTS / "20261121-141425-default-nvidia-h200.jsonl.gz"
LIBRARIES = RESULTS / "20261121-174520-libraries-nvidia-h200.jsonl.gz"  # 720 cells
# (what it is, the command, seconds that it should take at most on two quiet cores)
COMMANDS = (
    ("python -c pass", None, None),
    ("attnbench --help", "--help", 0.25),
    ("report of 720 cells", "report LIBRARIES", 0.6),
    ("report of 10,000 records", "report TEN_THOUSAND", 2.0),
    ("gate of two runs of 720 cells", "gate LIBRARIES AGAIN", 1.5),
    ("compare of two runs of 720 cells", "compare LIBRARIES AGAIN", None),
    ("report --html of 720 cells", "report --html PAGE LIBRARIES", None),
    ("report -f csv of 10,000 records", "report -f csv TEN_THOUSAND", None),
)
LARGE = (("report of 100,000 records", "report HUNDRED_THOUSAND", None),)


def main(large: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = {"LIBRARIES": LIBRARIES, "PAGE": Path(folder) / "page.html"}
        files |= {name: Path(folder) / f"{name}.jsonl" for name in ("AGAIN", "TEN_THOUSAND", "HUNDRED_THOUSAND")}
        measure_again(LIBRARIES, files["AGAIN"], seed=1)
        multiply(DEFAULT, files["TEN_THOUSAND"], 10_000)
        if large:
            multiply(DEFAULT, files["HUNDRED_THOUSAND"], 100_000)
        print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}; wall seconds, CPU seconds")
        for name, command, target in (*COMMANDS, *(LARGE if large else ())):
            words = ["-c", "pass"] if command is None else ["-m", "attnbench", *command.split()]
            _show(name, [str(files.get(word, word)) for word in words], target)


def _show(name: str, arguments: Sequence[str], target: float | None) -> None:
    try:
        found = [_seconds(arguments) for _ in range(TIMES)]
    except subprocess.CalledProcessError as error:
        print(f"{name:34} failed: {error.stderr.splitlines()[-1]}", flush=True)
        return
    wall, cpu = (f"{statistics.median(each):.2f} ({min(each):.2f})" for each in zip(*found, strict=True))
    print(f"{name:34} {wall:16} {cpu:16} {f'at most {target:.2f}' if target else ''}".rstrip(), flush=True)


def _seconds(arguments: Sequence[str]) -> tuple[float, float]:
    """Return the wall and CPU seconds of a Python process. Raises CalledProcessError where it failed."""
    before, start = os.times(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    wall, after = time.perf_counter() - start, os.times()
    if "Traceback" in done.stderr or done.returncode not in ((0, 1, 3) if "gate" in arguments else (0,)):
        raise subprocess.CalledProcessError(done.returncode, arguments, stderr=done.stderr)
    return wall, after.children_user + after.children_system - before.children_user - before.children_system


if __name__ == "__main__":
    main("--large" in sys.argv[1:])
