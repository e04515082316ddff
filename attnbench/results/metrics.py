"""The metrics: each declared once, as a function of a row with its unit, direction, format and one line of help.

Records hold raw samples in seconds, bytes and hertz; everything here is derived from them when a report is made. Values
keep the unit of their metric (seconds, bytes, TFLOP/s, fractions of 1); only `format` scales them for a reader.

**Utilisation** is throughput as a share of one of three rates: the datasheet's peak; that peak at the clock held, so
that the power limit does not count against the kernel; and the rate of a large matmul in the same run.

**Roofline** (Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009): no implementation takes less than
max(FLOPs / peak, bytes / bandwidth), by the datasheet, with exact FLOPs and ideal traffic for any convention of FLOPs.
The larger term bounds the case. With a warm L2 the traffic need not cross the bus, and a share may exceed 1.

**The unit** of a case's speed follows from its limit on the machine (`limit`): TFLOP/s where compute bounds it, GB/s
where memory does, and the time alone where the roofline allows less than LAUNCH, so that launching takes most of it.

**Cross-check.** The instruments take turns, so that the readings of one turn have the same clock: they are compared
turn by turn, and the median of the ratios counts. CUPTI's spans are compared with the events' readings of the same
calls, because tracing itself slows some kernels; its toll is the events' reading of traced calls over their reading of
other calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from attnbench.core import formats, split_sequence, stats
from attnbench.core.case import Case
from attnbench.core.documents import with_addresses
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.flops import Bound, Roofline, flops, ideal_bytes, input_bytes, pairs
from attnbench.core.policy import INSTRUMENTS
from attnbench.results import bits
from attnbench.results.rows import Rates, Row
from attnbench.results.uncertainty import uncertainty, within_process

MIN_SAMPLES_P99 = 100
LAUNCH = 2e-6  # seconds; the cells in results/ with a shorter roofline take over ten times as long as it

Formula = Callable[[Row], "float | None"]
Sure = Literal["latency", "sustained_latency", "joules"]  # the metrics whose uncertainty is known (Cell.half_interval)


@dataclass(frozen=True)
class Metric:
    """A figure derived from a row, with its name, unit ("" for a ratio), format and line of help."""

    name: str
    title: str
    unit: str
    better: Literal["higher", "lower"] | None
    doc: str
    formula: Formula
    format: Callable[[float], str]  # 3 significant digits; with the unit where its prefix adapts
    clocked: bool = False  # whether it depends on the GPU's clock
    sure_as: Sure | None = None  # the metric with the same relative uncertainty
    whole: bool = False  # whether it is a count, and a whole number

    @property
    def heading(self) -> str:
        """Title and unit; without the unit where each figure has its own."""
        return self.title if self.unit in ("", "s", "B", "Hz", "J") else f"{self.title}, {self.unit}"


METRICS: dict[str, Metric] = {}


def metric(
    title: str,
    unit: str,
    better: Literal["higher", "lower"] | None,
    format: Callable[[float], str],
    *,
    clocked: bool = False,
    sure_as: Sure | None = None,
    whole: bool = False,
) -> Callable[[Formula], Formula]:
    """Declare the decorated function as the metric of its name; its docstring is the line of help.

    A row keeps the values that other metrics ask for. A cell asks for the rest once, and keeps the median of its
    rounds.
    """

    def declare(formula: Formula) -> Formula:
        name = formula.__name__

        def finite(row: Row) -> float | None:
            if name in row.values:
                return row.values[name]
            found = formula(row)
            return found if found is not None and math.isfinite(found) else None

        def kept(row: Row) -> float | None:
            return row.values.setdefault(name, finite(row))

        doc = with_addresses(" ".join((formula.__doc__ or "").split()))
        METRICS[name] = Metric(name, title, unit, better, doc, finite, format, clocked, sure_as, whole)
        return kept

    return declare


def named(name: str) -> Metric:
    """Return the metric of a name. Raises UserError where there is none."""
    if not isinstance(name, str) or name not in METRICS:
        raise UserError(f"no metric {name!r}{did_you_mean(str(name), METRICS)}")
    return METRICS[name]


def value(name: str, row: Row) -> float | None:
    """Return the metric of a row, finite; None where there is none. Only a row that is ok has metrics."""
    if not row.ok:
        return None
    return named(name).formula(row)


def work(row: Row) -> float:
    """Return the FLOPs of a row's case; with a person's own mask, of the counted pairs."""
    seen, expected = row.one_value("pairs"), flops(row.case, row.source.convention)
    return expected if seen is None else expected * seen * row.case.shape.batch / pairs(row.case)


def clock(row: Row) -> float | None:
    """Return the SM clock in Hz while the row was measured: by the exact gauge, else by NVML."""
    held = clock_held(row)
    return clock_sm(row) if held is None else held


def bound(case: Case, rates: Rates) -> Bound | None:
    """Return the bound of a case by the roofline; None where peak or bandwidth is unknown."""
    least = _roofline_of(case, rates)
    return least.bound if least else None


USUAL = ("tflops", "gbps", "tokens_per_second", "latency", "attention_share")  # in the order of a report


@cache
def limit(case: Case, rates: Rates) -> Literal["compute", "memory", "launch"]:
    """Return what limits the speed of a case on a machine; by the kind of the case where the roofline is unknown."""
    least = _roofline_of(case, rates)
    if least is None:
        return "memory" if case.is_decode else "compute"
    if least.seconds / case.ranks < LAUNCH:
        return "launch"
    return "memory" if least.bound == "memory" else "compute"


def usual(case: Case, rates: Rates) -> tuple[str, ...]:
    """Return the most telling metrics of a case on a machine, in the order of their weight: its unit first."""
    if case.step:
        return ("tokens_per_second", "latency", "attention_share")
    return {"compute": ("tflops",), "memory": ("gbps", "latency"), "launch": ("latency",)}[limit(case, rates)]


def share_of_limit(name: str, value_of: Callable[[str], float | None], *, memory_bound: bool) -> float | None:
    """Return the share of the datasheet's limit that is shown beside tflops and gbps; None where it is unknown.

    The measured copy is not used, as it writes as much as it reads, and a kernel that reads may exceed it. `value_of`
    returns a metric's value by name.
    """
    if name == "tflops":
        return value_of("roofline" if memory_bound else "utilization")
    return value_of("bandwidth_utilization")


def turn_ratios(row: Row, instrument: str) -> tuple[float, ...]:
    """Return an instrument's readings over the events', turn by turn, of the same calls where possible."""
    readings = row.measured(f"turns_{instrument}")
    traced = row.measured("turns_traced") if instrument == "cupti" else ()
    pairs = zip(readings, traced or row.measured("turns_events"), strict=False)
    ratios = (reading / events for reading, events in pairs if events)
    return tuple(filter(math.isfinite, ratios))


@metric("Latency", "s", "lower", formats.duration, clocked=True, sure_as="latency")
def latency(row: Row) -> float | None:
    """Median time of one call on the device, by the run's instrument. In a case whose fastest cell takes under 100 us
    by CUDA events, which include a launch gap: the kernels' span by CUPTI, if all its cells have it.
    """
    return row.median


@metric("Latency, 10th percentile", "s", "lower", formats.duration, clocked=True)
def latency_p10(row: Row) -> float | None:
    """A tenth of the calls takes less."""
    return stats.percentile(row.samples, 10) if row.samples else None


@metric("Latency, 90th percentile", "s", "lower", formats.duration, clocked=True)
def latency_p90(row: Row) -> float | None:
    """A tenth of the calls takes more."""
    return stats.percentile(row.samples, 90) if row.samples else None


@metric("Latency, 99th percentile", "s", "lower", formats.duration, clocked=True)
def latency_p99(row: Row) -> float | None:
    """One call in a hundred takes more; needs 100 samples."""
    return stats.percentile(row.samples, 99) if len(row.samples) >= MIN_SAMPLES_P99 else None


@metric("Uncertainty of the latency", "", "lower", formats.percent)
def ci(row: Row) -> float | None:
    """Half the 95 % interval of the latency for other processes on this card, over the latency: from rounds, else from
    this process's samples and a table of the differences between processes (docs/measuring.md).
    """
    found = None if row.disturbance else uncertainty([row.samples], row.source.spread, added=row.added)
    return found.total if found else None


@metric("Uncertainty within the process", "", "lower", formats.percent)
def ci_within(row: Row) -> float | None:
    """Half the 95 % interval of the median of the samples, over it; or, if larger, the distance of two speeds."""
    return within_process(row.samples)


@metric("Variation of the latency", "", "lower", formats.percent)
def cov(row: Row) -> float | None:
    """Standard deviation of the samples over their mean."""
    return stats.coefficient_of_variation(row.samples) if row.samples else None


@metric("Drift of the latency", "", None, formats.percent)
def drift(row: Row) -> float | None:
    """Relative change of the samples' median from the first third to the last; 0 where noise explains it."""
    time = row.measured("time")  # the instrument's own samples, as they are in order of time and more than the spans
    return stats.drift(time) if time else None


