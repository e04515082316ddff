"""What `gate`, `compare` and `report` take for 100,000 records: CPU and wall seconds of each command, whole processes.

On a machine with nothing else to do:

    python tests/unit/speed_of_commands.py results/20261121-141425-default-nvidia-h200.jsonl
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from multiplied import multiply

RECORDS = 100_000
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
        _show("reading the JSON alone", ["-c", READING, files["C"]])
        for command in COMMANDS:
            _show(command, ["-m", "attnbench", *(files.get(word, word) for word in command.split())])


def _show(name: str, arguments: list[str]) -> None:
    before, start = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=False)
    wall, after = time.perf_counter() - start, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    print(f"{name:24} {cpu:6.2f} s of CPU {wall:6.2f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else RECORDS)
