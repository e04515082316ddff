"""Block sizes of the attention kernels: the tables, the choice for a device, and sizes that follow from them.

For Hopper and 16-bit inputs one row is fixed: the fastest on an H200 or H100 (docs/triton-kernel.md). On another GPU
the first call that needs a choice times the few rows that fit (tuned_blocks.py), so that its time includes the search.

The other tables started from the block sizes that PyTorch's FlexAttention found by search on an H100
(torch/_inductor/template_heuristics/triton.py). Each row was then compiled for its GPU (sm_90, sm_80, sm_86; Triton
3.6) and changed where `ptxas -v` showed spills inside a loop. The limits are:

- **Registers.** A thread has 255. The accumulators stay in registers during the whole loop: forward
  BLOCK_M x headdim_v, dq BLOCK_M x headdim, dk and dv BLOCK_N x (headdim + headdim_v), in fp32, over 32 * num_warps
  threads. All rows keep these at 128 registers per thread or less, so that two blocks of scores fit too. On Hopper no
  kernel with tensor descriptors spills on a dense batch (Triton 3.6); on ragged batches headdim 192 and 256 do.
- **Shared memory.** It holds the block that a program owns and num_stages of the blocks over which it loops, so that
  the next ones can be loaded meanwhile. `shared_memory` is an upper bound of it where num_stages > 1: at headdim 128
  on Hopper Triton allocates 128 of 128 KiB forward, 161 of 192 for dk/dv and 160 of 176 for dq; less on Ampere, which
  keeps the owned block in registers. A program may use 227 KiB on Hopper, 163 on an A100, 99 on a consumer Ampere or
  Ada. The first row that fits is taken.
- **fp32** does not use the tensor cores, so nothing needs shared memory, but each thread unrolls all its
  multiplications and holds their operands. Blocks are therefore small and spread over 8 warps.
- **Decode** waits for K and V, so its blocks of keys only need to be large enough to keep loads in flight.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

from __future__ import annotations

import functools
from typing import Literal, NamedTuple

import torch
import triton
from torch import Tensor

Kernel = Literal["fwd", "dkdv", "dq", "decode"]

# Bytes of the keys and values (or queries) of a section of heads, which run together so that these stay in L2. An A100
# has 40 MB of L2, an H100 50 MB, each in two halves.
L2_BUDGET = 16 << 20

MIN_BLOCK = 16  # least side of a matmul
MIN_SPLIT_BLOCKS = 4  # least number of blocks, of keys or of queries, for one program of a split
SPLIT_WARPS = 64  # most warps on a multiprocessor for dk and dv, where the query heads of a key head are split
PAGED_PROGRAMS = 16  # most programs on a multiprocessor over a cache of pages
PAGED_STRETCH = 1024  # least keys of a program over a cache of pages


class Blocks(NamedTuple):
    """Block sizes and compile options of one kernel."""

    BLOCK_M: int  # queries
    BLOCK_N: int  # keys
    num_warps: int
    num_stages: int
    tma: bool = False  # load through tensor descriptors (the tensor memory accelerator), where the device has it
    resident: bool = False  # with tma, fwd and dq: keep the program's own block (Q; Q and dO) in registers
    ahead: bool = False  # start matmuls before elementwise work on which they do not depend


# Rows by the padded headdim (the larger of headdim and headdim_v), best first. The comment behind a list has the shared
# memory of each row in KiB.
_HALF_PRECISION: dict[Kernel, dict[int, tuple[Blocks, ...]]] = {
    "fwd": {
        64: (Blocks(128, 64, 4, 3), Blocks(128, 64, 4, 2)),  # 64, 48 KiB
        128: (Blocks(128, 64, 8, 3), Blocks(128, 64, 8, 2), Blocks(128, 32, 8, 2)),  # 128, 96, 64 KiB
        256: (Blocks(128, 64, 8, 2), Blocks(128, 32, 8, 2), Blocks(64, 32, 4, 2), Blocks(64, 16, 4, 2)),
        # 192, 128, 96, 64 KiB
    },
    "dkdv": {
        64: (Blocks(64, 128, 8, 3), Blocks(64, 64, 4, 2), Blocks(32, 64, 4, 2)),  # 112, 64, 40 KiB
        128: (Blocks(64, 128, 8, 3), Blocks(64, 64, 4, 2), Blocks(32, 64, 4, 2), Blocks(32, 32, 4, 2)),
        # 192, 112, 72, 52 KiB
        256: (Blocks(32, 64, 8, 3), Blocks(32, 64, 8, 2), Blocks(32, 32, 8, 1), Blocks(16, 32, 8, 1)),
        # 168, 136, 68, 50 KiB
    },
    "dq": {
        64: (Blocks(128, 64, 8, 3), Blocks(64, 64, 4, 2)),  # 96, 56 KiB
        128: (Blocks(128, 64, 8, 3), Blocks(64, 64, 4, 2), Blocks(64, 32, 4, 2), Blocks(32, 32, 4, 2)),
        # 176, 104, 68, 50 KiB
        256: (Blocks(128, 32, 8, 2), Blocks(64, 32, 8, 2), Blocks(32, 32, 8, 1), Blocks(32, 16, 8, 1)),
        # 200, 132, 66, 49 KiB
    },
    "decode": {  # BLOCK_M is the largest possible; a call uses the least that holds its queries
        64: (Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2)),  # 56, 40 KiB
        128: (Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2)),  # 112, 80 KiB
        256: (Blocks(64, 64, 8, 2), Blocks(64, 32, 4, 2), Blocks(64, 16, 4, 2)),  # 160, 96, 64 KiB
    },
}
_SINGLE_PRECISION: dict[Kernel, dict[int, tuple[Blocks, ...]]] = {
    "fwd": {64: (Blocks(32, 32, 8, 1),), 128: (Blocks(32, 32, 8, 1),), 256: (Blocks(32, 16, 8, 1),)},  # 24, 48, 64
    "dkdv": {64: (Blocks(32, 32, 8, 1),), 128: (Blocks(32, 32, 8, 1),), 256: (Blocks(16, 16, 8, 1),)},  # 40, 72, 66
    "dq": {64: (Blocks(32, 32, 8, 1),), 128: (Blocks(32, 32, 8, 1),), 256: (Blocks(16, 16, 8, 1),)},  # 36, 68, 65
    "decode": {64: (Blocks(64, 32, 8, 1),), 128: (Blocks(64, 32, 8, 1),), 256: (Blocks(64, 16, 8, 1),)},  # 32, 64, 96
}


# Rows for Hopper and 16-bit inputs, where tensor descriptors can be made: the fastest of 15 to 30 candidates on an
# H200, found by tests/gpu/tune_triton.py. Two programs of 4 warps fit on a multiprocessor, and one computes while the
# other waits for its matmuls; at headdim 256, dk, dv and dq need the registers of 8 warps. A second row is for calls
# with a mask. Rows of 192, for headdim 192 and headdim_v 128, were measured on an H100.
_HOPPER_MEASURED: dict[Kernel, dict[int, tuple[Blocks, ...]]] = {
    "fwd": {
        64: (Blocks(64, 128, 4, 3, tma=True, resident=True),),  # 96 KiB
        128: (Blocks(64, 64, 4, 3, tma=True, resident=True, ahead=True),),  # 112 KiB
        192: (Blocks(128, 64, 8, 3, tma=True, resident=True),),  # 120 KiB; with `ahead` ptxas serialises the matmuls
        256: (Blocks(64, 32, 4, 3, tma=True, resident=True, ahead=True),),  # 112 KiB
    },
    "dkdv": {
        64: (Blocks(64, 64, 4, 3, tma=True),),  # 65 KiB
        128: (Blocks(64, 128, 8, 3, ahead=True), Blocks(64, 128, 8, 3)),  # 161 KiB
        192: (Blocks(64, 128, 8, 2, tma=True),),  # 161 KiB
        256: (Blocks(64, 64, 8, 2, tma=True, ahead=True),),  # 200 KiB
    },
    "dq": {
        64: (Blocks(128, 64, 4, 3, tma=True, ahead=True),),  # 81 KiB
        128: (Blocks(64, 64, 4, 3, tma=True, resident=True, ahead=True),),  # 96 KiB
        192: (Blocks(64, 32, 4, 3, tma=True, resident=True, ahead=True),),  # 60 KiB
        256: (Blocks(128, 32, 8, 3, tma=True, ahead=True),),  # 224 KiB
    },
}


# Rows for ragged batches, in which dk and dv have no tensor descriptors: the fastest of 4 or 5 candidates on an H100,
# for sequences of `uniform` and `documents` lengths, mean 1k and 4k, causal (tests/gpu/time_ragged_tiles.py).
_HOPPER_RAGGED: dict[Kernel, dict[int, tuple[Blocks, ...]]] = {
    "dkdv": {64: (Blocks(64, 64, 4, 2),), 128: (Blocks(64, 128, 8, 2),)},  # 48, 128 KiB
}
# Rows for ragged batches whose longest sequence is short (Problem.mask_kind).
_HOPPER_RAGGED_SHORT: dict[Kernel, dict[int, tuple[Blocks, ...]]] = {
    **_HOPPER_RAGGED,
    "fwd": {64: (Blocks(128, 64, 4, 3),)},  # 64 KiB
}
_HOPPER_BY_MASK = {"varlen": _HOPPER_RAGGED, "varlen short": _HOPPER_RAGGED_SHORT}


def decode_blocks(q: Tensor, v: Tensor, rows: int) -> Blocks:
    """Return the block sizes of the decode kernel: the first that fit; BLOCK_M is the least that holds `rows`."""
    sizes = head_dim_constants(q, v)
    widths = sizes["BLOCK_D"], sizes["BLOCK_DV"]
    chosen = candidates("decode", *widths, q.element_size(), device_index(q), False, "full")[0]
    return chosen._replace(BLOCK_M=max(MIN_BLOCK, triton.next_power_of_2(rows)))


# Rows of the kernel of latent rows (MLA), best first, for GPUs with 227 KiB, 163 KiB and less of shared memory for a
# program: 512 columns of its queries, and as many of each loaded key. The first is the fastest of twelve on an H200
# (batch 64, 4k keys, 128 heads: 183 TFLOP/s, the second 141); the others are estimates. For 64 heads and 64 keys
# the two products take a tensor core 2,200 cycles. In the compiled loop (sm_90, Triton 3.6) both warp groups compute
# q k^T, with instructions for 32 keys that read shared memory for longer than they compute: 4,500 cycles. Then come the
# softmax, and the loading of the next keys, 72 KiB, of which the product with v hides 1,000. No third stage fits.
_LATENT = (Blocks(64, 64, 8, 2), Blocks(64, 32, 8, 2), Blocks(32, 32, 8, 2), Blocks(16, 32, 4, 2), Blocks(16, 16, 4, 1))


def latent_blocks(q: Tensor, headdim_v: int, rows: int) -> Blocks:
    """Return the block sizes of the kernel of latent rows: the first that fit. BLOCK_M is at most what `rows` need."""
    limit, width_v = _shared_memory_limit(device_index(q)), triton.next_power_of_2(headdim_v)
    width = width_v + triton.next_power_of_2(q.shape[-1] - headdim_v)
    fits = (b for b in _LATENT if latent_shared_memory(b, width, width_v, q.element_size()) <= limit)
    chosen = next(fits, _LATENT[-1])
    return chosen._replace(BLOCK_M=min(chosen.BLOCK_M, max(MIN_BLOCK, triton.next_power_of_2(rows))))


def latent_shared_memory(blocks: Blocks, block_d: int, block_dv: int, itemsize: int) -> int:
    """Return an upper bound in bytes of a program's shared memory for latent rows: queries, and keys in stages."""
    return (blocks.BLOCK_M + blocks.num_stages * blocks.BLOCK_N) * max(block_d, block_dv) * itemsize