@metric("Samples", "", None, formats.whole_number, whole=True)
def samples(row: Row) -> float | None:
    """Number of timed calls, of which the latency is the median."""
    return float(len(row.samples))


@metric("Launch gap", "s", "lower", formats.duration)
def launch_gap(row: Row) -> float | None:
    """Reading of CUDA events less the kernels' span by CUPTI, same calls; taken where events read under 100 us."""
    span, both = row.measured("span"), row.measured("span_events")
    if both:
        gaps = [events - own for events, own in zip(both, span, strict=False)]
        return stats.median(gaps) if gaps else None
    time = row.measured("time")
    return stats.median(time) - stats.median(span) if time and span and row.record.timer == "events" else None


@metric("Latency in a CUDA graph", "s", "lower", formats.duration, clocked=True)
def graph_latency(row: Row) -> float | None:
    """Median time of one call replayed in a CUDA graph, without the host's time of launching; taken by the cross-check
    (run --cross-check), and the latency itself with --timer graph.
    """
    readings = row.measured("turns_graph")
    if not readings and row.record.timer == "graph":
        return latency(row)
    return stats.median(readings) if readings else None


@metric("CPU launch overhead", "s", "lower", formats.duration)
def enqueue(row: Row) -> float | None:
    """Median time that the host takes to launch one call; where it exceeds the latency, the host limits the speed."""
    return row.one_value("enqueue")


