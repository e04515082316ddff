"""`attnbench claims` as a black box: listed, judged by run files, and measured on a CPU."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from tool import Tool

from attnbench.results import run_file

RESULTS = Path(__file__).parents[2] / "results"
H100 = RESULTS / "spreads" / "h100-ff241cb2-1.jsonl.gz"
MINE = """
source: Mine
address: https://example.org
checked: "no: made up"
gpu: any
axes: {dtype: fp32, batch: 1, nheads: 2, headdim: 64, seqlen: 128, pass: fwd}
claims:
- id: slow
  what: eager and SDPA
  metric: latency
  printed: {eager: 1000 s, sdpa-math: 1000 s}
  ratios: {sdpa-math / eager: over 0.0001}
- {id: far, what: a cluster, cannot: many machines}
"""


def test_what_is_claimed_is_listed_without_measuring(tool: Tool) -> None:
    out = tool("claims", "--list", "--paper", "fa3,cudnn", "--gpu", "h100").out
    assert "fa3-d128-causal" in out
    assert "arXiv 2407.08608" in out
    assert "cudnn-2k" not in out
    rows = json.loads(tool("claims", "--list", "-b", "nsa", "--json").out)
    assert [row["claim"] for row in rows] == ["nsa-forward", "nsa-backward"]


def test_run_files_are_judged(tool: Tool) -> None:
    shown = tool("claims", H100, "-f", "csv", "-f", "html=claims.html").out
    rows = {(row["claim"], row["figure"]): row for row in csv.DictReader(io.StringIO(shown))}
    row = rows["pytorch-cudnn-over-flash", "sdpa-cudnn / fa2"]
    assert (row["gpu"], row["verdict"], row["ran"].split(" ")[0]) == ("H100 SXM", "reproduced", "sdpa-cudnn")
    assert float(row["low"]) < float(row["value"]) < float(row["high"])
    assert "pytorch-cudnn-over-flash" in (tool.folder / "claims.html").read_text()


def test_ones_own_claims_are_measured_and_judged(tool: Tool) -> None:
    (tool.folder / "mine.yaml").write_text(MINE)
    measured = tool("claims", "--paper", "mine.yaml", "--device", "cpu", "--out", "run.jsonl", "--json")
    answer = json.loads(measured.out)
    assert answer["claims"][0]["verdict"] == "not reproduced"
    verdicts = {row["figure"]: row["verdict"] for row in answer["figures"]}
    assert verdicts == {"eager": "not reproduced", "sdpa-math": "not reproduced", "sdpa-math / eager": "reproduced"}
    assert "Results: run.jsonl" in measured.err
    again = json.loads(tool("claims", "run.jsonl", "--paper", "mine.yaml", "--json").out)
    assert again == answer


def test_what_cannot_be_judged_on_this_gpu_is_not_measured(tool: Tool) -> None:
    foreign = "- {id: foreign, what: a metric of a GB200, axes: {seqlen: 256}, metric: latency, printed: {fake: 1 us}}"
    others = (
        "- {id: ratio, what: a ratio, axes: {seqlen: 512}, ratios: {fake / eager: 2x}}",
        "- {id: any-gpu, what: a metric of any GPU, gpu: any, axes: {seqlen: 1k}, printed: {fake: 600}}",
    )
    head = MINE.partition("claims:")[0].replace("gpu: any", "gpu: GB200").replace("fp32", "bf16")
    mine = tool.folder / "mine.yaml"
    mine.write_text("\n".join((f"{head}claims:", foreign, *others)))
    found = json.loads(tool("claims", "--paper", "mine.yaml", "--device", "fake", "--out", "run.jsonl", "--json").out)
    run, _ = run_file.read(tool.folder / "run.jsonl")
    assert {record.case.shape.seqlen_k for record in run.records} == {512, 1024}
    assert {row["claim"]: row["why"] for row in found["figures"]}["foreign"] == "printed for a GB200"
    mine.write_text(f"{head}claims:\n{foreign}")
    said = tool("claims", "--paper", "mine.yaml", "--device", "fake", code=2).err
    assert "none of these claims can be tried on Simulated GPU: they print metrics of GB200, and no ratio" in said
    assert said.count("\n") == 1


def test_the_plan_is_shown(tool: Tool) -> None:
    (tool.folder / "mine.yaml").write_text(MINE)
    out = tool("claims", "--paper", "mine.yaml", "--device", "cpu", "--dry-run").out
    rows = [line.split()[:3] for line in out.splitlines() if line.startswith(("eager", "sdpa"))]
    assert rows == [["eager", "1", "0"], ["sdpa-math", "1", "0"]]
    shown = tool("claims", "--paper", "mine.yaml", "--device", "fake", "--dry-run")
    assert "0 jobs to measure" in shown.out + shown.err  # no claim names the simulated backend
    assert [*tool.folder.glob("**/*.jsonl")] == []


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--paper", "fa33"), "no claims of 'fa33'"),
        (("--gpu", "h300"), "no claim is left by --gpu and --backend"),
        (("-b", "fa9"), "no claim is left by --gpu and --backend"),
        (("--list", "--rounds", "2"), "--rounds: for measuring"),
        ((str(H100), "--out", "x.jsonl"), "--out: for measuring"),
        (("--paper", "fa4"), "none of these claims can be tried"),
        (("--sustained", "long"), "--sustained: 'long' is not a duration"),
        (("none.jsonl",), "none.jsonl"),
    ],
)
def test_bad_input_is_one_line(tool: Tool, args: tuple[str, ...], said: str) -> None:
    found = tool("claims", *args, code=2)
    assert said in found.err
    assert found.err.count("\n") == 1


def test_where_nothing_could_be_tried_the_exit_code_is_1(tool: Tool) -> None:
    assert "cannot be tried here" in tool("claims", H100, "--paper", "nsa", code=1).out
