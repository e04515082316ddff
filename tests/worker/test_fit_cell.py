"""worker/fit_cell.py on a CPU: memory and seconds of a right call, wrong results, and lack of memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench import backends
from attnbench.backends.shared.function import Function
from attnbench.core.backend import Inputs, Prepared
from attnbench.core.case import Case, Shape
from attnbench.core.policy import Policy
from attnbench.core.record import NO_ROOM_TO_CHECK
from attnbench.judge import in_parts, inputs, tolerance
from attnbench.worker import fit_cell
from attnbench.worker.measure.memory import CpuMemory

SHAPE = Shape(1, 640, 640, 2, 2, 64, 64)


class Host:
    """The instruments that a step of a search needs."""

    def __init__(self) -> None:
        self.memory, self.device = CpuMemory(), torch.device("cpu")

    def synchronize(self) -> None: ...


@dataclass
class Spoiled:
    """SDPA's math backend, with inputs or results changed after each launch."""

    spoil: Callable[[Inputs, Mapping[str, Any]], None]
    name = "spoiled"

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        prepared = backends.load("sdpa-math", backends.BACKENDS["sdpa-math"]).prepare(case, inputs)

        def launch() -> Any:
            raw = prepared.launch()
            with torch.no_grad():
                self.spoil(inputs, prepared.canonical(raw))
            return raw

        return Prepared(launch, prepared.canonical, reads=prepared.reads)


def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    swapped = (t.transpose(1, 2) for t in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(*swapped, is_causal=causal, scale=softmax_scale).transpose(
        1, 2
    )


def fit(spoil: Callable[[Inputs, Mapping[str, Any]], None], direction: Any = "fwd") -> dict[str, Any]:
    case = Case(SHAPE, "fp32", direction, causal=True)
    return fit_cell.fit(Host(), Spoiled(spoil), case, Policy(), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("direction", ["fwd", "fwd_bwd"])
def test_a_right_call_has_its_memory_and_seconds(direction: str) -> None:
    found = fit(lambda *_: None, direction)
    assert found["status"] == "ok"
    measured = {name: of.values[0] for name, of in found["measurements"].items()}
    tensors = 4 if direction == "fwd_bwd" else 3
    assert measured["memory_inputs"] == tensors * 640 * 2 * 64 * 4
    assert measured["memory_peak"] > 640 * 640 * 2 * 4  # at least the scores
    assert 0 < measured["call"] < 10


@pytest.mark.parametrize("backend", ["sdpa-math", "eager", "mine"])
@pytest.mark.parametrize("direction", ["fwd", "fwd_bwd"])
def test_no_input_is_there_twice(backend: str, direction: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No input is in memory twice: neither as a copy in the backend's order, nor from before the layout."""
    made: list[weakref.ref[Tensor]] = []

    usual = inputs.make

    def make(*asked: Any) -> Inputs:
        given = usual(*asked)
        made.extend(weakref.ref(t) for t in given.values.values())
        return given

    monkeypatch.setattr(fit_cell.inputs, "make", make)
    real = backends.load(backend, backends.BACKENDS[backend]) if backend in backends.BACKENDS else Function("f", attend)
    seen: list[bool] = []

    class Watched:
        name, order = "watched", getattr(real, "order", "bshd")

        def prepare(self, case: Case, given: Inputs) -> Prepared:
            assert self.order == "bshd" or not any(ref() is not None for ref in made)
            prepared = real.prepare(case, given)
            seen.extend(t.data_ptr() == given.values[name].data_ptr() for name, t in prepared.reads.items())
            return prepared

    case = Case(Shape(2, 64, 64, 2, 2, 16, 16), "fp32", direction, causal=True)
    found = fit_cell.fit(Host(), Watched(), case, Policy(), None)  # type: ignore[arg-type]
    assert found["status"] == "ok"
    assert seen == [True] * (3 if direction == "fwd" else 4)


def test_a_ragged_batch_is_left_as_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ragged batch keeps its order, in which sequences follow each other, for every order of a dense batch."""
    eager = backends.load("eager", backends.BACKENDS["eager"])
    seen: list[bool] = []

    def prepare(case: Case, given: Inputs) -> Prepared:
        seen.extend(t.is_contiguous() for t in given.values.values())
        return usual(case, given)

    usual = eager.prepare
    monkeypatch.setattr(eager, "prepare", prepare)
    case = Case(Shape(2, 64, 64, 2, 2, 16, 16), "fp32", "fwd", causal=True, lengths=((1, 32, 32), (1, 64, 64)))
    assert fit_cell.fit(Host(), eager, case, Policy(), None)["status"] == "ok"  # type: ignore[arg-type]
    assert seen == [True] * 3


def test_a_wrong_end_of_a_result_is_found() -> None:
    for direction, name in (("fwd", "out"), ("fwd_bwd", "dk")):
        found = fit(lambda _, results, name=name: results[name][:, 600:].zero_(), direction)
        assert found["status"] == "wrong"
        assert name in found["reason"]


def test_a_call_that_writes_to_an_input_is_found() -> None:
    found = fit(lambda given, _: given.v[:, -1].add_(1e-6))
    assert found["status"] == "wrong"


def test_a_call_that_returns_what_it_kept_is_found() -> None:
    kept: list[Tensor] = []

    def keep(_: Inputs, results: Mapping[str, Any]) -> None:
        kept.append(results["out"].clone())
        results["out"].copy_(kept[0])

    found = fit(keep)
    assert found["status"] == "wrong"
    assert "out is off" in found["reason"]


@pytest.mark.parametrize("calls", [0, 2, 9])
def test_memory_that_calls_leave_allocated_is_a_note(calls: int) -> None:
    kept: list[Tensor] = []
    found = fit(lambda *_: kept.append(torch.zeros(2**21)) if len(kept) < calls else None)
    assert found["status"] == "ok"
    assert list(found["notes"]) == (
        ["each call leaves 8.0 MiB more allocated, until no memory is left"] if calls > 2 else []
    )


def test_a_check_without_room_is_no_lack_of_memory_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(fit_cell, "ResultCheck", none)
    with pytest.raises(fit_cell.NoRoomToCheckError, match=NO_ROOM_TO_CHECK) as caught:
        fit(lambda *_: None)
    assert not fit_cell.failures.is_out_of_memory(caught.value)


def test_the_limit_on_a_gpu_is_of_the_call_and_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit on a GPU includes inputs: 30 bytes are held, 20 of them inputs; 50 for the call make a limit of 60."""
    host, shares = Host(), []
    host.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=100))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, _: shares.append(share))
    with fit_cell.at_most(host, 50, 20):  # type: ignore[arg-type]
        assert shares == [0.6]
    assert shares == [0.6, 1.0]
    with fit_cell.at_most(host, None, 20):  # type: ignore[arg-type]
        pass
    assert shares == [0.6, 1.0]


