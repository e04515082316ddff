"""How the attention kernels are started: with which block sizes, through which tensor maps."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from attnbench.backends.triton import block_sizes as config
from attnbench.backends.triton import tuned_blocks
from attnbench.backends.triton.block_sizes import Blocks, Kernel


def launch_best(kernel: Kernel, q: Tensor, v: Tensor, mask: str, maps: bool, run: Callable[[Blocks], None]) -> None:
    """Run with the block sizes for these tensors, found by timing where no table has them: see tuned_blocks.py.

    `maps`: whether tensor maps can be made of all that the kernel reads.
    """
    sizes, device = config.widths(q, v), config.index_of(q)
    rows = config.candidates(kernel, *sizes, q.element_size(), device, maps, mask != "full")
    if len(rows) == 1 or device is None or config.architecture(device) in config.MEASURED or not tuned_blocks.wanted():
        return run(rows[0])
    key = f"{config.architecture(device)} triton-{triton.__version__} {kernel} {sizes[0]} {sizes[1]} {q.dtype} {mask}"
    if key not in _found:
        path = tuned_blocks.cache_file()
        known = tuned_blocks.read(path).get(key, {}).get("blocks")
        found = next((c for c in rows if list(c) == known), None)
        if found is None:
            if torch.cuda.is_current_stream_capturing():  # nothing can be timed now
                return run(rows[0])
            best, seconds = tuned_blocks.search(list(rows), lambda c: _seconds(lambda: run(Blocks(*c)), q))
            found = Blocks(*best)
            tuned_blocks.keep(path, key, found, seconds)
        _found[key] = found
    return run(_found[key])


_found: dict[str, Blocks] = {}  # what tuned_blocks.py found or read in this process


def _seconds(run: Callable[[], None], q: Tensor) -> float:
    """Of one of three runs, after one that compiles."""
    with torch.cuda.device_of(q):
        run()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(3):
            run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 3e3


Part = tuple[Tensor, int, int]  # a tensor, the rows of a block of it, the width of the block


def mappable(*tensors: Tensor) -> bool:
    """Whether the tensor memory accelerator can find blocks in them: it takes 16-byte units, and strides of 0 are not
    documented to work."""
    for x in tensors:
        unit = 16 // x.element_size()
        if x.data_ptr() % 16 or any(n % unit or n <= 0 for n in x.stride()[:-1]):
            return False
    return True


def tensor_maps(own: tuple[Part, ...], inner: tuple[Part, ...], resident: bool) -> tuple[TensorDescriptor, ...]:
    """How blocks are found in (batch, seqlen, nheads, headdim) tensors: first those whose block a program keeps
    (`own`), then those that it walks over.

    The order of a map's dimensions decides where Triton (3.6) keeps a block that enters a matmul on the left: with
    seqlen before nheads it goes on to registers and its shared memory is free again, with nheads first it stays.
    """
    maps = []
    for i, (x, rows, width) in enumerate((*own, *inner)):
        by_head = i < len(own) and not resident
        order, block = ((0, 2, 1, 3), [1, 1, rows, width]) if by_head else ((0, 1, 2, 3), [1, rows, 1, width])
        maps.append(TensorDescriptor(x, [x.shape[i] for i in order], [x.stride(i) for i in order], block))
    return tuple(maps)


def row_maps(tensors: tuple[Tensor, ...], rows: int) -> tuple[TensorDescriptor, ...]:
    """Maps of (batch, nheads, seqlen) tensors of ours, which meet the conditions."""
    return tuple(TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, rows]) for x in tensors)


def launch(kernel, blocks: Blocks, programs: int, q: Tensor, *args, **constants) -> None:
    """Launch on the current stream of q's device, which need not be the current device."""
    options = {"num_warps": blocks.num_warps, "num_stages": blocks.num_stages}
    if blocks.max_registers is not None:
        options["maxnreg"] = blocks.max_registers  # not known on AMD
    with torch.cuda.device_of(q):
        kernel[(programs,)](*args, **constants, BLOCK_M=blocks.BLOCK_M, BLOCK_N=blocks.BLOCK_N, **options)
