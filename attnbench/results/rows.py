"""A row: one record with the facts of its machine, from which metrics.py derives metrics."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from attnbench.core import gpus, stats
from attnbench.core.case import Case
from attnbench.core.flops import Convention
from attnbench.core.policy import SHORT
from attnbench.core.record import Record, Run
from attnbench.results import disturbed, uncertainty
from attnbench.results.case_names import with_versions
from attnbench.results.noise import Prior, prior_from_variances
from attnbench.results.timing_method import has_span
from attnbench.results.together import Together
from attnbench.results.uncertainty import Spread


@dataclass(frozen=True)
class Rates:
    """The rates with which throughput is compared, for one dtype on one machine; None where a rate is unknown."""

    peak: float | None = None  # FLOP/s of the dtype: given with --peak, else the datasheet's
    clock: float | None = None  # Hz at which the datasheet's peak holds; None for a given peak
    bandwidth: float | None = None  # bytes/s by the datasheet
    ceiling: float | None = None  # FLOP/s of a large matmul of the dtype, measured in the run
    copy: float | None = None  # bytes/s of a large copy, read plus write, measured in the run
    exp: float | None = None  # exponentials per second, measured in the run


Latencies = Mapping[Case, Mapping[int, float]]  # case -> round -> seconds


@dataclass(eq=False, repr=False)
class Source:
    """A run with the facts that all its rows share. cells.py fills the fields with a default."""

    run: Run
    convention: Convention = "exact"  # how FLOPs are counted
    device: str = ""  # label of its device; devices and settings that cannot be compared have different labels
    unusual_versions: frozenset[tuple[str, str]] = frozenset()  # (library, backend) whose version is named
    several_dtypes: bool = False  # whether the cells of a report have several dtypes
    alike: frozenset[Case] = frozenset()  # cases of which another differs only in batch or heads
    matmul_ceilings: Mapping[str, float] = field(default_factory=dict)  # dtype -> FLOP/s, median over the run
    copy_ceiling: float | None = None  # bytes/s, median over the run
    exp_ceiling: float | None = None  # exponentials per second, median over the run
    best_clock: float = 0.0  # Hz, the highest clock held in any cell
    rows: Sequence[Sequence[Row]] = ()  # the rounds of each cell
    beside: Together | None = None  # facts of all runs that are compared; None for a single record
    eager: Latencies = field(default_factory=dict)  # of eager
    fastest_library: Latencies = field(
        default_factory=dict
    )  # of the fastest exact backend that is not a person's own code
    _rates: dict[str, Rates] = field(default_factory=dict)

    @cached_property
    def backend_names(self) -> Mapping[str, str]:
        """Backend -> its name in a table, with a version where it differs from others' (case_names.with_versions)."""
        named = with_versions(self.run.versions, self.unusual_versions)
        return named | {backend: f"{named.get(backend, backend)} (approx.)" for backend in self.approximate}

    @cached_property
    def approximate(self) -> frozenset[str]:
        """The backends of the run that approximate attention."""
        return frozenset(record.backend for record in self.run.records if record.approximation)

    @cached_property
    def approximated(self) -> frozenset[Case]:
        """The cases that some backend of the run approximates."""
        return frozenset(record.case for record in self.run.records if record.backend in self.approximate)

    def rates(self, dtype: str) -> Rates:
        """Return the datasheet's rates and the run's own ceilings for a dtype."""
        if dtype not in self._rates:
            device = self.run.environment.device
            gpu = gpus.find(device.name, device.memory, device.multiprocessors)
            given = self.run.peak.get(dtype, self.run.peak.get(""))
            self._rates[dtype] = Rates(
                peak=given if given is not None else gpus.peak(gpu, dtype) if gpu else None,
                clock=gpus.clock_of_peak(gpu, dtype) if gpu and given is None else None,
                bandwidth=gpu.bandwidth if gpu else None,
                ceiling=self.matmul_ceilings.get(dtype),
                copy=self.copy_ceiling,
                exp=self.exp_ceiling,
            )
        return self._rates[dtype]

    @cached_property
    def disturbance(self) -> str:
        """The sign that others used the GPU during the run, so that no latency can be believed; "" without a sign."""
        return disturbed.disturbance(self.run)

    @cached_property
    def beside_others(self) -> frozenset[str]:
        """The identities of the records during which others used the GPU."""
        return frozenset(record.id for record in disturbed.beside_others(self.run))

    @cached_property
    def spread(self) -> Spread:
        """The differences between processes and between cards of its device."""
        return uncertainty.spread(self.run.environment.device)

    @cached_property
    def prior(self) -> Prior:
        """The prior of the noise between rounds in its cells' latencies; the table's where there are too few cells."""
        rounds = ([m for row in rows if row.ok and (m := row.median) is not None] for rows in self.rows)
        logs = [[*map(math.log, seconds)] for seconds in rounds if len(seconds) > 1 and min(seconds) > 0]
        found = prior_from_variances([*map(stats.variance, logs)], [len(of) - 1 for of in logs]) if logs else None
        return found if found and found.freedom else self.spread.prior


