"""Launch the attention kernels: the choice of block sizes, tensor descriptors, and the launch itself."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from attnbench.backends.triton import block_sizes, tuned_blocks
from attnbench.backends.triton.block_sizes import Blocks, Kernel


def launch_best(kernel: Kernel, q: Tensor, v: Tensor, mask: str, use_tma: bool, run: Callable[[Blocks], None]) -> None:
    """Call `run` with the best block sizes for these tensors.

    They come from the table of block_sizes.py, or from timing (tuned_blocks.py) on GPUs without a measured row. Masks
    by name use the first row, because each candidate would need its own lists of blocks. `mask` is Problem.mask_kind.
    `use_tma` is true where tensor descriptors can be made of all tensors that the kernel reads.
    """
    sizes, device = block_sizes.padded_head_dims(q, v), block_sizes.device_index(q)
    rows = block_sizes.candidates(kernel, *sizes, q.element_size(), device, use_tma, mask)
    if len(rows) == 1 or device is None or mask == "named" or not tuned_blocks.search_enabled():
        return run(rows[0])
    architecture = block_sizes.architecture(device)
    shape = f"{sizes[0]} {sizes[1]} {q.dtype} {mask}" + (" tma" if use_tma else "")
    key = f"{architecture} triton-{triton.__version__} {kernel} {shape}"
    if key not in _choices:
        path = tuned_blocks.cache_file()
        known = tuned_blocks.read_choices(path).get(key, {}).get("blocks")
        found = next((c for c in rows if list(c) == known), None)
        if found is None:
            if torch.cuda.is_current_stream_capturing():  # nothing can be timed during a capture
                return run(rows[0])
            found, seconds = tuned_blocks.search(rows, lambda c: _time_run(lambda: run(c), q))
            tuned_blocks.save_choice(path, key, found, seconds)
        _choices[key] = found
    return run(_choices[key])


_choices: dict[str, Blocks] = {}  # choices of block sizes in this process, found by timing or read from the file


def _time_run(run: Callable[[], None], q: Tensor) -> float:
    """Return the mean seconds of three runs, after one run that compiles."""
    with torch.cuda.device_of(q):
        run()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(3):
            run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 3e3


# The tensor memory accelerator writes to multiples of 128 bytes in shared memory, and Triton 3.6 puts the stages of a
# pipelined block of rows next to each other. So a stage needs 128 bytes: 32 values of fp32 (tests/gpu/wrong_code.py).
MIN_DESCRIPTOR_ROWS = 32

Part = tuple[Tensor, int, int]  # (tensor, rows of a block, width of a block)


def can_use_tma(*tensors: Tensor) -> bool:
    """Return whether tensor descriptors can be made of all tensors.

    The tensor memory accelerator needs addresses and strides that are multiples of 16 bytes. Strides of 0 are not
    documented to work.
    """
    for x in tensors:
        unit = 16 // x.element_size()
        if x.data_ptr() % 16 or any(n % unit or n <= 0 for n in x.stride()[:-1]):
            return False
    return True


def tensor_descriptors(own: tuple[Part, ...], inner: tuple[Part, ...], resident: bool) -> tuple[TensorDescriptor, ...]:
    """Return descriptors of (batch, seqlen, nheads, headdim) tensors: first of `own`, then of `inner`.

    A program keeps its block of an `own` tensor and loops over blocks of the `inner` tensors. The order of a
    descriptor's dimensions decides where Triton 3.6 keeps the left operand of a matmul: with seqlen before nheads in
    registers, which frees its shared memory (`resident`), with nheads first in shared memory.
    """
    descriptors = []
    for i, (x, rows, width) in enumerate((*own, *inner)):
        by_head = i < len(own) and not resident
        seen, block = (x.transpose(1, 2), [1, 1, rows, width]) if by_head else (x, [1, rows, 1, width])
        descriptors.append(TensorDescriptor.from_tensor(seen, block))
    return tuple(descriptors)


def row_descriptors(tensors: tuple[Tensor, ...], rows: int) -> tuple[TensorDescriptor, ...]:
    """Return descriptors of padded (batch, nheads, seqlen) fp32 tensors in blocks of `rows`.

    Raises ValueError on a GPU for fewer rows than MIN_DESCRIPTOR_ROWS: the kernel would end with a misaligned address.
    """
    if rows < MIN_DESCRIPTOR_ROWS and tensors[0].is_cuda:
        raise ValueError(f"tensor descriptors of rows need blocks of {MIN_DESCRIPTOR_ROWS} or more, not {rows}")
    return tuple(TensorDescriptor.from_tensor(x, [1, 1, rows]) for x in tensors)


def launch(kernel, blocks: Blocks, programs: int, q: Tensor, *args, **constants) -> None:
    """Launch a kernel on the current stream of q's device, which need not be the current device."""
    options = {"num_warps": blocks.num_warps, "num_stages": blocks.num_stages}
    with torch.cuda.device_of(q):
        kernel[(programs,)](*args, **constants, BLOCK_M=blocks.BLOCK_M, BLOCK_N=blocks.BLOCK_N, **options)
