"""How a cell is timed and with what: on this CPU, and on a GPU whose instruments are played."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from builders import case

from attnbench import instruments as module
from attnbench.bench import _chosen
from attnbench.instruments import CEILING_EVERY, FEW, FEW_TURNS, SHORT_TRACES, TURNS, Instruments, Subject
from attnbench.measure import cache, ceiling, graph, timing
from attnbench.measure.cupti import Untraceable
from attnbench.measure.energy import Sustained
from attnbench.measure.graph import NotCapturable
from attnbench.measure.timing import CpuTimer, nothing
from attnbench.types import SHORT, Device, Measurement, Policy, Unsupported

CPU = Device("cpu", 0, "CPU", 2**34, 2**34, l2=2**20, copy=2e10)
QUICK = Policy(warmup_s=0.0, min_samples=4, min_seconds=0.0, max_seconds=0.0, target=1.0)


def subject(launch: Callable[[], Any] = lambda: None, nbytes: int = 2**40) -> Subject:
    return Subject(launch, lambda n: [launch] * n, nbytes, 2**20)


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> Instruments:
    monkeypatch.setattr(module, "MAX_CPU_FLUSH", 2**16)  # else the tests write gigabytes
    return Instruments(CPU)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What L2's state turns out to be each time that it is looked at."""
    answers: list[Any] = []

    def state(timer: Any, device: torch.device, l2_bytes: int, bandwidth: float) -> str:
        assert (timer.name, device.type, l2_bytes, bandwidth) == ("perf_counter", "cpu", CPU.l2, CPU.copy)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    monkeypatch.setattr(cache, "state", state)
    return answers


def test_on_a_cpu_the_clock_of_the_host_times_a_cell(cpu: Instruments, found: list[Any]) -> None:
    found.append("cold")
    launches: list[int] = []
    took = cpu.time(subject(lambda: launches.append(1)), QUICK)
    assert (took.timer, took.l2, took.notes, took.limits, took.host_bound) == ("perf_counter", "cold", [], (), False)
    assert set(took.measurements) == {"time"}
    assert took.measurements["time"].unit == "s"
    assert 4 <= len(took.measurements["time"].values) <= len(launches)
    assert all(0 < t < 1 for t in took.measurements["time"].values)
    assert (cpu.events, cpu.tracer, cpu.state) == (None, None, None)
    assert cpu.cool_down()


def test_on_this_machine_the_state_of_l2_is_looked_at() -> None:
    """Whatever it is, it is not taken on trust."""
    took = Instruments(replace(CPU, l2=2**22)).time(subject(), QUICK)
    assert took.l2 in ("cold", "unproven")


def test_the_cache_that_a_virtual_machine_reports_is_its_hosts() -> None:
    """Flushing all of that would take seconds a sample."""
    flush = Instruments(replace(CPU, l2=2**42)).flush
    assert flush.buffer.numel() == module.MAX_CPU_FLUSH == 2**26


@pytest.mark.parametrize(
    ("promise", "answer", "said"),
    [
        ("cold", "cold", "cold"),
        ("cold", "warm", "unproven"),
        ("warm", "warm", "warm"),
        ("warm", "cold", "unproven"),
        ("cold", Untraceable("no"), "unproven"),
        ("cold", NotCapturable("no"), "unproven"),
    ],
)
def test_l2_is_what_was_found_or_unproven(
    cpu: Instruments, found: list[Any], promise: Any, answer: Any, said: str
) -> None:
    found.append(answer)
    assert cpu.time(subject(), replace(QUICK, l2=promise)).l2 == said


def test_l2_is_looked_at_once_for_each_promise(cpu: Instruments, found: list[Any]) -> None:
    found += ["cold", "warm"]
    for _ in range(3):
        assert cpu.time(subject(), QUICK).l2 == "cold"
        assert cpu.time(subject(), replace(QUICK, l2="warm")).l2 == "warm"
    assert found == []


