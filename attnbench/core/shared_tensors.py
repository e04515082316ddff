"""Tensors in memory shared by two processes: by CUDA IPC on a GPU, by a file without a name on a CPU.

The owner has an `Arena` and sends descriptions, plain JSON values; another process on the machine opens them with
`Mapped`. The calls are the CUDA driver's own, so that processes with unlike versions of torch can share memory.

An arena takes memory in large parts, its slabs, and uses them again for the tensors of the next case, so that the other
process maps a slab only once. On a GPU it frees no slab, since a tensor of another process may still lie there. On a
CPU one larger slab takes the place of several, and the system keeps the old memory as long as a tensor lies there.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import mmap
import os
import tempfile
from collections.abc import Mapping
from ctypes import memmove  # bound here, as OPEN and MAP below, so that no kernel can replace it
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ALIGNED = 512  # bytes; tensors begin at multiples, as in torch's allocator
LEAST = {"cuda": 2**26, "cpu": 2**20}  # the least bytes of a slab
# The driver maps a slab in another process by pages of 2 MiB only if its size is a multiple of 2 MiB. With small pages
# an H200 reads random rows of 2 KiB in 8 GiB at 61 GB/s instead of 1960, and sequential memory at half the speed.
PAGE = {"cuda": 2**21, "cpu": mmap.PAGESIZE}
MOST_OPEN = 8  # the most slabs on a CPU that another process keeps open
OPEN, MAP = open, mmap.mmap
HELD: dict[str, str] = {}  # key of a slab -> its path by this process's descriptor
SLABS = itertools.count()  # numbers of this process's slabs, in all its arenas
FLAGS = {} if os.name == "nt" else {"flags": mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)}
LAZY_PEER_ACCESS = 1  # the only flag of cuIpcOpenMemHandle

Description = dict[str, Any]  # {"slabs": {number: {...}}, "tensors": {name: [slab, offset, dtype, size, stride]}}


class _Handle(ctypes.Structure):
    """A handle of CUDA IPC, passed by value."""

    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


class NotShared(Exception):
    """Memory cannot be shared here; the message names the refused call."""


class Arena:
    """The shared memory of one process on one device, in slabs. `reset` frees all of it for new tensors."""

    def __init__(self, device: torch.device, least: int = 0) -> None:
        """Take the least bytes of a slab, LEAST or more."""
        self.device = device
        self._slabs: list[_OwnSlab] = []
        self._made = 0  # number of slabs made
        self._least = max(least, LEAST[device.type])  # least bytes of the next slab

    def reset(self) -> None:
        """Forget all tensors. On a CPU one slab takes the place of several, so that their number does not grow."""
        if self.device.type == "cpu" and len(self._slabs) > 1:
            self._least = sum(len(slab.bytes) for slab in self._slabs)
            for slab in self._slabs:
                slab.close()
            self._slabs.clear()
        for slab in self._slabs:
            slab.used = 0

    def room(self) -> Description:
        """Return the description of no tensors, with a slab of the least size."""
        if not self._slabs:
            self._take(self._least)
            self.reset()
        return {"slabs": {slab.number: slab.described for slab in self._slabs}, "tensors": {}}

    def place(self, tensors: Mapping[str, Tensor]) -> tuple[Description, dict[str, Tensor]]:
        """Copy tensors into shared memory; return their description and the copies.

        Tensors of one storage, such as views of a packed tensor, become views of one copy. Raises NotShared.
        """
        import torch

        starts: dict[int, tuple[_OwnSlab, int]] = {}
        found = {}
        for name, t in tensors.items():
            storage = t.untyped_storage()
            at = storage.data_ptr()
            if at not in starts:
                slab, offset = starts[at] = self._take(storage.nbytes())
                whole = torch.empty(0, dtype=torch.uint8, device=t.device).set_(storage)
                slab.bytes[offset : offset + len(whole)].copy_(whole)
            slab, offset = starts[at]
            place = offset + t.storage_offset() * t.element_size()
            found[name] = (slab, [slab.number, place, _name(t.dtype), list(t.shape), list(t.stride())])
        return self._described(found)

    def reserve(self, like: Mapping[str, Tensor]) -> tuple[Description, dict[str, Tensor]]:
        """Return the description of tensors with these shapes, strides and dtypes, and the tensors, uninitialised."""
        found = {}
        for name, t in like.items():
            slab, offset = self._take(extent_bytes(t))
            found[name] = (slab, [slab.number, offset, _name(t.dtype), list(t.shape), list(t.stride())])
        return self._described(found)

    def _take(self, nbytes: int) -> tuple[_OwnSlab, int]:
        needed = -(-max(1, nbytes) // ALIGNED) * ALIGNED
        slab = next((slab for slab in self._slabs if slab.used + needed <= len(slab.bytes)), None)
        if slab is None:
            page = PAGE[self.device.type]
            size = max(needed, self._least, sum(len(slab.bytes) for slab in self._slabs) // 2)
            size = -(-size // page) * page
            make = _CudaSlab if self.device.type == "cuda" else _FileSlab
            slab = make(str(self._made), size, self.device)
            self._made += 1
            self._slabs.append(slab)
        slab.used += needed
        return slab, slab.used - needed

    def _described(self, found: Mapping[str, tuple[_OwnSlab, list[Any]]]) -> tuple[Description, dict[str, Tensor]]:
        slabs = {slab.number: slab.described for slab, _ in found.values()}
        tensors = {name: _view(slab.bytes, *where[1:]) for name, (slab, where) in found.items()}
        return {"slabs": slabs, "tensors": {name: where for name, (_, where) in found.items()}}, tensors


class Mapped:
    """The slabs of another process that descriptions have named."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._slabs: dict[str, Tensor] = {}

    def tensors(self, description: Description) -> dict[str, Tensor]:
        """Return the tensors of a description, which lie in the other process's memory. Raises NotShared."""
        for slab in description["slabs"].values():
            if slab["key"] not in self._slabs:
                if self.device.type == "cpu" and len(self._slabs) >= MOST_OPEN:  # the owner has left the oldest
                    del self._slabs[next(iter(self._slabs))]
                opened = _open_cuda if self.device.type == "cuda" else _open_file
                self._slabs[slab["key"]] = opened(slab, self.device)
        slabs = {number: self._slabs[slab["key"]] for number, slab in description["slabs"].items()}
        return {name: _view(slabs[where[0]], *where[1:]) for name, where in description["tensors"].items()}


