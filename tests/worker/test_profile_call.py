"""The profile of one call: real on the CPU, and on a GPU from scripted events of the profiler."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench.backends.pytorch.eager import Eager
from attnbench.backends.shared.function import Function
from attnbench.core.activity import Activity
from attnbench.core.backend import Signature, Unsupported
from attnbench.core.case import Case, Shape
from attnbench.core.json import from_json
from attnbench.core.machine import Device
from attnbench.run.profile.profile import Profile
from attnbench.worker import flame_graph, profile_call, timeline
from attnbench.worker.instruments import TimedLaunch
from attnbench.worker.measure.cupti import TracedCall, Untraceable
from attnbench.worker.serve import Worker
from worker_here import CPU


def case(direction: Any = "fwd", seqlen: int = 64) -> Case:
    return Case(Shape(1, seqlen, seqlen, 2, 2, 16, 16), "fp32", direction)


@pytest.fixture(scope="module")
def measurer(worker: Worker) -> Any:
    return worker.measurer(CPU)


def profiled(measurer: Any, backend: Any, which: Case, **keep: str) -> Profile:
    """Return a profile as in the parent, after JSON."""
    found = json.loads(json.dumps(profile_call.profile(measurer, backend, which, keep)))
    return from_json(Profile, {**found, "backend": "own", "version": None})


@pytest.mark.parametrize("direction", ["fwd", "bwd", "fwd_bwd"])
def test_a_call_on_the_cpu(measurer: Any, direction: str) -> None:
    found = profiled(measurer, Eager(), case(direction))
    assert found.wrong is None
    assert (found.timer, found.what, found.spans, found.enqueue) == ("perf_counter", "operators", (), ())
    assert len(found.times) >= 3
    names = [a.name for a in found.activities]
    assert names.count("aten::bmm") == {"fwd": 1, "bwd": 4, "fwd_bwd": 5}[direction]
    assert bool({"aten::_softmax", "aten::softmax"} & set(names)) == (direction != "bwd")
    assert all(0 <= a.start <= a.end <= found.length for a in found.activities)
    starts = [a.start for a in found.activities]
    assert starts == sorted(starts)
    scores = 2 * 64 * 64 * 4
    assert found.memory_peak >= scores
    assert max(nbytes for _, nbytes in found.memory) == pytest.approx(found.memory_peak, rel=0.1)
    assert {"matmul", "copy"} >= found.ceilings.keys()


def test_a_wrong_result_is_profiled_and_reported(measurer: Any) -> None:
    def zeros(*inputs: Tensor, **_: Any) -> Tensor:
        return torch.zeros_like(inputs[0])

    found = profiled(measurer, Function("own", zeros), case())
    assert str(found.wrong).startswith("out is off by")
    assert found.activities


def test_a_mislabelled_kernel_is_reported(measurer: Any) -> None:
    class Mislabelled(Eager):
        def signature(self, which: Case, device: Device) -> Signature:
            return Signature(runs=("flash",))

    assert str(profiled(measurer, Mislabelled(), case()).wrong).startswith("no kernel like 'flash' ran")


def test_a_stale_result_is_reported(measurer: Any) -> None:
    class Remembers(Eager):
        def prepare(self, which: Case, inputs: Any) -> Any:
            prepared = super().prepare(which, inputs)
            kept = prepared.launch()
            return dataclasses.replace(prepared, launch=lambda: kept)

    assert str(profiled(measurer, Remembers(), case()).wrong).startswith(
        "after timing, on inputs renewed in place: out is off by"
    )


def test_a_refused_case_has_no_profile(measurer: Any) -> None:
    def refuses(*_: Tensor, **__: Any) -> Tensor:
        raise Unsupported("headdim 16\n is too small")

    assert profile_call.profile(measurer, Function("own", refuses), case(), None) == {
        "refused": "headdim 16 is too small"
    }


def test_the_trace_has_chromes_format(measurer: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    profiled(measurer, Eager(), case(), trace=str(path))
    events = json.loads(path.read_text())["traceEvents"]
    assert {"aten::bmm", timeline.RANGE, "[memory]"} <= {e.get("name") for e in events}


def test_the_flame_graph_has_the_function_that_launches(measurer: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyinstrument")

    def attention_of_mine(q: Any, k: Any, v: Any, **_: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    path = tmp_path / "flame.html"
    assert profiled(measurer, Function("own", attention_of_mine), case(), flame=str(path)).notes == ()
    assert "attention_of_mine" in path.read_text()
    found = profiled(measurer, Function("own", attention_of_mine), case(), flame=str(tmp_path / "no" / "flame.html"))
    assert any(note.startswith("no flame graph: [Errno 2]") for note in found.notes)


def test_without_pyinstrument_there_is_a_note(measurer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyinstrument", None)
    found = profiled(measurer, Eager(), case(), flame=str(tmp_path / "flame.html"))
    assert found.notes == (flame_graph.MISSING,)


def event(name: str, start: int, end: int | None = None, *, device: str = "CPU", **rest: int) -> Any:
    """Return a stand-in for torch's _KinetoEvent."""
    end = start if end is None else end
    values: dict[str, Any] = {
        "name": name,
        "start_ns": start,
        "end_ns": end,
        "duration_ns": end - start,
        "device_type": f"DeviceType.{device}",
        "correlation_id": 0,
        "is_user_annotation": False,
        "nbytes": 0,
        "start_thread_id": 1,
        "device_resource_id": 7,
        **rest,
    }
    return SimpleNamespace(**{key: (lambda value=value: value) for key, value in values.items()})


