"""The three sentences of a comparison, each number computed again from the lines of the run files by other means."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest

from attnbench.analysis.compare.answer import answer
from attnbench.analysis.compare.compare import compare
from attnbench.results import run_file

RESULTS = Path(__file__).parents[2] / "results"
REAL = [RESULTS / f"20261121-{time}-default-nvidia-h200.jsonl.gz" for time in ("141028", "141425")]
WATTS = {"h200": (646.0, 654.0), "h100": (603.0, 597.0)}  # of the two rounds
MEAN_WATTS = {name: fmean(rounds) for name, rounds in WATTS.items()}
UNITS = {"h200": 0.0098, "h100": 0.0067}  # what units of a model differ by: results/spreads.json
PRICES = {"h200": 32000 / (4 * 365.25 * 24), "h100": 2.0}  # of an hour, without power
KWH, PUE = 0.2, 1.3


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Two rounds of an H200, and of another machine that is slower, the more so backward, and lacks sdpa-cudnn.

    The lines are real; of the long cases, with figures without pauses added.
    """
    folder = tmp_path_factory.mktemp("runs")
    made: dict[str, list[Path]] = {"h200": [], "h100": []}
    for number, real in enumerate(REAL):
        header, *lines = gzip.decompress(real.read_bytes()).splitlines()
        for name in made:
            run = json.loads(header)
            if name == "h100":
                device = run["environment"]["device"]
                device |= {"name": "NVIDIA H100 80GB HBM3", "uuid": "other", "memory": 85_000_000_000}
            records = [record for line in lines if (record := _other(json.loads(line), name, number))]
            file = folder / f"{name}-{number}.jsonl"
            file.write_text("\n".join(map(json.dumps, [run, *records])) + "\n")
            made[name].append(file)
    return made


def _other(record: dict[str, Any], name: str, number: int) -> dict[str, Any] | None:
    """Return a record as another machine would have it; None where that has none."""
    lacks = name == "h100" and record["backend"] == "sdpa-cudnn"
    if record["case"]["shape"]["seqlen_k"] < 8192 or lacks or record["status"] != "ok":
        return None
    taken = record["measurements"]
    slower = 1.0 if name == "h200" else 1.2 if record["case"]["direction"] == "bwd" else 1.05
    taken["time"]["values"] = [seconds * slower for seconds in taken["time"]["values"]]
    long = [seconds * 1.15 for seconds in taken["time"]["values"]]
    taken["sustained"] = {"unit": "s", "values": long}
    taken["sustained_power"] = {"unit": "W", "values": [WATTS[name][number]]}
    taken["sustained_power_error"] = {"unit": "", "values": [0.003]}
    return record


# ---- By hand.

Cells = dict[tuple[str, str], list[float]]  # (the case as JSON, backend) -> seconds, or joules, of each round


def read(files: list[Path], pace: str) -> Cells:
    found: Cells = {}
    for file in files:
        for line in file.read_text().splitlines()[1:]:
            record = json.loads(line)
            key = json.dumps(record["case"], sort_keys=True), record["backend"]
            values = {name: taken.get("values") for name, taken in record["measurements"].items()}
            one = median(values["time"]) if pace == "time" else fmean(values["sustained"])
            found.setdefault(key, []).append(one * values["sustained_power"][0] if pace == "joules" else one)
    return found


def teraflop(case: str) -> float:
    """FLOPs of unmasked pairs: 2 (d + d) forward and 2 (3 d + 2 d) backward each."""
    of = json.loads(case)
    n, d = of["shape"]["seqlen_k"], of["shape"]["headdim"]
    pairs = n * (n + 1) // 2 if of.get("causal") else n * n
    return of["shape"]["batch"] * of["shape"]["nheads"] * pairs * d * (4 if of["direction"] == "fwd" else 10) / 1e12


def geomean(values: list[float]) -> float:
    return math.exp(fmean(map(math.log, values)))


def fastest(cells: Cells, among: set[tuple[str, str]]) -> dict[str, tuple[str, str]]:
    best: dict[str, tuple[str, str]] = {}
    for key in among & cells.keys():
        if key[0] not in best or median(cells[key]) < median(cells[best[key[0]]]):
            best[key[0]] = key
    return best