@functools.cache
def candidates(
    kernel: Kernel, block_d: int, block_dv: int, itemsize: int, device: int | None, use_tma: bool, mask: str
) -> tuple[Blocks, ...]:
    """Return the rows that fit, best first; where they were measured, only the best.

    `block_d` and `block_dv` are the padded head dims, `device` is a GPU's index or None for the interpreter. `use_tma`
    is true where tensor descriptors can be made of the tensors, `mask` is Problem.mask_kind.
    """
    limit = _shared_memory_limit(device)
    rows = rows_of((_HALF_PRECISION if itemsize <= 2 else _SINGLE_PRECISION)[kernel], block_d, block_dv)
    # The need is an upper bound, so the smallest row may fit even where its bound exceeds the limit.
    fitting = tuple(r for r in rows if shared_memory(kernel, r, block_d, block_dv, itemsize) <= limit) or rows[-1:]
    measured: tuple[Blocks, ...] = ()
    if use_tma and itemsize == 2 and has_tma(device):
        measured = rows_of(_HOPPER_MEASURED.get(kernel, {}), block_d, block_dv)
    if len(measured) == 2:
        measured = measured[:1] if mask == "full" else measured[1:]
    if architecture(device) != "sm_90":
        return fitting + measured
    of_mask = _HOPPER_BY_MASK.get(mask, {}) if itemsize == 2 else {}
    return (rows_of(of_mask.get(kernel, {}), block_d, block_dv) or measured or fitting)[:1]


