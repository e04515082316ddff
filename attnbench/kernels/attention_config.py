"""Block sizes of the attention kernels, the order of their programs, and what all of them share.

The block sizes are fixed, not autotuned: autotuning would compile each kernel many times at the first call, and the
time of the first call is one of the things attnbench reports.

How the tables were chosen. The starting point were those that PyTorch's FlexAttention found by search on an H100
(torch/_inductor/template_heuristics/triton.py); each row was then compiled for its GPU (sm_90, sm_80, sm_86; Triton
3.6) and changed where `ptxas -v` showed spills inside a loop.

- **Registers.** A thread has 255. The accumulators live there for the whole loop: forward BLOCK_M x headdim_v, dq
  BLOCK_M x headdim, dk and dv BLOCK_N x (headdim + headdim_v), in fp32, over 32 num_warps threads. All rows keep
  that at 128 registers a thread or less, so that two blocks of scores fit beside it. On Hopper no forward and no dq
  of 16 bit spills; dk/dv spills values that it needs outside of its inner loops (at headdim 128 under causal it
  reloads 8 in them).
- **Shared memory.** It holds the block that a program owns and, num_stages deep, the blocks it walks over while the
  next ones are on their way. `shared_memory` counts that, for num_stages > 1 from above: at headdim 128 on Hopper
  Triton allocates 128 of 128 KiB forward, 161 of 192 for dk/dv and 160 of 176 for dq; less on Ampere, which keeps the
  owned block in registers. A program may use 227 KiB on Hopper, 163 on an A100, 99 on a consumer Ampere or Ada; the
  first row that fits is taken.
- **fp32** runs on the ordinary cores, not the tensor cores: nothing to feed from shared memory, but each thread
  unrolls all its multiplications and holds their operands, so blocks are small and spread over 8 warps.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

from __future__ import annotations

import functools
from typing import Literal, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

Kernel = Literal["fwd", "dkdv", "dq"]

LOG2_E = 1.4426950408889634

# Programs run in sections of heads whose walked-over blocks together stay in L2 (A100 40 MB, H100 50 MB, in halves).
L2_BUDGET = 16 << 20


class Blocks(NamedTuple):
    BLOCK_M: int  # queries
    BLOCK_N: int  # keys
    num_warps: int
    num_stages: int


# By the padded headdim (the larger of headdim and headdim_v); KiB of shared memory behind each row.
_HALF: dict[Kernel, dict[int, tuple[Blocks, ...]]] = {
    "fwd": {
        64: (Blocks(128, 64, 4, 3), Blocks(128, 64, 4, 2)),  # 64, 48
        128: (Blocks(128, 64, 8, 3), Blocks(128, 64, 8, 2), Blocks(128, 32, 8, 2)),  # 128, 96, 64
        256: (Blocks(128, 64, 8, 2), Blocks(128, 32, 8, 2), Blocks(64, 32, 4, 2), Blocks(64, 16, 4, 2)),
        # 192, 128, 96, 64
    },
    "dkdv": {
        64: (Blocks(64, 128, 8, 3), Blocks(64, 64, 4, 2), Blocks(32, 64, 4, 2)),  # 112, 64, 40
        128: (Blocks(64, 128, 8, 3), Blocks(64, 64, 4, 2), Blocks(32, 64, 4, 2), Blocks(32, 32, 4, 2)),
        # 192, 112, 72, 52
        256: (Blocks(32, 64, 8, 3), Blocks(32, 64, 8, 2), Blocks(32, 32, 8, 1), Blocks(16, 32, 8, 1)),
        # 168, 136, 68, 50
    },
    "dq": {
        64: (Blocks(128, 64, 8, 3), Blocks(64, 64, 4, 2)),  # 96, 56
        128: (Blocks(128, 64, 8, 3), Blocks(64, 64, 4, 2), Blocks(64, 32, 4, 2), Blocks(32, 32, 4, 2)),
        # 176, 104, 68, 50
        256: (Blocks(128, 32, 8, 2), Blocks(64, 32, 8, 2), Blocks(32, 32, 8, 1), Blocks(32, 16, 8, 1)),
        # 200, 132, 66, 49
    },
}
_FLOAT: dict[Kernel, dict[int, tuple[Blocks, ...]]] = {
    "fwd": {64: (Blocks(32, 32, 8, 1),), 128: (Blocks(32, 32, 8, 1),), 256: (Blocks(32, 16, 8, 1),)},  # 24, 48, 64
    "dkdv": {64: (Blocks(32, 32, 8, 1),), 128: (Blocks(32, 32, 8, 1),), 256: (Blocks(16, 16, 8, 1),)},  # 40, 72, 66
    "dq": {64: (Blocks(32, 32, 8, 1),), 128: (Blocks(32, 32, 8, 1),), 256: (Blocks(16, 16, 8, 1),)},  # 36, 68, 65
}


def blocks_for(kernel: Kernel, q: Tensor, v: Tensor) -> Blocks:
    """The block sizes for these tensors on their device."""
    block_d, block_dv = padded(q.shape[-1]), padded(v.shape[-1])
    index = torch.cuda.current_device() if q.is_cuda and q.device.index is None else q.device.index
    return _choose(kernel, block_d, block_dv, q.element_size(), index if q.is_cuda else None)


@functools.cache
def _choose(kernel: Kernel, block_d: int, block_dv: int, itemsize: int, device: int | None) -> Blocks:
    rows = (_HALF if itemsize == 2 else _FLOAT)[kernel][max(64, block_d, block_dv)]
    limit = _shared_memory_limit(device)
    fitting = (row for row in rows if shared_memory(kernel, row, block_d, block_dv, itemsize) <= limit)
    return next(fitting, rows[-1])  # the estimate is from above: the leanest may fit all the same


def shared_memory(kernel: Kernel, blocks: Blocks, block_d: int, block_dv: int, itemsize: int) -> int:
    """Bytes of shared memory that a program of `kernel` needs, counted from above."""
    m, n, _, stages = blocks
    wide = block_d + block_dv
    elements = {
        "fwd": m * block_d + stages * n * wide,  # Q; K and V
        "dkdv": n * wide + stages * m * wide + 2 * m * n,  # K and V; Q and dO; P and dS on their way to a matmul
        "dq": m * wide + stages * n * wide + m * n,  # Q and dO; K and V; dS
    }
    return elements[kernel] * itemsize


@functools.cache
def _shared_memory_limit(device: int | None) -> float:
    """Bytes of shared memory a block may use; no limit in the interpreter, on a CPU."""
    if device is None:
        return float("inf")
    return float(triton.runtime.driver.active.utils.get_device_properties(device)["max_shared_mem"])


def padded(headdim: int) -> int:
    """Blocks have power-of-two sides: the width of the block that holds `headdim` columns."""
    return 1 << (headdim - 1).bit_length()


def heads_per_section(heads: int, nbytes: int) -> int:
    """How many heads run side by side so that what they walk over, `nbytes` a head, stays in L2."""
    return max(1, min(heads, L2_BUDGET // nbytes))


def launch(kernel, blocks: Blocks, programs: int, q: Tensor, *args, **constants) -> None:
    """Launch on the current stream of q's device, which need not be the current device."""
    with torch.cuda.device_of(q):
        kernel[(programs,)](*args, **constants, **blocks._asdict())


