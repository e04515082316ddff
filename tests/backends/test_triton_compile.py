"""attnbench's Triton kernels compile for GPUs that are not present, and ptxas keeps Hopper's matmuls asynchronous.

They are compiled in a separate process, because the tests import them for the interpreter. There is one case of each
kind; tests/backends/triton_registers.py compiles any case.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from overwritten_operands import overwritten_operands

# An import of Triton here, without TRITON_INTERPRET, would disable the interpreter for triton_attention.py.
pytestmark = pytest.mark.skipif(not find_spec("triton"), reason="triton is not installed")

in_ci = pytest.mark.skipif(not os.environ.get("CI"), reason="slow: set CI=1 to compile for the other GPUs too")
QUICK = ("fwd,90,128,bf16,RIGHT",)
OTHERS = (
    *("fwd,80,64,fp16", "dq,90,64,bf16,RIGHT", "fwd,90,64,bf16,VARLEN", "fwd,gfx942,64,bf16,RIGHT"),
    *("fwd,90,128,bf16,RIGHT,TMA", "dkdv,90,128,bf16,RIGHT,TMA", "fwd,90,128,fp8e4nv,FP8"),
    *("fwd,90,128,bf16,RIGHT,TMA,ALIBI", "fwd,90,128,bf16,RIGHT,TMA,KIND3x256", "dkdv,90,64,bf16,RIGHT,TMA,KIND6x0"),
    *("fwd,90,192x128,bf16,RIGHT,TMA", "dkdv,90,192x128,bf16,RIGHT,TMA", "dq,90,192x128,bf16,RIGHT,TMA"),
    *("dq,90,128,bf16,RIGHT,TMA", "dkdv,90,64,bf16,RIGHT,TMA,SPLIT", "dq,90,256,bf16,LEFT,RIGHT,TMA"),
    *("fwd,90,128,bf16,RIGHT,TMA,VARLEN", "dq,90,128,bf16,RIGHT,TMA,VARLEN", "fwd,90,64,bf16,RIGHT,TMA,VARLEN"),
    *("dkdv,90,64,bf16,RIGHT,VARLEN", "dkdv,90,128,bf16,RIGHT,VARLEN"),
    *(
        "fwd,90,128,fp8e4nv,FP8,TMA",
        "paged,90,128,bf16,RIGHT",
        "paged,90,64,fp16,CACHE8",
        "paged,90,512,bf16,LATENT,TMA",
    ),
    *("indexer,90,128,bf16,16x128x4x2", "indexer,90,128,fp8e4nv,FP8,16x128x4x2", "indexer,80,128,bf16,16x128x4x2"),
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
        assert not one.get("overwritten"), f"{one}: wrong code of ptxas; see overwritten_operands.py"


ROUND = """
        /*0000*/ LDSM.16.M88.4 R8, [R0+UR4] ;
.L_x_0:
        /*0010*/ HGMMA.64x64x16.F32.BF16 R24, R8, gdesc[UR8], RZ, !UPT, gsb0 ;
        /*0020*/ @!P0 SYNCS.ARRIVE.TRANS64 RZ, [UR4+0x2000], R5 ;
        /*0030*/ {} ;
        /*0040*/ HGMMA.64x64x16.F32.BF16 R56, R12, gdesc[UR8].tnspB, R56, gsb0 ;
        /*0050*/ {} ;
        /*0060*/ @P0 BRA `(.L_x_0) ;
        /*0070*/ EXIT ;
.L_x_1:
        /*0080*/ @!P1 BRA `(.L_x_1) ;
        /*0090*/ BRA `(.L_x_0) ;
"""


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("FADD R16, R24, R25", "MOV R17, R24", []),
        ("F2FP.BF16.F32.PACK_AB R12, R25, R24", "MOV R17, R24", []),  # the other operand, computed in each round
        ("FADD R10, R24, R25", "MOV R17, R24", ["R10"]),
        ("@P2 MUFU.EX2 R10, R24", "MOV R17, R24", ["R10"]),
        ("LDS.128 R4, [R3]", "FMUL R9, R24, R24", ["R9"]),
        ("FADD R10, R24, R25", "MOV R10, R200", []),  # restored
        ("IMAD.WIDE R10, R24, R25, R26", "STS.128 [R8], R200", ["R10", "R11"]),
    ],
)
def test_overwritten_operands_are_found(before: str, after: str, found: list[str]) -> None:
    made = (f"F2FP.BF16.F32.PACK_AB R1{n}, R24, R25 ;\n" for n in (2, 3, 4, 5))
    assert overwritten_operands(ROUND.format("".join(made) + before, after)) == found
