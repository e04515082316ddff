"""Handwritten traces are split into calls by markers, and a trace is repeated where the host was slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from attnbench.worker.kernel_rules import busy_seconds
from attnbench.worker.measure.cupti import MARK, MAX_TRIES, TracedCall, Tracer, Untraceable, _split_into_calls

NS = 1e-9
US = 1e-6


@dataclass
class Event:
    """A stand-in for a kineto event of torch.profiler. Arguments are in microseconds, the event is in nanoseconds."""

    text: str
    start: float
    end: float
    correlation: int = 0
    device: str = "CPU"
    stream: int = 7
    annotation: bool = False

    def name(self) -> str:
        return self.text

    def start_ns(self) -> int:
        return round(self.start * 1e3)

    def end_ns(self) -> int:
        return round(self.end * 1e3)

    def duration_ns(self) -> int:
        return self.end_ns() - self.start_ns()

    def correlation_id(self) -> int:
        return self.correlation

    def device_type(self) -> SimpleNamespace:
        return _DeviceType(self.device)

    def device_resource_id(self) -> int:
        return self.stream

    def is_user_annotation(self) -> bool:
        return self.annotation


class _DeviceType(SimpleNamespace):
    def __init__(self, name: str) -> None:
        super().__init__(name=name)

    def __str__(self) -> str:
        return f"DeviceType.{self.name}"


class Trace:
    """A trace in which the host enqueues from 0 us on and the device runs from 1000 us on.

    It begins with markers (start, end), and kernels (name, start, end) with a stream if it is not 7.
    """

    def __init__(self, *begins: Sequence[Any]) -> None:
        self.events: list[Event] = []
        self.host = 0.0
        self._id = 0
        for step in begins:
            add = self.launched if isinstance(step[0], str) else lambda *span: self.marker(span)
            add(*step)

    def launched(self, name: str, start: float, end: float, stream: int = 7) -> None:
        """Add a kernel and the host call that launched it."""
        self._id += 1
        self.host += 10
        self.events.append(Event("cudaLaunchKernel", self.host, self.host + 5, self._id))
        self.events.append(Event(name, start, end, self._id, "CUDA", stream))

    def marker(self, *spans: tuple[float, float]) -> None:
        """Add a marker: a named range and the kernels that were launched in it."""
        began = self.host
        for start, end in spans:
            self.launched("FillFunctor", start, end)
        self.host += 10
        self.events.append(Event(MARK, began + 1, self.host, annotation=True))
        if spans:
            self.events.append(Event(MARK, spans[0][0], spans[-1][1], device="CUDA", annotation=True))

    def split(self, n: int, shuffle: Callable[[list[Event]], Sequence[Event]] = list) -> list[TracedCall]:
        return _split_into_calls(shuffle(self.events), [i * US for i in range(1, n + 1)])


def names(call: TracedCall) -> list[str]:
    return [kernel.name for kernel in call.kernels]


@pytest.mark.parametrize("shuffle", [list, lambda events: events[::-1]], ids=["in order", "backwards"])
def test_a_call_is_what_ran_between_two_markers(shuffle: Any) -> None:
    trace = Trace(
        ("spin", 900, 1000),  # hides the host and belongs to no call
        (1000, 1010),
        ("first", 1011, 1020),
        ("second", 1022, 1030),
        (1031, 1040),
        ("third", 1041, 1045),
        (1046, 1050),
    )
    one, two = trace.split(2, shuffle)
    assert names(one) == ["first", "second"]
    assert names(two) == ["third"]
    assert [(k.start, k.end) for k in one.kernels] == [(0.0, pytest.approx(9e-6)), (11e-6, pytest.approx(19e-6))]
    assert one.span == pytest.approx(19e-6)  # includes the gap between its kernels, but not the gaps to the markers
    assert busy_seconds(one.kernels) == pytest.approx(17e-6)
    assert (one.overrun, two.overrun) == (0, 0)
    assert (one.events, two.events) == (1 * US, 2 * US)
    assert two.span == busy_seconds(two.kernels) == pytest.approx(4e-6)


def test_markers_are_recognised_by_their_host_call_and_not_by_name() -> None:
    """Markers are recognised by their host call, because a backend may also fill memory with the marker's kernel."""
    trace = Trace((1000, 1010), ("FillFunctor", 1011, 1020), ("FillFunctor", 1021, 1030), (1031, 1040))
    (call,) = trace.split(1)
    assert names(call) == ["FillFunctor"] * 2