@metric("Throughput", "TFLOP/s", "higher", formats.digits, clocked=True, sure_as="latency")
def tflops(row: Row) -> float | None:
    """FLOPs of the case over the latency; with several ranks, FLOPs per rank."""
    return _over(_throughput(row), 1e12)


@metric("Utilisation", "", "higher", formats.share, clocked=True, sure_as="latency")
def utilization(row: Row) -> float | None:
    """Throughput as a share of the datasheet peak of the dtype; none where the peak is unknown."""
    return _over(_throughput(row), row.rates.peak)


@metric("Utilisation at the clock held", "", "higher", formats.share, sure_as="latency")
def utilization_clock(row: Row) -> float | None:
    """Throughput as a share of the datasheet peak at the clock held (clock_held, else clock_sm)."""
    held, rates = clock(row), row.rates
    if rates.peak is None or rates.clock is None or held is None:
        return None
    return _over(_throughput(row), rates.peak * held / rates.clock)


@metric("Utilisation of the measured matmul", "", "higher", formats.share, clocked=True, sure_as="latency")
def utilization_ceiling(row: Row) -> float | None:
    """Throughput as a share of the median rate of a large matmul of the dtype in the same run."""
    return _over(_throughput(row), row.rates.ceiling)


@metric("Bandwidth", "GB/s", "higher", formats.digits, clocked=True, sure_as="latency")
def gbps(row: Row) -> float | None:
    """Ideal traffic (each operand once) over the latency: a lower bound of the real traffic; per rank."""
    return _over(_traffic(row), 1e9)


@metric("Bandwidth utilisation", "", "higher", formats.share, clocked=True, sure_as="latency")
def bandwidth_utilization(row: Row) -> float | None:
    """Ideal traffic over the latency, as a share of the datasheet's memory bandwidth."""
    return _over(_traffic(row), row.rates.bandwidth)


@metric("Bandwidth utilisation of the measured copy", "", "higher", formats.share, clocked=True, sure_as="latency")
def bandwidth_ceiling(row: Row) -> float | None:
    """Ideal traffic over the latency, as a share of the median rate of a large copy in the same run."""
    return _over(_traffic(row), row.rates.copy)


@metric("Share of the roofline", "", "higher", formats.share, clocked=True, sure_as="latency")
def roofline(row: Row) -> float | None:
    """The larger of exact FLOPs over peak and ideal traffic over bandwidth, by the datasheet, over the latency."""
    least = _roofline_of(row.case, row.rates)
    return None if least is None else _over(least.seconds / row.case.ranks, latency(row))


@metric("Speedup over eager", "", "higher", formats.times, clocked=True, sure_as="latency")
def speedup(row: Row) -> float | None:
    """Latency of eager over the latency, in the same round where both were measured in it."""
    if row.record.backend == "eager":
        return 1.0
    return _over(row.seconds_in(row.source.eager), latency(row))


