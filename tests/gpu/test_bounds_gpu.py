"""`attnbench profile --counters` names the bound of kernels with a known one; `pytest -s` prints its sentences."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import ncu_request
import pytest

from attnbench.analysis.profile.bounds import sentence
from attnbench.core.errors import EXIT_WRONG_RESULT
from attnbench.core.json import to_json
from attnbench.run.profile import counters, ncu

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.skipif(shutil.which("ncu") is None, reason="needs ncu on PATH"),
]

PLANTED = Path(__file__).with_name("planted_kernels.py")
FOUND = {  # in the order of TOGETHER: planted kernel, words of the sentence
    "spills": "of spilled registers are read back",
    "few_blocks": "8 blocks for",
    "memory": "bound by HBM",
    "exp": "bound by exp",
    "products": "bound by tensor cores",
    "multiplies": "bound by FMA",
    "shares": "bound by shared memory",
    "chases": "warps wait for long scoreboard",
    "tail": "1.1 waves: the last leaves 44",
}


def test_what_bounds_a_kernel_is_named() -> None:
    tool = ncu.find()
    assert tool is not None
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    try:
        kernels = counters.measure(tool, None, ncu_request.request(str(PLANTED), "together"))
    except ncu.NotCounted as reason:
        pytest.skip(str(reason))
    assert len(kernels) == len(FOUND), [kernel.name for kernel in kernels]
    wrong = []
    for (name, words), kernel in zip(FOUND.items(), kernels, strict=True):
        said = sentence(kernel, multiprocessors)
        print(f"{name}: {said} {json.dumps(to_json(kernel))}")
        wrong += [name] if words not in said else []
    assert not wrong


def test_a_call_that_waits_for_the_device_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "attnbench", "profile", "--seqlen", "1k", "--json", "--no-ncu"]
    done = subprocess.run(
        [*command, "-b", f"{PLANTED}:host"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == EXIT_WRONG_RESULT, done.stderr  # the kernels compute no attention
    (one,) = json.loads(done.stdout)["profiles"]
    assert one["host"]["waits"]
