"""`attnbench compare` as a black box, on run files of an H200."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tool import Tool

from attnbench.results import run_file

RESULTS = Path(__file__).parents[2] / "results"
A, B = (RESULTS / f"20261121-{time}-default-nvidia-h200.jsonl.gz" for time in ("141028", "141425"))
CPU_RUN = "20261127-041123-default-amd-epyc-2-cores"


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the first run changed to 500 W and half the speed."""
    header, *lines = b"".join(run_file.lines(A)).splitlines()
    run = json.loads(header)
    run["environment"]["power_limit_w"] = 500.0
    records = [json.loads(line) for line in lines]
    for record in records:
        for name in ("time", "span"):
            if name in record.get("measurements", {}):
                found = record["measurements"][name]
                found["values"] = [2 * t for t in found["values"]]
    file = tmp_path_factory.mktemp("slow") / "slow.jsonl"
    file.write_text("\n".join(map(json.dumps, [run, *records])) + "\n")
    return file


def test_power_limits_prices_and_a_page(tool: Tool, slow: Path) -> None:
    tool.write("w.yaml", "name: chat\nparts: [{weight: 100%, seqlen: 4k, pass: [fwd, bwd]}]")
    options = ("--price", "h200=3/h", "--workload", "w.yaml", "--to", "700 W")
    said = json.loads(tool("compare", slow, A, B, *options, "-f", "json").out)
    machines = {m["name"]: m for m in said["machines"]}
    assert machines["H200 500 W"]["ratio"] == pytest.approx(0.5, rel=0.02)
    assert machines["H200 700 W"]["ratio"] == 1.0
    assert len(machines["H200 700 W"]["files"]) == 2
    assert any("power limit" in line for line in said["warnings"])
    assert machines["H200 500 W"]["worth_below"] == pytest.approx(1.5, rel=0.02), "with no price of its own"
    tool("compare", slow, A, "-f", "html", "-o", "page.html")
    assert "<h1>H200 500 W and H200 700 W, compared</h1>" in (tool.folder / "page.html").read_text()


def test_several_formats_at_once(tool: Tool) -> None:
    out = tool("compare", A, B, "--html", "page.html", "-f", "csv=cells.csv").out
    assert out.startswith("These are 2 runs of one machine")
    assert "triton 4k d128 causal fwd" in (tool.folder / "page.html").read_text(), "a page has every cell"
    assert len((tool.folder / "cells.csv").read_text().splitlines()) > 600


def test_out_writes_the_one_format(tool: Tool) -> None:
    assert not tool("compare", A, B, "-f", "json", "-o", "all.json").out
    assert json.loads((tool.folder / "all.json").read_text())["reference"] == "H200 #1"
    tool("compare", A, B, "-o", "all.txt")
    assert (tool.folder / "all.txt").read_text().startswith("These are 2 runs of one machine")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((A,), "at least two run files"),
        ((A, B, "-f", "xml"), "--format: unknown 'xml'"),
        ((A, B, "-f", "md", "-f", "csv", "-o", "x"), "--out takes one format"),
        ((A, B, "-f", "md", "-f", "csv"), "cannot both be printed"),
        ((A, B, "--to", "H300"), "is none of the machines"),
        ((A, B, "--price", "h200=cheap"), "write h200=3.40/h (rent), h200=32000/4y (bought, for 4 years)"),
        ((A, B, "--price", "h200=32000/4y", "--energy-price", "0.2"), "measure all with run --sustained 10s"),
        ((A, B, "--price", "h200=32000/4y", "--energy-price", "nan"), "--energy-price: nan is not a number"),
        ((A, B, "--pue", "1.3"), "--pue needs --energy-price"),
        ((A, B, "--workload", "none.yaml"), "cannot read none.yaml"),
        ((A, "empty.jsonl"), "is not an attnbench run file"),
    ],
)
def test_what_is_wrong_is_one_line(tool: Tool, options: tuple[object, ...], said: str) -> None:
    tool.write("empty.jsonl", "")
    err = tool("compare", *map(str, options), code=2).err
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_machine_without_a_case_in_common_is_left_out_in_one_line(tool: Tool) -> None:
    others = [RESULTS / f"{name}.jsonl.gz" for name in (CPU_RUN, "20261123-140542-default-nvidia-h100")]
    done = tool("compare", others[0], A, others[1])
    (line,) = done.err.splitlines()
    assert line.startswith("attnbench: left out: EPYC CPU has no case in common with H200 and H100 80GB HBM3: dtype ")
    assert done.out.startswith("H100 80GB HBM3 and H200 ")
    assert "in bursts, over 56 cases (geometric mean)" in " ".join(done.out.split())