@metric("Gain over the fastest library", "", "higher", formats.times, clocked=True, sure_as="latency")
def gain(row: Row) -> float | None:
    """Of own code: the latency of the fastest other backend, over the latency, in one round where both have one."""
    own = row.record.backend in row.source.run.own_code
    return _over(row.seconds_in(row.source.fastest_library), latency(row)) if own else None


@metric("Peak memory added by one call", "B", "lower", formats.size, whole=True)
def memory_peak(row: Row) -> float | None:
    """The most memory that one call takes from torch's allocator, beyond its inputs."""
    return row.one_value("memory_peak")


@metric("Peak memory of one call with its inputs", "B", "lower", formats.size, whole=True)
def memory_total(row: Row) -> float | None:
    """The most memory that one call takes from torch's allocator, with its inputs; with several ranks, per rank."""
    added = memory_peak(row)
    return None if added is None else added + input_bytes(row.case) // row.case.ranks


@metric("Peak memory added by one call, as the driver sees it", "B", "lower", formats.size, whole=True)
def memory_driver(row: Row) -> float | None:
    """The most memory that one call takes from the driver, beyond its inputs, with libraries' own allocations."""
    return row.one_value("memory_driver")


@metric("Memory kept for backward", "B", "lower", formats.size, whole=True)
def memory_saved(row: Row) -> float | None:
    """Memory that the forward pass leaves allocated: its output and the tensors kept for the backward."""
    return row.one_value("memory_saved")


@metric("First call", "s", "lower", formats.duration)
def first_call(row: Row) -> float | None:
    """Time of preparation and first launch, with compilation and tuning; with --fresh-caches everything is compiled."""
    return row.one_value("first_call")


@metric("Plan", "s", "lower", formats.duration)
def plan(row: Row) -> float | None:
    """Time to build the parts that a batch of these lengths needs once a step (offsets, masks, a library's plan), by
    the host's clock until the device is done; not part of the latency. A note says how often it waits.
    """
    return row.one_value("plan")


@metric("Peak memory of the plan", "B", "lower", formats.size, whole=True)
def plan_memory(row: Row) -> float | None:
    """The most memory that building the plan, or a mask by name, takes from torch's allocator."""
    return row.one_value("plan_memory")


@metric("Block efficiency", "", "higher", formats.share)
def block_efficiency(row: Row) -> float | None:
    """With a mask by name: the pairs that the mask leaves over the pairs that are computed, block by block."""
    left = row.one_value("pairs")
    return _over(pairs(row.case) / row.case.shape.batch if left is None else left, row.one_value("pairs_computed"))


@metric("Throughput of computed pairs", "TFLOP/s", "higher", formats.digits, clocked=True, sure_as="latency")
def tflops_computed(row: Row) -> float | None:
    """Throughput with the FLOPs of all computed pairs, including the masked pairs of blocks that are computed."""
    return _over(tflops(row), block_efficiency(row))


@metric("Tokens per second", "tokens/s", "higher", formats.digits, clocked=True, sure_as="latency")
def tokens_per_second(row: Row) -> float | None:
    """For a step of a model: the tokens that it computes (in decode one per sequence) over the latency."""
    return _over(float(row.case.shape.batch * row.case.shape.seqlen_q), latency(row)) if row.case.step else None


@metric("Attention in the step", "s", "lower", formats.duration)
def attention_time(row: Row) -> float | None:
    """For a step of a model: the time of its attention, with the making of masks, by the trace of one step. Tracing
    slows kernels: where the kernels of the traced step take longer than the latency, their time is scaled to it.
    """
    return _over(_product(row.one_value("attention"), latency(row)), _most(row.one_value("step_traced"), latency(row)))


@metric("Idle in the step", "s", "lower", formats.duration)
def idle_time(row: Row) -> float | None:
    """For a step of a model: its latency less the time in which kernels ran in one traced step, if positive: the device
    waited for the host.
    """
    seconds, busy = latency(row), row.one_value("step_traced")
    return None if seconds is None or busy is None else max(0.0, seconds - busy)


@metric("Share of attention", "", None, formats.share)
def attention_share(row: Row) -> float | None:
    """Attention in the step over the latency of the step."""
    return _over(attention_time(row), latency(row))