def test_correlation_numbers_of_operators_make_no_marker() -> None:
    """Correlation numbers of operators, which may equal those of kernels, make no marker."""
    trace = Trace((1000, 1010), ("ours", 1011, 1020), (1021, 1030))
    (number,) = (e.correlation for e in trace.events if e.text == "ours")
    (began, *_) = sorted(e.start for e in trace.events if e.text == MARK and e.device == "CPU")
    trace.events.append(Event("aten::zero_", began + 1, began + 2, number))
    (call,) = trace.split(1)
    assert names(call) == ["ours"]


def test_a_marker_of_two_kernels_is_one_marker() -> None:
    trace = Trace()
    trace.marker((1000, 1010), (1011, 1015))
    trace.launched("ours", 1016, 1020)
    trace.marker((1021, 1030), (1031, 1035))
    trace.launched("ours too", 1036, 1044)
    trace.marker((1041, 1050), (1051, 1055))
    one, two = trace.split(2)
    assert (names(one), names(two)) == (["ours"], ["ours too"])
    assert (one.overrun, two.overrun) == (0, pytest.approx(3e-6))  # the marker begins with its first kernel


def test_kernels_of_other_threads_and_streams_belong_to_their_call() -> None:
    """Kernels of other threads (autograd's) and streams belong to their call, even without a known host call."""
    trace = Trace((1000, 1010), ("forward", 1011, 1020))
    trace.events.append(Event("backward", 1021, 1030, 999, "CUDA"))
    trace.events.append(Event("elsewhere", 1012, 1029, 0, "CUDA", stream=13))
    trace.marker((1031, 1040))
    (call,) = trace.split(1)
    assert [(k.name, k.stream) for k in call.kernels] == [("forward", 7), ("elsewhere", 13), ("backward", 7)]
    assert call.span == pytest.approx(19e-6)
    assert busy_seconds(call.kernels) == pytest.approx(19e-6)  # overlapping time counts once
    assert call.overrun == 0


def test_work_that_outlasts_the_next_marker_is_an_overrun() -> None:
    """Work that outlasts the next marker, on another stream without a wait, is an overrun."""
    trace = Trace(
        (1000, 1010), ("ours", 1011, 1020), ("hidden", 1012, 1075, 13), (1021, 1030), ("ours", 1031, 1040), (1041, 1050)
    )
    one, two = trace.split(2)
    assert names(one) == ["ours", "hidden"]
    assert one.overrun == pytest.approx((1075 - 1021) * 1e-6)
    assert (names(two), two.overrun) == (["ours"], 0)


def test_work_after_the_last_marker_belongs_to_the_last_call() -> None:
    trace = Trace((1000, 1010), ("ours", 1011, 1020), ("late", 1500, 1600, 13), (1021, 1030))
    (call,) = trace.split(1)
    assert names(call) == ["ours", "late"]
    assert call.overrun == pytest.approx((1600 - 1021) * 1e-6)


def test_work_that_begins_before_its_marker_has_a_head_start() -> None:
    """Work that begins before its marker, on another stream during the spin that hides the host, has a head start."""
    trace = Trace(
        ("spin", 900, 1000),
        (1000, 1010),
        ("ours", 1011, 1020),
        ("hidden", 930, 990, 13),
        (1021, 1030),
        ("ours", 1031, 1040),
        (1041, 1050),
    )
    one, two = trace.split(2)
    assert names(one) == ["hidden", "ours"]
    assert (one.head_start, two.head_start) == (pytest.approx(70e-6), 0)


@pytest.mark.parametrize(
    ("then", "unwaited"),
    [("cudaStreamWaitEvent", False), ("cudaDeviceSynchronize", False), ("cudaEventRecordWithFlags", True)],
)
def test_work_on_another_stream_is_unwaited_unless_the_host_asked_to_wait(then: str, unwaited: bool) -> None:
    """Work on another stream is unwaited unless the host asked to wait, even if it ends in time by chance."""
    trace = Trace()
    trace.marker((1000, 1010))
    trace.host += 10
    # The other stream waits for the main stream.
    trace.events.append(Event("cudaStreamWaitEvent", trace.host, trace.host + 1, 998))
    trace.launched("half", 1011, 1018, stream=13)
    trace.launched("other half", 1011, 1020)
    trace.host += 10
    trace.events.append(Event(then, trace.host, trace.host + 1, 999))
    trace.marker((1021, 1030))
    trace.launched("ours", 1031, 1040)
    trace.marker((1041, 1050))
    one, two = trace.split(2)
    assert (one.unwaited, two.unwaited) == (unwaited, False)


