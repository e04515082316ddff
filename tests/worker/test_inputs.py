"""Inputs are seeded, equal for every direction of a shape, and refused where they would run too fast."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnbench.core.backend import Inputs
from attnbench.core.case import DATA, LAYOUTS, Case, Data, Layout, Shape
from attnbench.core.layouts import find_packed, parts_of_packed
from attnbench.judge import inputs

SHAPE = Shape(2, 64, 96, 4, 2, 32, 16)
NAMES = ("q", "k", "v", "dout")


def make(direction: str = "bwd", dtype: str = "fp32", seed: int = 0, shape: Shape = SHAPE) -> Inputs:
    return inputs.make(Case(shape, dtype, direction), "cpu", seed)  # type: ignore[arg-type]


def tensors(given: Inputs) -> list[Tensor]:
    return [t for t in (given.q, given.k, given.v, given.dout) if t is not None]


def same(one: Inputs, other: Inputs) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tensors(one), tensors(other), strict=True))


def test_sizes() -> None:
    given = make()
    assert [tuple(t.shape) for t in tensors(given)] == [(2, 64, 4, 32), (2, 96, 2, 32), (2, 96, 2, 16), (2, 64, 4, 16)]
    assert all(t.is_contiguous() and t.dtype == torch.float32 for t in tensors(given))
    assert given.nbytes == 4 * sum(t.numel() for t in tensors(given))
    assert make("fwd").dout is None


def test_equal_seeds_give_equal_values_and_different_seeds_do_not() -> None:
    assert same(make(), make())
    assert not same(make(), make(seed=1))
    forward, backward = make("fwd"), make("bwd")
    assert torch.equal(forward.q, backward.q)
    assert torch.equal(forward.v, backward.v)
    larger = make(shape=dataclasses.replace(SHAPE, batch=3))
    assert not torch.equal(larger.q[:2], make().q)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_have_equal_values_and_strides_of_their_own(layout: Layout) -> None:
    """Layouts have equal values and their own strides, which a copy keeps."""
    shape = Shape(2, 64, 64, 4, 2, 32, 32)
    given = inputs.make(Case(shape, "fp32", "bwd", layout=layout), "cpu", 0)
    assert same(given, inputs.make(Case(shape, "fp32", "bwd"), "cpu", 0))
    token, row = {"native": (4 * 32, 32), "bshd": (4 * 32, 32), "bhsd": (32, 64 * 32), "packed": (8 * 32, 32)}[layout]
    copy = inputs.clone(given)
    assert same(given, copy)
    for made in (given, copy):
        assert made.q.stride() == (token * 64 if layout != "bhsd" else 4 * 64 * 32, token, row, 1)
        assert [t.stride() for t in tensors(made)] == [t.stride() for t in tensors(given)]
        assert (find_packed(made) is not None) == (layout == "packed")
    assert copy.q.data_ptr() != given.q.data_ptr()


def test_the_packed_tensor_is_found_by_address_and_strides() -> None:
    given = inputs.make(Case(Shape(1, 8, 8, 4, 2, 16, 16), "fp32", "fwd", layout="packed"), "cpu", 0)
    qkv = find_packed(given)
    assert qkv is not None
    assert qkv.shape == (1, 8, 8, 16)
    assert all(torch.equal(a, b) for a, b in zip(parts_of_packed(qkv, 2), (given.q, given.k, given.v), strict=True))
    assert find_packed(dataclasses.replace(given, v=given.v.clone())) is None
    assert find_packed(dataclasses.replace(given, k=given.v, v=given.k)) is None


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "fp8"])
def test_data_are_what_was_asked_for(data: Data, dtype: str) -> None:
    """Each kind of data has no flaw for itself; zeros are refused for other kinds, and other kinds for zeros."""
    shape = dataclasses.replace(SHAPE, seqlen_q=2048, seqlen_k=2**14)  # so long that not every value is tested
    direction = "fwd" if dtype == "fp8" else "bwd"
    given = inputs.make(Case(shape, dtype, direction, data=data), "cpu", 0)  # type: ignore[arg-type]
    assert inputs.find_flaw(given, data) is None
    for other in set(DATA) - {data}:
        if "zeros" in (data, other):
            assert "q " in str(inputs.find_flaw(given, other))
    spread = {"normal": 1.0, "uniform": 1.0, "zeros": 0.0}
    for t in tensors(given):
        if data in spread:
            assert float(t.float().std()) == pytest.approx(spread[data], abs=0.01)
    largest = {"normal": 3.5, "uniform": 1.732, "zeros": 0.0, "outliers": 56.0, "decaying": 4.8}[data]
    assert float(given.k.abs().max()) == pytest.approx(largest, rel=0.6 if data in ("normal", "decaying") else 0.02)


def test_outliers_are_a_channel_and_the_first_keys_are_sinks() -> None:
    """Outliers are a channel, and the first keys are sinks: key 0 of 16k takes half of a query's attention."""
    case = Case(Shape(1, 64, 2**14, 1, 1, 128, 128), "fp32", "fwd", data="outliers")
    given = inputs.make(case, "cpu", 0)
    assert bool((given.k[:, 7:, :, 0] == 28).all())
    p = torch.softmax(given.q[0, :, 0] @ given.k[0, :, 0].T * case.softmax_scale, -1).mean(0)
    assert 0.25 < float(p[0]) < 0.75
    assert p[:7].argsort(descending=True).tolist()[:2] == [0, 1]


