"""A kernel behind fences on a GPU: CUDA, Triton's compiler and the memory of another process work there."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from attnbench.run.process import child_environment

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

COMMON = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps", "nvidia-modeset")
KERNEL = """
import triton
import triton.language as tl

@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)
"""
CANDIDATE = """
import json, os, sys
from attnbench.worker.fence import Fence, enter
given = json.loads(sys.stdin.read())
print(json.dumps(enter(Fence(**given["fence"]))), flush=True)
import torch
torch.cuda.init()
a = torch.ones(512, 512, device="cuda")
print(json.dumps((a @ a).sum().item()), flush=True)
from attnbench.core.shared_tensors import Mapped
shared = Mapped(torch.device("cuda:0")).tensors(given["shared"])
open("mine.py", "w").write(given["kernel"])
sys.path.insert(0, os.getcwd())
from mine import double
double[(4,)](shared["q"], shared["out"], 4096, BLOCK=1024)
torch.cuda.synchronize()
torch.cuda.Event(enable_timing=True).record()
print(json.dumps(shared["out"].sum().item()), flush=True)
"""


def devices() -> list[str]:
    """Return the device files of the first GPU, or of all where Linux does not tell which is the first."""
    first = torch.cuda.get_device_properties(0)
    bus = f"{first.pci_domain_id:04x}:{first.pci_bus_id:02x}:{first.pci_device_id:02x}.0"
    known = Path(f"/proc/driver/nvidia/gpus/{bus}/information")
    of_gpu = [f"/dev/{path.name}" for path in Path("/dev").glob("nvidia[0-9]*")]
    if known.exists():
        minor = next(line.split()[-1] for line in known.read_text().splitlines() if line.startswith("Device Minor"))
        of_gpu = [f"/dev/nvidia{minor}"]
    return [*of_gpu, *(f"/dev/{name}" for name in COMMON)]


def test_a_kernel_runs_behind_fences() -> None:
    from attnbench.core.shared_tensors import Arena

    described, mine = Arena(torch.device("cuda:0")).place(
        {"q": torch.ones(4096, device="cuda"), "out": torch.zeros(4096, device="cuda")}
    )
    with tempfile.TemporaryDirectory() as scratch:
        given = {"fence": {"scratch": scratch, "devices": devices()}, "shared": described, "kernel": KERNEL}
        done = subprocess.run(
            [sys.executable, "-c", CANDIDATE],
            input=json.dumps(given),
            capture_output=True,
            text=True,
            timeout=200,
            env=child_environment(),
        )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    held, product, total = map(json.loads, done.stdout.splitlines())
    assert (product, total) == (512.0**3, 8192.0)
    assert mine["out"].sum().item() == 8192.0
    if open_ones := {name: held[name] for name in ("files", "devices", "network", "other processes") if held[name]}:
        pytest.skip(f"the kernel runs, but not behind all fences: {open_ones}")
