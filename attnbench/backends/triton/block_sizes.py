"""Block sizes of the attention kernels, the order of their programs, and what all of them share.

For Hopper and inputs of 16 bits the rows are fixed: what was fastest on an H200 (docs/triton-kernel.md). On another GPU
the few rows that fit are timed at the first call that needs them (tuned_blocks.py), which counts as its time.

How the other tables were made. The starting point were those that PyTorch's FlexAttention found by search on an H100
(torch/_inductor/template_heuristics/triton.py); each row was then compiled for its GPU (sm_90, sm_80, sm_86; Triton
3.6) and changed where `ptxas -v` showed spills inside a loop.

- **Registers.** A thread has 255. The accumulators live there for the whole loop: forward BLOCK_M x headdim_v, dq
  BLOCK_M x headdim, dk and dv BLOCK_N x (headdim + headdim_v), in fp32, over 32 num_warps threads. All rows keep
  that at 128 registers a thread or less, so that two blocks of scores fit beside it. On Hopper no kernel with tensor
  maps spills.
- **Shared memory.** It holds the block that a program owns and, num_stages deep, the blocks it walks over while the
  next ones are on their way. `shared_memory` counts that, for num_stages > 1 from above: at headdim 128 on Hopper
  Triton allocates 128 of 128 KiB forward, 161 of 192 for dk/dv and 160 of 176 for dq; less on Ampere, which keeps the
  owned block in registers. A program may use 227 KiB on Hopper, 163 on an A100, 99 on a consumer Ampere or Ada; the
  first row that fits is taken.
- **fp32** runs on the ordinary cores, not the tensor cores: nothing to feed from shared memory, but each thread
  unrolls all its multiplications and holds their operands, so blocks are small and spread over 8 warps.
- **Decode** reads K and V as they come, so its blocks of keys are only deep enough to keep loads in flight.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

from __future__ import annotations

import functools
from typing import Literal, NamedTuple

import torch
import triton
from torch import Tensor

Kernel = Literal["fwd", "dkdv", "dq", "decode"]

# Programs run in sections of heads whose walked-over blocks together stay in L2 (A100 40 MB, H100 50 MB, in halves).
L2_BUDGET = 16 << 20

MIN_BLOCK = 16  # the side of the smallest matmul
MIN_SPLIT_BLOCKS = 4  # of keys, that a program of a split decode does


class Blocks(NamedTuple):
    BLOCK_M: int  # queries
    BLOCK_N: int  # keys
    num_warps: int
    num_stages: int
    tma: bool = False  # tensor maps, where the device has them
    resident: bool = False  # with tma, fwd and dq: what a program keeps (Q; Q and dO) in registers, not shared memory
    ahead: bool = False  # matmuls before elementwise work that they do not need: see the kernels
    warp_specialize: bool = False  # of the forward's loop over full blocks
    max_registers: int | None = None  # a thread, so that more programs fit on a multiprocessor


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
    "decode": {  # BLOCK_M is the least that holds the queries, here at its most
        64: (Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2)),  # 56, 40
        128: (Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2)),  # 112, 80
        256: (Blocks(64, 64, 8, 2), Blocks(64, 32, 4, 2), Blocks(64, 16, 4, 2)),  # 160, 96, 64
    },
}
_FLOAT: dict[Kernel, dict[int, tuple[Blocks, ...]]] = {
    "fwd": {64: (Blocks(32, 32, 8, 1),), 128: (Blocks(32, 32, 8, 1),), 256: (Blocks(32, 16, 8, 1),)},  # 24, 48, 64
    "dkdv": {64: (Blocks(32, 32, 8, 1),), 128: (Blocks(32, 32, 8, 1),), 256: (Blocks(16, 16, 8, 1),)},  # 40, 72, 66
    "dq": {64: (Blocks(32, 32, 8, 1),), 128: (Blocks(32, 32, 8, 1),), 256: (Blocks(16, 16, 8, 1),)},  # 36, 68, 65
    "decode": {64: (Blocks(64, 32, 8, 1),), 128: (Blocks(64, 32, 8, 1),), 256: (Blocks(64, 16, 8, 1),)},  # 32, 64, 96
}


# For Hopper and 16 bits, where tensor maps can be made: the fastest of some ten to twenty on an H200, found by
# tests/gpu/tune_triton.py. Two programs of 4 warps fit on a multiprocessor, each computing while the other waits for
# its matmuls; at headdim 256 dk, dv and dq need the registers of 8. Of two rows the second is for calls with a mask.
_HOPPER: dict[Kernel, dict[int, tuple[Blocks, ...]]] = {
    "fwd": {
        64: (Blocks(64, 128, 4, 3, tma=True, resident=True),),  # 96 KiB
        128: (Blocks(64, 64, 4, 3, tma=True, resident=True, ahead=True),),  # 112
        256: (Blocks(64, 32, 4, 3, tma=True, resident=True, ahead=True),),  # 112
    },
    "dkdv": {
        64: (Blocks(64, 64, 4, 3, tma=True),),  # 65
        128: (Blocks(64, 128, 8, 3, ahead=True), Blocks(64, 128, 8, 3)),  # 161
        256: (Blocks(64, 64, 8, 2, tma=True, ahead=True),),  # 200
    },
    "dq": {
        64: (Blocks(128, 64, 4, 3, tma=True, ahead=True),),  # 81
        128: (Blocks(64, 64, 4, 3, tma=True, resident=True, ahead=True),),  # 96
        256: (Blocks(128, 32, 8, 3, tma=True, ahead=True),),  # 224
    },
}
MEASURED = ("sm_90",)  # there the first row is taken, elsewhere the fastest


def blocks_for(kernel: Kernel, q: Tensor, v: Tensor, rows: int = 0) -> Blocks:
    """The first block sizes for these tensors on their device; for decode, with a BLOCK_M that holds `rows` queries."""
    chosen = candidates(kernel, *widths(q, v), q.element_size(), index_of(q), False, False)[0]
    return chosen._replace(BLOCK_M=max(MIN_BLOCK, padded(rows))) if kernel == "decode" else chosen


@functools.cache
def candidates(
    kernel: Kernel, block_d: int, block_dv: int, itemsize: int, device: int | None, maps: bool, masked: bool
) -> tuple[Blocks, ...]:
    """The rows that fit, best first; of a GPU in MEASURED only the first. `masked`: any mask, causal or a window."""
    width, limit = max(64, block_d, block_dv), _shared_memory_limit(device)
    rows = (_HALF if itemsize <= 2 else _FLOAT)[kernel][width]
    # The estimate is from above: the leanest may fit all the same.
    fitting = [r for r in rows if shared_memory(kernel, r, block_d, block_dv, itemsize) <= limit] or [rows[-1]]
    known = architecture(device)
    mapped = list(_HOPPER.get(kernel, {}).get(width, ())) if maps and itemsize == 2 and has_tma(device) else []
    if len(mapped) == 2:
        mapped = mapped[1:] if masked else mapped[:1]
    if known == "sm_90":
        fitting = mapped + fitting
    elif known not in MEASURED:
        fitting += mapped
    return tuple(fitting[:1]) if known in MEASURED else tuple(fitting)


def widths(q: Tensor, v: Tensor) -> tuple[int, int]:
    sizes = dims(q, v)
    return sizes["BLOCK_D"], sizes["BLOCK_DV"]


def shared_memory(kernel: Kernel, blocks: Blocks, block_d: int, block_dv: int, itemsize: int) -> int:
    """Bytes of shared memory that a program of `kernel` needs, counted from above."""
    m, n, stages = blocks.BLOCK_M, blocks.BLOCK_N, blocks.num_stages
    wide = block_d + block_dv
    forward = m * block_d + stages * n * wide  # Q; K and V
    elements = {
        "fwd": forward,
        "decode": forward,
        "dkdv": n * wide + stages * m * wide + 2 * m * n,  # K and V; Q and dO; P and dS on their way to a matmul
        "dq": m * wide + stages * n * wide + m * n,  # Q and dO; K and V; dS
    }
    return elements[kernel] * itemsize


def index_of(q: Tensor) -> int | None:
    """The device's number; None on a CPU, in the interpreter."""
    if not q.is_cuda:
        return None
    return torch.cuda.current_device() if q.device.index is None else q.device.index


