"""Everything that times a cell on one device: the instruments, made once, and how they are used together.

The policy's instrument gives the samples. With events, what is short is traced too, since a launch gap of some
microseconds is a good part of its reading. A cross-check has all three instruments take turns, a reading each, because
a clock that falls differs more than any two instruments do. Tracing slows some kernels, so spans are compared with the
events' reading of the same calls, and what tracing costs is said apart.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from attnbench.core import stats
from attnbench.core.backend import Unsupported
from attnbench.core.machine import Device
from attnbench.core.policy import INSTRUMENTS, SHORT, Policy
from attnbench.core.record import Measurement
from attnbench.worker import environment
from attnbench.worker.measure import ceiling, cuda_graph, l2_cache
from attnbench.worker.measure.cuda_events import EventTimer
from attnbench.worker.measure.cuda_graph import GraphTimer, NotCapturable
from attnbench.worker.measure.cupti import Tracer, Untraceable
from attnbench.worker.measure.energy import run_sustained
from attnbench.worker.measure.nvml import GpuState, StateSampler
from attnbench.worker.measure.sampling import CpuTimer, Pacer, Timer, collect_samples, do_nothing, pause

if TYPE_CHECKING:
    import torch

MAX_CPU_FLUSH = 64 * 2**20  # bytes; virtual machines report the last-level cache of the whole host
SHORT_TRACES = 3  # of up to 32 calls
TURNS, FEW_TURNS, FEW = 8, 3, 0.1  # few where a call takes this many seconds
CEILING_EVERY = 20.0  # seconds
COOL_READINGS, COOL_SECONDS = 3, 30.0
UNITS = {"clock_held": "Hz", "clock_sm": "Hz", "clock_mem": "Hz", "power": "W", "temperature": "C"}


@dataclass(frozen=True)
class TimedLaunch:
    """What is timed: a launch, and the same on copies of its inputs, to be prepared on the current stream."""

    launch: Callable[[], Any]
    on_copies: Callable[[int], Sequence[Callable[[], Any]]]
    nbytes: int  # that one call touches
    footprint: int  # bytes of memory that one more copy takes


@dataclass
class Timing:
    """Fields of a Record that come from timing."""

    measurements: dict[str, Measurement]
    timer: str
    l2: str
    notes: list[str]
    limits: tuple[str, ...] = ()
    host_bound: bool = False


class Instruments:
    """For one device. `events`, `tracer` and `state` are None on a CPU."""

    def __init__(self, device: Device) -> None:
        import torch

        self.device_info = device
        self.device = torch.device(str(device))
        self.l2_bytes = device.l2 or 0
        self.events: EventTimer | None = None
        self.tracer: Tracer | None = None
        self.state: GpuState | None = None
        self.timer: Timer
        self.flush: l2_cache.L2Flush
        self._l2: dict[tuple[str, str], str] = {}
        self._ceiling_read = 0.0
        self.broken = False  # a failed capture has left torch's allocator and generators in a state of their own
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            self.flush = l2_cache.L2Flush(self.device, self.l2_bytes)
            self.events = self.timer = EventTimer(self.device, self.flush)
            with contextlib.suppress(Untraceable):
                self.tracer = Tracer(self.events, self.flush)
            self.state = environment.open_gpu_state(self.device)
        else:
            self.flush = l2_cache.L2Flush(self.device, self.l2_bytes, most=MAX_CPU_FLUSH)
            self.timer = CpuTimer(before=self.flush)

    @property
    def bandwidth(self) -> float:
        """Bytes/s, a quick reading."""
        return self.device_info.copy or 1e10

    def time(self, timed_launch: TimedLaunch, policy: Policy) -> Timing:
        """All that the policy asks of one cell. Raises Unsupported where its instrument cannot be used."""
        before = self.flush if policy.l2 == "cold" else do_nothing
        self.timer.before = before
        if self.tracer:
            self.tracer.before = before
        cool = not policy.isolate_power or self.cool_down()
        if self.events is None or self.state is None:
            l2 = self.l2_state(self.timer.name, policy.l2)
            times = collect_samples(partial(self.timer.samples, timed_launch.launch), policy)
            return Timing({"time": Measurement("s", tuple(times))}, self.timer.name, l2, [])
        found = self._on_gpu(self.events, self.state, timed_launch, policy)
        if not cool:
            found.notes.append(f"isolate-power: power or clock were not back within {COOL_SECONDS:g} s")
        return found

    def _on_gpu(self, events: EventTimer, state: GpuState, timed_launch: TimedLaunch, policy: Policy) -> Timing:
        l2 = self.l2_state(policy.timer, policy.l2)
        events.reset()
        if self.tracer:
            self.tracer.host_bound = False
        with self._sampling(events, timed_launch, policy) as sample, StateSampler(state) as seen:
            times = collect_samples(sample, policy, pacer=Pacer(events.clocks, events.best_clock, policy.burst_s))
        readings = {"clock_held": events.clocks, **seen.readings}
        bound = events.host_bound or (policy.timer == "cupti" and self.tracer is not None and self.tracer.host_bound)
        found = Timing({"time": Measurement("s", tuple(times))}, policy.timer, l2, [], seen.limits, bound)
        if policy.timer != "events":  # replays and traces say nothing of the host
            events.reset()
            events.samples(timed_launch.launch, 10)
        found.measurements["enqueue"] = Measurement("s", tuple(events.enqueue))
        found.measurements.update({n: Measurement(UNITS[n], tuple(v)) for n, v in readings.items() if v})
        latency = stats.median(times)
        if policy.timer == "events" and latency < SHORT and self.tracer:
            try:
                launches = [timed_launch.launch] * policy.min_samples
                traced = [call for _ in range(SHORT_TRACES) for call in self.tracer.calls(launches)]
                found.measurements["span"] = Measurement("s", tuple(call.span for call in traced))
                found.measurements["span_events"] = Measurement("s", tuple(call.events for call in traced))
            except Untraceable as error:
                found.notes.append(f"no kernel spans beside the events: {error}")
        if policy.sustained_s:
            self._sustain(found, timed_launch, policy, latency)
        return found

    @contextlib.contextmanager
    def _sampling(self, events: EventTimer, timed_launch: TimedLaunch, policy: Policy) -> Any:
        """The policy's instrument as a function of the number of samples."""
        if policy.timer == "graph":
            estimate = stats.median(events.samples(timed_launch.launch, 3))
            events.reset()
            captured = self._captured(events, timed_launch, policy, estimate)
            try:
                yield captured.samples
            finally:
                captured.close()
        elif policy.timer == "cupti":
            if self.tracer is None:
                raise Unsupported("the profiler sees no kernels here (CUPTI); use --timer events")
            yield self._traced(self.tracer, events, timed_launch.launch)
        else:
            yield partial(events.samples, timed_launch.launch)

    def _traced(self, tracer: Tracer, events: EventTimer, launch: Callable[[], Any]) -> Callable[[int], list[float]]:
        """Spans, each batch with its clock, which a trace does not tell."""

        def sample(n: int) -> list[float]:
            try:
                found = tracer.samples(launch, n)
            except Untraceable as error:
                raise Unsupported(f"--timer cupti: {error}") from None
            events.clocks.append(events.clock_hz())
            return found

        return sample

    def _captured(self, events: EventTimer, timed_launch: TimedLaunch, policy: Policy, estimate: float) -> GraphTimer:
        try:
            count = cuda_graph.copies_needed(timed_launch.nbytes, self.l2_bytes) if policy.l2 == "cold" else 1
            cuda_graph.check_memory(count * timed_launch.footprint)
            return GraphTimer(events, lambda: timed_launch.on_copies(count), estimate)
        except NotCapturable as error:
            self.broken |= error.broken
            raise Unsupported(f"--timer graph: {error}") from None

    def l2_state(self, timer: str, promise: str) -> str:
        """The promise where a memory-bound read shows it with this instrument, else "unproven"; looked at once."""
        key = (timer, promise)
        if key not in self._l2:
            self._l2[key] = promise if self._shows(timer, promise) else "unproven"
        return self._l2[key]

    def _shows(self, timer: str, promise: str) -> bool:
        try:
            if timer == "graph":  # turns over copies slower than one copy: the one is cold and the other warm
                assert self.events is not None
                return cuda_graph.l2_state(self.events, self.device, self.l2_bytes, self.bandwidth) == "cold"
            instrument = self.tracer if timer == "cupti" else self.timer
            if instrument is None:
                return False
            return l2_cache.observed_state(instrument, self.device, self.l2_bytes, self.bandwidth) == promise
        except NotCapturable as error:
            self.broken |= error.broken
        except Untraceable:
            pass
        return False

    def cross_check(self, timed_launch: TimedLaunch, policy: Policy) -> tuple[dict[str, Measurement], list[str]]:
        """One reading of each instrument a turn, also of events on the traced calls; and why one is missing."""
        assert self.events is not None
        events, notes = self.events, []
        of_traced: list[float] = []
        estimate = stats.median(events.samples(timed_launch.launch, 3))
        n = max(1, min(16, int(policy.burst_s / 2 / estimate)))
        readings: dict[str, Callable[[], list[float]]] = {"events": lambda: events.samples(timed_launch.launch, n)}
        try:
            if self.tracer is None:
                raise Untraceable("the profiler sees no kernels here (CUPTI)")
            self.tracer.samples(timed_launch.launch, 1)
            readings["cupti"] = partial(self._traced_turn, self.tracer, [timed_launch.launch] * n, of_traced)
        except Untraceable as error:
            notes.append(f"cross-check: {error}")
        captured = None
        try:
            captured = self._captured(events, timed_launch, policy, estimate)
            readings["graph"] = partial(captured.samples, n)
        except Unsupported as error:
            notes.append(f"cross-check: {str(error).removeprefix('--timer ')}")
        order = [name for name in INSTRUMENTS if name in readings]
        values: dict[str, list[float]] = {name: [] for name in order}
        for turn in range(TURNS if estimate < FEW else FEW_TURNS):
            for name in order[turn % len(order) :] + order[: turn % len(order)]:
                values[name].append(stats.median(readings[name]()))
                pause(n * estimate)
        if captured:
            captured.close()
        if of_traced:
            values["traced"] = of_traced
        return {f"turns_{name}": Measurement("s", tuple(v)) for name, v in values.items()}, notes

    def _traced_turn(
        self, tracer: Tracer, launches: Sequence[Callable[[], Any]], by_events: list[float]
    ) -> list[float]:
        """The spans; and to `by_events` what CUDA events read of the same calls."""
        calls = tracer.calls(launches)
        by_events.append(stats.median([call.events for call in calls]))
        return [call.span for call in calls]

    def _sustain(self, found: Timing, timed_launch: TimedLaunch, policy: Policy, latency: float) -> None:
        assert self.state is not None
        result = run_sustained(timed_launch.launch, latency, policy.sustained_s, self.state)
        found.measurements["sustained"] = Measurement("s", result.times)
        if not result.steady:
            found.notes.append(f"sustained: not steady within {policy.sustained_s:g} s; give --sustained more")
        if result.watts is None or result.uncertainty is None:
            found.notes.append("sustained: NVML's energy counter did not move, so no joules")
        else:
            found.measurements["sustained_power"] = Measurement("W", (result.watts,))
            found.measurements["sustained_power_error"] = Measurement("", (result.uncertainty,))
        self.cool_down()

    def cool_down(self) -> bool:
        """Waits until nothing limits the clock, it is back at its best, and power has fallen; False after 30 s."""
        if self.events is None or self.state is None:
            return True
        best = max(self.events.best_clock, self.events.clock_hz())
        calm, deadline = 0, time.monotonic() + COOL_SECONDS
        cap = self.state.power_limit_w()
        while calm < COOL_READINGS and time.monotonic() < deadline:
            time.sleep(0.05)
            clock, power = self.events.clock_hz(), self.state.power_average_w()
            best = max(best, clock)
            warm = cap is not None and power is not None and power > cap / 2
            calm = 0 if warm or self.state.limits() or clock < 0.99 * best else calm + 1
        return calm >= COOL_READINGS

    def ceilings(self, dtype: torch.dtype) -> dict[str, Measurement]:
        """A large matmul and a large copy, every 20 s and where there is room and a unit for them; else nothing."""
        if self._ceiling_read and time.monotonic() - self._ceiling_read < CEILING_EVERY:
            return {}
        self.timer.before = do_nothing
        found = {}
        with contextlib.suppress(RuntimeError):
            found["ceiling_matmul"] = Measurement("FLOP/s", tuple(ceiling.matmul(self.timer, self.device, dtype)))
        with contextlib.suppress(RuntimeError):
            found["ceiling_copy"] = Measurement("B/s", tuple(ceiling.copy(self.timer, self.device)))
        self._ceiling_read = time.monotonic()
        return found
