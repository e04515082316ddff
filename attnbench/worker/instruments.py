"""The instruments of one device, opened once, and their combination to time a cell.

The samples come from the instrument that the policy names: CUDA events, CUDA graph replay, or kernel spans (CUPTI).
Cells timed by events under 1 ms are traced too, because under 100 us a launch gap of some microseconds is a large part
of the events' reading, and all backends of a case need one method.

In a cross-check all three instruments read in turns, once in each turn, because the clock differs more between two
moments than any two instruments do. Tracing slows some kernels; therefore spans are compared with the events' reading
of the same calls, and the cost of tracing is recorded separately.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter  # bound here, so that no kernel can replace it
from typing import TYPE_CHECKING, Any

from attnbench.core import stats
from attnbench.core.backend import Unsupported
from attnbench.core.machine import Device
from attnbench.core.policy import INSTRUMENTS, SHORT, SPAN_LIMIT, Policy
from attnbench.core.record import Measurement
from attnbench.core.shared_tensors import Mapped
from attnbench.worker import environment
from attnbench.worker.measure import ceiling, cuda_graph, l2_cache
from attnbench.worker.measure.clock_gauge import ClockGauge
from attnbench.worker.measure.core_watch import CoreWatch
from attnbench.worker.measure.cuda_events import EventTimer
from attnbench.worker.measure.cuda_graph import GraphTimer, NotCapturable
from attnbench.worker.measure.cupti import Tracer, Untraceable
from attnbench.worker.measure.energy import run_sustained
from attnbench.worker.measure.memory import CpuMemory, CudaMemory
from attnbench.worker.measure.nvml import GpuState, StateSampler
from attnbench.worker.measure.sampling import (
    Alone,
    BatchClock,
    CpuTimer,
    Pacer,
    Together,
    collect_samples,
    do_nothing,
    pause,
)

if TYPE_CHECKING:
    import torch

SHORT_TRACES = 3  # traces of policy.min_samples calls for a cell under 100 us; one trace for a cell under 1 ms
TURNS, TURNS_OF_LONG_CALLS = 8, 3  # turns of a cross-check
LONG_CALL_S = 0.1  # seconds of a call from which a cross-check takes fewer turns
CEILING = Policy(warmup_s=0.01, min_samples=5, min_seconds=0.02, max_seconds=0.1)
GRAPH_REPLAYS = 5  # replays of the graph of one call
COOL_READINGS = 3  # successive readings of a cool device that end a wait
COOL_SECONDS = 30.0  # the longest wait in seconds


@dataclass(frozen=True)
class TimedLaunch:
    """A cell's launch, and a maker of the same launch on copies of its inputs (for CUDA graphs)."""

    launch: Callable[[], Any]
    on_copies: Callable[[int], Sequence[Callable[[], Any]]]  # n -> n launches, prepared on the current stream
    nbytes: int  # least bytes that one call reads and writes
    footprint: int  # bytes of memory of one more copy
    seconds: float = 0.0  # rough seconds of a call; 0: unknown
    enqueue: float = 0.0  # the host's rough seconds for a launch; 0: unknown


@dataclass
class Timing:
    """The fields of a Record that come from timing."""

    measurements: dict[str, Measurement]
    timer: str
    l2: str
    notes: list[str]
    limits: tuple[str, ...] = ()
    host_bound: bool = False


