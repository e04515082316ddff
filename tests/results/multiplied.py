"""Run files of any size, for tests of speed: the records of a real H200 run, multiplied over cases and rounds.

A multiplied record keeps all that its original holds; its case gets another dtype, batch, number of key heads or
window, and its times are scaled by the noise between rounds of an H200 (h200_noise.py has more of it), in the same
digits.

    python tests/results/multiplied.py results/20261121-141425-default-nvidia-h200.jsonl out.jsonl 100000
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DTYPES = ("bf16", "fp16")
BATCHES = (1, 2, 4)
GROUPS = (1, 2, 4, 8)  # query heads to a key head
WINDOWS = (None, (1023, 0), (255, 0))
ROUNDS = 5
NOISE = 0.002  # of a round, relative


def multiply(source: Path, target: Path, records: int, *, rounds: int = ROUNDS, seed: int = 0) -> None:
    """Writes a run file with so many records, a plan that fits them, and the source's environment.

    The source has no windows or grouped heads of its own.
    """
    header, *originals = (json.loads(line) for line in source.read_bytes().splitlines())
    made = list(itertools.islice(_records(originals, rounds, seed), records))
    header["plan"] = [{k: r[k] for k in ("case", "backend", "round", "forecast") if k in r} for r in made]
    with target.open("w") as file:
        for line in (header, *made):
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def _records(originals: list[dict[str, Any]], rounds: int, seed: int) -> Iterator[dict[str, Any]]:
    noise = random.Random(seed)
    variants = list(itertools.product(WINDOWS, GROUPS, BATCHES, DTYPES))
    for window, group, batch, dtype in variants:
        for i in range(rounds):
            for original in originals:
                case = original["case"]
                shape = case["shape"]
                sizes = {"batch": shape["batch"] * batch, "nheads_k": shape["nheads"] // group}
                other = {"shape": {**shape, **sizes}, "dtype": dtype}
                if window:
                    other["window_size"] = window
                factor = noise.gauss(1, NOISE)
                yield {**original, "case": {**case, **other}, "round": i, **_times(original, factor)}


def _times(record: dict[str, Any], factor: float) -> dict[str, Any]:
    if "measurements" not in record:
        return {}
    measurements = dict(record["measurements"])
    for name in ("time", "span", "span_events"):
        if name in measurements:
            found = measurements[name]
            measurements[name] = {**found, "values": [round(v * factor, 9) for v in found["values"]]}
    return {"measurements": measurements}


if __name__ == "__main__":
    multiply(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), seed=int(sys.argv[4]) if sys.argv[4:] else 0)
