"""The formulas behind the metrics: a record's raw samples, and what is known of its machine, make figures.

**Time.** A reading with CUDA events holds a launch gap, from the event to the kernel's start and from its end to the
next event: 1 to 4 us that differ by kernel and are none of its work. So where the reading is under 100 us and CUPTI saw
the same launches, the kernels' own span takes its place in all that is derived from time.

**Utilisation** is throughput as a share of one of three: the datasheet's peak; that peak scaled to the clock that was
held, so that power does not count against the kernel; and what a large matmul reached in the same run.

**Roofline** (Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009): no implementation takes less than
max(FLOPs / peak, bytes / bandwidth), by the datasheet, with exact FLOPs and ideal traffic whatever the convention. The
larger term is what bounds the case. With a warm L2 the traffic need not cross the bus, and a share may exceed 1.

**Cross-check.** The instruments took turns, so readings of one turn saw the same clock: they are compared turn by turn,
and the median of the ratios counts. CUPTI's spans are compared with what events read of the same calls, because tracing
itself slows some kernels; by how much is the events' reading of traced calls over that of others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count as counter
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from attnbench.core import flops, gpus, stats
from attnbench.core.case import Case
from attnbench.core.flops import Convention
from attnbench.core.policy import INSTRUMENTS, SHORT
from attnbench.core.record import Record, Run

_names = counter()
TURNS = ("turns_events", "turns_traced")  # measurements of which a record has one, if the instruments took turns
CEILINGS = ("ceiling_matmul", "ceiling_copy")
MIN_SAMPLES_P99 = 100
MIN_SAMPLES_INTERVAL = 6  # below, not even the whole range is a 95 % interval of the median


@dataclass(frozen=True)
class Context:
    """What a metric needs beyond the record; None where it is not known."""

    peak: float | None = None  # FLOP/s of the dtype: given with --peak, else the datasheet's
    clock: float | None = None  # Hz at which the datasheet's peak holds; None for a peak that was given
    bandwidth: float | None = None  # bytes/s by the datasheet
    ceiling: float | None = None  # FLOP/s of a large matmul of the dtype, measured in the run
    copy: float | None = None  # bytes/s of a large copy, read plus write, measured in the run
    eager: float | None = None  # seconds of eager on the same case and round
    convention: Convention = "exact"


Formula = Callable[[Record, Context], "float | None"]
T = TypeVar("T")


class Once(Generic[T]):
    """What depends on nothing but the record, computed when first asked for and kept with it."""

    def __init__(self, compute: Callable[[Record], T]) -> None:
        self.compute = compute
        self.name = f"{compute.__name__} {next(_names)}"  # in the record's __dict__

    def __call__(self, record: Record, _: Context | None = None) -> T:
        known = vars(record)
        if self.name not in known:
            known[self.name] = self.compute(record)
        found: T = known[self.name]
        return found


def context(run: Run, dtype: str, ceiling: float | None = None, copy: float | None = None) -> Context:
    """What a run says of its machine, for one dtype; the medians of ceilings are its records', of that dtype."""
    device = run.environment.device
    gpu = gpus.find(device.name, device.memory)
    given = run.peak.get(dtype, run.peak.get(""))
    return Context(
        peak=given if given is not None else gpus.peak(gpu, dtype) if gpu else None,
        clock=gpus.clock(gpu, dtype) if gpu and given is None else None,
        bandwidth=gpu.bandwidth if gpu else None,
        ceiling=ceiling,
        copy=copy,
    )


def values(record: Record, name: str) -> tuple[float, ...]:
    """The raw samples of one measurement; none where it was not taken."""
    measurement = record.measurements.get(name)
    return measurement.values if measurement else ()


@Once
def samples(record: Record) -> tuple[float, ...]:
    """Seconds of each timed call: as the run's instrument read them, or the spans of a kernel too short for events."""
    return values(record, "span") if uses_span(record) else values(record, "time")


@Once
def uses_span(record: Record) -> bool:
    """Whether the kernels' span stands in place of the events' reading."""
    if not values(record, "span") or record.timer != "events":
        return False
    time = values(record, "time")
    return bool(time) and stats.median(time) < SHORT


def measured(name: str, reduce: Callable[[Sequence[float]], float] = stats.median) -> Once[float | None]:
    """One number of the samples of a measurement."""

    def derive(record: Record) -> float | None:
        found = values(record, name)
        return found[0] if len(found) == 1 else reduce(found) if found else None

    return Once(derive)


@Once
def _ordered(record: Record) -> list[float]:
    """The samples, sorted once for all that rank them."""
    return sorted(samples(record))


@Once
def latency(record: Record) -> float | None:
    found = _ordered(record)
    return stats.median(found) if found else None


def percentile(p: float, at_least: int = 1) -> Once[float | None]:
    def derive(record: Record) -> float | None:
        found = _ordered(record)
        return stats.percentile(found, p) if len(found) >= at_least else None

    return Once(derive)


@Once
def ci(record: Record) -> float | None:
    found = _ordered(record)
    return stats.relative_halfwidth(found) if len(found) >= MIN_SAMPLES_INTERVAL else None


@Once
def cov(record: Record) -> float | None:
    found = samples(record)
    return stats.cov(found) if found else None


@Once
def count(record: Record) -> float:
    return float(len(samples(record)))


@Once
def launch_gap(record: Record) -> float | None:
    """Seconds that the events' reading has over the kernels' span; of the same calls where both were read."""
    span, both = values(record, "span"), values(record, "span_events")
    if both:
        return stats.median([events - own for events, own in zip(both, span, strict=True)])
    time = values(record, "time")
    return stats.median(time) - stats.median(span) if time and span and record.timer == "events" else None


