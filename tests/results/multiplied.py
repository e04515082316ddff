"""Run files of any size, for measurements of speed: the records of a real H200 run, multiplied or measured again.

A multiplied record keeps all that its original holds; its case gets another dtype, batch, number of key heads or
window, and its times are scaled by the noise between rounds of an H200 (tests/statistics/h200_noise.py has more of it).

    python tests/results/multiplied.py results/20261121-141425-default-nvidia-h200.jsonl.gz out.jsonl 100000
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from attnbench.results import run_file

DTYPES = ("bf16", "fp16")
BATCHES = (1, 2, 4)
GROUPS = (1, 2, 4, 8)  # query heads to a key head
WINDOWS = (None, (1023, 0), (255, 0))
ROUNDS = 5
NOISE = 0.002  # relative standard deviation of a round


def multiply(source: Path, target: Path, records: int, *, rounds: int = ROUNDS, seed: int = 0) -> None:
    """Write a run file with so many records, a plan that fits them, and the environment of the source.

    The source must have neither windows nor grouped heads, as cases would come twice.
    """
    header, originals = _lines(source)
    made = list(itertools.islice(_records(originals, rounds, seed), records))
    header["plan"] = [{k: r[k] for k in ("case", "backend", "round", "forecast") if k in r} for r in made]
    _write(target, header, made)


def measure_again(source: Path, target: Path, *, seed: int = 0) -> None:
    """Write the run file of the same run with other noise: each record's times are scaled by a factor of its own."""
    header, originals = _lines(source)
    noise = random.Random(seed)
    again = [{**record, **_scaled(record, noise.gauss(1, NOISE))} for record in originals]
    _write(target, {**header, "started": "2026-11-30T12:00:00+00:00"}, again)


def _lines(source: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    header, *records = (json.loads(line) for line in run_file.unpacked(source)[0].splitlines())
    return header, records


def _write(target: Path, header: dict[str, Any], records: Iterable[dict[str, Any]]) -> None:
    with target.open("w") as file:
        for line in (header, *records):
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
                yield {**original, "case": {**case, **other}, "round": i, **_scaled(original, factor)}


def _scaled(record: dict[str, Any], factor: float) -> dict[str, Any]:
    """Return a record's measurements with all times scaled, in nanoseconds as CUDA events give them."""
    if "measurements" not in record:
        return {}
    measurements = dict(record["measurements"])
    for name in ("time", "span", "span_events"):
        if name in measurements:
            found = dict(measurements[name])
            if "values" in found:
                found["values"] = [round(value * factor, 9) for value in found["values"]]
            else:
                found["runs"] = [[round(value * factor, 9), times] for value, times in found["runs"]]
            measurements[name] = found
    return {"measurements": measurements}


if __name__ == "__main__":
    multiply(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), seed=int(sys.argv[4]) if sys.argv[4:] else 0)
