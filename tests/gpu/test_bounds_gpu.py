"""`attnbench profile --counters` names what bounds kernels of which that is known; `pytest -s` prints its sentences."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attnbench.analysis.profile.bounds import findings, sentence
from attnbench.analysis.profile.counters import KernelCounters, longest
from attnbench.core.json import from_json

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.skipif(shutil.which("ncu") is None, reason="needs ncu on PATH"),
]

PLANTED = Path(__file__).with_name("planted_kernels.py")
FOUND = {  # what is planted, the rule that finds it, words of its sentence
    "spills": ("spills", "of spilled registers are read back"),
    "few_blocks": ("few blocks", "8 blocks for"),
    "memory": ("bound by a unit", "bound by HBM"),
    "exp": ("bound by a unit", "bound by exp"),
    "products": ("bound by a unit", "bound by tensor cores"),
    "multiplies": ("bound by a unit", "bound by FMA"),
    "shares": ("bound by a unit", "bound by shared memory"),
    "chases": ("waits", "warps wait for long scoreboard"),
    "tail": ("tail", "1.1 waves: the last leaves 44"),
}


def profile(folder: Path, *options: str) -> list[dict[str, Any]]:
    """Return the profiles that `attnbench profile` gives as JSON."""
    command = [sys.executable, "-m", "attnbench", "profile", "--seqlen", "1k", "--json", "--no-ncu", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["profiles"]
    return found


def test_what_bounds_a_kernel_is_named(tmp_path: Path) -> None:
    names = ",".join(f"{PLANTED}:{name}" for name in FOUND)
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    wrong = []
    for one in profile(tmp_path, "--counters", "-b", names):
        name = one["backend"].rpartition(":")[2]
        (kernel,) = longest([from_json(KernelCounters, counters) for counters in one["counters"]], 1)
        said = sentence(kernel, multiprocessors)
        print(f"{name}: {said}")
        rule, words = FOUND[name]
        wrong += [name] if rule not in findings(kernel, multiprocessors) or words not in said else []
    assert not wrong


def test_a_call_that_waits_for_the_device_is_named(tmp_path: Path) -> None:
    (one,) = profile(tmp_path, "-b", f"{PLANTED}:host")
    assert one["host"]["waits"]