def rows_of(table: dict[int, tuple[Blocks, ...]], block_d: int, block_dv: int) -> tuple[Blocks, ...]:
    """Return a table's rows of the least width that holds both padded head dims; () from an empty table."""
    return next((table[width] for width in sorted(table) if width >= max(block_d, block_dv)), ())


def padded_head_dims(q: Tensor, v: Tensor) -> tuple[int, int]:
    """Return the columns of q and k, and of v, in a block of forward, dk and dv, and dq."""
    sizes = tile_constants(q, v)
    return sizes["BLOCK_D"] * sizes["PARTS"], sizes["BLOCK_DV"]


def shared_memory(kernel: Kernel, blocks: Blocks, block_d: int, block_dv: int, itemsize: int) -> int:
    """Return an upper bound of the bytes of shared memory that one program of `kernel` needs."""
    m, n, stages = blocks.BLOCK_M, blocks.BLOCK_N, blocks.num_stages
    wide = block_d + block_dv
    forward = m * block_d + stages * n * wide  # Q; K and V
    elements = {
        "fwd": forward,
        "decode": forward,
        "dkdv": n * wide + stages * m * wide + 2 * m * n,  # K and V; Q and dO; P and dS as operands of a matmul
        "dq": m * wide + stages * n * wide + m * n,  # Q and dO; K and V; dS
    }
    return elements[kernel] * itemsize