class Instruments:
    """The instruments of one device. `events` and `tracer` are None on a CPU, and `tracer` also without CUPTI."""

    def __init__(self, device: Device) -> None:
        import torch

        self.device_info = device
        self.together: Together = Alone()
        self.device = torch.device(str(device))
        self.memory: CpuMemory | CudaMemory = CudaMemory(self.device) if self.device.type == "cuda" else CpuMemory()
        self.l2_bytes = device.l2 or 0
        self.events: EventTimer | None = None
        self.tracer: Tracer | None = None
        self.timer: CpuTimer | EventTimer
        self.flush: l2_cache.L2Flush
        self._l2_states: dict[tuple[str, str], str] = {}
        self.ask_judge: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None  # asks the judge beside the worker
        self.mapped = Mapped(self.device)  # the judge's memory
        # Asks for a turn on the device (run/device_turns.py).
        self._ask_turn: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
        self._waited = 0.0  # seconds of waiting for turns
        self.broken = False  # whether a failed graph capture broke torch's allocator and random generators
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            environment.check_is(device)
            self.flush = l2_cache.L2Flush(self.device, self.l2_bytes)
            self.state = environment.open_gpu_state(self.device)
            self.events = self.timer = EventTimer(ClockGauge(self.state.clock_max_hz()), self.flush)
            with contextlib.suppress(Untraceable):
                self.tracer = Tracer(self.events, self.flush)
        else:
            # the least size, as virtual machines report the last-level cache of the whole host
            self.flush = l2_cache.L2Flush(self.device, 0)
            self.state = GpuState(None)
            self.timer = CpuTimer(before=self.flush)

    def join(self, together: Together) -> None:
        """Time launches together with other ranks: they begin together, and the slowest counts."""
        self.together = self.timer.together = together

    def share_device(self, ask: Callable[[Mapping[str, Any]], dict[str, Any]] | None) -> None:
        """Take the function that asks for a turn on the device; None where no other worker of the run uses it."""
        self._ask_turn, self.memory.is_shared = ask, ask is not None

    def alone_on_device(self) -> None:
        """Wait until no other worker of the run uses the device, and keep it alone from then on."""
        self._take_turn("alone")

    def together_on_device(self) -> None:
        """Let other workers of the run use the device at the same time from now on."""
        self._take_turn("together")

    def _take_turn(self, turn: str) -> None:
        if self._ask_turn:
            self.synchronize()
            began = perf_counter()
            self._ask_turn({"do": turn})
            self._waited += perf_counter() - began

    def seconds_waited(self) -> float:
        """Return the seconds of waiting for turns since the last call."""
        waited, self._waited = self._waited, 0.0
        return waited

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Time launches of this rank alone within the block."""
        together = self.together
        self.join(Alone())
        try:
            yield
        finally:
            self.join(together)

    @property
    def bandwidth(self) -> float:
        """The memory bandwidth in bytes/s by a quick reading; 10 GB/s without one."""
        return self.device_info.copy or 1e10

    def synchronize(self) -> None:
        """Wait until the device has finished all work."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def time(self, timed: TimedLaunch, policy: Policy) -> Timing:
        """Time one cell by the policy.

        Raises Unsupported where the policy's instrument cannot be used.
        """
        before = self.flush if policy.l2 == "cold" else do_nothing
        self.timer.before = before
        if self.tracer:
            self.tracer.before = before
        cool = not policy.isolate_power or self.cool_down()
        if self.events is None:
            import torch

            l2 = self.l2_state("perf_counter", policy.l2)
            sample = partial(self.timer.samples, timed.launch)
            watch = CoreWatch()
            found = {"time": Measurement("s", tuple(collect_samples(sample, policy, clock=self.together.clock)))}
            left = watch.cores_left() if self.together.ranks == 1 else None  # other ranks do not count as other work
            if left is not None:
                found["cores_left"] = Measurement("", (left,))
            notes, threads = [], torch.get_num_threads()
            own = self.together.ranks == 1  # several ranks share the threads
            if own and self.device_info.threads not in (None, threads):  # a person's file may set its threads
                notes = [f"computed with {threads} threads where this process has {self.device_info.threads}"]
            return Timing(found, "perf_counter", l2, notes)
        timing = self._on_gpu(self.events, timed, policy)
        if not cool:
            timing.notes.append(f"isolate-power: power or clock did not recover within {COOL_SECONDS:g} s")
        return timing

    def _on_gpu(self, events: EventTimer, timed: TimedLaunch, policy: Policy) -> Timing:
        l2 = self.l2_state(policy.timer, policy.l2)
        events.reset()
        if self.tracer:
            self.tracer.host_bound = False
        events.calibrate()
        events.expect(timed.enqueue)
        # Seconds of work just before, if the call is long.
        worked = timed.seconds if timed.seconds >= policy.burst_s else 0.0
        pacer = Pacer(events.clocks, events.best_clock, policy.burst_s, self.together, worked=worked)
        with self._sampling(events, timed, policy) as sample, StateSampler(self.state) as sampler:
            times = collect_samples(sample, policy, pacer=pacer, clock=self.together.clock)
        readings = {f"clock_{name}": [getattr(c, name) for c in events.clocks] for name in BatchClock._fields}
        readings = {**readings, **_best_clocks(events, pacer), **sampler.readings}
        host_bound = events.host_bound or (
            policy.timer == "cupti" and self.tracer is not None and self.tracer.host_bound
        )
        notes = [f"no SM clock but NVML's: {events.gauge.fault}"] if events.gauge.fault else []
        timing = Timing({"time": Measurement("s", tuple(times))}, policy.timer, l2, notes, sampler.limits, host_bound)
        if policy.timer != "events":  # replays and traces do not contain the host's time
            events.reset()
            events.samples(timed.launch, 10)
        timing.measurements["enqueue"] = Measurement("s", tuple(events.enqueue))
        units = {"power": "W", "temperature": "C"}  # the others are clocks
        timing.measurements.update({n: Measurement(units.get(n, "Hz"), tuple(v)) for n, v in readings.items() if v})
        latency = stats.median(times)
        if policy.timer == "events" and latency < SPAN_LIMIT and self.tracer and self.together.ranks == 1:
            try:
                launches = [timed.launch] * policy.min_samples
                traces = SHORT_TRACES if latency < SHORT else 1
                traced = [call for _ in range(traces) for call in self.tracer.calls(launches)]
                timing.measurements["span"] = Measurement("s", tuple(call.span for call in traced))
                timing.measurements["span_events"] = Measurement("s", tuple(call.events for call in traced))
            except Untraceable as error:
                timing.notes.append(f"no kernel spans beside the events: {error}")
        if policy.sustained_s and self.together.ranks > 1:
            timing.notes.append("sustained: not measured with several ranks")
        elif policy.sustained_s:
            self._measure_sustained(timing, timed, policy, latency)
        return timing

    @contextlib.contextmanager
    def _sampling(self, events: EventTimer, timed: TimedLaunch, policy: Policy) -> Any:
        """Open the policy's instrument. Yield a function that takes n samples and returns them in seconds."""
        if policy.timer == "graph":
            estimate = stats.median(events.samples(timed.launch, 3))
            events.reset()
            captured = self._captured(events, timed, policy, estimate)
            try:
                yield captured.samples
            finally:
                captured.close()
        elif policy.timer == "cupti":
            if self.tracer is None:
                raise Unsupported("the profiler sees no kernels here (CUPTI); use --timer events")
            yield self._traced(self.tracer, events, timed.launch)
        else:
            yield partial(events.samples, timed.launch)

    def _traced(self, tracer: Tracer, events: EventTimer, launch: Callable[[], Any]) -> Callable[[int], list[float]]:
        """Return a function that takes n kernel spans in seconds and records the SM clock of each batch."""

        def sample(n: int) -> list[float]:
            try:
                spans = tracer.samples(launch, n)
            except Untraceable as error:
                raise Unsupported(f"--timer cupti: {error}") from None
            events.read_clock()
            return spans

        return sample

    def in_graph(self, timed: TimedLaunch, latency: float) -> list[float]:
        """Return the seconds of one call, of about `latency`, in replays of a CUDA graph with operands outside of L2.

        Raises Unsupported where it cannot be captured, which may break torch's state (`broken`).
        """
        assert self.events is not None
        captured = self._captured(self.events, timed, Policy(), latency)
        try:
            return captured.samples(GRAPH_REPLAYS * captured.launches)
        finally:
            captured.close()

    def _captured(self, events: EventTimer, timed: TimedLaunch, policy: Policy, estimate: float) -> GraphTimer:
        """Capture the launch, for a cold L2 on copies of its inputs. Raises Unsupported where this is impossible."""
        try:
            count = cuda_graph.copies_needed(timed.nbytes, self.l2_bytes) if policy.l2 == "cold" else 1
            cuda_graph.check_memory(count * timed.footprint)
            return GraphTimer(events, lambda: timed.on_copies(count), estimate)
        except NotCapturable as error:
            self.broken |= error.broken
            raise Unsupported(f"--timer graph: {error}") from None

    def l2_state(self, timer: str, expected: str) -> str:
        """Return `expected` ("cold" or "warm") where a memory-bound read confirms it with this timer, else "unproven".

        The test runs once for each timer and expected state.
        """
        key = (timer, expected)
        if key not in self._l2_states:
            with self.alone():
                self._l2_states[key] = expected if self._is_observed(timer, expected) else "unproven"
        return self._l2_states[key]

    def _is_observed(self, timer: str, expected: str) -> bool:
        try:
            if timer == "graph":  # l2_state compares replays over many copies (cold) with replays of one copy (warm)
                assert self.events is not None
                return cuda_graph.l2_state(self.events, self.device, self.l2_bytes, self.bandwidth) == "cold"
            instrument = self.tracer if timer == "cupti" else self.timer
            if instrument is None:
                return False
            return l2_cache.observed_state(instrument, self.device, self.l2_bytes) == expected
        except NotCapturable as error:
            self.broken |= error.broken
        except Untraceable:
            pass
        return False

    def cross_check(self, timed: TimedLaunch, policy: Policy) -> tuple[dict[str, Measurement], list[str]]:
        """Let all three instruments take turns on one launch, one reading per turn.

        Return the measurements "turns_events", "turns_graph", "turns_cupti" and "turns_traced" (the events' reading of
        the traced calls), and notes on missing instruments.
        """
        assert self.events is not None
        events, notes = self.events, []
        events_of_traced: list[float] = []
        estimate = stats.median(events.samples(timed.launch, 3))
        n = max(1, min(16, int(policy.burst_s / 2 / estimate)))
        readings: dict[str, Callable[[], list[float]]] = {"events": lambda: events.samples(timed.launch, n)}
        try:
            if self.tracer is None:
                raise Untraceable("the profiler sees no kernels here (CUPTI)")
            self.tracer.samples(timed.launch, 1)
            readings["cupti"] = partial(self._traced_turn, self.tracer, [timed.launch] * n, events_of_traced)
        except Untraceable as error:
            notes.append(f"cross-check: {error}")
        captured = None
        try:
            captured = self._captured(events, timed, policy, estimate)
            readings["graph"] = partial(captured.samples, n)
        except Unsupported as error:
            notes.append(f"cross-check: {str(error).removeprefix('--timer ')}")
        order = [name for name in INSTRUMENTS if name in readings]
        values: dict[str, list[float]] = {name: [] for name in order}
        for turn in range(TURNS if estimate < LONG_CALL_S else TURNS_OF_LONG_CALLS):
            for name in order[turn % len(order) :] + order[: turn % len(order)]:
                values[name].append(stats.median(readings[name]()))
                pause(n * estimate)
        if captured:
            captured.close()
        if events_of_traced:
            values["traced"] = events_of_traced
        return {f"turns_{name}": Measurement("s", tuple(v)) for name, v in values.items()}, notes

    def _traced_turn(
        self, tracer: Tracer, launches: Sequence[Callable[[], Any]], by_events: list[float]
    ) -> list[float]:
        """Return the spans of some calls; append the median of the same calls by CUDA events to `by_events`."""
        calls = tracer.calls(launches)
        by_events.append(stats.median([call.events for call in calls]))
        return [call.span for call in calls]

    def _measure_sustained(self, timing: Timing, timed: TimedLaunch, policy: Policy, latency: float) -> None:
        """Run the launch without pauses, add the sustained time and power to `timing`, and let the device cool down."""
        result = run_sustained(timed.launch, latency, policy.sustained_s, self.state)
        timing.measurements["sustained"] = Measurement("s", result.times)
        if not result.steady:
            timing.notes.append(f"sustained: not steady within {policy.sustained_s:g} s; give a larger --sustained")
        if result.watts is None or result.uncertainty is None:
            timing.notes.append("sustained: NVML's energy counter did not move, so no joules")
        else:
            timing.measurements["sustained_power"] = Measurement("W", (result.watts,))
            timing.measurements["sustained_power_error"] = Measurement("", (result.uncertainty,))
        self.cool_down()

    def cool_down(self) -> bool:
        """Wait until the clock is unlimited and within 1 % of its best, and power is at most half the cap.

        Return False where that takes more than 30 s.
        """
        if self.events is None:
            return True
        events, calm, deadline = self.events, 0, time.monotonic() + COOL_SECONDS
        events.calibrate()
        cap = self.state.power_limit_w()
        while calm < COOL_READINGS and time.monotonic() < deadline:
            time.sleep(0.05)
            clock, power = events.gauge.now_hz() or self.state.clock_hz() or 0.0, self.state.power_average_w()
            warm = cap is not None and power is not None and power > cap / 2
            calm = 0 if warm or self.state.limits() or clock < 0.99 * events.best_clock else calm + 1
        return calm >= COOL_READINGS

    def ceilings(self, dtype: torch.dtype) -> dict[str, Measurement]:
        """Measure the device's ceilings: a large matmul in `dtype`, a large copy, and a kernel of exponentials.

        Return "ceiling_matmul" (FLOP/s), "ceiling_copy" (bytes/s) and "ceiling_exp" (1/s). Ceilings that do not fit in
        memory, or for which the device has no units, are left out; a CPU has no "ceiling_exp".
        """
        with self.alone():
            return self._ceilings(dtype)

    def _ceilings(self, dtype: torch.dtype) -> dict[str, Measurement]:
        found = {}
        with contextlib.suppress(RuntimeError):
            found["ceiling_matmul"] = Measurement("FLOP/s", tuple(ceiling.matmul(self.collect, self.device, dtype)))
        with contextlib.suppress(RuntimeError):
            found["ceiling_copy"] = Measurement("B/s", tuple(ceiling.copy(self.collect, self.device)))
        with contextlib.suppress(RuntimeError):
            found["ceiling_exp"] = Measurement("1/s", tuple(ceiling.exp(self.collect, self.device)))
        return found

    def collect(self, launch: Callable[[], Any]) -> list[float]:
        """Time a launch (of a ceiling, such as a matmul) as a cell is timed: return seconds per call, by sample.

        Samples are taken in bursts at the best clock.
        """
        self.timer.before = do_nothing
        sample = partial(self.timer.samples, launch)
        if self.events is None:
            sample(1)
            return sample(CEILING.min_samples)
        self.events.reset()
        self.events.calibrate()
        pacer = Pacer(self.events.clocks, self.events.best_clock, CEILING.burst_s, self.together)
        return collect_samples(sample, CEILING, pacer=pacer, clock=self.together.clock)


def _best_clocks(events: EventTimer, pacer: Pacer) -> dict[str, list[float]]:
    """Return the highest clocks, to compare a cell's clock with: of the idle device, and of the cell's bursts."""
    return {"clock_idle": [events.best_clock], "clock_best": [pacer.best_held]} if events.clocks else {}
