"""attnbench's Gluon kernels compile for Hopper, which need not be present, and ptxas keeps their matmuls asynchronous.

They are compiled in a separate process, because the tests import Triton for its interpreter, which Gluon lacks.
tests/backends/gluon_registers.py compiles any case.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from attnbench.backends.gluon.backend import Gluon

# The version of Triton is read without an import: see test_triton_compile.py.
_found = Gluon().installed()
pytestmark = pytest.mark.skipif(
    not find_spec("triton") or _found is None or bool(_found.reason), reason="Triton is missing or too old"
)

in_ci = pytest.mark.skipif(not os.environ.get("CI"), reason="slow: set CI=1 to compile for all head dims")
QUICK = ("fwd,128,128,bf16,RIGHT", "bwd,128,128,bf16,RIGHT")
OTHERS = (  # each kernel with each form of its tiles; the script compiles the rest
    *("short,64,64,bf16,RIGHT", "fwd,64,64,fp16", "fwd,192,128,bf16,RIGHT", "fwd,256,256,bf16"),
    *(
        "bwd,64,64,fp16,RIGHT",
        "bwd,64,128,bf16",
        "bwd,192,128,bf16,RIGHT",
        "bwd,160,200,fp16",
        "bwd,256,256,bf16,RIGHT",
    ),
)
SHARED = 227 * 1024  # bytes of shared memory that a program may use
# Bytes of spills that a thread may store and load. Triton 3.6 has at most 16 and 0; 3.9 has 196, in the forward of
# headdim 64, and 8.
SPILLED = {"fwd": 208, "short": 16, "bwd": 16}


@pytest.mark.parametrize("cases", [QUICK, pytest.param(OTHERS, marks=in_ci)], ids=["quick", "others"])
def test_compiles(cases: tuple[str, ...], tmp_path: Path) -> None:
    script = Path(__file__).with_name("gluon_registers.py")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(script.parents[2])}
    done = subprocess.run([sys.executable, script, *cases], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [one["case"] for one in said] == list(cases)
    for one in said:
        assert not one["serialised"], f"{one}: ptxas would wait for every matmul"
        assert not one.get("overwritten"), f"{one}: the next round of a loop would multiply something else"
        assert one["shared"] <= SHARED, one
        assert max(one["spilled"]) <= SPILLED[one["case"].partition(",")[0]], one