def test_a_graph_orders_its_own_streams() -> None:
    trace = Trace((1000, 1010), ("half", 1011, 1018, 13))
    trace.events = [
        replace(e, text="cudaGraphLaunch") if e.correlation == 2 and e.device == "CPU" else e for e in trace.events
    ]
    trace.marker((1021, 1030))
    assert [e.text for e in trace.events].count("cudaGraphLaunch") == 1
    assert not trace.split(1)[0].unwaited


def test_work_belongs_to_the_call_that_launched_it_whenever_it_ran() -> None:
    trace = Trace((1000, 1010), ("late", 1035, 1075, 13), (1021, 1030), ("ours", 1031, 1040), (1041, 1050))
    one, two = trace.split(2)
    assert (names(one), names(two)) == (["late"], ["ours"])
    assert one.overrun == pytest.approx((1075 - 1021) * 1e-6)


def test_a_call_in_which_nothing_ran() -> None:
    trace = Trace((1000, 1010), (1011, 1020), ("ours", 1021, 1030), (1031, 1040))
    empty, something = trace.split(2)
    assert names(empty) == []
    assert (empty.span, empty.kernels, empty.overrun) == (0, (), 0)
    assert names(something) == ["ours"]


def test_ranges_and_events_of_no_duration_are_no_work() -> None:
    trace = Trace()
    trace.marker((1000, 1010))
    trace.events.append(Event("torch.nn.Module: range", 1005, 1030, device="CUDA", annotation=True))
    trace.events.append(Event("cudaEventRecord", 1012, 1012, device="CUDA"))
    trace.launched("ours", 1015, 1020)
    trace.marker((1031, 1040))
    (call,) = trace.split(1)
    assert names(call) == ["ours"]


def test_a_trace_without_kernels_raises_with_the_likely_cause() -> None:
    trace = Trace()
    trace.marker()
    trace.marker()
    with pytest.raises(Untraceable, match="saw no kernel; another tool may use CUPTI, or it is not permitted"):
        trace.split(1)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lost_marker_makes_the_trace_untraceable(lost: int) -> None:
    trace = Trace()
    for i in range(3):
        at = 1000 + 20 * i
        trace.marker(*([] if i == lost else [(at, at + 5)]))
        trace.launched("ours", at + 6, at + 15)
    with pytest.raises(Untraceable, match="saw 2 of 3 markers"):
        trace.split(2)


def test_a_range_without_its_host_call_is_no_marker() -> None:
    """A range without its host call is no marker, because it has no correlation number."""
    trace = Trace((1000, 1010), ("ours", 1011, 1020), (1021, 1030))
    trace.events = [e for e in trace.events if e.text != "cudaLaunchKernel"]
    with pytest.raises(Untraceable, match="saw 0 of 2 markers"):
        trace.split(1)


class Scripted(Tracer):
    """A Tracer with scripted sessions: the microseconds of each call's kernel, and whether the device caught up."""

    def __init__(self, *sessions: tuple[float, bool]) -> None:
        self.sessions = list(sessions)

    def _session(self, launches: Sequence[Callable[[], Any]]) -> tuple[Sequence[Any], list[float], bool]:
        length, caught_up = self.sessions.pop(0)
        trace, at = Trace(), 1000.0
        for launch in launches:
            trace.marker((at, at + 5))
            if launch():
                trace.launched("ours", at + 5, at + 5 + length)
            at += 100
        trace.marker((at, at + 5))
        return trace.events, [0.0] * len(launches), caught_up


def test_a_trace_in_which_the_device_caught_up_is_taken_again() -> None:
    tracer = Scripted((50.0, True), (40.0, True), (10.0, False), (99.0, False))
    assert tracer.samples(lambda: True, 3) == pytest.approx([10e-6] * 3)
    assert len(tracer.sessions) == 1


def test_before_each_try_is_called_before_every_session() -> None:
    tracer = Scripted((50.0, True), (40.0, True), (10.0, False))
    made: list[int] = []
    tracer.calls([lambda: True], before_each_try=lambda: made.append(len(tracer.sessions)))
    assert made == [3, 2, 1]


def test_tries_end_where_the_host_never_keeps_ahead() -> None:
    tracer = Scripted(*[(50.0, True)] * (MAX_TRIES + 1))
    assert tracer.samples(lambda: True, 2) == pytest.approx([50e-6] * 2)
    assert len(tracer.sessions) == 1


def test_a_launch_that_runs_nothing_takes_no_time() -> None:
    """A launch that runs nothing takes no time, but has a sample, without which the sampling loop would not end."""
    assert Scripted((10.0, False)).samples(lambda: False, 3) == [0.0] * 3
