"""The one registry of metrics: what each is, its unit, which direction is better, how it is derived and written.

Records hold raw samples in seconds, bytes and hertz; everything here is derived from them when a report is made, by
derive.py. Values keep the unit of their metric (seconds, bytes, TFLOP/s, fractions of 1); only `format` scales for a
reader.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from attnbench.core.record import Record
from attnbench.results import derive


@dataclass(frozen=True)
class Metric:
    name: str
    title: str
    unit: str  # of the value; "" is a ratio
    better: Literal["higher", "lower"] | None
    doc: str
    derive: derive.Formula
    format: Callable[[float], str]  # 3 significant digits; with a unit of its own where the prefix adapts
    clocked: bool = False  # moves with the GPU's clock

    @property
    def heading(self) -> str:
        """Title and unit, the unit left out where every figure carries its own."""
        return self.title if self.unit in ("", "s", "B", "Hz", "J") else f"{self.title}, {self.unit}"


_NOTHING = derive.Context()


def value(name: str, record: Record, context: derive.Context | None = None) -> float | None:
    """The metric of one record, finite; None where there is none. Only an `ok` record has metrics."""
    if record.status != "ok":
        return None
    return finite(METRICS[name].derive(record, context or _NOTHING))


def finite(found: float | None) -> float | None:
    return found if found is not None and math.isfinite(found) else None


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


def energy(joules: float) -> str:
    return _scaled(joules, ((1.0, "J"), (1e-3, "mJ"), (1e-6, "uJ")))


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


def _times(ratio: float) -> str:
    return f"{digits(ratio)}x"


def _count(number: float) -> str:
    return f"{number:.0f}"


def _megahertz(hertz: float) -> str:
    return f"{hertz / 1e6:.0f} MHz"


_ALL = (
    Metric(
        "latency",
        "Latency",
        "s",
        "lower",
        "Median time of one call on the device, by the run's instrument; where CUDA events read under 100 us, the "
        "kernels' span by CUPTI if it was taken, as theirs holds a launch gap.",
        derive.latency,
        duration,
        clocked=True,
    ),
    Metric(
        "latency_p10",
        "Latency, 10th percentile",
        "s",
        "lower",
        "A tenth is faster.",
        derive.percentile(10),
        duration,
        clocked=True,
    ),
    Metric(
        "latency_p90",
        "Latency, 90th percentile",
        "s",
        "lower",
        "A tenth is slower.",
        derive.percentile(90),
        duration,
        clocked=True,
    ),
    Metric(
        "latency_p99",
        "Latency, 99th percentile",
        "s",
        "lower",
        f"One call in a hundred is slower; needs {derive.MIN_SAMPLES_P99} samples.",
        derive.percentile(99, derive.MIN_SAMPLES_P99),
        duration,
        clocked=True,
    ),
    Metric(
        "ci",
        "Uncertainty of the latency",
        "",
        "lower",
        f"Half the 95 % interval of the median, over the median; needs {derive.MIN_SAMPLES_INTERVAL} samples.",
        derive.ci,
        percent,
    ),
    Metric("cov", "Variation of the latency", "", "lower", "Standard deviation over mean.", derive.cov, percent),
    Metric(
        "drift",
        "Drift of the latency",
        "",
        None,
        "How far the samples' median moved from the first third to the last; 0 where noise explains it.",
        derive.drift,
        percent,
    ),
    Metric("samples", "Samples", "", None, "Timed calls that the latency is the median of.", derive.count, _count),
    Metric(
        "launch_gap",
        "Launch gap",
        "s",
        "lower",
        "Reading of CUDA events less the kernels' span by CUPTI, same calls; taken where events read under 100 us.",
        derive.launch_gap,
        duration,
    ),
    Metric(
        "enqueue",
        "CPU launch overhead",
        "s",
        "lower",
        "Median time that the host takes to launch one call; where it exceeds the latency, users feel the host.",
        derive.measured("enqueue"),
        duration,
    ),
    Metric(
        "tflops",
        "Throughput",
        "TFLOP/s",
        "higher",
        "FLOPs of the case over the latency.",
        derive.tflops,
        digits,
        clocked=True,
    ),
    Metric(
        "utilization",
        "Utilisation",
        "",
        "higher",
        "Throughput as a share of the datasheet peak of the dtype; none where the peak is unknown.",
        derive.utilization,
        share,
        clocked=True,
    ),
    Metric(
        "utilization_clock",
        "Utilisation at the clock held",
        "",
        "higher",
        "Throughput as a share of the datasheet peak scaled to the clock held (clock_held, else clock_sm).",
        derive.utilization_clock,
        share,
    ),
    Metric(
        "utilization_ceiling",
        "Utilisation of the measured matmul",
        "",
        "higher",
        "Throughput as a share of the median that a large matmul of the dtype reached in the same run.",
        derive.utilization_ceiling,
        share,
        clocked=True,
    ),
    Metric(
        "gbps",
        "Bandwidth",
        "GB/s",
        "higher",
        "Ideal traffic (each operand once) over the latency: a lower bound of what was moved.",
        derive.gbps,
        digits,
        clocked=True,
    ),
    Metric(
        "bandwidth_utilization",
        "Bandwidth utilisation",
        "",
        "higher",
        "Ideal traffic over the latency, as a share of the datasheet's memory bandwidth.",
        derive.bandwidth_utilization,
        share,
        clocked=True,
    ),
    Metric(
        "bandwidth_ceiling",
        "Bandwidth utilisation of the measured copy",
        "",
        "higher",
        "Ideal traffic over the latency, as a share of the median that a large copy reached in the same run.",
        derive.bandwidth_ceiling,
        share,
        clocked=True,
    ),
    Metric(
        "roofline",
        "Share of the roofline",
        "",
        "higher",
        "The larger of exact FLOPs over peak and ideal traffic over bandwidth, by the datasheet, over the latency.",
        derive.roofline,
        share,
        clocked=True,
    ),
    Metric(
        "speedup",
        "Speedup over eager",
        "",
        "higher",
        "Latency of eager over the latency, in the same round where both were measured in it.",
        derive.speedup,
        _times,
        clocked=True,
    ),
    Metric(
        "memory_peak",
        "Peak memory added by one call",
        "B",
        "lower",
        "The most that one call takes from torch's allocator, over its inputs.",
        derive.measured("memory_peak", max),
        size,
    ),
    Metric(
        "memory_driver",
        "Peak memory added by one call, as the driver sees it",
        "B",
        "lower",
        "The same as the driver sees it: what libraries take past torch counts too.",
        derive.measured("memory_driver", max),
        size,
    ),
    Metric(
        "memory_saved",
        "Memory kept for backward",
        "B",
        "lower",
        "What the forward pass leaves allocated: its output and what it keeps for backward.",
        derive.measured("memory_saved", max),
        size,
    ),
    Metric(
        "first_call",
        "First call",
        "s",
        "lower",
        "Preparing and the first launch by the host's clock, with what it compiles or tunes: all, with --fresh-caches.",
        derive.measured("first_call"),
        duration,
    ),
    Metric(
        "error",
        "Error",
        "",
        "lower",
        "Largest error over what is allowed, of all results; above 1 is wrong.",
        derive.error,
        digits,
    ),
    Metric(
        "relative_error",
        "Relative error",
        "",
        "lower",
        "Norm of the error against the high-precision reference over the reference's, of the result where it is "
        "largest; in fp8 the reference is of the inputs before they were rounded.",
        derive.relative_error,
        percent,
    ),
    Metric(
        "clock_held",
        "SM clock held",
        "Hz",
        None,
        "Median clock of the multiprocessors at the ends of the batches, exact, by a spin of known cycles.",
        derive.clock_held,
        _megahertz,
    ),
    Metric(
        "clock_sm",
        "SM clock",
        "Hz",
        None,
        "Median clock of the multiprocessors while measuring, as NVML saw it: up to 0.1 s late.",
        derive.clock_sm,
        _megahertz,
    ),
    Metric(
        "clock_mem",
        "Memory clock",
        "Hz",
        None,
        "Median clock of the memory while measuring, as NVML saw it.",
        derive.measured("clock_mem"),
        _megahertz,
    ),
    Metric(
        "power",
        "Power",
        "W",
        "lower",
        "Median power while measuring, as NVML saw it, pauses included; sustained figures have the power of the work.",
        derive.measured("power"),
        digits,
    ),
    Metric(
        "temperature",
        "Temperature",
        "C",
        "lower",
        "Median temperature of the GPU while measuring, as NVML saw it.",
        derive.measured("temperature"),
        _count,
    ),
    Metric(
        "sustained_latency",
        "Latency without pauses",
        "s",
        "lower",
        "Mean time of one call in a long run without pauses, once power and clock are steady; L2 is as "
        "the last call left it.",
        derive.sustained_latency,
        duration,
    ),
    Metric(
        "sustained_tflops",
        "Throughput without pauses",
        "TFLOP/s",
        "higher",
        "FLOPs of the case over the latency without pauses.",
        derive.sustained_tflops,
        digits,
    ),
    Metric(
        "joules",
        "Energy of one call",
        "J",
        "lower",
        "Power by NVML's energy counter times the latency without pauses: the whole board's.",
        derive.joules,
        energy,
    ),
    Metric(
        "tflops_per_watt",
        "Efficiency",
        "TFLOP/s/W",
        "higher",
        "FLOPs of the case over the energy of one call.",
        derive.tflops_per_watt,
        digits,
    ),
    Metric(
        "power_error",
        "Uncertainty of the power without pauses",
        "",
        "lower",
        "Of the energy counter's edges, over the window; joules and tflops_per_watt have it too.",
        derive.measured("sustained_power_error"),
        percent,
    ),
    Metric(
        "disagreement",
        "Disagreement of the instruments",
        "",
        "lower",
        "Largest |ratio - 1| of the readings of CUPTI or CUDA graph to those of events; median over turns.",
        derive.disagreement,
        percent,
    ),
    Metric(
        "tracing",
        "Toll of tracing",
        "",
        "lower",
        "How much longer CUDA events read a call while CUPTI traces it; median over the turns of a cross-check.",
        derive.tracing,
        percent,
    ),
)

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _ALL})
