"""The timing of a cell on a GPU with scripted instruments: events, graphs, traces, sustained runs, cooling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from scripted_instruments import QUICK, Events, Gpu, timed_launch, values

from attnbench.core.backend import Unsupported
from attnbench.core.policy import SHORT
from attnbench.worker import instruments as module
from attnbench.worker.instruments import LONG_CALL_S, SHORT_TRACES, TURNS, TURNS_OF_LONG_CALLS
from attnbench.worker.measure import cuda_graph, sampling
from attnbench.worker.measure.cuda_graph import NotCapturable
from attnbench.worker.measure.energy import SustainedRun
from attnbench.worker.measure.sampling import do_nothing


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the graphs that are captured; an exception that a test puts here is raised instead."""
    made: list[Any] = []

    class Graph:
        launches = 10

        def __init__(self, events: Events, make: Callable[[], Any], estimate: float) -> None:
            if made and isinstance(made[0], Exception):
                raise made[0]
            self.events, self.copies, self.closed = events, len(make()), False
            assert estimate == events.seconds
            made.append(self)

        def samples(self, n: int) -> list[float]:
            self.events.log.append("graph")
            self.events.read_clock()
            return [self.events.seconds - 3e-6] * max(1, n // self.launches)

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr(module, "GraphTimer", Graph)
    monkeypatch.setattr(cuda_graph, "check_memory", lambda nbytes: None)
    return made


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    monkeypatch.setattr(sampling.time, "sleep", lambda seconds: None)
    return Gpu()


def test_events_are_the_default(gpu: Gpu) -> None:
    timing = gpu.time(timed_launch(), QUICK)
    assert (timing.timer, timing.l2, timing.host_bound) == ("events", "cold", False)
    assert set(values(timing, "time")) == {1e-3}
    assert set(values(timing, "enqueue")) == {7e-6}
    assert set(values(timing, "clock_held")) == {1.97e9}
    assert "span" not in timing.measurements
    assert {name: m.unit for name, m in timing.measurements.items()} == {
        "time": "s",
        "enqueue": "s",
        **dict.fromkeys(("clock_before", "clock_held", "clock_after", "clock_best", "clock_idle"), "Hz"),
    }


@pytest.mark.parametrize("l2", ["cold", "warm"])
def test_every_instrument_gets_the_same_flush(gpu: Gpu, l2: Any) -> None:
    timing = gpu.time(timed_launch(), replace(QUICK, l2=l2))
    assert timing.l2 == l2
    wanted = gpu.flush if l2 == "cold" else do_nothing
    assert gpu.scripted.before is wanted
    assert gpu.tracer is not None
    assert gpu.tracer.before is wanted


def test_short_calls_are_traced_too(gpu: Gpu) -> None:
    gpu.scripted.seconds = 0.9 * SHORT
    timing = gpu.time(timed_launch(), QUICK)
    assert values(timing, "span") == pytest.approx([1.01 * 0.9 * SHORT - 2e-6] * SHORT_TRACES * QUICK.min_samples)
    assert values(timing, "span_events") == pytest.approx([1.01 * 0.9 * SHORT] * SHORT_TRACES * QUICK.min_samples)
    gpu.tracer = None
    assert "span" not in gpu.time(timed_launch(), QUICK).measurements


def test_a_failed_trace_of_short_calls_costs_the_spans_only(gpu: Gpu) -> None:
    gpu.scripted.seconds = 0.9 * SHORT
    gpu.tracer.lost = True  # type: ignore[union-attr]
    timing = gpu.time(timed_launch(), QUICK)
    assert values(timing, "time")
    assert "span" not in timing.measurements
    assert any("1 of 2 markers" in note for note in timing.notes)


def test_a_graph_has_the_clock_of_its_replays(gpu: Gpu, graphs: list[Any]) -> None:
    """A graph has the clock of its replays; the host's time is measured separately, at any clock."""
    launches: list[int] = []

    def launch() -> None:
        launches.append(1)
        gpu.scripted.slow_host = True
        gpu.scripted.hz = 1.5e9 if len(launches) > 3 else 1.97e9  # after the estimate

    timing = gpu.time(timed_launch(launch), replace(QUICK, timer="graph"))
    assert timing.timer == "graph"
    assert set(values(timing, "time")) == {1e-3 - 3e-6}
    assert len(values(timing, "enqueue")) == 10
    assert not timing.host_bound
    assert set(values(timing, "clock_held")) == {1.97e9}
    assert graphs[0].closed


def test_a_graph_uses_copies_where_l2_is_cold_only(gpu: Gpu, graphs: list[Any]) -> None:
    nbytes = 2 * gpu.l2_bytes // 4
    gpu.time(timed_launch(nbytes=nbytes), replace(QUICK, timer="graph"))
    gpu.time(timed_launch(nbytes=nbytes), replace(QUICK, timer="graph", l2="warm"))
    assert [made.copies for made in graphs] == [cuda_graph.copies_needed(nbytes, gpu.l2_bytes), 1] == [5, 1]
    assert all(made.closed for made in graphs)


def test_each_trace_ends_with_a_reading_of_the_clock(gpu: Gpu) -> None:
    timing = gpu.time(timed_launch(), replace(QUICK, timer="cupti"))
    assert timing.timer == "cupti"
    assert set(values(timing, "time")) == {1.01e-3 - 2e-6}
    assert len(values(timing, "clock_held")) >= gpu.scripted.log.count("cupti") >= sampling.MIN_BURSTS
    assert len(values(timing, "enqueue")) == 10


def test_an_instrument_that_cannot_be_used_makes_the_cell_unsupported(gpu: Gpu, graphs: list[Any]) -> None:
    gpu.tracer.lost = True  # type: ignore[union-attr]
    with pytest.raises(Unsupported, match="--timer cupti: the profiler saw 1 of 2 markers"):
        gpu.time(timed_launch(), replace(QUICK, timer="cupti"))
    gpu.tracer = None
    with pytest.raises(Unsupported, match="the profiler sees no kernels here"):
        gpu.time(timed_launch(), replace(QUICK, timer="cupti"))
    with pytest.raises(Unsupported, match="--timer graph: a cold L2 needs"):
        gpu.time(timed_launch(nbytes=1), replace(QUICK, timer="graph"))
    assert not gpu.broken
    graphs.append(NotCapturable("it cannot be captured", broken=True))
    with pytest.raises(Unsupported, match="--timer graph: it cannot be captured"):
        gpu.time(timed_launch(), replace(QUICK, timer="graph"))
    assert gpu.broken


def test_instruments_take_turns_in_rotating_order(gpu: Gpu, graphs: list[Any]) -> None:
    readings, notes = gpu.cross_check(timed_launch(), QUICK)
    assert notes == []
    assert {name: (m.unit, len(m.values)) for name, m in readings.items()} == {
        "turns_events": ("s", TURNS),
        "turns_graph": ("s", TURNS),
        "turns_cupti": ("s", TURNS),
        "turns_traced": ("s", TURNS),
    }
    assert [set(readings[f"turns_{name}"].values) for name in ("events", "graph", "cupti", "traced")] == [
        {1e-3}, {1e-3 - 3e-6}, {1.01e-3 - 2e-6}, {1.01e-3}
    ]  # fmt: skip
    log = gpu.scripted.log[-3 * TURNS :]
    assert [log[3 * i : 3 * i + 3] for i in range(4)] == [
        ["events", "graph", "cupti"],
        ["graph", "cupti", "events"],
        ["cupti", "events", "graph"],
        ["events", "graph", "cupti"],
    ]
    assert graphs[0].closed


def test_turns_of_long_calls_are_few(gpu: Gpu, graphs: list[Any]) -> None:
    gpu.scripted.seconds = 1.1 * LONG_CALL_S
    readings, _ = gpu.cross_check(timed_launch(), QUICK)
    assert {len(m.values) for m in readings.values()} == {TURNS_OF_LONG_CALLS}
    assert graphs[0].closed


def test_a_cross_check_goes_on_without_an_instrument_and_says_why(gpu: Gpu, graphs: list[Any]) -> None:
    gpu.tracer.lost = True  # type: ignore[union-attr]
    readings, notes = gpu.cross_check(timed_launch(), QUICK)
    assert set(readings) == {"turns_events", "turns_graph"}
    assert notes == ["cross-check: the profiler saw 1 of 2 markers"]
    gpu.tracer = None
    graphs.insert(0, NotCapturable("it cannot be captured in a CUDA graph: item()"))
    readings, notes = gpu.cross_check(timed_launch(), QUICK)
    assert set(readings) == {"turns_events"}
    assert notes == [
        "cross-check: the profiler sees no kernels here (CUPTI)",
        "cross-check: graph: it cannot be captured in a CUDA graph: item()",
    ]


@pytest.mark.parametrize(
    ("result", "names", "notes"),
    [
        (SustainedRun((1.1e-3,), 650.0, 0.01, True), {"sustained", "sustained_power", "sustained_power_error"}, []),
        (SustainedRun((1.1e-3,), None, None, True), {"sustained"}, ["energy counter did not move"]),
        (
            SustainedRun((1.1e-3,), 650.0, 0.01, False),
            {"sustained", "sustained_power", "sustained_power_error"},
            ["not steady within 7 s"],
        ),
    ],
)
def test_a_sustained_run_is_recorded_where_it_is_asked_for(
    gpu: Gpu,
    clock: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    result: SustainedRun,
    names: set[str],
    notes: list[str],
) -> None:
    asked: list[tuple[float, float]] = []
    monkeypatch.setattr(
        module, "run_sustained", lambda _, estimate, limit, __: asked.append((estimate, limit)) or result
    )
    timing = gpu.time(timed_launch(), replace(QUICK, sustained_s=7.0))
    assert asked == [(1e-3, 7.0)]
    assert {name for name in timing.measurements if name.startswith("sustained")} == names
    assert len(timing.notes) == len(notes)
    assert all(words in note for words, note in zip(notes, timing.notes, strict=True))
    assert clock.now > 1000.0  # the device cools down before the next cell
    gpu.time(timed_launch(), QUICK)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("watts", "hz", "limits", "cools"),
    [
        (lambda t: 100.0, lambda t: 1.98e9, lambda t: (), 0.15),
        (lambda t: 600.0 if t < 1 else 100.0, lambda t: 1.98e9, lambda t: (), 1.15),
        (lambda t: 100.0, lambda t: 1.98e9, lambda t: ("thermal",) if t < 2 else (), 2.15),
        (lambda t: 100.0, lambda t: 1.7e9 if 0 < t < 0.5 else 1.98e9, lambda t: (), 0.6),
        (lambda t: None, lambda t: 1.98e9, lambda t: (), 0.15),
        (lambda t: 100.0, lambda t: 1.98e9, lambda t: ("thermal",), None),
    ],
)
def test_cooling_down_waits_for_power_clock_and_limits(
    gpu: Gpu, clock: SimpleNamespace, watts: Any, hz: Any, limits: Any, cools: float | None
) -> None:
    gpu.state = SimpleNamespace(  # type: ignore[assignment]
        power_limit_w=lambda: 700.0,
        power_average_w=lambda: watts(clock.now - 1000.0),
        limits=lambda: limits(clock.now - 1000.0),
    )
    gpu.scripted.now_hz = lambda: hz(clock.now - 1000.0)  # type: ignore[method-assign]
    assert gpu.cool_down() == (cools is not None)
    assert clock.now - 1000.0 == pytest.approx(cools or module.COOL_SECONDS, abs=0.11)


def test_isolate_power_waits_before_the_cell(gpu: Gpu, clock: SimpleNamespace) -> None:
    gpu.time(timed_launch(), QUICK)
    assert clock.now == 1000.0
    gpu.time(timed_launch(), replace(QUICK, isolate_power=True))
    assert clock.now == pytest.approx(1000.0 + module.COOL_READINGS * 0.05)


def test_a_machine_that_does_not_cool_down_is_noted(gpu: Gpu, clock: SimpleNamespace) -> None:
    gpu.state.limits = lambda: ("thermal",)  # type: ignore[union-attr, method-assign, assignment]
    timing = gpu.time(timed_launch(), replace(QUICK, isolate_power=True))
    assert any("did not recover within 30 s" in note for note in timing.notes)
    assert clock.now >= 1030
    assert gpu.time(timed_launch(), QUICK).notes == []