@metric("Time to measure", "s", None, formats.duration)
def seconds(row: Row) -> float | None:
    """Wall time of the whole job: checks, memory, samples and trace. A report with it adds a table of the parts."""
    return row.record.seconds


@metric("Error", "", "lower", formats.digits)
def error(row: Row) -> float | None:
    """Largest error of all results over its tolerance; above 1 is wrong."""
    errors = row.record.accuracy.errors.values() if row.record.accuracy else ()
    shares = (e.max_error / e.tolerance if e.tolerance else (math.inf if e.max_error else 0.0) for e in errors)
    return max(shares, default=None)


@metric("Relative error", "", "lower", formats.percent)
def relative_error(row: Row) -> float | None:
    """Norm of the error against the high-precision reference over the norm of the reference, for the result where it is
    largest; in fp8 the reference uses the inputs before rounding.
    """
    errors = row.record.accuracy.errors.values() if row.record.accuracy else ()
    return max((e.relative for e in errors), default=None)


@metric("Approximation error", "", "lower", formats.percent)
def approximation_error(row: Row) -> float | None:
    """For an approximate backend: norm of its error over the norm of exact attention, on a sample of rows."""
    found = row.record.approximation
    return found.error if found else None


@metric("Attention mass kept", "", "higher", formats.percent)
def mass_kept(row: Row) -> float | None:
    """For an approximate backend that attends to some keys: exact attention's probability on them, mean over rows."""
    found = row.record.approximation
    return found.mass_kept if found else None


@metric("Deterministic", "", None, formats.yes_or_no)
def deterministic(row: Row) -> float | None:
    """1 where all launches and processes gave the same bits, else 0; with run --bitwise."""
    return _verdict("deterministic", row)


@metric("Batch-invariant", "", None, formats.yes_or_no)
def batch_invariant(row: Row) -> float | None:
    """1 where a sequence has the same bits with and without the rest of its batch, else 0; with run --bitwise."""
    return _verdict("batch_invariant", row)


@metric("SM clock held", "Hz", None, formats.megahertz)
def clock_held(row: Row) -> float | None:
    """Median clock of the multiprocessors while calls ran, from their own counters of cycles; in runs of method 1,
    right after each batch of calls.
    """
    return row.one_value("clock_held")


@metric("SM clock", "Hz", None, formats.megahertz)
def clock_sm(row: Row) -> float | None:
    """Median clock of the multiprocessors while measuring, by NVML, whose readings are up to 0.1 s late."""
    return row.one_value("clock_sm")


@metric("Memory clock", "Hz", None, formats.megahertz)
def clock_mem(row: Row) -> float | None:
    """Median clock of the memory while measuring, by NVML."""
    return row.one_value("clock_mem")


@metric("Temperature", "C", "lower", formats.whole_number)
def temperature(row: Row) -> float | None:
    """Median temperature of the GPU while measuring, by NVML."""
    return row.one_value("temperature")


@metric("Cores left", "", None, formats.digits)
def cores_left(row: Row) -> float | None:
    """On a CPU: the cores that other processes left while the samples were taken, on average."""
    return row.one_value("cores_left")


@metric("New over same inputs", "", None, formats.times)
def new_inputs(row: Row) -> float | None:
    """On a CPU: median time of calls on new inputs over repeated calls on the same; only where clearly slower."""
    new, same = row.one_value("new_inputs"), row.one_value("same_inputs")
    return None if new is None or not same else new / same


@metric("Latency without pauses", "s", "lower", formats.duration, sure_as="sustained_latency")
def sustained_latency(row: Row) -> float | None:
    """Mean time of one call in a long run without pauses, once power and clock are steady; L2 is not flushed."""
    return row.one_value("sustained")


@metric("Throughput without pauses", "TFLOP/s", "higher", formats.digits, sure_as="sustained_latency")
def sustained_tflops(row: Row) -> float | None:
    """FLOPs of the case over the latency without pauses; with several ranks, FLOPs per rank."""
    return _over(_work_of_rank(row) / 1e12, sustained_latency(row))


@metric("Utilisation without pauses", "", "higher", formats.share, sure_as="sustained_latency")
def sustained_utilization(row: Row) -> float | None:
    """Throughput without pauses as a share of the datasheet peak of the dtype; none where the peak is unknown."""
    return _over(_over(_work_of_rank(row), sustained_latency(row)), row.rates.peak)