class Timed(NamedTuple):
    """Of a record: what was called, and how long it took."""

    case: Case
    backend: str
    seconds: float | None


def timed(record: Record) -> Timed:
    return Timed(record.case, record.backend, latency(record))


def _throughput(call: Timed, context: Context) -> float | None:
    """FLOP/s."""
    return _over(flops.flops(call.case, context.convention), call.seconds)


class OfLatency:
    """A metric that asks a record for nothing but what Timed has, so that reports need not make records for it."""

    def __init__(self, compute: Callable[[Timed, Context], float | None]) -> None:
        self.compute = compute

    def __call__(self, record: Record, context: Context) -> float | None:
        return self.compute(timed(record), context)


@OfLatency
def tflops(call: Timed, context: Context) -> float | None:
    return _over(_throughput(call, context), 1e12)


@OfLatency
def utilization(call: Timed, context: Context) -> float | None:
    return _over(_throughput(call, context), context.peak)


def utilization_clock(record: Record, context: Context) -> float | None:
    held = clock(record)
    if context.peak is None or context.clock is None or held is None:
        return None
    return _over(_throughput(timed(record), context), context.peak * held / context.clock)


@OfLatency
def utilization_ceiling(call: Timed, context: Context) -> float | None:
    return _over(_throughput(call, context), context.ceiling)


clock_held, clock_sm = measured("clock_held"), measured("clock_sm")


def clock(record: Record) -> float | None:
    """Hz of the multiprocessors while measuring: by the exact gauge, else as NVML saw it."""
    held = clock_held(record)
    return clock_sm(record) if held is None else held


def _traffic(call: Timed) -> float | None:
    """Ideal bytes/s."""
    return _over(float(flops.nbytes(call.case)), call.seconds)


@OfLatency
def gbps(call: Timed, _: Context) -> float | None:
    return _over(_traffic(call), 1e9)


@OfLatency
def bandwidth_utilization(call: Timed, context: Context) -> float | None:
    return _over(_traffic(call), context.bandwidth)


@OfLatency
def bandwidth_ceiling(call: Timed, context: Context) -> float | None:
    return _over(_traffic(call), context.copy)


@OfLatency
def roofline(call: Timed, context: Context) -> float | None:
    """The share of the latency that the roofline needs."""
    least = _roofline(call.case, context)
    return None if least is None else _over(least.seconds, call.seconds)


@OfLatency
def speedup(call: Timed, context: Context) -> float | None:
    return 1.0 if call.backend == "eager" else _over(context.eager, call.seconds)


def bound(case: Case, context: Context) -> Literal["compute", "memory"] | None:
    """What the roofline of a case is made of; None where peak or bandwidth is not known."""
    least = _roofline(case, context)
    return least.bound if least else None


def _roofline(case: Case, context: Context) -> flops.Roofline | None:
    """With exact FLOPs whatever the convention."""
    return _least(case, context.peak, context.bandwidth) if context.peak and context.bandwidth else None


_least = cache(flops.Roofline.of)


@Once
def error(record: Record) -> float | None:
    return worst(record.accuracy.errors.values()) if record.accuracy else None


class Off(Protocol):
    """What a TensorError says first."""

    @property
    def max_error(self) -> float: ...
    @property
    def tolerance(self) -> float: ...


def worst(errors: Iterable[Off]) -> float | None:
    """The largest error over what is allowed."""
    shares = (e.max_error / e.tolerance if e.tolerance else (math.inf if e.max_error else 0.0) for e in errors)
    return max(shares, default=None)


@Once
def relative_error(record: Record) -> float | None:
    if record.accuracy is None or not record.accuracy.errors:
        return None
    return max(e.relative for e in record.accuracy.errors.values())


@Once
def drift(record: Record) -> float | None:
    """Of the instrument's own samples: there are more of them than spans, in the order of time."""
    found = values(record, "time")
    return stats.drift(found) if found else None


@Once
def sustained_latency(record: Record) -> float | None:
    found = values(record, "sustained")
    return math.fsum(found) / len(found) if found else None


def sustained_tflops(record: Record, context: Context) -> float | None:
    return _over(flops.flops(record.case, context.convention) / 1e12, sustained_latency(record))


@Once
def joules(record: Record) -> float | None:
    """Of one call."""
    watts, seconds = values(record, "sustained_power"), sustained_latency(record)
    return stats.median(watts) * seconds if watts and seconds is not None else None


def tflops_per_watt(record: Record, context: Context) -> float | None:
    return _over(flops.flops(record.case, context.convention) / 1e12, joules(record))


def compared(record: Record) -> bool:
    """Whether the instruments took turns."""
    return any(name in record.measurements for name in TURNS)


def ratios(record: Record, instrument: str) -> tuple[float, ...]:
    """An instrument's readings over those of the events in the same turns, and where it can be on the same calls."""
    theirs = values(record, f"turns_{instrument}")
    if not theirs:
        return ()
    traced = values(record, "turns_traced") if instrument == "cupti" else ()
    pairs = zip(theirs, traced or values(record, "turns_events"), strict=False)
    return tuple(theirs / events for theirs, events in pairs if events)


@Once
def tracing(record: Record) -> float | None:
    """The share by which events read traced calls longer than others."""
    if not compared(record):
        return None
    pairs = list(zip(values(record, "turns_traced"), values(record, "turns_events"), strict=False))
    return stats.median([traced / plain for traced, plain in pairs]) - 1 if pairs else None


@Once
def disagreement(record: Record) -> float | None:
    if not compared(record):
        return None
    apart = [abs(stats.median(found) - 1) for name in INSTRUMENTS[1:] if (found := ratios(record, name))]
    return max(apart, default=None)


def _over(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