def test_a_cold_sample_is_flushed_and_a_warm_one_is_not(cpu: Instruments, found: list[Any]) -> None:
    found += ["cold", "warm"]
    order: list[str] = []
    cpu.flush = lambda: order.append("flush")  # type: ignore[assignment]
    one = subject(lambda: order.append("launch"))
    cpu.time(one, QUICK)
    assert order == ["flush", "launch"] * (len(order) // 2)
    order.clear()
    cpu.time(one, replace(QUICK, l2="warm"))
    assert set(order) == {"launch"}


CASES = [case(n, batch=b, causal=c) for n in range(64, 2064, 4) for b in (1, 2) for c in (False, True)]


@pytest.mark.parametrize("share", [0.01, 0.05, 0.3, 0.9])
def test_the_sample_of_a_cross_check_is_near_its_share(share: float) -> None:
    """Of 2000 cells, within four standard deviations."""
    chosen = sum(_chosen(which, "eager", share) for which in CASES)
    assert abs(chosen - share * len(CASES)) < 4 * (len(CASES) * share * (1 - share)) ** 0.5
    assert chosen > 0


def test_none_and_all_of_the_cells() -> None:
    assert not any(_chosen(which, "eager", 0.0) for which in CASES)
    assert all(_chosen(which, "eager", 1.0) for which in CASES)


def test_the_sample_is_the_same_in_every_run() -> None:
    """Two runs can be compared on it: no hash of Python's, which differs between processes."""
    chosen = [i for i, which in enumerate(CASES) if _chosen(which, "eager", 0.01)]
    assert chosen[:5] == FIRST_OF_1_PERCENT
    larger = {i for i, which in enumerate(CASES) if _chosen(which, "eager", 0.3)}
    assert set(chosen) < larger  # a larger share adds cells
    assert larger != {i for i, which in enumerate(CASES) if _chosen(which, "triton", 0.3)}


FIRST_OF_1_PERCENT = [9, 17, 100, 166, 251]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """time as the instruments see it; `sleep` passes it."""
    made = SimpleNamespace(now=1000.0)
    made.monotonic = lambda: made.now
    made.sleep = lambda seconds: setattr(made, "now", made.now + seconds)
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the ceilings are read of, in turns."""
    seen: list[str] = []

    def matmul(timer: Any, device: torch.device, dtype: torch.dtype) -> list[float]:
        assert timer.before is nothing
        assert device.type == "cpu"
        seen.append(str(dtype))
        if dtype == torch.float64:
            raise torch.OutOfMemoryError("no room")
        return [1e12, 2e12]

    def copy(*_: Any) -> list[float]:
        seen.append("copy")
        return [3e10]

    monkeypatch.setattr(ceiling, "matmul", matmul)
    monkeypatch.setattr(ceiling, "copy", copy)
    return seen


def test_ceilings_are_read_every_20_seconds_only(cpu: Instruments, clock: SimpleNamespace, rates: list[str]) -> None:
    expected = {"ceiling_matmul": Measurement("FLOP/s", (1e12, 2e12)), "ceiling_copy": Measurement("B/s", (3e10,))}
    assert cpu.ceilings(torch.float32) == expected
    clock.now += CEILING_EVERY - 0.1
    assert cpu.ceilings(torch.float32) == {}
    clock.now += 0.2
    assert cpu.ceilings(torch.bfloat16) == expected
    assert cpu.ceilings(torch.float32) == {}
    assert rates == ["torch.float32", "copy", "torch.bfloat16", "copy"]
    assert CEILING_EVERY == 20


def test_ceilings_without_room_are_not_tried_again_at_once(
    cpu: Instruments, clock: SimpleNamespace, rates: list[str]
) -> None:
    assert cpu.ceilings(torch.float64) == {}
    assert cpu.ceilings(torch.float32) == {}
    assert rates == ["torch.float64"]
    clock.now += CEILING_EVERY + 1
    assert cpu.ceilings(torch.float32)


def test_ceilings_are_work_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ceiling.MATMUL, "cpu", 8)
    monkeypatch.setitem(ceiling.COPY, "cpu", 1000)
    launched: list[torch.Tensor] = []

    class Exact(CpuTimer):
        def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
            launched.append(launch())
            return [0.5] * n

    where = torch.device("cpu")
    assert ceiling.matmul(Exact(), where, torch.float64) == [2 * 8**3 / 0.5] * ceiling.READINGS
    assert (launched[0].shape, launched[0].dtype) == ((8, 8), torch.float64)
    assert ceiling.copy(Exact(), where) == [2 * 1000 / 0.5] * ceiling.READINGS  # read and written
    assert launched[-1].numel() * launched[-1].element_size() == 1000


class Events:
    """CUDA events as they would be: each sample `seconds`, each batch at the clock `hz`."""

    name = "events"

    def __init__(self) -> None:
        self.before: Callable[[], Any] = nothing
        self.seconds, self.hz, self.best_clock = 1e-3, 1.97e9, 1.98e9
        self.slow_host = False
        self.log: list[str] = []
        self.reset()

    def reset(self) -> None:
        self.host_bound = False
        self.enqueue: list[float] = []
        self.clocks: list[float] = []

    def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
        self.log.append("events")
        for _ in range(n):
            launch()
        self.enqueue += [7e-6] * n
        self.clocks.append(self.hz)
        self.host_bound |= self.slow_host
        return [self.seconds] * n

    def clock_hz(self) -> float:
        return self.hz


class Tracer:
    name = "cupti"

    def __init__(self, events: Events) -> None:
        self.events = events
        self.before: Callable[[], Any] = nothing
        self.lost = False

    def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
        if self.lost:
            raise Untraceable("the profiler saw 1 of 2 markers")
        self.events.log.append("cupti")
        launch()
        return [self.events.seconds - 2e-6] * n


class Gpu(Instruments):
    """Played, with events, tracer and a captured graph."""

    def __init__(self) -> None:
        self.device = torch.device("cuda")
        self.l2_bytes, self.bandwidth = 50 * 2**20, 4e12
        self.flush = lambda: None  # type: ignore[assignment]
        self.played = Events()
        self.events = self.timer = self.played  # type: ignore[assignment]
        self.tracer = Tracer(self.played)  # type: ignore[assignment]
        self.state = SimpleNamespace(  # type: ignore[assignment]
            known=False, power_limit_w=lambda: 700.0, power_average_w=lambda: 100.0, limits=lambda: ()
        )
        self.broken = False
        self._l2 = {(name, l2): l2 for name in ("events", "graph", "cupti", "") for l2 in ("cold", "warm")}
        self._ceiling_read = 0.0


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that were captured; what stands here before is why not."""
    made: list[Any] = []

    class Graph:
        name = "graph"
        launches = 10

        def __init__(self, events: Events, make: Callable[[], Any], estimate: float) -> None:
            if made and isinstance(made[0], Exception):
                raise made[0]
            self.events, self.copies, self.closed = events, len(make()), False
            assert estimate == events.seconds
            made.append(self)

        def samples(self, n: int) -> list[float]:
            self.events.log.append("graph")
            self.events.clocks.append(self.events.hz)
            return [self.events.seconds - 3e-6] * max(1, n // self.launches)

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr(module, "GraphTimer", Graph)
    monkeypatch.setattr(graph, "check_memory", lambda nbytes: None)
    return made


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: None)
    return Gpu()


def values(took: Any, name: str) -> tuple[float, ...]:
    return took.measurements[name].values if name in took.measurements else ()


def test_events_are_the_default(gpu: Gpu) -> None:
    took = gpu.time(subject(), QUICK)
    assert (took.timer, took.l2, took.host_bound) == ("events", "cold", False)
    assert set(values(took, "time")) == {1e-3}
    assert set(values(took, "enqueue")) == {7e-6}
    assert set(values(took, "clock_held")) == {1.97e9}
    assert "span" not in took.measurements
    assert {name: m.unit for name, m in took.measurements.items()} == {"time": "s", "enqueue": "s", "clock_held": "Hz"}


@pytest.mark.parametrize("l2", ["cold", "warm"])
def test_every_instrument_gets_the_same_before(gpu: Gpu, l2: Any) -> None:
    took = gpu.time(subject(), replace(QUICK, l2=l2))
    assert took.l2 == l2
    wanted = gpu.flush if l2 == "cold" else nothing
    assert gpu.played.before is wanted
    assert gpu.tracer is not None
    assert gpu.tracer.before is wanted


def test_what_is_short_is_traced_too(gpu: Gpu) -> None:
    gpu.played.seconds = 0.9 * SHORT
    took = gpu.time(subject(), QUICK)
    assert len(values(took, "span")) == SHORT_TRACES * QUICK.min_samples
    assert set(values(took, "span")) == {0.9 * SHORT - 2e-6}
    gpu.tracer = None
    assert "span" not in gpu.time(subject(), QUICK).measurements


def test_a_trace_that_fails_beside_the_samples_costs_the_spans_only(gpu: Gpu) -> None:
    gpu.played.seconds = 0.9 * SHORT
    gpu.tracer.lost = True  # type: ignore[union-attr]
    took = gpu.time(subject(), QUICK)
    assert values(took, "time")
    assert "span" not in took.measurements
    assert any("1 of 2 markers" in note for note in took.notes)


def test_a_graph_has_the_clock_of_its_replays(gpu: Gpu, graphs: list[Any]) -> None:
    """What the host pays is looked at apart, at whatever clock, and its slowness is not in a replay."""
    launches: list[int] = []

    def launch() -> None:
        launches.append(1)
        gpu.played.slow_host = True
        gpu.played.hz = 1.5e9 if len(launches) > 3 else 1.97e9  # after the estimate

    took = gpu.time(subject(launch), replace(QUICK, timer="graph"))
    assert took.timer == "graph"
    assert set(values(took, "time")) == {1e-3 - 3e-6}
    assert len(values(took, "enqueue")) == 10
    assert not took.host_bound
    assert set(values(took, "clock_held")) == {1.97e9}
    assert graphs[0].closed


def test_a_graph_of_a_cold_cell_takes_turns_over_copies_and_one_of_a_warm_cell_does_not(
    gpu: Gpu, graphs: list[Any]
) -> None:
    nbytes = 2 * gpu.l2_bytes // 4
    gpu.time(subject(nbytes=nbytes), replace(QUICK, timer="graph"))
    gpu.time(subject(nbytes=nbytes), replace(QUICK, timer="graph", l2="warm"))
    assert [made.copies for made in graphs] == [graph.copies(nbytes, gpu.l2_bytes), 1] == [5, 1]
    assert all(made.closed for made in graphs)


def test_traces_have_the_clock_at_the_end_of_each(gpu: Gpu) -> None:
    took = gpu.time(subject(), replace(QUICK, timer="cupti"))
    assert took.timer == "cupti"
    assert set(values(took, "time")) == {1e-3 - 2e-6}
    assert len(values(took, "clock_held")) >= gpu.played.log.count("cupti") >= timing.MIN_BURSTS
    assert len(values(took, "enqueue")) == 10


def test_an_instrument_that_cannot_be_used_is_said(gpu: Gpu, graphs: list[Any]) -> None:
    gpu.tracer.lost = True  # type: ignore[union-attr]
    with pytest.raises(Unsupported, match="--timer cupti: the profiler saw 1 of 2 markers"):
        gpu.time(subject(), replace(QUICK, timer="cupti"))
    gpu.tracer = None
    with pytest.raises(Unsupported, match="the profiler sees no kernels here"):
        gpu.time(subject(), replace(QUICK, timer="cupti"))
    with pytest.raises(Unsupported, match="--timer graph: L2 is cold only with"):
        gpu.time(subject(nbytes=1), replace(QUICK, timer="graph"))
    assert not gpu.broken
    graphs.append(NotCapturable("it cannot be captured", broken=True))
    with pytest.raises(Unsupported, match="--timer graph: it cannot be captured"):
        gpu.time(subject(), replace(QUICK, timer="graph"))
    assert gpu.broken


def test_turns_give_each_instrument_one_reading_a_turn_and_the_first_place_in_its_time(
    gpu: Gpu, graphs: list[Any]
) -> None:
    readings, notes = gpu.turns(subject(), QUICK)
    assert notes == []
    assert {name: (m.unit, len(m.values)) for name, m in readings.items()} == {
        "turns_events": ("s", TURNS),
        "turns_graph": ("s", TURNS),
        "turns_cupti": ("s", TURNS),
    }
    assert [set(readings[f"turns_{name}"].values) for name in ("events", "graph", "cupti")] == [
        {1e-3}, {1e-3 - 3e-6}, {1e-3 - 2e-6}
    ]  # fmt: skip
    log = gpu.played.log[-3 * TURNS :]
    assert [log[3 * i : 3 * i + 3] for i in range(4)] == [
        ["events", "graph", "cupti"],
        ["graph", "cupti", "events"],
        ["cupti", "events", "graph"],
        ["events", "graph", "cupti"],
    ]
    assert graphs[0].closed


def test_turns_of_long_calls_are_few(gpu: Gpu, graphs: list[Any]) -> None:
    gpu.played.seconds = 1.1 * FEW
    readings, _ = gpu.turns(subject(), QUICK)
    assert {len(m.values) for m in readings.values()} == {FEW_TURNS}
    assert graphs[0].closed


def test_turns_go_on_without_an_instrument_and_say_which(gpu: Gpu, graphs: list[Any]) -> None:
    gpu.tracer.lost = True  # type: ignore[union-attr]
    readings, notes = gpu.turns(subject(), QUICK)
    assert set(readings) == {"turns_events", "turns_graph"}
    assert notes == ["cross-check: the profiler saw 1 of 2 markers"]
    gpu.tracer = None
    graphs.insert(0, NotCapturable("it cannot be captured in a CUDA graph: item()"))
    readings, notes = gpu.turns(subject(), QUICK)
    assert set(readings) == {"turns_events"}
    assert notes == [
        "cross-check: the profiler sees no kernels here (CUPTI)",
        "cross-check: graph: it cannot be captured in a CUDA graph: item()",
    ]


@pytest.mark.parametrize(
    ("result", "names", "notes"),
    [
        (Sustained((1.1e-3,), 650.0, 0.01, True), {"sustained", "sustained_power", "sustained_power_error"}, []),
        (Sustained((1.1e-3,), None, None, True), {"sustained"}, ["energy counter did not move"]),
        (
            Sustained((1.1e-3,), 650.0, 0.01, False),
            {"sustained", "sustained_power", "sustained_power_error"},
            ["not steady within 7 s"],
        ),
    ],
)
def test_a_sustained_run_is_asked_for(
    gpu: Gpu,
    clock: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    result: Sustained,
    names: set[str],
    notes: list[str],
) -> None:
    asked: list[tuple[float, float]] = []
    monkeypatch.setattr(module, "sustained", lambda _, estimate, limit, __: asked.append((estimate, limit)) or result)
    took = gpu.time(subject(), replace(QUICK, sustained_s=7.0))
    assert asked == [(1e-3, 7.0)]
    assert {name for name in took.measurements if name.startswith("sustained")} == names
    assert len(took.notes) == len(notes)
    assert all(words in note for words, note in zip(notes, took.notes, strict=True))
    assert clock.now > 1000.0  # and the machine cools down before the next cell
    gpu.time(subject(), QUICK)
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
    gpu.played.clock_hz = lambda: hz(clock.now - 1000.0)  # type: ignore[method-assign]
    assert gpu.cool_down() == (cools is not None)
    assert clock.now - 1000.0 == pytest.approx(cools or module.COOL_SECONDS, abs=0.11)


def test_power_is_isolated_before_a_cell_where_that_is_asked_for(gpu: Gpu, clock: SimpleNamespace) -> None:
    gpu.time(subject(), QUICK)
    assert clock.now == 1000.0
    gpu.time(subject(), replace(QUICK, isolate_power=True))
    assert clock.now == pytest.approx(1000.0 + module.COOL_READINGS * 0.05)


def test_a_machine_that_does_not_cool_down_is_noted(gpu: Gpu, clock: SimpleNamespace) -> None:
    gpu.state.limits = lambda: ("thermal",)  # type: ignore[union-attr, method-assign, assignment]
    took = gpu.time(subject(), replace(QUICK, isolate_power=True))
    assert any("not back within 30 s" in note for note in took.notes)
    assert clock.now >= 1030
    assert gpu.time(subject(), QUICK).notes == []
