"""`attnbench profile` on a GPU: the timeline, memory at each kernel, and ncu's bytes of kernels with known traffic."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import ncu_request
import pytest

from attnbench.run.profile import ncu

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

MIB = 2**20
OWN = f"""
import torch
from attnbench.core.backend import Prepared

class Chain:
    # y = x + 1, and with a second step z = y + 1, each of some MiB
    def __init__(self, mib, steps):
        self.mib, self.steps = mib, steps

    def prepare(self, case, inputs):
        buffers = [torch.zeros(self.mib * {MIB} // 4, device=inputs.q.device) for _ in range(self.steps + 1)]

        def launch():
            for source, target in zip(buffers, buffers[1:]):
                torch.add(source, 1, out=target)

        return Prepared(launch, lambda _: {{}})

small, large, chain = Chain(16, 1), Chain(512, 1), Chain(8, 2)
"""


def profile(folder: Path, *args: str, seqlen: str = "2k") -> dict[str, Any]:
    """Return the JSON output of `attnbench profile` with options."""
    command = [sys.executable, "-m", "attnbench", "profile", "--seqlen", seqlen, "--causal", "--json", *args]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_the_timeline_its_memory_and_the_trace(tmp_path: Path, direction: str) -> None:
    names = ("eager", "sdpa-flash", "triton")
    args = ("-b", ",".join(names), "--pass", direction, "--no-ncu", "--keep", "kept")
    data = profile(tmp_path, *args)
    assert [p["backend"] for p in data["profiles"]] == list(names)
    assert data["roofline"].get("datasheet") or "reach" in data["roofline"]["source"]
    for found in data["profiles"]:
        assert "wrong" not in found, found["wrong"]
        kernels, span = found["activities"], found["length"]
        assert kernels
        assert kernels[0]["start"] == 0.0
        assert max(k["end"] for k in kernels) == pytest.approx(span)
        assert 0.5 * found["latency"] < span < 1.3 * found["latency"]
        assert found["enqueue"]
        memory = found["memory"]
        assert len(memory) == len(kernels), found.get("notes")
        assert 0.8 * found["memory_peak"] <= max(nbytes for _, nbytes in memory) <= 1.01 * found["memory_peak"] + 4096
        events = json.loads((tmp_path / "kept" / f"{found['backend']}.trace.json").read_text())["traceEvents"]
        assert {e["name"] for e in events if e.get("cat") == "kernel"} <= {k["name"] for k in kernels}
        assert any(e.get("cat") == "kernel" for e in events)


def traffic(folder: Path, name: str) -> ncu.Traffic:
    """Return the traffic that ncu measures for a backend of OWN; skips the test where ncu cannot be used."""
    tool = ncu.find()
    if tool is None:
        pytest.skip(ncu.MISSING)
    (folder / "own.py").write_text(OWN)
    try:
        return ncu.measure(tool, None, ncu_request.request(str(folder / "own.py"), name))
    except ncu.NotCounted as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize(("name", "mib"), [("small", 16), ("large", 512)])
def test_a_kernel_moves_what_it_reads_and_writes(tmp_path: Path, name: str, mib: int) -> None:
    """ncu's bytes equal a kernel's reads and writes, also if the result fits in L2, whose write-back counts."""
    found = traffic(tmp_path, name)
    assert len(found.kernels) == 1
    assert found.passes == 1
    assert found.read == pytest.approx(mib * MIB, rel=0.1)
    assert found.written == pytest.approx(mib * MIB, rel=0.1)


def test_data_that_one_kernel_leaves_in_l2_is_not_read_again_by_the_next(tmp_path: Path) -> None:
    found = traffic(tmp_path, "chain")
    assert len(found.kernels) == 2
    assert found.read == pytest.approx(8 * MIB, rel=0.25)
    assert found.written == pytest.approx(16 * MIB, rel=0.15)


def test_standard_attention_moves_many_times_the_bytes_of_a_fused_one(tmp_path: Path) -> None:
    if ncu.find() is None:
        pytest.skip(ncu.MISSING)
    data = profile(tmp_path, "-b", "eager,triton", seqlen="8k")
    if not all("traffic" in p for p in data["profiles"]):
        pytest.skip("; ".join(data["notes"]))
    eager, fused = (p["traffic"]["read"] + p["traffic"]["written"] for p in data["profiles"])
    assert eager > 10 * fused
    assert 0.9 < fused / data["roofline"]["nbytes"] < 3
