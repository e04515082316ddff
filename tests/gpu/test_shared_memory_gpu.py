"""Memory of another process on a GPU: it is read as fast as a process's own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

NBYTES, ROW = 2**31 + 1536, 2048  # no multiple of the pages of 2 MiB by which the driver is to map it
READER = f"""
import json, sys, torch
from attnbench.core.shared_tensors import Mapped

def seconds(t):
    rows = t[: {2**31}].view(-1, {ROW})
    chosen = torch.randint(len(rows), (2**18,), device="cuda")
    out = torch.empty(len(chosen), {ROW}, dtype=torch.uint8, device="cuda")
    took = []
    for _ in range(5):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        torch.index_select(rows, 0, chosen, out=out)
        ended.record()
        torch.cuda.synchronize()
        took.append(begun.elapsed_time(ended))
    return min(took)

shared = Mapped(torch.device("cuda:0")).tensors(json.loads(sys.stdin.read()))["x"]
print(seconds(shared) / seconds(torch.empty_like(shared)))
"""


def test_random_rows_of_shared_memory_are_read_as_fast_as_own() -> None:
    from attnbench.core.shared_tensors import Arena

    like = torch.empty(NBYTES, dtype=torch.uint8, device="meta")
    described, _ = Arena(torch.device("cuda:0")).reserve({"x": like})
    command = [sys.executable, "-c", READER]
    read = subprocess.run(command, input=json.dumps(described), capture_output=True, text=True, timeout=100, check=True)
    assert float(read.stdout) < 1.2, "it is mapped by small pages"