def device_index(q: Tensor) -> int | None:
    """Return the index of the GPU of a tensor; None on a CPU, where the interpreter runs."""
    if not q.is_cuda:
        return None
    return torch.cuda.current_device() if q.device.index is None else q.device.index


@functools.cache
def _shared_memory_limit(device: int | None) -> float:
    """Return the bytes of shared memory that one program may use; infinite in the interpreter."""
    if device is None:
        return float("inf")
    return float(triton.runtime.driver.active.utils.get_device_properties(device)["max_shared_mem"])


@functools.cache
def architecture(device: int | None) -> str:
    """Return the compiler's name of the architecture, such as sm_90 or gfx942; "interpreter" without a device."""
    if device is None:
        return "interpreter"
    if torch.version.hip is not None:
        return str(torch.cuda.get_device_properties(device).gcnArchName).split(":")[0]
    return "sm_{}{}".format(*torch.cuda.get_device_capability(device))


@functools.cache
def has_tma(device: int | None) -> bool:
    """Return whether the device has a tensor memory accelerator (Hopper and newer); the interpreter simulates one."""
    return device is None or (torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0))


@functools.cache
def multiprocessors(device: int | None) -> int:
    """Return the number of multiprocessors; 8 in the interpreter."""
    return 8 if device is None else torch.cuda.get_device_properties(device).multi_processor_count