SLOWED, GAP_GROWS = 0.02, 0.3e-6  # tolerated cost of tracing: a share of the call, seconds of its launch gap
IDLE = 0.03  # idle share of a latency up to which the device did not wait for the host

# How the samples of a measurement become one value; by the median where it is not in this table.
ONE_VALUE: Mapping[str, Callable[[Sequence[float]], float]] = {
    "memory_peak": max,
    "memory_driver": max,
    "memory_saved": max,
    "sustained": statistics.fmean,
}


def launch_matters(enqueue: Sequence[float], seconds: float | None) -> bool:
    """Return whether, in a call that takes `seconds`, the device may have waited for the host's launch."""
    return not enqueue or not seconds or max(enqueue) > IDLE * seconds


@dataclass(eq=False, slots=True)
class Row:
    """One record and its source. `values` caches metrics by name, for other metrics that use them, and the `median`."""

    record: Record
    source: Source
    values: dict[str, float | None] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Row of {self.record!r}>"

    def __reduce__(self) -> tuple[type[Row], tuple[Record, Source, dict[str, float | None]]]:
        """Support pickle, whose older protocols do not take slots."""
        return Row, (self.record, self.source, self.values)

    @property
    def ok(self) -> bool:
        return self.record.status == "ok"

    @property
    def case(self) -> Case:
        return self.record.case

    @property
    def disturbance(self) -> str:
        """Why its latency cannot be believed: another process used the GPU; "" without a sign of it."""
        if self.source.disturbance or self.record.id not in self.source.beside_others:
            return self.source.disturbance
        return f"another process used the GPU meanwhile: {', '.join(self.record.others)}"

    @property
    def host_bound(self) -> bool:
        """Whether its latency contains time in which the device waited for the host.

        A long launch alone does not show it, because the host also waits where the queue of launches is full. A step in
        which kernels ran nearly all the time did not wait, and a call waits at most as long as its launch takes.
        """
        if not self.record.host_bound:
            return False
        busy, seconds = self.one_value("step_traced"), self.one_value("time")
        waited = not busy or not seconds or busy < (1 - IDLE) * seconds
        return waited and launch_matters(self.measured("enqueue"), seconds)

    @property
    def toll(self) -> float:
        """The relative increase of its latency, a traced span, by tracing; 0 where it is tolerated."""
        if not self.uses_span or self.host_bound:
            return 0.0
        traced, plain = self.one_value("span_events"), self.one_value("time")
        if traced is None or plain is None:
            return 0.0
        return traced / plain - 1 if traced > (1 + SLOWED) * plain + GAP_GROWS else 0.0

    def seconds_in(self, latencies: Latencies) -> float | None:
        """Return the latency of another backend on its case in its round, else the median of all; None without one.

        Within one round, a drift of the clock between rounds cancels.
        """
        rounds = latencies.get(self.case)
        return rounds.get(self.record.round, stats.median([*rounds.values()])) if rounds else None

    @property
    def load(self) -> float:
        """The part of its latency's uncertainty that comes from other work on a CPU (disturbed.load)."""
        return disturbed.load(self.record, self.source.run.environment.device)

    @property
    def added(self) -> float:
        """The part of its latency's uncertainty that comes from other work on a CPU, or from tracing."""
        return math.hypot(self.load, self.toll)

    @property
    def rates(self) -> Rates:
        """The rates with which throughput is compared; none for an approximation, as FLOPs are exact attention's."""
        return Rates() if self.record.approximation else self.source.rates(self.case.dtype)

    def measured(self, name: str) -> Sequence[float]:
        """Return the raw samples of a measurement; empty where it was not taken."""
        found = self.record.measurements.get(name)
        return found.values if found else ()

    def one_value(self, name: str) -> float | None:
        """Return the samples of a measurement as one value, by ONE_VALUE; None where it was not taken."""
        found = self.measured(name)
        return found[0] if len(found) == 1 else ONE_VALUE.get(name, stats.median)(found) if found else None

    @property
    def events(self) -> float | None:
        """Seconds of the call by CUDA events; None where another instrument timed it."""
        return self.one_value("time") if self.record.timer == "events" else None

    @property
    def uses_span(self) -> bool:
        """Whether the latency is the kernels' span instead of the events' reading (timing_method.py)."""
        if not has_span(self.record):
            return False
        if self.source.beside is None:
            return 0 < (self.events or 0) < SHORT
        return (self.case, self.record.backend) in self.source.beside.by_span

    @property
    def samples(self) -> Sequence[float]:
        """Seconds of each timed call: by the run's instrument, or as the kernels' spans where `uses_span`."""
        return self.measured("span" if self.uses_span else "time")

    @property
    def median(self) -> float | None:
        """The median of `samples`, computed once; None without samples."""
        if "median" not in self.values:
            samples = self.samples
            self.values["median"] = stats.median(samples) if samples else None
        return self.values["median"]