def test_operators_are_the_outermost_and_wrappers_get_the_name_of_what_they_wrap() -> None:
    events = [
        event("attnbench.call", 0, 1000),
        event("autograd::engine::evaluate_function: BmmBackward0", 5, 300),
        event("BmmBackward0", 6, 299),
        event("aten::bmm", 10, 200),
        event("aten::empty", 11, 20),
        event("aten::softmax", 200, 400),
        event("aten::_softmax", 205, 395),
        event("aten::sdpa", 400, 900),
        event("aten::transpose", 410, 600),
        event("aten::bmm", 600, 890),
        event("aten::mul", 405, 500, start_thread_id=2),  # at the same time on another thread
        event("[memory]", 12),
    ]
    assert timeline.operators(list(reversed(events))) == [
        ("aten::bmm", 10, 200),
        ("aten::_softmax", 200, 400),
        ("aten::sdpa", 400, 900),
        ("aten::mul", 405, 500),
    ]


GPU_EVENTS = [
    event("cudaLaunchKernel", 100, 105, correlation_id=1),
    event("cuLaunchKernelEx", 200, 205, correlation_id=2, start_thread_id=9),  # autograd's thread
    event("cudaMemsetAsync", 300, 305, correlation_id=3),
    event("aten::bmm", 90, 110, correlation_id=2),  # operators have their own correlation numbers
    event("[memory]", 95, device="CUDA", nbytes=1000),
    event("[memory]", 96, nbytes=7),  # on the host
    event("[memory]", 150, device="CUDA", nbytes=500),
    event("[memory]", 210, device="CUDA", nbytes=-1000),
    event("[memory]", 310, device="CUDA", nbytes=-500),
    event("attnbench.call", 1000, 3000, device="CUDA", is_user_annotation=True),
    event("k2", 2000, 2500, device="CUDA", correlation_id=2),
    event("k1", 1000, 1900, device="CUDA", correlation_id=1),
    event("Memset (Device)", 2600, 2700, device="CUDA", correlation_id=3),
    event("k4", 2800, 2900, device="CUDA", correlation_id=77),  # the trace lacks its host call
]


def test_a_kernel_runs_with_what_was_allocated_at_its_launch() -> None:
    assert timeline.at_launch(GPU_EVENTS) == [1000, 1500, 500, 500]
    assert timeline.at_launch([]) == []
    assert timeline.at_launch([event("k", 5, 9, device="CUDA", correlation_id=1)]) == [0]


