"""Comparison of bits on a GPU: sums by atomics are found, and the variants of libraries that repeat themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.core.record import Bitwise
from attnbench.results import run_file
from attnbench.results.bits import deterministic

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

OWN = """
import torch
import torch.nn.functional as F

def by_atomics(q, k, v, *, causal, softmax_scale):
    given = (t.transpose(1, 2).float() for t in (q, k, v))  # a bf16 result would be restored by the last rounding
    out = F.scaled_dot_product_attention(*given, is_causal=causal, scale=softmax_scale).transpose(1, 2)
    shares = torch.rand(16, device=q.device, generator=torch.Generator(q.device).manual_seed(0)) + 0.5
    parts = out.flatten()[None] * shares[:, None]
    added = torch.zeros(out.numel(), device=q.device)
    order = torch.randperm(16 * out.numel(), device=q.device, generator=torch.Generator(q.device).manual_seed(0))
    places = torch.arange(out.numel(), device=q.device).repeat(16)[order]  # so that threads meet at a place
    added.index_add_(0, places, parts.flatten()[order])
    return (added.view(out.shape) / shares.sum()).to(q.dtype)
"""


def compared(folder: Path, *options: str) -> dict[str, Bitwise]:
    """Measure, and return backend -> the comparison of its bits, for the backends that could run."""
    command = [sys.executable, "-m", "attnbench", "run", "--seqlen", "1k", "--batch", "4", "--headdim", "128"]
    command += ["--causal", "--bitwise", "--allow-busy", "--out", "run.jsonl", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    records, _ = run_file.read(folder / "run.jsonl")
    return {record.backend: record.bitwise for record in records.records if record.bitwise}


def test_sums_by_atomics_are_found(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    found = compared(tmp_path, "--pass", "fwd", "-b", "./own.py:by_atomics,eager")
    assert found["by_atomics"].differing["out"] > 0
    assert deterministic([found["eager"]])


def test_own_kernels_and_deterministic_variants_repeat_themselves(tmp_path: Path) -> None:
    found = compared(tmp_path, "--pass", "bwd", "--deterministic", "-b", "triton,sdpa-flash,fa2,fa3")
    assert {"triton", "sdpa-flash"} <= {*found}
    for backend, bits in found.items():
        assert not any(bits.differing.values()), backend
        assert not bits.process, backend
