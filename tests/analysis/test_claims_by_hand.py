"""Claims of an H100 run and one claim of an H200 run, recomputed from the lines of the files without attnbench."""

from __future__ import annotations

import gzip
import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from attnbench.analysis.claims import claim_file
from attnbench.analysis.claims.findings import Finding, by_gpu, judge
from attnbench.results import run_file
from attnbench.results.cells import cells

FILE = Path(__file__).parents[2] / "results" / "20261124-020208-claims-nvidia-h100.jsonl.gz"
LINES = [json.loads(line) for line in gzip.decompress(FILE.read_bytes()).decode().splitlines()]
RECORDS = [line for line in LINES if line.get("status") == "ok"]
GRID = [(headdim, seqlen, causal) for headdim in (64, 128, 256) for seqlen in (2048, 8192, 16384) for causal in (0, 1)]


@pytest.fixture(scope="module")
def findings() -> dict[tuple[str, str], Finding]:
    """Return the findings by claim and figure."""
    run, _ = run_file.read(FILE)
    found = {flops: by_gpu(cells([run], flops))["H100 SXM"] for flops in ("fa", "exact")}
    judged = [finding for s in claim_file.load() for finding in judge(s, "H100 SXM", found[s.file.flops])]
    return {(finding.setting.claim.id, finding.figure.name): finding for finding in judged}


def record(
    backend: str, headdim: int, seqlen: int, causal: bool, dtype: str = "fp16", way: str = "fwd", **sizes: int
) -> Any:
    """Return the only record of a case, by default with 16k tokens and 2048 / headdim heads."""
    wanted = {"batch": 16384 // seqlen, "nheads": 2048 // headdim, "headdim": headdim, "seqlen_q": seqlen, **sizes}
    (found,) = [
        r
        for r in RECORDS
        if r["backend"] == backend
        and wanted.items() <= r["case"]["shape"].items()
        and (r["case"]["dtype"], r["case"]["direction"], r["case"].get("causal", False)) == (dtype, way, bool(causal))
        and not r["case"].keys() & {"dropout_p", "window_size", "lengths"}
    ]
    return found


def seconds(*case: Any, **more: Any) -> float:
    return statistics.median(record(*case, **more)["measurements"]["time"]["values"])


def test_a_figure_of_fa3_in_bursts_and_without_pauses(findings: dict[tuple[str, str], Finding]) -> None:
    found = findings["fa3-d128-causal", "fa3"]
    flops = 4 * 16384 * 16384 * 2048 / 2  # the paper halves the FLOPs for causal
    taken = record("fa3", 128, 16384, True)["measurements"]
    assert found.bursts
    assert found.sustained
    assert found.bursts.value == pytest.approx(flops / statistics.median(taken["time"]["values"]) / 1e12, rel=1e-6)
    seconds_a_call = statistics.mean(taken["sustained"]["values"])
    assert found.sustained.value == pytest.approx(flops / seconds_a_call / 1e12, rel=1e-6)
    assert found.outcome == "reproduced"  # the paper prints 616


def test_a_range_is_that_of_the_geometric_mean(findings: dict[tuple[str, str], Finding]) -> None:
    (found,) = [finding for (claim, _), finding in findings.items() if claim == "fa3-forward-over-fa2"]
    ratios = [seconds("sdpa-flash", *case) / seconds("fa3", *case) for case in GRID]
    assert found.bursts
    assert (found.bursts.cases, found.bursts.least) == (18, pytest.approx(min(ratios)))
    assert found.bursts.value == pytest.approx(math.prod(ratios) ** (1 / 18))
    assert found.outcome == "reproduced"  # the paper prints 1.5 to 2.0


def test_memory_of_rabe_and_staats(findings: dict[tuple[str, str], Finding]) -> None:
    found = findings["rabe-staats-training", "sdpa-efficient / eager"]
    peaks = [
        record(name, 64, 16384, False, "bf16", "fwd_bwd", nheads=1, batch=1)["measurements"]["memory_peak"]["values"][0]
        for name in ("sdpa-efficient", "eager")
    ]
    assert found.bursts
    assert found.bursts.value == pytest.approx(peaks[1] / peaks[0])
    assert found.outcome == "reproduced"  # the paper prints over 32
