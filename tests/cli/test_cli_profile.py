"""`attnbench profile` as a person uses it, on the CPU."""

from __future__ import annotations

import importlib
import json

import pytest
from tool import Tool

pytest.importorskip("torch")

importlib.import_module("torch._inductor.analysis.profile_analysis")  # otherwise the profiler imports it in each fork
ON_CPU = ("profile", "--device", "cpu", "--seqlen", "256")
MINE = """
import torch

def zeros(q, k, v, *, causal, softmax_scale):
    return torch.zeros_like(q)
"""


def test_two_backends_side_by_side(tool: Tool) -> None:
    out = tool(*ON_CPU, "-b", "eager,sdpa-flash", "--keep", "new/traces").out
    lines = out.splitlines()
    assert "256 d128 full fwd fp32, batch 4, 2 heads" in lines
    assert " takes " in lines[0]
    for part in ("  latency ", "  roofline ", "  reached ", "  peak memory ", "operators ", "memory, to "):
        assert sum(line.startswith(part) for line in lines) == 2, part
    assert any(line.startswith("baddbmm") and "━" in line for line in lines)
    assert any(line.startswith("_scaled_dot_product_flash") for line in lines)
    assert any(line.startswith("side by side") for line in lines)
    assert any(line.startswith("!  launch overhead, gaps between kernels, HBM traffic and") for line in lines)
    for name in ("eager", "sdpa-flash"):
        trace = tool.folder / "new" / "traces" / f"{name}.trace.json"
        assert str(trace) in out
        assert json.loads(trace.read_text())["traceEvents"]
        assert f"{trace.parent / name}.flame.html" in out
    assert "https://ui.perfetto.dev" in out


READS = """
import torch.nn.functional as F

def reads(q, k, v, *, causal, softmax_scale):
    if q[0, 0, 0, 0].item() > 1e9:
        return q
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale).transpose(1, 2)
"""


def test_a_call_that_waits_for_a_result_is_named(tool: Tool) -> None:
    tool.write("mine.py", READS)
    backends = ("-b", "./mine.py:reads,sdpa-flash")
    shown = tool(*ON_CPU, *backends, "--causal", "-f", "json=found.json", "-f", "table").out
    data = json.loads((tool.folder / "found.json").read_text())
    reads, flash = (found["host"] for found in data["profiles"])
    assert reads["waits"] == {"aten::_local_scalar_dense": 1}
    assert flash.get("waits", {}) == {}
    assert reads["operators"] > flash["operators"] > 0
    assert flash["allocated"] >= data["case"]["shape"]["seqlen_q"]
    out = " ".join(shown.split())
    assert "! reads waits for a result in the call: aten::_local_scalar_dense" in out
    assert "sdpa-flash waits" not in out
    assert [found["backend"] for found in data["profiles"]] == ["reads", "sdpa-flash"]
    assert data["case"]["causal"] is True
    assert all(found["latency"] > 0 and found["memory_peak"] > 0 for found in data["profiles"])
    assert data["roofline"]["bound"] in ("compute", "memory")


def test_a_wrong_kernel(tool: Tool) -> None:
    tool.write("mine.py", MINE)
    lines = tool(*ON_CPU, "-b", "./mine.py:zeros", code=5).out.splitlines()
    assert any(line.startswith("WRONG  zeros: out is off by") for line in lines)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("-b", "fake", "--device", "fake"), "--device fake: nothing runs on a simulated device"),
        ((), "--backend is missing"),
        (("-b", "eager", "--seqlen", "1k,2k"), "--seqlen has 2 values (1k, 2k); a profile is of one case"),
        (("-b", "eager", "--pass", "fwd,bwd"), "--pass has 2 values"),
        (("-b", "eager", "--keep", "file"), "--keep: no folder file can be made: it is a file; choose another place"),
        (("-b", "triotn"), 'did you mean "triton"?'),
        (("-b", "eager", "--device", "gpu"), "--device: 'gpu'"),
    ],
)
def test_mistakes_are_one_line(tool: Tool, args: tuple[str, ...], said: str) -> None:
    tool.write("file", "")
    found = tool("profile", *args, code=2)
    assert found.out == ""
    (line,) = found.err.splitlines()
    assert line.startswith("attnbench: ")
    assert said in line


def test_files_that_are_there_are_not_overwritten(tool: Tool) -> None:
    (tool.folder / "kept").mkdir()
    there = tool.write("kept/eager.flame.html", "of somebody")
    found = tool(*ON_CPU, "-b", "sdpa-flash,eager", "--keep", "kept", code=2)
    (line,) = found.err.splitlines()
    assert "--keep: kept/eager.flame.html is there already and is not overwritten; choose another folder" in line
    assert there.read_text() == "of somebody"
    assert [*there.parent.iterdir()] == [there]


@pytest.mark.parametrize(
    ("backend", "why"), [("fake", "only --device fake runs it"), ("sdpa-cudnn", "needs a CUDA GPU")]
)
def test_nothing_to_profile_is_one_line(tool: Tool, backend: str, why: str) -> None:
    found = tool(*ON_CPU, "-b", backend, code=1)
    (line,) = found.out.splitlines()
    assert line.startswith(f"!  {backend}: no profile")
    assert why in line


def test_help_teaches(tool: Tool) -> None:
    out = tool("profile", "--help").out
    assert "attnbench profile -b triton --seqlen 8k --causal --keep traces/" in out
    assert "attnbench profile -b eager,sdpa-flash,triton --seqlen 4k --pass bwd" in out
