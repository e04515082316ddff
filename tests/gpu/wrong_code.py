"""Show two faults of Triton 3.6 and its ptxas that the attention kernels must avoid, on a Hopper GPU.

    python tests/gpu/wrong_code.py            runs small kernels, and compares their results
    python tests/gpu/wrong_code.py --compile  without a GPU: faults in the machine code and in the PTX

**An operand is overwritten.** Like the kernel of dk and dv, the kernel loads a block of keys, loops over blocks of
queries, and adds exp2(k q^T) q to a sum. Where the descriptor of the keys has seqlen before nheads, Triton keeps the
keys in registers as the left operand of the first matmul, else in shared memory (`resident` in block_sizes.py). With a
branch in the loop, as under a causal mask, ptxas (12.8 and 12.9, -O1 to -O3) reuses these registers after the matmul,
so all rounds but the first multiply other values. The PTX is right: it writes these registers once, before the loop.

**An address is misaligned.** The tensor memory accelerator writes to multiples of 128 bytes in shared memory. Triton
puts the stages of a pipelined block of 16 fp32 numbers 64 bytes apart.

Exit code 1 means that a form is wrong.
"""

# ruff: noqa: E402, N803  the path first; arguments as in the attention kernels
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path[:0] = [os.getcwd(), str(Path(__file__).parents[1] / "backends")]  # finds attnbench without an installation

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

SIDE = 64  # keys, queries of a block, and headdim
ROUNDS = 8  # blocks of queries