def key_splits(q: Tensor, programs: int, seqlen_k: int, block_n: int) -> int:
    """Return the number of stretches into which to split the keys, for two programs on each multiprocessor.

    `programs` is the number of programs without splitting. A stretch has at least MIN_SPLIT_BLOCKS blocks of `block_n`
    keys, because the result of a shorter one would take longer to combine than to compute.
    """
    wanted = 2 * multiprocessors(device_index(q)) // programs
    return max(1, min(wanted, seqlen_k // (MIN_SPLIT_BLOCKS * block_n)))


def paged_splits(q: Tensor, programs: int, seqlen_k: int, block_n: int) -> int:
    """Return the number of stretches for keys in pages: `key_splits`, or more, of at least PAGED_STRETCH keys each.

    With PAGED_PROGRAMS for each multiprocessor the last programs leave few multiprocessors idle, and a long sequence
    of a ragged batch does not last longer than the others. On an H200, with 32 query and 8 key heads, headdim 128 and
    pages of 16, the bandwidth as a share of a copy's was, with `key_splits` alone and with more: 77 and 94 % for 64
    sequences of 8k keys, 89 and 96 % for 32 of 16k, 28 and 90 % for 64 of up to 57k with a mean of 8k.
    """
    more = min(-(-PAGED_PROGRAMS * multiprocessors(device_index(q)) // programs), seqlen_k // PAGED_STRETCH)
    return max(key_splits(q, programs, seqlen_k, block_n), more)


def query_splits(q: Tensor, programs: int, group: int, blocks_of_queries: int, num_warps: int) -> int:
    """Return the number of parts, a divisor of `group`, into which dk and dv split the query heads of a key head.

    `programs` is the number of programs without splitting, `blocks_of_queries` the number of blocks of one query head.
    The result is the largest with at most SPLIT_WARPS warps for each multiprocessor, so that the last programs leave
    few multiprocessors idle, under a causal mask too. A program has at least MIN_SPLIT_BLOCKS blocks of queries.
    """
    wanted = SPLIT_WARPS * multiprocessors(device_index(q)) // (programs * num_warps)
    most = min(wanted, group * blocks_of_queries // MIN_SPLIT_BLOCKS)
    return max((n for n in range(1, min(most, group) + 1) if group % n == 0), default=1)


def tile_constants(q: Tensor, v: Tensor) -> dict[str, int]:
    """Return the constants of forward, dk and dv, and dq: `head_dim_constants`, with q and k in PARTS tiles.

    BLOCK_D is the width of each tile. A headdim from 129 to 192 has three tiles of 64 instead of padding to 256.
    """
    constants = head_dim_constants(q, v)
    width, parts = column_parts(q.shape[-1])
    return constants | {"BLOCK_D": width or constants["BLOCK_D"], "PARTS": parts}


def column_parts(headdim: int) -> tuple[int, int]:
    """Return (width, number) of the tiles of q and k; (0, 1) for one padded tile."""
    return (64, 3) if 128 < headdim <= 192 else (0, 1)


def head_dim_constants(q: Tensor, v: Tensor) -> dict[str, int]:
    """Return a kernel's constants for the head dims of q and v and the widths of the blocks that hold them."""
    least = MIN_BLOCK * (2 if q.element_size() == 1 else 1)  # the least depth of a matmul instruction
    headdim, headdim_v = q.shape[-1], v.shape[-1]
    block_d, block_dv = (max(least, triton.next_power_of_2(n)) for n in (headdim, headdim_v))
    return {"HEADDIM": headdim, "HEADDIM_V": headdim_v, "BLOCK_D": block_d, "BLOCK_DV": block_dv}


def heads_per_section(heads: int, nbytes: int) -> int:
    """Return the number of heads that run together, such that their data of `nbytes` per head stay in L2."""
    return max(1, min(heads, L2_BUDGET // nbytes))