class _OwnSlab:
    bytes: Tensor  # (nbytes,) uint8
    described: dict[str, Any]
    used = 0

    def __init__(self, number: str) -> None:
        self.number = number

    def close(self) -> None:
        """Release the slab; tensors in it keep the memory as long as they exist."""


class _FileSlab(_OwnSlab):
    """A slab in the page cache, as a file without a name, or with a name that is removed at once."""

    def __init__(self, number: str, nbytes: int, _: torch.device) -> None:
        super().__init__(number)
        try:
            if hasattr(os, "memfd_create"):
                self._descriptor = os.memfd_create("attnbench", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                path = f"/proc/{os.getpid()}/fd/{self._descriptor}"  # stays open, as others open it by this path
            else:
                self._descriptor, path = tempfile.mkstemp(prefix="attnbench-")
                atexit.register(os.unlink, path)
            os.ftruncate(self._descriptor, nbytes)
            if hasattr(os, "memfd_create"):
                _seal(self._descriptor)
            self.bytes = _mapped_file(self._descriptor, nbytes)
        except OSError as error:
            raise NotShared(f"{nbytes} bytes of shared memory cannot be allocated: {error}") from None
        self.described = {"path": path, "nbytes": nbytes, "key": f"{os.getpid()}/{next(SLABS)}"}

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


class _CudaSlab(_OwnSlab):
    """A slab of a GPU's memory, allocated by the driver: IPC shares whole allocations, and torch gives out parts."""

    def __init__(self, number: str, nbytes: int, device: torch.device) -> None:
        import torch

        super().__init__(number)
        driver, address, handle = _driver(device), ctypes.c_uint64(), _Handle()
        try:
            _call(driver, "cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        except NotShared:
            raise torch.OutOfMemoryError(f"CUDA out of memory: no {nbytes} bytes to share") from None
        _call(driver, "cuIpcGetMemHandle", ctypes.byref(handle), address)
        self.bytes = _tensor_at(address.value, nbytes, device)
        self.described = {"handle": bytes(handle).hex(), "nbytes": nbytes, "key": bytes(handle).hex()}


def _open_file(slab: Mapping[str, Any], _: torch.device) -> Tensor:
    try:
        with OPEN(HELD.get(slab["key"], slab["path"]), "r+b") as file:
            return _mapped_file(file.fileno(), slab["nbytes"])
    except OSError as error:
        raise NotShared(f"memory of another process cannot be opened: {error}") from None


def hold(description: Description) -> None:
    """Open the slabs of another process on a CPU, for a process that may later open no other's files.

    `Mapped` then opens them by this process's descriptors. On a GPU nothing is needed. Raises NotShared.
    """
    for slab in description["slabs"].values():
        if "path" in slab and slab["key"] not in HELD:
            try:
                HELD[slab["key"]] = f"/proc/self/fd/{os.open(slab['path'], os.O_RDWR)}"
            except OSError as error:
                raise NotShared(f"memory of another process cannot be opened: {error}") from None


def _seal(descriptor: int) -> None:
    """Fix the size of a file in memory, so that no other process can cut off memory that this one reads."""
    import fcntl

    with contextlib.suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)


def _mapped_file(descriptor: int, nbytes: int) -> Tensor:
    """Return the bytes of a file with all pages in memory, so that later uses do not make the process grow."""
    import torch

    return torch.frombuffer(MAP(descriptor, nbytes, **FLAGS), dtype=torch.uint8)


def _open_cuda(slab: Mapping[str, Any], device: torch.device) -> Tensor:
    address, handle = ctypes.c_uint64(), _Handle.from_buffer_copy(bytes.fromhex(slab["handle"]))
    _call(_driver(device), "cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, LAZY_PEER_ACCESS)
    return _tensor_at(address.value, slab["nbytes"], device)


def _driver(device: torch.device) -> Any:
    """Return the CUDA driver, with torch's context of the device current in this thread."""
    import torch

    torch.empty(1, device=device)
    torch.cuda.synchronize(device)
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise NotShared(f"the CUDA driver cannot be called: {error}") from None


def _call(driver: Any, name: str, *arguments: Any) -> None:
    if code := getattr(driver, name)(*arguments):
        raise NotShared(f"{name.removesuffix('_v2')} is refused: CUDA error {code}")


class _Memory:
    """Memory of a GPU in the form in which torch takes it from other libraries."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def _tensor_at(address: int, nbytes: int, device: torch.device) -> Tensor:
    import torch

    return torch.as_tensor(_Memory(address, nbytes), device=device)


def extent_bytes(t: Tensor) -> int:
    """Return the bytes from the first to the last element of a tensor in memory, whatever its strides."""
    last = sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
    return (1 + last) * t.element_size() if t.numel() else 0


def copy_bytes(to: Tensor, of: Tensor) -> None:
    """Copy a CPU tensor to one of the same shape and strides, not by torch, whose operators may be replaced."""
    import torch

    place = torch._C.TensorBase.data_ptr  # read from the class, so that no kernel can replace it
    memmove(place(to), place(of), extent_bytes(to))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _view(slab: Tensor, offset: int, dtype: str, size: list[int], stride: list[int]) -> Tensor:
    """Return a tensor in a slab, with its own autograd version: changes of its neighbours do not count as its own."""
    import torch

    kind = getattr(torch, dtype)
    extent = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if all(size) else 0  # elements
    part = slab[offset : offset + extent * kind.itemsize].view(kind)
    return part.as_strided(size, stride).data
