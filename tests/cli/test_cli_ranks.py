"""`attnbench run --ranks`: one sequence over several ranks, on the simulated device and on a CPU."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tool import Tool

FAKE = ("run", "--device", "fake", "-b", "fake", "--headdim", "128", "--batch", "1", "--causal", "--pass", "fwd")


def rows(tool: Tool, file: str) -> dict[tuple[int, int], dict[str, Any]]:
    """Return (tokens, ranks) -> the figures of a cell."""
    found = json.loads(tool("report", file, "--json").out)
    return {(row["seqlen_k"], row["ranks"]): row for row in found}


def test_scaling_is_what_the_figures_say(tool: Tool) -> None:
    tool(*FAKE, "--ranks", "1,2,4", "--seqlen", "2k-64k", "--out", "a.jsonl")
    cells = rows(tool, "a.jsonl")
    one, two, half = cells[65536, 1], cells[65536, 2], cells[32768, 1]
    flops = 4 * two["nheads"] * two["headdim"] * 65536 * 65537 / 2
    assert two["tflops"] == pytest.approx(flops / two["latency"] / 2 / 1e12)
    shown = tool("report", "a.jsonl", COLUMNS="200").out
    assert "One sequence over several ranks, d128 causal fwd bf16" in shown
    (line,) = re.findall(r"fake +64k +2 .*", shown)
    strong, weak, exposed = (float(share) for share in re.findall(r"(\d+)%", line)[:3])
    assert strong == round(100 * one["latency"] / two["latency"] / 2)
    assert weak == round(100 * two["tflops"] / half["tflops"])
    assert exposed == round(100 * two["exposed"])


def test_from_which_length_ranks_are_faster(tool: Tool) -> None:
    tool(*FAKE, "--ranks", "1,2", "--seqlen", "1k-64k", "--out", "a.jsonl")
    cells = rows(tool, "a.jsonl")
    faster = [n for n, ranks in cells if ranks == 2 and cells[n, 2]["latency"] < cells[n, 1]["latency"]]
    said = " ".join(tool("report", "a.jsonl").out.split())
    (about,) = re.findall(r"2 ranks are faster from about (\d+)k on", said)
    assert min(faster) / 2 < 1024 * int(about) <= min(faster)
    tool("report", "a.jsonl", "--html", "a.html")
    assert "Speedup over one rank" in (tool.folder / "a.html").read_text()


def test_without_a_baseline_there_is_no_crossover(tool: Tool) -> None:
    tool(*FAKE, "--ranks", "2", "--seqlen", "4k", "--out", "a.jsonl")
    said = tool("report", "a.jsonl").out
    assert "One sequence over several ranks" in said
    assert "faster from" not in said


def test_a_cpu(tool: Tool) -> None:
    tool.write(
        "tiny.yaml",
        "axes: {seqlen: 256, headdim: 64, nheads: 2, batch: 1, dtype: fp32, causal: false, pass: fwd, ranks: [1, 2]}\n"
        "policy: {l2: warm, warmup_s: 0.001, min_seconds: 0.001, max_seconds: 0.001}\n",
    )
    tool("run", "--device", "cpu", "-b", "ulysses-sdpa", "--suite", "tiny.yaml", "--out", "a.jsonl")
    one, two = sorted(tool.stored("a.jsonl").records, key=lambda record: record["case"].get("ranks", 1))
    assert (one["status"], two["status"]) == ("ok", "ok")
    assert "c10d::alltoall_base_" in two["kernels"]
    assert "moved" in two["measurements"]
    assert "moved" not in one["measurements"]


def test_too_few_heads_are_a_skip_of_their_case_alone(tool: Tool) -> None:
    """Too few heads skip only their case; `run --dry-run` asks the backend without a worker, `capacity` in a worker."""
    options = ("-b", "ulysses-sdpa", "--device", "cpu", "--ranks", "1,4", "--nheads", "2", "--pass", "fwd", "--dry-run")
    planned = json.loads(tool("run", *options, "--seqlen", "256", "--headdim", "64", "--causal", "--json").out)
    skips = {job["case"].get("ranks", 1): job.get("skip") for job in planned}
    searched = {
        ranks: job["skip"]
        for ranks, job in zip((1, 4), json.loads(tool("capacity", *options, "--json").out), strict=True)
    }
    for found in (skips, searched):
        assert found[1] is None
        assert "2 is no multiple of 4" in found[4]


def test_ab_refuses_ranks(tool: Tool) -> None:
    said = tool("ab", "--a", "fake", "--b", "fake", "--device", "fake", "--ranks", "2", "--seqlen", "4k", code=2).err
    assert "--ranks: ab measures on one device" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--ranks", "0"), "0 is not at least 1"),
        (("--ranks", "3", "--seqlen", "4k"), "4096 tokens are not a multiple of 3"),
        (("--ranks", "2", "--seqlen", "4k", "--seqlen-q", "1"), "as many queries as keys"),
        (("--ranks", "2", "--dropout", "0.1"), "ranks: dropout 0.1 with several devices cannot be measured"),
        (("--ranks", "2", "--lengths", "longtail"), "ranks: lengths with several devices cannot be measured"),
        (("--ranks", "2", "--dtype", "fp8"), "ranks: fp8 with several devices cannot be measured"),
        (("--ranks", "128", "--seqlen", "4k"), "at most 64"),
        (("--device", "cuda:1-0"), "not a range of devices"),
        (("--device", "cuda:0,0"), "names a device twice"),
    ],
)
def test_bad_ranks(tool: Tool, options: tuple[str, ...], said: str) -> None:
    assert said in tool("run", "-b", "ulysses-sdpa", "--dry-run", *options, code=2).err