@triton.jit(do_not_specialize=["edge", "queries"])
def _sum_of_pq(
    Q, K, Out, edge, queries,
    BRANCH: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Write the sum over blocks of queries of exp2(k q^T) q; with BRANCH queries below `edge` have a causal mask."""
    k = K.load([0, 0, 0, 0]).reshape(SIDE, SIDE)
    keys, rows = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :]
    total = tl.zeros((SIDE, SIDE), tl.float32)
    for start in range(0, queries, SIDE):
        q = Q.load([0, start, 0, 0]).reshape(SIDE, SIDE)
        scores = tl.dot(k, tl.trans(q))
        if BRANCH:  # noqa: SIM102  the outer condition is a compile-time constant
            if start < edge:
                scores = tl.where(keys <= start + rows, scores, float("-inf"))
        total = tl.dot(tl.exp2(scores).to(q.dtype), q, total)
    tl.store(Out + keys * SIDE + rows, total)


def run(resident: bool, branch: bool) -> float:
    """Return the relative error of the kernel on the GPU."""
    torch.manual_seed(0)
    q, k = (torch.randn(1, n * SIDE, 1, SIDE, device="cuda").mul(0.3).bfloat16() for n in (ROUNDS, 1))
    out = torch.empty(SIDE, SIDE, device="cuda")
    own = (k, [1, SIDE, 1, SIDE]) if resident else (k.transpose(1, 2), [1, 1, SIDE, SIDE])
    descriptors = (TensorDescriptor.from_tensor(q, [1, SIDE, 1, SIDE]), TensorDescriptor.from_tensor(*own))
    _sum_of_pq[(1,)](*descriptors, out, SIDE, ROUNDS * SIDE, BRANCH=branch, SIDE=SIDE, num_warps=4, num_stages=3)
    queries, keys = q[0, :, 0].double(), k[0, :, 0].double()
    scores = keys @ queries.T
    if branch:
        positions = torch.arange(ROUNDS * SIDE, device="cuda")
        scores.masked_fill_(positions[:SIDE, None] > positions, float("-inf"))
    want = scores.exp2() @ queries
    return float((out - want).norm() / want.norm())


@triton.jit(do_not_specialize=["count"])
def _sum_of_rows(Rows, Out, count, BLOCK: tl.constexpr):
    """Write the sum over blocks of BLOCK numbers, through a descriptor and with four stages."""
    total = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(0, count, BLOCK, num_stages=4):
        total += Rows.load([0, 0, start]).reshape(BLOCK)
    tl.store(Out + tl.arange(0, BLOCK), total)


def run_rows(block: int) -> float:
    """Return the error of the sum of blocks of rows on the GPU."""
    rows, out = torch.arange(512.0, device="cuda"), torch.empty(block, device="cuda")
    _sum_of_rows[(1,)](TensorDescriptor.from_tensor(rows[None, None], [1, 1, block]), out, 512, BLOCK=block)
    return float((out - rows.view(-1, block).sum(0)).abs().max())


def stage_bytes(block: int) -> int:
    """Return the least distance of the places in shared memory to which the compiled kernel copies blocks of rows."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {"Rows": f"tensordesc<fp32[1, 1, {block}]>", "Out": "*fp32", "count": "i32", "BLOCK": "constexpr"}
    source = ASTSource(_sum_of_rows, signature, {"BLOCK": block}, {})
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    offsets = dict.fromkeys(re.findall(r"mov\.b32\s+(%r\d+), global_smem", ptx), 0)
    for name, base, offset in re.findall(r"add\.s32\s+(%r\d+), (%r\d+), (\d+);", ptx):
        if offsets.get(base) == 0:
            offsets[name] = int(offset)
    targets = re.findall(r"cp\.async\.bulk\.tensor\.3d\S+ \[(%r\d+)\]", ptx)
    places = sorted({offsets[name] for name in targets if name in offsets})  # without places that depend on the stage
    return min((b - a for a, b in itertools.pairwise(places)), default=0)


def overwritten(resident: bool, branch: bool) -> list[str]:
    """Return the registers of matmuls that Hopper's machine code overwrites in the loop, without a GPU."""
    import triton_registers
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    block = f"1, {SIDE}, 1, {SIDE}"
    own = block if resident else f"1, 1, {SIDE}, {SIDE}"
    signature = {"Q": f"tensordesc<bf16[{block}]>", "K": f"tensordesc<bf16[{own}]>", "Out": "*fp32"}
    signature |= {"edge": "i32", "queries": "i32", "BRANCH": "constexpr", "SIDE": "constexpr"}
    source = ASTSource(_sum_of_pq, signature, {"BRANCH": branch, "SIDE": SIDE}, {})
    options = {"num_warps": 4, "num_stages": 3}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    found: list[str] = triton_registers._ptxas(compiled.asm["ptx"], "90")["overwritten"]
    return found


def child(block: int) -> str:
    """Return the output of a process that runs `run_rows`, because a misaligned address ends the CUDA context."""
    command = [sys.executable, __file__, "--rows", str(block)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return done.stdout.strip() if done.returncode == 0 else "WRONG: " + (done.stderr.strip().splitlines() or ["?"])[-1]


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--rows"]:
        error = run_rows(int(arguments[1]))
        print(f"{'right' if error == 0 else 'WRONG'}, off by {error:g}")
        return 0
    said: dict[str, str] = {}
    for resident, branch in itertools.product((False, True), repeat=2):
        name = f"keys in {'registers' if resident else 'shared memory'}, {'a' if branch else 'no'} branch in the loop"
        if arguments == ["--compile"]:
            registers = overwritten(resident, branch)
            said[name] = f"WRONG: overwrites {registers[0]} to {registers[-1]}" if registers else "right"
        else:
            error = run(resident, branch)
            said[name] = f"{'right' if error < 1e-2 else 'WRONG'}, off by {error:.1e}"
    for block in (64, 32, 16):
        name = f"blocks of {block} rows"
        if arguments == ["--compile"]:
            distance = stage_bytes(block)
            said[name] = f"{'WRONG' if distance % 128 else 'right'}: stages are {distance} bytes apart"
        else:
            said[name] = child(block)
    for name, outcome in said.items():
        print(f"{name:50} {outcome}")
    return int(any("WRONG" in outcome for outcome in said.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
