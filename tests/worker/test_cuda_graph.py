"""The CUDA graph timer on a simulated GPU: copies for a cold L2, samples, and launches that cannot be captured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from simulated_gpu import Gpu

from attnbench.worker.measure import cuda_graph
from attnbench.worker.measure.cuda_graph import (
    MAX_COPIES,
    MAX_LAUNCHES,
    MIN_SECONDS,
    GraphTimer,
    NotCapturable,
    copies_needed,
)
from attnbench.worker.measure.sampling import do_nothing

L2 = 50 * 2**20


@pytest.mark.parametrize(
    ("nbytes", "count"), [(2**40, 2), (2 * L2, 2), (2 * L2 - 1, 3), (L2, 3), (L2 // 4, 9), (L2 // 4 + 1, 9)]
)
def test_copies(nbytes: int, count: int) -> None:
    assert copies_needed(nbytes, L2) == count


def test_too_many_copies_are_refused() -> None:
    fits = 2 * L2 // (MAX_COPIES - 1) + 1
    assert copies_needed(fits, L2) == MAX_COPIES
    for nbytes in (fits - 1, 1, 0):
        with pytest.raises(NotCapturable, match=rf"a cold L2 needs \d+ copies of its operands, more than {MAX_COPIES}"):
            copies_needed(nbytes, L2)


def test_without_an_l2_one_copy_is_enough() -> None:
    assert copies_needed(1, 0) == 1


class Graph:
    """A captured graph, which takes as long as all launches of its capture."""

    def __init__(self, gpu: Capturing) -> None:
        self.gpu = gpu
        self.seconds = 0.0
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        self.gpu.kernel(self.seconds)()


class Capturing(Gpu):
    """A simulated GPU that captures graphs."""

    OutOfMemoryError = torch.OutOfMemoryError

    def __init__(self) -> None:
        super().__init__()
        self.graphs: list[Graph] = []
        self.capturing: Graph | None = None
        self.memory = (2**30, 2**31)  # free, total

    def CUDAGraph(self) -> Graph:  # noqa: N802
        self.graphs.append(Graph(self))
        return self.graphs[-1]

    def Stream(self) -> Capturing:  # noqa: N802
        return self

    current_stream = Stream

    def wait_stream(self, stream: Any) -> None:
        assert stream is self

    @contextlib.contextmanager
    def stream(self, _: Any) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def graph(self, timer_: Graph, stream: Any) -> Iterator[None]:
        assert stream is self
        self.capturing = timer_
        try:
            yield
        finally:
            self.capturing = None

    def launch(self, seconds: float, seen: list[str] | None = None, name: str = "") -> Callable[[], str]:
        def run() -> str:
            if self.capturing:
                self.capturing.seconds += seconds
                if seen is not None:
                    seen.append(name)
            else:
                self.kernel(seconds)()
            return name

        return run

    def empty_cache(self) -> None:
        pass

    def mem_get_info(self) -> tuple[int, int]:
        return self.memory


class Events:
    """An event timer with exact seconds; records the `before` of each sample."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.before: Callable[[], Any] = lambda: None
        self.befores: list[Callable[[], Any]] = []

    def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
        values = []
        for _ in range(n):
            self.befores.append(self.before)
            self.gpu.synchronize()
            launch()
            values.append(self.gpu.free - self.gpu.now)
        return values


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Capturing:
    timer_ = Capturing()
    monkeypatch.setattr(torch, "cuda", timer_)
    return timer_


def timer(gpu: Capturing, launches: Sequence[Callable[[], Any]], estimate: float) -> GraphTimer:
    return GraphTimer(Events(gpu), lambda: launches, estimate)  # type: ignore[arg-type]


def test_a_sample_is_one_launch_of_many(gpu: Capturing) -> None:
    timer_ = timer(gpu, [gpu.launch(5e-6)], 5e-6)
    assert timer_.launches == round(MIN_SECONDS / 5e-6) == 400
    assert timer_.samples(1) == [pytest.approx(5e-6)]
    assert timer_.samples(3 * 400 + 1) == [pytest.approx(5e-6)] * 3


@pytest.mark.parametrize(
    ("copies", "estimate", "launches"), [(1, 1.0, 1), (3, 1.0, 3), (3, 0.5e-3, 6), (3, 1e-9, 1002), (7, 1e-3, 7)]
)
def test_every_copy_has_equally_many_turns(gpu: Capturing, copies: int, estimate: float, launches: int) -> None:
    order: list[str] = []
    timer_ = timer(gpu, [gpu.launch(1e-6, order, str(i)) for i in range(copies)], estimate)
    assert timer_.launches == launches == len(order)
    assert order == [str(i) for i in range(copies)] * (launches // copies)
    assert launches <= MAX_LAUNCHES + copies


def test_a_replay_is_not_flushed_and_the_events_get_their_flush_back(gpu: Capturing) -> None:
    timer_ = timer(gpu, [gpu.launch(1e-3)], 1e-3)
    events: Any = timer_._events
    flush = events.before
    timer_.samples(10)
    assert set(events.befores) == {do_nothing}
    assert events.before is flush


def test_launches_run_once_before_the_capture(gpu: Capturing) -> None:
    """Launches run once before the capture, because handles, workspaces and tuning cannot be captured."""
    runs: list[bool] = []
    timer(gpu, [lambda: runs.append(gpu.capturing is None)] * 2, 1.0)
    assert runs == [True, True, False, False]


def raises(error: Exception, gpu: Capturing, *, captured: bool) -> Callable[[], None]:
    def launch() -> None:
        if (gpu.capturing is not None) == captured:
            raise error

    return launch


@pytest.mark.parametrize("captured", [False, True])
def test_a_failed_capture_gives_its_reason_in_one_line(gpu: Capturing, captured: bool) -> None:
    error = RuntimeError("operation not permitted when stream is capturing\nCompile with ...\n")
    with pytest.raises(NotCapturable) as found:
        timer(gpu, [raises(error, gpu, captured=captured)], 1.0)
    said = "it cannot be captured in a CUDA graph: operation not permitted when stream is capturing"
    assert str(found.value) == said
    assert found.value.broken  # torch's allocator is broken, and only a new process helps


def test_copies_that_do_not_fit_in_memory_are_refused(gpu: Capturing) -> None:
    with pytest.raises(NotCapturable, match="the copies of its operands do not fit in memory") as found:
        timer(gpu, [raises(torch.OutOfMemoryError("CUDA out of memory"), gpu, captured=False)], 1.0)
    assert found.value.broken


@pytest.mark.usefixtures("gpu")
def test_free_memory_is_checked_before_a_capture() -> None:
    cuda_graph.check_memory(int(0.89 * 2**30))
    with pytest.raises(NotCapturable, match=r"need 2\.0 GiB, 1\.0 GiB free") as found:
        cuda_graph.check_memory(2**31)
    assert not found.value.broken


def test_other_errors_of_a_launch_are_raised(gpu: Capturing) -> None:
    with pytest.raises(KeyError):
        timer(gpu, [raises(KeyError("bug"), gpu, captured=False)], 1.0)