@functools.cache
def _shared_memory_limit(device: int | None) -> float:
    """Bytes of shared memory a block may use; no limit in the interpreter."""
    if device is None:
        return float("inf")
    return float(triton.runtime.driver.active.utils.get_device_properties(device)["max_shared_mem"])


@functools.cache
def architecture(device: int | None) -> str:
    """As compilers call it: sm_90, gfx942; "interpreter" without a device."""
    if device is None:
        return "interpreter"
    if torch.version.hip is not None:
        return str(torch.cuda.get_device_properties(device).gcnArchName).split(":")[0]
    return "sm_{}{}".format(*torch.cuda.get_device_capability(device))


@functools.cache
def has_tma(device: int | None) -> bool:
    """Whether there is a tensor memory accelerator: from Hopper on. The interpreter plays one, so that tests see it."""
    return device is None or (torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0))


@functools.cache
def multiprocessors(device: int | None) -> int:
    """How many programs run at once, at least."""
    return 8 if device is None else torch.cuda.get_device_properties(device).multi_processor_count


def splits_for(q: Tensor, programs: int, seqlen_k: int, block_n: int) -> int:
    """Into how many stretches of keys `programs` are split so that two for each multiprocessor run.

    A stretch of under MIN_SPLIT_BLOCKS blocks would be read faster than the results are combined.
    """
    wanted = 2 * multiprocessors(index_of(q)) // programs
    return max(1, min(wanted, seqlen_k // (MIN_SPLIT_BLOCKS * block_n)))


def padded(headdim: int) -> int:
    """Blocks have power-of-two sides: the width of the block that holds `headdim` columns."""
    return 1 << (headdim - 1).bit_length()


def dims(q: Tensor, v: Tensor) -> dict[str, int]:
    """The constants that name the widths of q and v and of the blocks that hold them."""
    least = MIN_BLOCK * (2 if q.element_size() == 1 else 1)  # what one matmul instruction takes
    headdim, headdim_v = q.shape[-1], v.shape[-1]
    block_d, block_dv = max(least, padded(headdim)), max(least, padded(headdim_v))
    return {"HEADDIM": headdim, "HEADDIM_V": headdim_v, "BLOCK_D": block_d, "BLOCK_DV": block_dv}


def heads_per_section(heads: int, nbytes: int) -> int:
    """How many heads run side by side so that what they walk over, `nbytes` a head, stays in L2."""
    return max(1, min(heads, L2_BUDGET // nbytes))