def test_decaying_scores_fall_with_the_distance_and_values_are_standard_normal() -> None:
    case = Case(Shape(1, 3000, 4000, 4, 2, 128, 128), "fp32", "fwd", data="decaying")
    given = inputs.make(case, "cpu", 0)
    for t in (given.q, given.k, given.k[:, :1], given.k[:, 1023:1026]):
        assert float(t.std()) == pytest.approx(1.0, abs=0.15)
        assert abs(float(t.mean())) < 0.15
    positions = torch.arange(1000, 4000)
    for distance in (0, 64, 128, 999):
        near = given.k[0][positions - distance].repeat_interleave(2, dim=1)
        scores = (given.q[0] * near).sum(-1) * case.softmax_scale
        assert float(scores.mean()) == pytest.approx(8 * math.exp(-distance / 64), abs=0.25)


def test_inputs_of_a_few_elements_are_not_taken_for_constants() -> None:
    """Inputs of a few elements do not count as constants, although their standard deviation is often small."""
    for size in (1, 2, 4, 8, 16):
        tiny = Shape(1, 1, 1, 1, 1, size, size)
        assert [inputs.find_flaw(make(seed=seed, shape=tiny)) for seed in range(50)] == [None] * 50


def constant(t: Tensor) -> None:
    t.fill_(0.7)


def one_nan(t: Tensor) -> None:
    t.view(-1)[0] = float("nan")


def infinite(t: Tensor) -> None:
    t.mul_(float("inf"))


def small(t: Tensor) -> None:
    t.mul_(0.1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (Tensor.zero_, "hardly varies (standard deviation 0, 1 expected)"),
        (constant, "hardly varies"),
        (small, "hardly varies (standard deviation 0."),
        (one_nan, "has values that are not finite"),
        (infinite, "has values that are not finite"),
    ],
)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_flaw_names_its_tensor(name: str, spoil: Callable[[Tensor], object], said: str, dtype: str) -> None:
    given = make(dtype=dtype)
    spoil(getattr(given, name))
    assert str(inputs.find_flaw(given)).startswith(f"inputs: {name} {said}")


@pytest.mark.parametrize(("share", "flawed"), [(0.005, False), (0.02, True), (0.3, True)])
def test_zeros_among_normal_values_are_a_flaw(share: float, flawed: bool) -> None:
    """Zeros among normal values are a flaw: the values vary enough, but draw less power."""
    given = make(shape=dataclasses.replace(SHAPE, seqlen_k=1024))
    given.k.view(-1)[: round(share * given.k.numel())] = 0
    assert (inputs.find_flaw(given) is not None) == flawed
    assert not flawed or "k is" in str(inputs.find_flaw(given))


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_that_was_written_to_is_named(name: str) -> None:
    given = make()
    assert inputs.first_changed(given, make()) is None
    getattr(given, name).view(-1)[-1] += 1
    assert inputs.first_changed(given, make()) == name
    getattr(given, name).view(-1)[-1] = float("nan")
    assert inputs.first_changed(given, make()) == name
    assert inputs.first_changed(make("fwd"), make("fwd")) is None


def test_large_inputs_are_tested_by_values_from_everywhere() -> None:
    """Large inputs are tested by some ten thousand values from all parts of each tensor."""
    given = make(shape=dataclasses.replace(SHAPE, seqlen_q=4096))
    assert given.q.numel() > 2**19
    assert inputs.find_flaw(given) is None
    given.q.view(-1)[given.q.numel() // 8 :].zero_()
    assert "q hardly varies" in str(inputs.find_flaw(given))