def half_interval(cells: Cells, chosen: list[tuple[str, str]], name: str) -> float:
    """Half the 95 % interval of the mean of log latencies or energies, from two rounds, and what one unit adds."""
    moves = [sum(math.log(cells[key][r] / geomean(cells[key])) / 2 / len(chosen) for key in chosen) for r in (0, 1)]
    rounds = 12.706 * math.sqrt(2 * sum(move**2 for move in moves))  # Student's t with one degree of freedom
    return math.hypot(rounds, 1.96 * UNITS[name])


def numbers(sentence: str) -> Iterator[float]:
    for text in re.findall(r"(?<![\w-])[$]?(\d[\d,]*\.?\d*)", sentence):
        yield float(text.replace(",", ""))


def kind(case: str) -> tuple[Any, ...]:
    of = json.loads(case)
    return of["shape"]["headdim"], of.get("causal", False), of["direction"]


class ByHand:
    """Figures over all cases, with backends that both have or else each its own fastest."""

    def __init__(self, files: dict[str, list[Path]], pace: str, own: bool = False) -> None:
        cells = {name: read(of, pace) for name, of in files.items()}
        both = cells["h200"].keys() & cells["h100"].keys()
        self.best = {name: fastest(of, {*of} if own else both) for name, of in cells.items()}
        self.cases = sorted(self.best["h200"])
        self.seconds = {name: {c: median(cells[name][of[c]]) for c in self.cases} for name, of in self.best.items()}
        self.ratio = self.of(self.cases)
        half = math.hypot(*(half_interval(cells[n], [self.best[n][c] for c in self.cases], n) for n in cells))
        self.three = [self.ratio, self.ratio * math.exp(-half), self.ratio * math.exp(half)]  # with its interval
        self.tflops = {n: geomean([teraflop(c) / of[c] for c in self.cases]) for n, of in self.seconds.items()}

        if pace == "sustained":
            joules = {name: read(of, "joules") for name, of in files.items()}
            half = math.hypot(*(half_interval(joules[n], [self.best[n][c] for c in self.cases], n) for n in joules))
            per_watt = self.ratio * MEAN_WATTS["h200"] / MEAN_WATTS["h100"]
            self.per_watt = [per_watt, per_watt * math.exp(-half), per_watt * math.exp(half)]

    def of(self, cases: list[str]) -> float:
        return geomean([self.seconds["h200"][case] / self.seconds["h100"][case] for case in cases])


def test_each_number_of_the_answer_recomputes(files: dict[str, list[Path]]) -> None:
    paths = [*files["h200"], *files["h100"]]
    runs = [run_file.read(path)[0] for path in paths]
    prices = ("h200=32000/4y", "h100=2.00/h")
    compared = compare(paths, runs, prices=prices, energy_price=KWH, pue=PUE)
    speed, money, longest = (said.replace("H100 80GB HBM3", "B").replace("H200", "A") for said in answer(compared))

    shared, own = ByHand(files, "sustained"), ByHand(files, "sustained", own=True)
    kinds = [shared.of([case for case in shared.cases if kind(case) == one]) for one in {*map(kind, shared.cases)}]
    lost = sum(backend == "sdpa-cudnn" for _, backend in own.best["h200"].values())
    expected = [*shared.three, len(shared.cases), min(kinds), max(kinds), *own.three, lost]
    expected += [*ByHand(files, "time").three, len(shared.cases)]
    assert [*numbers(speed)] == pytest.approx(expected, rel=6e-3)
    assert "; B has no figure of sdpa-cudnn (the fastest in " in speed

    cost = {"h200": PRICES["h200"] + MEAN_WATTS["h200"] / 1000 * KWH * PUE, "h100": PRICES["h100"]}
    expected = []
    for of in (shared, own):
        expected += [number * cost["h200"] / cost["h100"] for number in of.three]
        expected += [of.tflops[name] * 3600 / cost[name] / 1000 for name in ("h100", "h200")]
    expected += [*(number * cost["h200"] for number in shared.three), 32000, 4]
    expected += [*shared.per_watt, *(shared.tflops[name] / MEAN_WATTS[name] for name in ("h100", "h200"))]
    assert [*numbers(money)] == pytest.approx(expected, rel=6e-3)

    assert longest == "Longest context: all that was tried fits on each, up to 64k."
