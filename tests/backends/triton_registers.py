"""Compile attnbench's Triton kernels for a GPU that need not be present, and print what ptxas reports.

    python tests/backends/triton_registers.py KERNEL,ARCH,HEADDIM,DTYPE[,FEATURE...] ...

KERNEL is fwd, dkdv, dq, decode, paged (with pages of 64 tokens), or indexer (64 heads; it needs sizes of blocks); ARCH
a compute capability (80, 90, 100) or an AMD one (gfx942); HEADDIM a number, or two such as 192x128, of which the second
is that of v; DTYPE as Triton writes it (bf16, fp32, fp8e4nv); FEATURE one of LEFT, RIGHT, SOFTCAP, VARLEN, ALIBI, SINK,
FP8, TMA, RESIDENT and AHEAD, of dkdv also SPLIT, of paged LATENT (HEADDIM is then that of v, with 64 more in k) and
CACHE8, an e4m3 cache; PADDED pads each headdim to a power of two in one tile. Block sizes are the first row of the
table whose shared memory fits (with TMA the row measured on Hopper, with its options), or the sizes of a FEATURE such
as 64x128x4x3 (BLOCK_M, BLOCK_N, num_warps, num_stages). The script prints one JSON line for each kernel; on AMD it has
only Triton's own report.

"overwritten" has registers that a loop's matmul reads with their value from the loop's start, but that the loop
overwrites, so that the next round reads another value: wrong code (docs/dev/triton-kernel.md).
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # the default; Triton 3.9 warns where it is not set

import triton
from overwritten_operands import overwritten_operands
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from attnbench.backends.triton import block_sizes as config
from attnbench.backends.triton.decode import _decode
from attnbench.backends.triton.dkdv import _dk_dv
from attnbench.backends.triton.dq import _dq
from attnbench.backends.triton.forward import _forward
from attnbench.backends.triton.indexer import _scores
from attnbench.backends.triton.paged import _paged

KERNELS = {"fwd": _forward, "dkdv": _dk_dv, "dq": _dq, "decode": _decode, "paged": _paged, "indexer": _scores}
FEATURES = ("LEFT", "RIGHT", "SOFTCAP", "VARLEN", "ALIBI", "SINK", "FP8", "TMA", "RESIDENT", "AHEAD")
DESCRIPTOR_ROWS = {"Q": "BLOCK_M", "K": "BLOCK_N", "V": "BLOCK_N", "DOut": "BLOCK_M"}  # with TMA
OWN_BLOCKS = {"fwd": ("Q",), "dkdv": ("K", "V"), "dq": ("Q", "DOut")}
SHARED = {"80": 163, "86": 99, "89": 99, "90": 227, "100": 227, "gfx942": 64}  # KiB that a program may use
ITEMSIZE = {"fp32": 4, "fp8e4nv": 1}


def build(kernel: str, arch: str, headdims: str, dtype: str, features: set[str]) -> dict[str, Any]:
    fn, itemsize = KERNELS[kernel], ITEMSIZE.get(dtype, 2)
    headdim, headdim_v = (int(n) for n in (headdims.split("x") * 2)[:2])
    width_v = triton.next_power_of_2(headdim_v)
    in_parts = kernel in OWN_BLOCKS and "PADDED" not in features and config.column_parts(headdim)[0]
    width, parts = config.column_parts(headdim) if in_parts else (triton.next_power_of_2(headdim), 1)
    tables = config._SINGLE_PRECISION if itemsize == 4 else config._HALF_PRECISION
    of_table = "decode" if kernel in ("paged", "indexer") else kernel
    widths = {"block_d": width * parts, "block_dv": width_v}
    memory = functools.partial(config.shared_memory, of_table, **widths, itemsize=itemsize)
    if "LATENT" in features:
        memory = functools.partial(config.latent_shared_memory, block_d=width + 64, block_dv=width, itemsize=itemsize)
    table = config._LATENT if "LATENT" in features else config.rows_of(tables[of_table], width * parts, width_v)
    limit = SHARED[arch] * 1024
    fitting = (row for row in table if memory(row) <= limit)
    blocks = next(fitting, table[-1])
    if arch == "90" and "TMA" in features:
        measured = config._HOPPER_MEASURED.get(kernel, {})
        blocks = next(iter(config.rows_of(measured, width * parts, width_v)), blocks)
        if kernel == "fwd" and parts > 1:  # as in forward.py
            blocks = blocks._replace(ahead=False)
    if arch == "90" and "VARLEN" in features and itemsize == 2:
        blocks = next(iter(config.rows_of(config._HOPPER_RAGGED.get(kernel, {}), width * parts, width_v)), blocks)
    for sizes in (name.split("x") for name in features if name[0].isdigit()):
        blocks = config.Blocks(*map(int, sizes), resident="RESIDENT" in features, ahead="AHEAD" in features)
    features = features | {name.upper() for name in ("resident", "ahead") if getattr(blocks, name)}
    constants: dict[str, Any] = {"HEADDIM": headdim, "HEADDIM_V": headdim_v, "BLOCK_D": width, "BLOCK_DV": width_v}
    constants |= {"BLOCK_M": blocks.BLOCK_M, "BLOCK_N": blocks.BLOCK_N}
    constants |= {name: name in features for name in FEATURES if name in fn.arg_names}
    if kernel == "paged":
        constants |= {"PAGE": 64, "LATENT": "LATENT" in features, "REST": 64, "BLOCK_R": 64}
    if kernel == "indexer":
        constants |= {"BLOCK_H": 64, "SCALED": "FP8" in features}
    if kernel in OWN_BLOCKS:
        constants |= {"PARTS": parts}
    absent = (
        [name for name in fn.arg_names if name.startswith("Cu_")]
        if not features & {"VARLEN"} and kernel != "paged"
        else []
    )
    absent += [name for name in fn.arg_names if name.startswith("Descale")] if "FP8" not in features else []
    absent += [name for name, feature in (("Sink", "SINK"), ("Slopes", "ALIBI")) if feature not in features]
    absent += ["splits"] if kernel == "dkdv" and "SPLIT" not in features else []
    kinds = [name for name in features if name.startswith("KIND")]  # such as KIND3x64
    kind, number = map(int, kinds[0].removeprefix("KIND").split("x")) if kinds else (0, 0)
    if kernel in ("fwd", "dkdv", "dq"):
        constants |= {"KIND": kind, "NUMBER": number}
    absent += ["Rows", "Rest"] if "TMA" not in features else []
    absent += ["Scale"] if "FP8" not in features else []
    absent += ["Listed"] * (not kind) + ["Kept"] * (kind != 5)
    constants |= dict.fromkeys(absent)
    constants = {name: value for name, value in constants.items() if name in fn.arg_names}

    signature, attributes = {}, {}
    for i, name in enumerate(fn.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name in ("Rows", "Rest"):
            signature[name] = f"tensordesc<{dtype}[{blocks.BLOCK_N}, {width if name == 'Rows' else 64}]>"
        elif name in DESCRIPTOR_ROWS and "TMA" in features and kernel != "paged":
            rows, by_head = (
                getattr(blocks, DESCRIPTOR_ROWS[name]),
                name in OWN_BLOCKS[kernel] and "RESIDENT" not in features,
            )
            columns = width if name in ("Q", "K") else width_v
            block = f"1, 1, {rows}, {columns}" if by_head else f"1, {rows}, 1, {columns}"
            if name == "V" and "FP8" in features:
                block = f"1, {columns}, 1, {rows}"
            signature[name] = f"tensordesc<{dtype}[{block}]>"
        elif kernel == "dkdv" and name in ("Lse", "Delta") and "TMA" in features:
            signature[name] = f"tensordesc<fp32[1, 1, {blocks.BLOCK_M}]>"
        else:
            narrow = name in ("K", "V") and "CACHE8" in features
            signature[name] = _type(name, "bf16" if name == "Out" and itemsize == 1 else "fp8e4nv" if narrow else dtype)
            if name in ("DK", "DV") and "SPLIT" in features:
                signature[name] = "*fp32"
            if signature[name][0] == "*" or (name.startswith("stride_") and not name.startswith("stride_l")):
                attributes[(i,)] = [["tt.divisibility", 16]]
    target = GPUTarget("hip", arch, 64) if arch.startswith("gfx") else GPUTarget("cuda", int(arch), 32)
    options = {"num_warps": blocks.num_warps, "num_stages": blocks.num_stages}
    compiled = triton.compile(ASTSource(fn, signature, constants, attributes), target=target, options=options)
    report = {"blocks": list(blocks[:4]), "shared": compiled.metadata.shared}
    return report | (_ptxas(compiled.asm["ptx"], arch) if "ptx" in compiled.asm else {})


def _type(name: str, dtype: str) -> str:
    if name in ("Lse", "Delta", "Sink", "Slopes", "Weights", "Scale", "Scores") or name.startswith("Descale"):
        return "*fp32"
    if name == "Kept":
        return "*i8"
    if name.startswith("Cu_") or name in ("Table", "Seqlens_k", "Listed"):
        return "*i32"
    if name[0].isupper():
        return f"*{dtype}"
    return "fp32" if name.startswith(("scale", "descale")) else "i32"


def _ptxas(ptx: str, arch: str) -> dict[str, Any]:
    target = re.search(r"\.target (\w+)", ptx)[1]  # type: ignore[index]
    ptxas = get_ptxas(int(arch)).path if inspect.signature(get_ptxas).parameters else get_ptxas().path  # none in 3.4
    with tempfile.TemporaryDirectory() as folder_of_one:
        source = Path(folder_of_one) / "kernel.ptx"
        source.write_text(ptx)
        command = [ptxas, "-v", "--gpu-name", target, source, "-o", f"{folder_of_one}/kernel"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        command = [Path(ptxas).with_name("nvdisasm"), "-c", f"{folder_of_one}/kernel"]
        sass = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", text)
    return {
        "registers": int(re.search(r"Used (\d+) registers", text)[1]),  # type: ignore[index]
        "spilled": [int(n) for n in spilled.groups()] if spilled else [],  # bytes of spills, stored and loaded
        "serialised": "serialized" in text,  # ptxas' warnings C7510 to C7515
        "overwritten": overwritten_operands(sass),
    }


if __name__ == "__main__":
    for case in sys.argv[1:]:
        kernel, arch, headdim, dtype, *features = case.split(",")
        print(json.dumps({"case": case, **build(kernel, arch, headdim, dtype, set(features))}), flush=True)