def test_what_prepare_keeps_counts() -> None:
    kept = 2**24

    class Keeps(Spoiled):
        def prepare(self, case: Case, inputs: Inputs) -> Prepared:
            workspace, prepared = torch.empty(kept, dtype=torch.uint8), super().prepare(case, inputs)
            return Prepared(lambda: (workspace, prepared.launch())[1], prepared.canonical)

    case, usual = Case(SHAPE, "fp32", "fwd", causal=True), fit(lambda *_: None)
    found = fit_cell.fit(Host(), Keeps(lambda *_: None), case, Policy(), None)  # type: ignore[arg-type]
    assert found["measurements"]["memory_peak"].values[0] == usual["measurements"]["memory_peak"].values[0] + kept


@pytest.mark.parametrize("backend", ["ulysses-sdpa-math", "ulysses-eager"])
def test_on_one_rank_a_method_takes_what_its_kernel_takes(backend: str) -> None:
    case, found = Case(SHAPE, "fp32", "fwd", causal=True), []
    for name in (backend, backend.removeprefix("ulysses-")):
        one = backends.load(name, backends.BACKENDS[name])
        found.append(fit_cell.fit(Host(), one, case, Policy(), None)["measurements"])  # type: ignore[arg-type]
    for name in ("memory_inputs", "memory_peak"):
        assert found[0][name] == found[1][name]


def test_parts_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tolerance, "PART", 100)
    t = torch.arange(2 * 7 * 3 * 5).view(2, 7, 3, 5)
    parts = in_parts(t)
    assert len(parts) > 1
    assert torch.equal(torch.cat(parts, 1), t)
    assert torch.equal(torch.cat(in_parts(t.flatten())), t.flatten())
