"""attnbench's Triton kernels compile for GPUs that are not present, and ptxas keeps Hopper's matmuls asynchronous.

They are compiled in a process of its own, since the tests import them for the interpreter. There is one case of each
kind; tests/backends/triton_registers.py compiles any.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

# Triton is not imported here: without TRITON_INTERPRET that would disable the interpreter for triton_attention.py.
pytestmark = pytest.mark.skipif(not find_spec("triton"), reason="triton is not installed")

in_ci = pytest.mark.skipif(not os.environ.get("CI"), reason="slow: set CI=1 to compile for the other GPUs too")
QUICK = ("fwd,90,128,bf16,RIGHT",)
OTHERS = (
    *("fwd,80,64,fp16", "dq,90,64,bf16,RIGHT", "fwd,90,64,bf16,VARLEN", "fwd,gfx942,64,bf16,RIGHT"),
    *("fwd,90,128,bf16,RIGHT,TMA", "dkdv,90,128,bf16,RIGHT,TMA", "fwd,90,128,fp8e4nv,FP8"),
    *("fwd,90,128,bf16,RIGHT,TMA,ALIBI", "fwd,90,128,bf16,RIGHT,TMA,KIND3x256", "dkdv,90,64,bf16,RIGHT,TMA,KIND6x0"),
    *("fwd,90,128,fp8e4nv,FP8,TMA", "paged,90,128,bf16,RIGHT", "paged,90,64,fp16,CACHE8", "paged,90,512,bf16,LATENT"),
)


@pytest.mark.parametrize("cases", [QUICK, pytest.param(OTHERS, marks=in_ci)], ids=["quick", "others"])
def test_compiles(cases: tuple[str, ...], tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    script = Path(__file__).with_name("triton_registers.py")
    command = [sys.executable, script, *cases]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=script.parents[2])
    assert done.returncode == 0, done.stderr[-2000:]
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["case"] for one in said] == list(cases)
    for one in said:
        assert not one.get("serialised"), f"{one}: ptxas would wait for every matmul; see keys_seen"
