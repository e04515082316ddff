"""`helion` and `tilelang`: their calls by a stand-in of the kernels, and the kernels where the languages are installed.

Neither language is a requirement of the tests. Helion runs its kernel in its interpreter on a CPU; TileLang generates
CUDA C++ for a GPU that need not be here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from attnbench.core.case import Case, Shape
from standins import function, install, modules
from standins.attend import attend
from standins.contract import HOPPER, backend, cases, check

VERSIONS = {"helion": "1.5.0", "tilelang": "0.1.15"}
ATTENTION = "q, k, v, *, causal=False, softmax_scale=None"  # of each attention.py


def stand_in(name: str) -> dict[str, ModuleType]:
    attention = function(
        ATTENTION, lambda a: attend(a.q, a.k, a.v, scale=a.softmax_scale, right=0 if a.causal else None)[0]
    )
    kernels = f"attnbench.backends.{name}.attention"
    return {name: ModuleType(name), kernels: modules({kernels: {"attention": attention}})[kernels]}


@cases("helion", "tilelang")
def test_contract(name: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, stand_in(name), VERSIONS)
    assert str(backend(name).probe().version).startswith(f"{name} {VERSIONS[name]}, code ")
    check(backend(name), case)


@pytest.mark.parametrize("name", VERSIONS)
def test_refusals(name: str) -> None:
    shape = Shape(2, 64, 64, 4, 2, 128, 128)
    assert backend(name).unsupported(Case(shape, "bf16", "bwd"), HOPPER) == "forward only"
    assert "no fp32" in str(backend(name).unsupported(Case(shape, "fp32", "fwd"), HOPPER))
    assert backend(name).unsupported(Case(shape, "bf16", "fwd", True), HOPPER) is None


INTERPRETED = """
import torch
from attnbench.backends.helion.attention import attention
from standins.attend import attend
multiply = torch.mm
torch.mm = lambda a, b, out_dtype: multiply(a.to(out_dtype), b.to(out_dtype))  # torch has out_dtype on GPUs only
for seqlen_q, seqlen_k in ((70, 133), (133, 70), (1, 90)):
    torch.manual_seed(0)
    q = torch.randn(2, seqlen_q, 4, 64, dtype=torch.bfloat16)
    k, v = (torch.randn(2, seqlen_k, 2, 64, dtype=torch.bfloat16) for _ in range(2))
    for causal in (False, True):
        out = attention(q, k, v, causal=causal, softmax_scale=0.2)
        right, _ = attend(q, k, v, scale=0.2, right=0 if causal else None)
        torch.testing.assert_close(out, right, rtol=0.02, atol=0.01)
"""
# The mask, the product of tensor cores and the bulk copies must be in the code for Hopper.
GENERATED = """
import tilelang
from attnbench.backends.tilelang.attention import TILES, forward
from tilelang.backend.target import determine_target
forward.target = determine_target({"kind": "cuda", "arch": "sm_90a"}, return_object=True)
for tiles in TILES[:2]:
    kernel = forward.get_tir((2, 300, 4, 128), (2, 140, 2, 128), "bfloat16", True, 0.1, *tiles)
    with forward.target:
        source = tilelang.lower(kernel, target=forward.target).kernel_source
    assert "tilelang_attention_kernel(" in source
    assert all(word in source for word in ("wgmma_ss", "wgmma_rs", "tma_load", "tma_store", "CUDART_INF"))
"""


@pytest.mark.parametrize(("name", "script"), [("helion", INTERPRETED), ("tilelang", GENERATED)])
def test_kernel(name: str, script: str, tmp_path: Path) -> None:
    """The kernel runs, or is generated, in a process of its own: both languages read variables at their import."""
    if not find_spec(name):
        pytest.skip(f"{name} is not installed")
    path = os.pathsep.join((*(str(Path(__file__).parents[n]) for n in (1, 2)), os.environ.get("PYTHONPATH", "")))
    caches = {name: str(tmp_path) for name in ("TILELANG_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")}
    environment = {**os.environ, **caches, "PYTHONPATH": path, "HELION_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
