"""The one registry of metrics: what each is, its unit, which direction is better, how it is derived and written.

Records hold raw samples in seconds, bytes and hertz; everything here is derived from them when a report is made.
Values keep the unit of their metric (seconds, bytes, TFLOP/s, fractions of 1); only `format` scales for a reader.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from attnbench import hardware, stats, work
from attnbench.types import Record, Run
from attnbench.work import Convention

MIN_SAMPLES_P99 = 100
MIN_SAMPLES_INTERVAL = 6  # below, not even the whole range is a 95 % interval of the median


@dataclass(frozen=True)
class Context:
    """What a metric needs beyond the record: peak FLOP/s of the dtype, seconds of eager on the same case and round."""

    peak: float | None = None
    eager: float | None = None
    convention: Convention = "exact"


@dataclass(frozen=True)
class Metric:
    name: str
    title: str
    unit: str  # of the value; "" is a ratio
    better: Literal["higher", "lower"] | None
    doc: str
    derive: Callable[[Record, Context], float | None]
    format: Callable[[float], str]  # 3 significant digits; with a unit of its own where the prefix adapts

    @property
    def heading(self) -> str:
        """Title and unit, the unit left out where every figure carries its own."""
        return self.title if self.unit in ("", "s", "B", "Hz") else f"{self.title}, {self.unit}"


def value(name: str, record: Record, context: Context | None = None) -> float | None:
    """The metric of one record, finite; None where there is none. Only an `ok` record has metrics."""
    if record.status != "ok":
        return None
    found = METRICS[name].derive(record, context or Context())
    return found if found is not None and math.isfinite(found) else None


def peak(run: Run, dtype: str) -> float | None:
    """FLOP/s that utilisation is a share of: given with --peak, else the datasheet's; None when unknown."""
    given = run.peak.get(dtype, run.peak.get(""))
    if given is not None:
        return given
    gpu = hardware.find(run.environment.device.name, run.environment.device.memory)
    return None if gpu is None else hardware.peak(gpu, dtype)


def bandwidth(run: Run) -> float | None:
    """The datasheet's memory bandwidth in bytes/s; None when unknown."""
    gpu = hardware.find(run.environment.device.name, run.environment.device.memory)
    return None if gpu is None else gpu.bandwidth


def digits(number: float) -> str:
    """Three significant digits, whole above 100, without an exponent where that is readable."""
    if number == 0:
        return "0"
    if abs(number) < 1000:
        number = float(f"{number:.3g}")
    if abs(number) < 1e-4:
        return f"{number:.2e}"
    return f"{number:.{max(0, 2 - math.floor(math.log10(abs(number))))}f}"