def test_the_kernels_of_one_session() -> None:
    """The kernels of a single profiled call are found, as for rank 0 of several, whose call is not traced again."""
    found = timeline.kernels_of(GPU_EVENTS)
    first, *_ = found["activities"]
    assert first["start"] == 0.0
    assert found["length"] == max(a["end"] for a in found["activities"])
    assert [nbytes for _, nbytes in found["memory"]] == [1000, 1500, 500, 500]
    assert timeline.kernels_of([])["activities"] == []


def gpu(
    monkeypatch: pytest.MonkeyPatch, calls: Callable[[int], list[TracedCall]] | None
) -> tuple[dict[str, Any], list[str]]:
    """Return the fields and notes of `_on_gpu` with a scripted profiler and tracer."""
    session = SimpleNamespace(export_chrome_trace=lambda path: Path(path).write_text("{}"))
    monkeypatch.setattr(timeline, "session", lambda *_, **__: (session, GPU_EVENTS))
    tracer = calls and SimpleNamespace(calls=lambda launches: calls(len(launches)))
    notes: list[str] = []
    return profile_call._on_gpu(SimpleNamespace(tracer=tracer), lambda: None, 1e-3, None, notes), notes


def call(span: float, kernels: int = 4) -> TracedCall:
    step = span / kernels
    return TracedCall(tuple(Activity(f"k{i}", i * step, (i + 1) * step, 7) for i in range(kernels)), 0.0)


def test_the_call_of_median_span_is_shown_with_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def calls(n: int) -> list[TracedCall]:
        asked.append(n)
        return [call(3e-3), call(1e-3), TracedCall((), 0.0), call(2e-3)]

    found, notes = gpu(monkeypatch, calls)
    assert asked == [15]  # the calls of 1 ms in a burst
    assert notes == []
    assert found["length"] == 2e-3
    assert found["spans"] == [3e-3, 1e-3, 2e-3]
    assert [a["name"] for a in found["activities"]] == ["k0", "k1", "k2", "k3"]
    assert [nbytes for _, nbytes in found["memory"]] == [1000, 1500, 500, 500]
    assert [at for at, _ in found["memory"]] == [a["start"] for a in found["activities"]]


def test_each_missing_part_is_one_note(monkeypatch: pytest.MonkeyPatch) -> None:
    found, notes = gpu(monkeypatch, lambda _: [call(1e-3, kernels=3)])
    assert found["memory"] == []
    assert notes == ["no memory over time: calls differ, with 4 and 3 kernels"]

    def untraceable(_: int) -> list[TracedCall]:
        raise Untraceable("the profiler saw 2 of 3 markers")

    found, notes = gpu(monkeypatch, untraceable)
    assert (found.keys(), notes) == ({"host"}, ["no timeline: the profiler saw 2 of 3 markers"])
    assert gpu(monkeypatch, lambda _: [TracedCall((), 0.0)])[1] == [
        "no timeline: the profiler saw no kernel in the call"
    ]
    found, notes = gpu(monkeypatch, None)
    assert (found.keys(), notes) == ({"host"}, [])  # trace_launch already has a note


def test_a_call_that_no_graph_can_hold_has_a_note() -> None:
    def refused(*_: Any) -> list[float]:
        raise Unsupported("--timer graph: it cannot be captured in a CUDA graph: operation not permitted")

    notes: list[str] = []
    timed = TimedLaunch(lambda: None, lambda _: [], 0, 0)
    can: Any = SimpleNamespace(in_graph=lambda *_: [9e-4])
    cannot: Any = SimpleNamespace(in_graph=refused)
    assert profile_call._in_graph(can, timed, 1e-3, notes) == [9e-4]
    assert notes == []
    assert profile_call._in_graph(cannot, timed, 1e-3, notes) == ()
    assert notes == ["not timed in a CUDA graph: it cannot be captured in a CUDA graph: operation not permitted"]