@metric("Power without pauses", "W", "lower", formats.digits, sure_as="joules")
def sustained_power(row: Row) -> float | None:
    """Mean power of the whole board during the latency without pauses, by NVML's energy counter."""
    watts = row.one_value("sustained_power")
    return watts if watts is not None and watts > 0 else None


@metric("Energy of one call", "J", "lower", formats.energy, sure_as="joules")
def joules(row: Row) -> float | None:
    """Power times latency, both without pauses: the whole board's energy."""
    watts, seconds = sustained_power(row), sustained_latency(row)
    return watts * seconds if watts is not None and seconds is not None else None


@metric("Efficiency", "TFLOP/s/W", "higher", formats.digits, sure_as="joules")
def tflops_per_watt(row: Row) -> float | None:
    """FLOPs of the case over the energy of one call; with several ranks, FLOPs per rank."""
    return _over(_work_of_rank(row) / 1e12, joules(row))


@metric("Uncertainty of the power without pauses", "", "lower", formats.percent)
def power_error(row: Row) -> float | None:
    """Uncertainty of the times at which the energy counter was read, over the time between them; for joules too."""
    return row.one_value("sustained_power_error")


@metric("Disagreement of the instruments", "", "lower", formats.percent)
def disagreement(row: Row) -> float | None:
    """Largest |ratio - 1| of CUPTI's or CUDA graph's readings to the events'; median over turns."""
    apart = [abs(stats.median(found) - 1) for name in INSTRUMENTS[1:] if (found := turn_ratios(row, name))]
    return max(apart, default=None)


@metric("Toll of tracing", "", "lower", formats.percent)
def tracing(row: Row) -> float | None:
    """Relative increase of a call's time by events while CUPTI traces it; median over turns of a cross-check."""
    pairs = zip(row.measured("turns_traced"), row.measured("turns_events"), strict=False)
    ratios = [traced / plain for traced, plain in pairs if plain]
    return stats.median(ratios) - 1 if ratios else None


@metric("Communication exposed", "", "lower", formats.share, sure_as="latency")
def exposed(row: Row) -> float | None:
    """With several ranks: the share of the latency that communication adds to the same launch without it.

    In clock cycles where both clocks are known, since a GPU at its power cap runs the two at different clocks.
    """
    seconds, alone = latency(row), row.one_value("compute")
    if alone is None or not seconds:
        return None
    held, of_compute = clock_held(row), row.one_value("clock_compute")
    return split_sequence.exposed(seconds, alone * of_compute / held if held and of_compute else alone)


@metric("Sent by each rank", "GB/s", "higher", formats.digits, sure_as="latency")
def bus_gbps(row: Row) -> float | None:
    """With several ranks: the most bytes that one rank sends in a call, over the latency."""
    moved = row.one_value("moved")
    return None if moved is None else _over(moved / 1e9, latency(row))


@metric("Share of the bus", "", "higher", formats.share, sure_as="latency")
def bus_share(row: Row) -> float | None:
    """With several ranks: the bytes that each sends over the latency, as a share of its rate in a large all-to-all."""
    most = row.one_value("ceiling_bus")
    return None if most is None else _over(_product(bus_gbps(row), 1e9), most)


@metric("Cycles", "cycles", "lower", formats.megacycles, sure_as="latency")
def cycles(row: Row) -> float | None:
    """Latency times the SM clock held: independent of the effects of power and heat on the clock."""
    seconds, held = latency(row), clock_held(row)
    return seconds * held if seconds is not None and held is not None else None


def _verdict(name: str, row: Row) -> float | None:
    found = bits.VERDICTS[name]([of] if (of := row.record.bitwise) else [])
    return None if found is None else float(found)


def _throughput(row: Row) -> float | None:
    """Return the FLOP/s of each rank."""
    return _over(_work_of_rank(row), latency(row))


def _work_of_rank(row: Row) -> float:
    return work(row) / row.case.ranks


def _traffic(row: Row) -> float | None:
    """Return the bytes/s of ideal traffic of each rank."""
    return _over(ideal_bytes(row.case) / row.case.ranks, latency(row))


@cache
def _roofline_of(case: Case, rates: Rates) -> Roofline | None:
    return Roofline.of(case, rates.peak, rates.bandwidth) if rates.peak and rates.bandwidth else None


def _product(one: float | None, other: float | None) -> float | None:
    return one * other if one is not None and other is not None else None


def _most(one: float | None, other: float | None) -> float | None:
    return max(one, other) if one is not None and other is not None else None


def _over(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
