"""What `gate`, `compare` and `report` take for 100,000 records: wall and CPU seconds of each command, whole processes,
the median of seven and the least and the most.

On a machine with nothing else to do; `taskset -c 0,1` before it leaves them two cores:

    python tests/results/speed_of_commands.py results/20261121-141425-default-nvidia-h200.jsonl
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

from multiplied import multiply

RECORDS, TIMES = 100_000, 7
COMMANDS = ("gate A B", "compare A B", "report C", "report -f md C", "report -f csv C", "report -f json C")
READING = """
import mmap, sys, msgspec
with open(sys.argv[1], "rb") as file:
    lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    skip = msgspec.json.Decoder(type("Nothing", (msgspec.Struct,), {})).decode
    while line := lines.readline():
        skip(line)
"""


def main(source: Path, records: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = {name: str(Path(folder) / f"{name}.jsonl") for name in "ABC"}
        for name, share, seed in (("A", 2, 1), ("B", 2, 2), ("C", 1, 1)):
            multiply(source, Path(files[name]), records // share, seed=seed)
        print(f"{records} records, {Path(files['C']).stat().st_size >> 20} MiB; {len(os.sched_getaffinity(0))} cores")
        _show("reading the JSON alone", ["-c", READING, files["C"]])
        for command in COMMANDS:
            _show(command, ["-m", "attnbench", *(files.get(word, word) for word in command.split())])


def _show(name: str, arguments: Sequence[str]) -> None:
    found = [_seconds(arguments) for _ in range(TIMES)]
    walls, cpus = ([*each] for each in zip(*found, strict=True))
    wall = f"{statistics.median(walls):.2f} s ({min(walls):.2f} to {max(walls):.2f})"
    print(f"{name:24} {wall}, {statistics.median(cpus):.2f} s of CPU", flush=True)


def _seconds(arguments: Sequence[str]) -> tuple[float, float]:
    before, start = os.times(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    wall, after = time.perf_counter() - start, os.times()
    assert done.returncode in ((0, 1, 3) if "gate" in arguments else (0,)), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return wall, after.children_user + after.children_system - before.children_user - before.children_system


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else RECORDS)
