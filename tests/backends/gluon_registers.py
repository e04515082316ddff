"""Compile attnbench's Gluon kernels for Hopper, which need not be present, and print what ptxas reports.

    python tests/backends/gluon_registers.py KERNEL,HEADDIM,HEADDIM_V,DTYPE[,RIGHT] ...

KERNEL is fwd, short (the forward of few queries) or bwd; DTYPE as Triton writes it (bf16, fp16); RIGHT a causal mask.
Tiles are the ones of a real call. The script prints one JSON line for each kernel, as triton_registers.py does, but for
the forward without "overwritten": it would wrongly report a left operand that the kernel carries to the next round.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton_registers import _ptxas

from attnbench.backends.gluon.backward import _backward_hopper
from attnbench.backends.gluon.backward_tiles import choose_backward_tiles
from attnbench.backends.gluon.backward_wide import _backward_hopper_wide
from attnbench.backends.gluon.dq_sum import added_rows
from attnbench.backends.gluon.forward import ROWS, _forward_hopper
from attnbench.backends.gluon.forward_tiles import choose_forward_tiles, head_widths

Blocks = dict[str, tuple[int, int]]  # rows and columns of a tensor descriptor's block
FLOATS = ("Lse", "Delta", "DQ", "DQRest")  # descriptors of float32 tensors


def compile_kernel(kernel: str, headdim: int, headdim_v: int, dtype: str, causal: bool) -> tuple[list[int], Any]:
    """Return the tiles of a kernel, and the compiled kernel."""
    tiles, fn, blocks, constants = (
        _backward(headdim, headdim_v)
        if kernel == "bwd"
        else _forward(headdim, headdim_v, 1 if kernel == "short" else 16384)
    )
    constants |= {"RIGHT": causal} | {name: None for name, (_, columns) in blocks.items() if not columns}
    signature, attributes = {}, {}
    for i, name in enumerate(fn.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name in blocks:
            bits, swizzle = (32, 0) if name in FLOATS else (16, 128)
            block = [*blocks[name]] if name in FLOATS else [1, blocks[name][0], 1, blocks[name][1]]
            layout = gl.NVMMASharedLayout(swizzle_byte_width=swizzle, element_bitwidth=bits, rank=len(block))
            shape = ", ".join(map(str, block))
            signature[name] = f"tensordesc<{'fp32' if name in FLOATS else dtype}[{shape}],{layout!r}>"
        else:
            pointers = {"Lse": "*fp32", "Work": "*i32", "DK": f"*{dtype}", "DV": f"*{dtype}"}
            signature[name] = pointers.get(name, "fp32" if name.startswith("scale") else "i32")
            if name in ("DK", "DV") or name.startswith(("stride_dk", "stride_dv")):
                attributes[(i,)] = [["tt.divisibility", 16]]
    source = GluonASTSource(fn, signature, constants, attributes)
    return list(tiles), triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})


def _forward(headdim: int, headdim_v: int, seqlen_q: int) -> tuple[tuple[int, ...], Any, Blocks, dict[str, Any]]:
    width, rest = head_widths(headdim, headdim_v)
    tiles = choose_forward_tiles(width, rest, seqlen_q)
    blocks = {"Q": (ROWS.value, width), "QRest": (ROWS.value, rest), "K": (tiles.keys, width)}
    blocks |= {"KRest": (tiles.keys, rest), "V": (tiles.keys, width), "Out": (ROWS.value, width)}
    constants = {"STAGES": tiles.stages, "GROUPS": tiles.groups, "BLOCKS": tiles.blocks}
    return tiles, _forward_hopper, blocks, constants | {"REGISTERS": tiles.registers}


def _backward(headdim: int, headdim_v: int) -> tuple[tuple[int, ...], Any, Blocks, dict[str, Any]]:
    tiles = choose_backward_tiles(headdim, headdim_v)
    columns, columns_v = tiles.columns
    blocks = {"Q": (tiles.queries, columns), "K": (tiles.keys, columns)}
    blocks |= {"V": (tiles.keys, columns_v), "DOut": (tiles.queries, columns_v)}
    blocks |= {"Lse": (1, tiles.queries), "Delta": (1, tiles.queries)}
    blocks |= zip(("DQ", "DQRest"), ((rows, 256) for rows in added_rows(tiles)), strict=False)
    fn = _backward_hopper_wide if tiles.wide else _backward_hopper
    return tiles, fn, blocks, {"HEADDIM": headdim, "HEADDIM_V": headdim_v, **tiles.constants}


def build(*case: Any) -> dict[str, Any]:
    tiles, compiled = compile_kernel(*case)
    said = _ptxas(compiled.asm["ptx"], "90")
    if case[0] != "bwd":
        del said["overwritten"]
    return {"tiles": tiles, "shared": compiled.metadata.shared} | said


if __name__ == "__main__":
    for case in sys.argv[1:]:
        kernel, headdim, headdim_v, dtype, *features = case.split(",")
        said = build(kernel, int(headdim), int(headdim_v), dtype, "RIGHT" in features)
        print(json.dumps({"case": case, **said}), flush=True)
