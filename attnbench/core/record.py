"""A run: its planned jobs, and a record for each that has ended, with raw samples.

Units are SI and unprefixed: seconds, bytes, FLOP/s, bytes/s, Hz, joules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from attnbench.core.case import Case
from attnbench.core.machine import Environment
from attnbench.core.policy import Policy

Status = Literal["ok", "skipped", "wrong", "wrong-kernel", "oom", "failed", "timeout"]

STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True)
class Forecast:
    """What the plan expects of a job: seconds of the whole job and of one call, and peak bytes on the device."""

    seconds: float
    call: float
    nbytes: int


@dataclass(frozen=True)
class Job:
    """One case on one backend in one round; with `skip`, why it will not run."""

    case: Case
    backend: str
    round: int
    forecast: Forecast
    skip: str | None = None
    resumable: bool = False  # the skip is for want of time: --resume may measure it

    @property
    def id(self) -> str:
        return f"{self.case.key}/{self.backend}/{self.round}"


@dataclass(frozen=True)
class Measurement:
    """Raw samples of one quantity. Units: "s", "B", "Hz", "W", "C" (degrees), "FLOP/s", "B/s", "" (a ratio)."""

    unit: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class TensorError:
    """How far one result is from the high-precision reference, on the elements compared."""

    max_error: float  # max |result - reference|; NaN where a result is
    eager_error: float  # the same of eager attention in the case's dtype; for fp8 see reference/exact.py
    tolerance: float  # 2 * eager_error + floor
    relative: float  # ||result - reference|| / ||reference||

    @property
    def ok(self) -> bool:
        return self.max_error <= self.tolerance  # false for NaN


@dataclass(frozen=True)
class Accuracy:
    """The check of one case: errors per tensor ("out", "dq", "dk", "dv") over the sampled query rows and heads."""

    errors: Mapping[str, TensorError]
    rows: int  # query rows compared, of seqlen_q
    heads: int  # (batch entry, query head) pairs compared
    unwritten: tuple[str, ...] = ()  # results with a value that is not finite, anywhere
    flaws: tuple[str, ...] = ()  # what else is wrong, in words

    @property
    def ok(self) -> bool:
        return not self.unwritten and not self.flaws and all(e.ok for e in self.errors.values())

    def complaint(self) -> str:
        """What is wrong, in one line; empty when nothing is."""
        parts = [f"{name} has values that are not finite (NaN, or never written)" for name in self.unwritten]
        parts += [
            f"{name} is off by {e.max_error:.3g} where {e.tolerance:.3g} is allowed (eager: {e.eager_error:.3g})"
            for name, e in self.errors.items()
            if not e.ok and name not in self.unwritten
        ]
        parts += self.flaws
        return "; ".join(parts)


@dataclass(frozen=True)
class Record:
    """How one job ended. Raw samples only; metrics are derived when a report is made.

    `measurements` may hold
    "time" (s, one value a sample), with CUDA events of a short kernel also "span" (s, by CUPTI) and
    "span_events" (s, by events of the same traced calls);
    "enqueue" (s, the host's time to launch one call), "first_call" (s);
    where the instruments were compared "turns_events", "turns_graph", "turns_cupti" (s, one reading a turn) and
    "turns_traced" (s, what events read of the calls that CUPTI traced);
    "memory_peak", "memory_driver", "memory_saved" (B);
    "clock_held" (Hz, exact, at the end of each batch), and as NVML saw them meanwhile "clock_sm", "clock_mem" (Hz),
    "power" (W), "temperature" (C);
    "sustained" (s a call without pauses), "sustained_power" (W) and "sustained_power_error" (a ratio);
    "ceiling_matmul" (FLOP/s, in the case's dtype) and "ceiling_copy" (B/s), where it was this job's turn to read them.
    """

    case: Case
    backend: str
    round: int
    status: Status
    reason: str | None = None
    measurements: Mapping[str, Measurement] = field(default_factory=dict)
    accuracy: Accuracy | None = None
    timer: str | None = None  # the instrument that was used: "events", "graph", "cupti" or "perf_counter"
    l2: str | None = None  # "cold" or "warm" as verified with the instrument; "unproven" where that failed
    forecast: Forecast | None = None
    version: str | None = None  # of the backend's library
    seconds: float | None = None  # wall time of the whole job
    resumable: bool = False
    limits: tuple[str, ...] = ()  # what held the clock down while measuring, as NVML names it
    host_bound: bool = False  # the host could not keep ahead of the device: its latency is in the samples
    kernels: Mapping[str, int] = field(default_factory=dict)  # what ran in one call, and how often; operators on a CPU
    others: tuple[str, ...] = ()  # other processes that computed on the GPU meanwhile
    ecc_errors: int = 0  # uncorrected memory errors that the GPU counted meanwhile
    notes: tuple[str, ...] = ()  # what could not be measured and why, one line each
    stderr: str | None = None  # the tail of the worker's, where a job failed

    @property
    def id(self) -> str:
        return f"{self.case.key}/{self.backend}/{self.round}"


@dataclass(frozen=True)
class Run:
    """A run file: how it was made, its plan, and a record for every job that has ended."""

    environment: Environment
    suite: str
    policy: Policy
    plan: Sequence[Job]
    records: Sequence[Record] = ()  # a tuple, or of a file what makes them when they are asked for
    started: str = ""  # ISO 8601, UTC
    argv: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)  # backend -> version of its library
    specs: Mapping[str, str] = field(default_factory=dict)  # backend -> "module:object" it was loaded from
    interpreters: Mapping[str, str] = field(default_factory=dict)  # backend -> the Python that ran it, where chosen
    peak: Mapping[str, float] = field(default_factory=dict)  # dtype -> FLOP/s given by --peak; "" for any dtype
    reduced: bool = False  # a baseline: of the samples of each measurement, the one value that the gate reads
    turns: str = ""  # of an A/B: what its two files share. Their rounds took turns, and the plan holds the first only
