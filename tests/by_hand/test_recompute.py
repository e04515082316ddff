"""What attnbench prints of some run files, recomputed without it: recompute.py alone does it for more."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from by_hand import device, ranking, recompute
from by_hand.audit import Audit
from by_hand.comparison import Price, Scenario

WATTS = {"h200": (646.0, 654.0), "h100": (603.0, 597.0)}  # of two rounds
ROUNDS = ("20261121-141028-default-nvidia-h200", "20261121-141425-default-nvidia-h200")


@pytest.mark.parametrize("name", ["20261123-141732-sustained-nvidia-h200", "20261125-145417-default-nvidia-h200"])
def test_charts_and_recommendation(name: str) -> None:
    audit = Audit()
    recompute.check_file(audit, recompute.path_of(name))
    assert audit.compared
    assert not audit.differing


@pytest.mark.parametrize("of", ["several-gpus", "serving"])
def test_comparison(of: str) -> None:
    (scenario,) = [scenario for scenario in recompute.SCENARIOS if f"-{of}-" in scenario.files[0]]
    audit = Audit()
    recompute.check_comparison(audit, scenario)
    assert audit.compared
    assert not audit.differing


def test_a_figure_that_is_off_by_little_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device.PROCESSES, "NVIDIA H200", 0.003401)
    audit = Audit()
    ranking.check(audit, recompute.path_of("20261123-141732-sustained-nvidia-h200"))
    assert {line.split(": ")[2] for line in audit.differing} == {"ci"}


def test_comparison_of_rounds_without_pauses(tmp_path: Path) -> None:
    """Two rounds of an H200, and of another machine that is slower, the more so backward, and lacks sdpa-cudnn."""
    files: dict[str, list[str]] = {machine: [] for machine in WATTS}
    for number, name in enumerate(ROUNDS):
        head, *lines = gzip.decompress(recompute.path_of(name).read_bytes()).splitlines()
        for machine in WATTS:
            run = json.loads(head)
            if machine == "h100":
                other = {"name": "NVIDIA H100 80GB HBM3", "uuid": "other", "memory": 85_000_000_000}
                run["environment"]["device"] |= other
            records = [record for line in lines if (record := _of(json.loads(line), machine, number))]
            file = tmp_path / f"{machine}-{number}.jsonl"
            file.write_text("\n".join(map(json.dumps, [run, *records])) + "\n")
            files[machine].append(str(file))
    prices = {"H200": Price(32000, 4 * recompute.YEARS, bought=True), "H100": Price(2)}
    options = ("--price", "h200=32000/4y", "--price", "h100=2/h", "--energy-price", "0.2", "--pue", "1.3")
    audit = Audit()
    recompute.check_comparison(audit, Scenario((*files["h200"], *files["h100"]), options, prices, 0.2 * 1.3))
    assert audit.compared["numbers of the answer"] > 15
    assert not audit.differing


def _of(record: dict[str, Any], machine: str, number: int) -> dict[str, Any] | None:
    """Return a record as a machine would have it, with figures without pauses; None where it has none."""
    lacks = machine == "h100" and record["backend"] == "sdpa-cudnn"
    if record["case"]["shape"]["seqlen_k"] < 8192 or lacks or record["status"] != "ok":
        return None
    taken = record["measurements"]
    slower = 1.0 if machine == "h200" else 1.2 if record["case"]["direction"] == "bwd" else 1.05
    taken["time"]["values"] = [seconds * slower for seconds in taken["time"]["values"]]
    taken["sustained"] = {"unit": "s", "values": [seconds * 1.15 for seconds in taken["time"]["values"]]}
    taken["sustained_power"] = {"unit": "W", "values": [WATTS[machine][number]]}
    taken["sustained_power_error"] = {"unit": "", "values": [0.003]}
    return record