def duration(seconds: float) -> str:
    return _scaled(seconds, ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")))


def size(nbytes: float) -> str:
    return _scaled(nbytes, ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")))


def percent(fraction: float) -> str:
    """Two significant digits: 62%, 2.7%, 0.42%."""
    return f"{float(f'{100 * fraction:.2g}') if abs(fraction) < 1 else round(100 * fraction):g}%"


def share(fraction: float) -> str:
    """Whole per cent from 1 up: 62%, 3%, 0.4%."""
    hundredths = 100 * fraction
    return f"{hundredths:.0f}%" if hundredths >= 0.95 else f"{hundredths:.1g}%"


def _scaled(number: float, units: Sequence[tuple[float, str]]) -> str:
    """In the largest unit that leaves at least 1 after rounding, else in the smallest."""
    for factor, unit in units:
        if float(f"{abs(number) / factor:.3g}") >= 1 or factor == units[-1][0]:
            return f"{digits(number / factor)} {unit}"
    raise AssertionError("no units")


def _samples(record: Record) -> tuple[float, ...]:
    time = record.measurements.get("time")
    return time.values if time else ()


def _latency(record: Record) -> float | None:
    samples = _samples(record)
    return stats.median(samples) if samples else None


def _percentile(p: float, at_least: int = 1) -> Callable[[Record, Context], float | None]:
    def derive(record: Record, _: Context) -> float | None:
        samples = _samples(record)
        return stats.percentile(samples, p) if len(samples) >= at_least else None

    return derive


def _ci(record: Record, _: Context) -> float | None:
    samples = _samples(record)
    return stats.relative_halfwidth(samples) if len(samples) >= MIN_SAMPLES_INTERVAL else None


def _cov(record: Record, _: Context) -> float | None:
    samples = _samples(record)
    return stats.cov(samples) if samples else None


def _rate(record: Record, amount: float) -> float | None:
    latency = _latency(record)
    return amount / latency if latency else None


def _tflops(record: Record, context: Context) -> float | None:
    rate = _rate(record, work.flops(record.case, context.convention))
    return None if rate is None else rate / 1e12


def _utilization(record: Record, context: Context) -> float | None:
    rate = _rate(record, work.flops(record.case, context.convention))
    return rate / context.peak if rate is not None and context.peak else None


def _gbps(record: Record, _: Context) -> float | None:
    rate = _rate(record, work.nbytes(record.case))
    return None if rate is None else rate / 1e9


def _speedup(record: Record, context: Context) -> float | None:
    latency = 1.0 if record.backend == "eager" else _latency(record)
    eager = 1.0 if record.backend == "eager" else context.eager
    return eager / latency if eager and latency else None


def _measured(name: str, reduce: Callable[[Sequence[float]], float]) -> Callable[[Record, Context], float | None]:
    def derive(record: Record, _: Context) -> float | None:
        measurement = record.measurements.get(name)
        return reduce(measurement.values) if measurement and measurement.values else None

    return derive


def _error(record: Record, _: Context) -> float | None:
    if record.accuracy is None or not record.accuracy.errors:
        return None
    return max(
        e.max_error / e.tolerance if e.tolerance else (math.inf if e.max_error else 0.0)
        for e in record.accuracy.errors.values()
    )


def _times(ratio: float) -> str:
    return f"{digits(ratio)}x"


def _count(number: float) -> str:
    return f"{number:.0f}"


def _megahertz(hertz: float) -> str:
    return f"{hertz / 1e6:.0f} MHz"


_ALL = (
    Metric("latency", "Latency", "s", "lower", "Median time of one call.", lambda r, _: _latency(r), duration),
    Metric("latency_p10", "Latency, 10th percentile", "s", "lower", "A tenth is faster.", _percentile(10), duration),
    Metric("latency_p90", "Latency, 90th percentile", "s", "lower", "A tenth is slower.", _percentile(90), duration),
    Metric(
        "latency_p99",
        "Latency, 99th percentile",
        "s",
        "lower",
        f"One call in a hundred is slower; needs {MIN_SAMPLES_P99} samples.",
        _percentile(99, MIN_SAMPLES_P99),
        duration,
    ),
    Metric(
        "ci",
        "Uncertainty of the latency",
        "",
        "lower",
        f"Half the 95 % interval of the median, over the median; needs {MIN_SAMPLES_INTERVAL} samples.",
        _ci,
        percent,
    ),
    Metric("cov", "Variation of the latency", "", "lower", "Standard deviation over mean.", _cov, percent),
    Metric("samples", "Samples", "", None, "Timed calls.", lambda r, _: float(len(_samples(r))), _count),
    Metric("tflops", "Throughput", "TFLOP/s", "higher", "FLOPs of the case over the latency.", _tflops, digits),
    Metric(
        "utilization",
        "Utilisation",
        "",
        "higher",
        "Throughput as a share of the datasheet peak of the dtype; none where the peak is unknown.",
        _utilization,
        share,
    ),
    Metric(
        "gbps",
        "Bandwidth",
        "GB/s",
        "higher",
        "Ideal traffic (each operand once) over the latency: a lower bound of what was moved.",
        _gbps,
        digits,
    ),
    Metric(
        "memory_peak",
        "Peak memory added by one call",
        "B",
        "lower",
        "The most that one call takes from torch's allocator, over its inputs.",
        _measured("memory_peak", max),
        size,
    ),
    Metric(
        "memory_driver",
        "Peak memory added by one call, as the driver sees it",
        "B",
        "lower",
        "The same as the driver sees it: what libraries take past torch counts too.",
        _measured("memory_driver", max),
        size,
    ),
    Metric(
        "memory_saved",
        "Memory kept for backward",
        "B",
        "lower",
        "What the forward pass leaves allocated: its output and what it keeps for backward.",
        _measured("memory_saved", max),
        size,
    ),
    Metric(
        "first_call",
        "First call",
        "s",
        "lower",
        "The first launch, with whatever it compiles or tunes.",
        _measured("first_call", stats.median),
        duration,
    ),
    Metric("speedup", "Speedup over eager", "", "higher", "Latency of eager over the latency.", _speedup, _times),
    Metric(
        "error",
        "Error",
        "",
        "lower",
        "Largest error over what is allowed, of all results; above 1 is wrong.",
        _error,
        digits,
    ),
    Metric(
        "clock_sm",
        "SM clock",
        "Hz",
        None,
        "Median clock of the multiprocessors while measuring.",
        _measured("clock_sm", stats.median),
        _megahertz,
    ),
)

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _ALL})