@triton.jit
def place(blocks, heads, section):
    """Which block, by rank, of which head this program does.

    Program ids start in order. Within a section of heads all blocks of rank 0 come first, then those of rank 1, and
    so on: with the heaviest block at rank 0, as causal needs it, the light ones fill the gaps at the end.
    """
    pid = tl.program_id(0)
    first = pid // (section * blocks) * section
    width = tl.minimum(section, heads - first)
    rest = pid - first * blocks
    return rest // width, (first + rest % width).to(tl.int64)


@triton.jit
def load_rows(base, stride, rows, limit, D: tl.constexpr, BLOCK_D: tl.constexpr, CHECK: tl.constexpr):
    """A block of `rows` x D at `base`, zero where it is padded beyond D columns or (with CHECK) `limit` rows.

    `base` already points at the block's first row, so that only it needs the large offsets.
    """
    cols = tl.arange(0, BLOCK_D)
    pointers = base + rows.to(tl.int64)[:, None] * stride + cols[None, :]
    if CHECK and D < BLOCK_D:
        values = tl.load(pointers, mask=(rows[:, None] < limit) & (cols[None, :] < D), other=0.0)
    elif CHECK:
        values = tl.load(pointers, mask=rows[:, None] < limit, other=0.0)
    elif D < BLOCK_D:
        values = tl.load(pointers, mask=cols[None, :] < D, other=0.0)
    else:
        values = tl.load(pointers)
    return values


@triton.jit
def store_rows(base, stride, rows, limit, values, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """The counterpart of load_rows, always checked."""
    cols = tl.arange(0, BLOCK_D)
    pointers = base + rows.to(tl.int64)[:, None] * stride + cols[None, :]
    tl.store(pointers, values.to(base.dtype.element_ty), mask=(rows[:, None] < limit) & (cols[None, :] < D))
