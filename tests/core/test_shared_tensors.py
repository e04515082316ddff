"""Tensors in the memory of another process have the same values, strides and overlaps, in every layout."""

from __future__ import annotations

import json

import pytest
import torch

from attnbench.core import shared_tensors
from attnbench.core.case import Case, Shape
from attnbench.core.shared_tensors import Arena, Mapped, NotShared, copy_bytes
from attnbench.judge import inputs

CPU = torch.device("cpu")


@pytest.mark.parametrize("layout", ["native", "bshd", "bhsd", "packed"])
def test_inputs_of_any_layout_are_the_same_in_both_processes(layout: str) -> None:
    given = inputs.make(Case(Shape(2, 24, 24, 4, 4, 16, 16), "bf16", "bwd", True, layout=layout), "cpu", 0)
    arena = Arena(CPU)
    described, own = arena.place(given.values)
    theirs = Mapped(CPU).tensors(json.loads(json.dumps(described)))
    for name, t in given.values.items():
        assert torch.equal(theirs[name], t)
        assert theirs[name].stride() == t.stride()
        own[name].zero_()
        assert not theirs[name].any(), "no memory is shared"
    apart = theirs["k"].data_ptr() - theirs["q"].data_ptr(), given.k.data_ptr() - given.q.data_ptr()
    assert layout != "packed" or apart[0] == apart[1]


def test_a_change_of_one_tensor_is_no_change_of_its_neighbour() -> None:
    """A change of one tensor leaves its neighbours unchanged for autograd, which refuses changed saved tensors."""
    described, _ = Arena(CPU).place({"x": torch.ones(4), "y": torch.zeros(4)})
    found = Mapped(CPU).tensors(described)
    x = found["x"].requires_grad_()
    out = (x * x).sum()
    found["y"].fill_(1.0)
    out.backward()
    assert x.grad is not None


def test_a_reset_arena_places_the_next_tensors_in_the_same_memory() -> None:
    arena, mapped = Arena(CPU), Mapped(CPU)
    first = mapped.tensors(arena.place({"x": torch.ones(1000)})[0])["x"]
    arena.reset()
    again = mapped.tensors(arena.reserve({"y": torch.empty(1000)})[0])["y"]
    assert first.data_ptr() == again.data_ptr()


def test_a_slab_of_a_gpu_is_a_multiple_of_its_large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of a GPU's slab is a multiple of its large pages, 2 MiB.

    Another process would map other sizes by small pages, and read them slowly (tests/gpu/test_shared_memory_gpu.py).
    """
    sizes: list[int] = []

    def make(number: str, nbytes: int, _: torch.device) -> shared_tensors._OwnSlab:
        sizes.append(nbytes)
        slab = shared_tensors._OwnSlab(number)
        slab.bytes, slab.described = torch.empty(nbytes, dtype=torch.uint8, device="meta"), {"key": number}
        return slab

    monkeypatch.setattr(shared_tensors, "_CudaSlab", make)
    arena = Arena(torch.device("cuda"))
    for nbytes in (1, 2**27 + 1, 2**31 + 1536):
        arena.reserve({"x": torch.empty(nbytes, dtype=torch.uint8, device="meta")})
    assert len(sizes) == 3
    assert not [size for size in sizes if size % 2**21]


def test_memory_that_cannot_be_opened_is_told() -> None:
    described, _ = Arena(CPU).place({"x": torch.ones(4)})
    described["slabs"]["0"] |= {"path": "/proc/self/fd/9999", "key": "none"}
    with pytest.raises(NotShared, match="cannot be opened"):
        Mapped(CPU).tensors(described)


def test_memory_does_not_grow_with_each_larger_case() -> None:
    arena, mapped = Arena(CPU), Mapped(CPU)
    for size in range(1, 13):
        arena.reset()
        described, _ = arena.place({name: torch.zeros(size, 2**18) for name in "qkv"})
        assert set(mapped.tensors(described)) == set("qkv")
    assert sum(len(slab.bytes) for slab in arena._slabs) < 3 * 12 * 3 * 2**20
    assert len(arena._slabs) <= 4


@pytest.mark.parametrize("t", [torch.arange(24.0).view(2, 3, 4).transpose(0, 2), torch.ones(()).expand(3, 4)])
def test_a_tensor_of_any_strides_is_copied(t: torch.Tensor) -> None:
    described, _ = Arena(CPU).reserve({"t": t})
    place = Mapped(CPU).tensors(described)["t"]
    copy_bytes(place, t)
    assert torch.equal(place, t)
