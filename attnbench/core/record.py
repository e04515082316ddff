"""Jobs, records and runs: the plan, the end of each job, and the content of a run file.

A record holds raw samples only; metrics are computed from it when a report is made (results/metrics.py). Units are SI
without prefixes: seconds, bytes, FLOP/s, bytes/s, Hz, watts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

from attnbench.core.case import Case
from attnbench.core.machine import Environment
from attnbench.core.policy import Policy
from attnbench.core.text import count

Status = Literal["ok", "skipped", "wrong", "wrong-kernel", "oom", "failed", "timeout"]
STATUSES: tuple[Status, ...] = get_args(Status)
Unproven = Literal["", "chain", "uncertainty", "proportion", "roofline", "clock"]  # what a verdict did not prove
# Part of the reason of a failed step of `attnbench capacity`.
NO_ROOM_TO_CHECK = "the check had too little memory, not the call"
# The parts of a note before and after a number of bytes.
LEAVES, MORE = "each call leaves ", " more allocated, until no memory is left"
WRONG: tuple[Status, ...] = ("wrong", "wrong-kernel")  # measured, but not the attention that was asked for


@dataclass(frozen=True)
class Approximation:
    """How far an approximate backend is from exact attention of the same inputs, on a sample of query rows."""

    what: str  # its computation in place of attention, for messages
    error: float  # ||out - exact|| / ||exact||, over the rows compared
    mass_kept: float | None  # share of exact probability on its pairs; None without pairs
    rows: int  # query rows compared in each head, of seqlen_q
    heads: int  # (batch entry, query head) pairs compared


@dataclass(frozen=True)
class Bitwise:
    """Whether a cell gives the same bits again: in more launches, in another process, and without its batch.

    Results are named as in `Accuracy.errors`. Where only the backward is timed, `out` is left out.
    """

    launches: int  # launches in one process on the same inputs
    differing: Mapping[str, int]  # result -> the launches whose bits were not those of the first; 0 where all were
    digests: Mapping[str, str]  # result -> BLAKE2b of its bytes in the first launch
    alone: tuple[str, ...] = ()  # results of one sequence whose bits differ where it is computed alone
    not_alone: str = ""  # why no sequence was computed alone; "" where one was
    process: tuple[str, ...] = ()  # results whose bits differ in another process
    no_process: str = "it was not tried"  # why there is no result of another process; "" where there is one


@dataclass(frozen=True)
class Proof:
    """A verdict from outside the process of a kernel, along chains of launches (run/untrusted.py)."""

    launches: tuple[int, ...]  # lengths of the timed chains; () where none was timed
    claimed: float | None  # seconds of one launch in these chains by the clock of the kernel's own process
    link: float | None  # seconds of the step from one launch to the next, which no latency includes
    within: float | None  # the share by which the claimed and the outside latency may differ
    checked: int  # results compared with a reference that was computed later
    unfenced: Mapping[str, str] = field(default_factory=dict)  # fence that does not hold here -> why
    # What is not proven: a chain is possible; the latency is known well enough; the time is in proportion to the
    # number of launches, is not below the roofline, agrees with the clock of the kernel's own process.
    failing: Unproven = ""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast of a job in the plan."""

    seconds: float  # wall time of the whole job
    call: float  # seconds of one call
    nbytes: int  # peak memory on the device, in bytes


@dataclass(frozen=True, slots=True)
class Job:
    """One planned measurement: one case on one backend in one round."""

    case: Case
    backend: str  # name of the backend
    round: int  # number of the round, from 0
    forecast: Forecast
    skip: str | None = None  # why the job will not run; None for a job that runs
    resumable: bool = False  # skipped for lack of time only, so --resume may run it

    @property
    def id(self) -> str:
        """The identity of the job within its run, which its record has too."""
        return f"{self.case.key}/{self.backend}/{self.round}"


@dataclass(frozen=True, slots=True)
class Measurement:
    """Raw samples of one quantity, in the order in which they were taken."""

    unit: str  # "s", "B", "Hz", "W", "C" (degrees Celsius), "FLOP/s", "B/s", or "" for a ratio
    values: Sequence[float]  # a tuple; from a file, a sequence that takes less memory

    def __eq__(self, other: object) -> bool:
        """Return whether two measurements have the same unit and samples, in any type of sequence."""
        return isinstance(other, Measurement) and (self.unit, *self.values) == (other.unit, *other.values)


@dataclass(frozen=True, slots=True)
class TensorError:
    """The error of one result tensor against the high-precision reference, over the elements compared."""

    max_error: float  # max |result - reference|, or as `where` says; NaN where the result has a NaN
    eager_error: float  # max_error of eager attention in the case's dtype; for fp8 see judge/exact_attention.py
    tolerance: float  # the largest accepted max_error: 2 * eager_error + rounding; see judge/tolerance.py
    relative: float  # ||result - reference|| / ||reference||
    # The rows or keys with errors above the tolerance, as in "from query row 128 on"; or "in the root mean square"
    # where only the root mean square is too large, and all errors here are root mean squares.
    where: str = ""

    @property
    def ok(self) -> bool:
        """Whether the error is within the tolerance; False for NaN."""
        return self.max_error <= self.tolerance


def told_apart(a: float, b: float) -> tuple[str, str]:
    """Return two numbers as text, with three significant digits or as many as distinguish them."""
    pairs = ((f"{a:.{n}g}", f"{b:.{n}g}") for n in range(3, 18))
    return next((pair for pair in pairs if pair[0] != pair[1]), (f"{a:.3g}", f"{b:.3g}"))


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The result of checking one case: its errors on a sample of query rows and heads, and other faults."""

    errors: Mapping[str, TensorError]  # result ("out", "dq", "dk", "dv") -> its error
    rows: int  # query rows compared, of seqlen_q
    heads: int  # (batch entry, query head) pairs compared
    unwritten: tuple[str, ...] = ()  # names of results that hold a value that is not finite, at any place
    flaws: tuple[str, ...] = ()  # other findings, one sentence each
    seed: int | None = None  # the operating system's seed for drawing rows; None where all were compared

    @property
    def ok(self) -> bool:
        """Whether nothing was found wrong."""
        return not self.unwritten and not self.flaws and all(e.ok for e in self.errors.values())

    def problem(self) -> str:
        """Return the fault in one line; "" where there is none."""
        parts = [f"{name} has values that are not finite (NaN, or never written)" for name in self.unwritten]
        parts += [
            f"{name} is off by {error} where {tolerance} is allowed (eager: {e.eager_error:.3g})"
            + (f", {e.where}" if e.where else "")
            for name, e in self.errors.items()
            if not e.ok and name not in self.unwritten
            for error, tolerance in [told_apart(e.max_error, e.tolerance)]
        ]
        parts += self.flaws
        return "; ".join(parts)


@dataclass(frozen=True)
class Record:
    """How one job ended, with its raw samples.

    `measurements` may hold, by name:

    - "time" (s): the samples of the policy's instrument, each the duration of one call
    - "span", "span_events" (s): for a call timed with CUDA events that takes under SPAN_LIMIT (core/policy.py), the
      same traced calls as read by CUPTI and by events
    - "enqueue" (s): the host's time to launch one call
    - "first_call" (s): preparation and first launch, with compilation and tuning
    - "plan" (s): for a backend that has one, building the plan that a batch of these lengths needs once a step, by the
      host's clock until the device is done
    - "plan_memory" (B): the most memory in use while "plan" was measured
    - "pairs" (""): for a case with a person's own mask, the pairs of one head that it keeps
    - "pairs_computed" (""): for a case with a mask by name, the pairs of one head that a forward computes, by blocks
    - "attention", "step_traced" (s): for a step of a model, in one traced step: the time in which its attention ran,
      and the time in which anything ran
    - "turns_events", "turns_graph", "turns_cupti" (s): where the instruments were compared, one reading per turn;
      "turns_traced" (s): the calls that CUPTI traced, as read by events
    - "call" (s), "memory_inputs" (B): by `attnbench capacity`, one call by the host's clock, and the inputs' memory
    - "memory_peak", "memory_driver" (B): the most memory in use beyond the inputs, by torch's allocator and by the
      driver; "memory_saved" (B): the memory that a forward keeps for its backward
    - "clock_held" (Hz): the SM clock while the calls of each batch ran; "clock_before", "clock_after" (Hz): the clock
      before and after them, while next to nothing ran; "clock_best" (Hz): the highest "clock_held", rejected batches
      included; "clock_idle" (Hz): the highest "clock_before" that this worker has read, in all its cells. In runs of
      method 1 "clock_held" is the clock after each batch, and the others are missing
    - "clock_sm", "clock_mem" (Hz), "power" (W), "temperature" (C): NVML's readings while sampling
    - "sustained" (s): one call without pauses; "sustained_power" (W) and "sustained_power_error" (a ratio)
    - with several ranks, "time" is the slowest rank's, call by call, and "time_rank0", ... (s) are the ranks' own;
      "compute" (s): the slowest rank's launch without its communication, and "clock_compute" (Hz): the SM clock of rank
      0 meanwhile; "moved" (B): the most that one rank sends in a call; "memory_peak" is the largest of the ranks, and
      "memory_ranks" (B) has each; "clock_ranks" (Hz): the median "clock_held" of each; "ceiling_bus" (B/s): the rate at
      which each rank sends in a large all-to-all
    - "cores_left" (""): on a CPU, the cores that other processes left to the worker while "time" was sampled
    - "busy" (""): the share of time in which other processes used the GPU while this one left it idle, after the cell;
      read in some jobs and in the last
    - "ceiling_matmul" (FLOP/s, in the case's dtype), "ceiling_copy" (B/s), "ceiling_exp" (1/s): the machine's own
      limits, read in some jobs
    """

    case: Case
    backend: str  # name of the backend
    round: int  # number of the round, from 0
    status: Status  # how the job ended
    reason: str | None = None  # why the status is not "ok", in one line
    measurements: Mapping[str, Measurement] = field(default_factory=dict)
    accuracy: Accuracy | None = None
    timer: str | None = (
        None  # the instrument used: "events", "graph", "cupti", "perf_counter", "outside" or "simulated"
    )
    l2: str | None = None  # "cold" or "warm" as verified with that instrument; "unproven" where that failed
    forecast: Forecast | None = None
    version: str | None = None  # the version of the backend's library
    seconds: float | None = None  # wall time of the whole job
    phases: Mapping[str, float] = field(default_factory=dict)  # phase of the job -> its wall seconds
    resumable: bool = False  # skipped for lack of time only, so --resume may run it
    limits: tuple[str, ...] = ()  # limits of the clock while sampling, in NVML's names
    host_bound: bool = False  # the host launched too slowly, so that samples contain its latency
    kernels: Mapping[str, int] = field(default_factory=dict)  # kernel -> how often it ran in one call; CPU: operators
    others: tuple[str, ...] = ()  # other processes that computed on the GPU at the same time
    ecc_errors: int = 0  # uncorrected memory errors that the GPU counted during the job
    notes: tuple[str, ...] = ()  # missing measurements and other remarks, one line each
    stderr: str | None = None  # the end of the worker's stderr, for a failed job
    # The process that judged the results: one beside the worker, or the worker itself; "" in files without this field
    judge: Literal["", "beside", "within"] = ""
    approximation: Approximation | None = None  # of an approximate backend; its accuracy is against its own definition
    bitwise: Bitwise | None = None  # where `Policy.bitwise` asked for it
    # Tool of compute-sanitizer that looked at this case -> why it gave no full answer, "" where it gave one. `reason`
    # has its findings.
    sanitizer: Mapping[str, str] = field(default_factory=dict)
    proof: Proof | None = None  # where `Policy.untrusted` asked for it

    @property
    def failing(self) -> str:
        """The property for which a result is wrong or not proven; "" for others.

        "values", "finite" or "form" of results, "kernel" (another one ran), or `Proof.failing`.
        """
        if self.status == "wrong-kernel":
            return "kernel"
        if self.status == "wrong" and self.accuracy:
            return "form" if self.accuracy.flaws else "finite" if self.accuracy.unwritten else "values"
        return self.proof.failing if self.proof else ""

    def __repr__(self) -> str:  # without the samples, which would flood a notebook
        return f"<Record {self.id}: {self.status}>"

    @property
    def id(self) -> str:
        """The identity of the record's job within its run."""
        return f"{self.case.key}/{self.backend}/{self.round}"


@dataclass(frozen=True)
class Search:
    """The sizes that an `attnbench capacity` searches, and its limits."""

    of: Literal["seqlen", "batch"]  # the searched size
    call_limit: float  # seconds of one call above which a size is too slow
    memory: int | None = None  # bytes that a step may take; None: the device's
    what: str = ""  # the model and phase of the answer; "" where none were given


@dataclass(frozen=True)
class Run:
    """A run as its file holds it: machine, software, policy, the plan, and a record for each job that has ended."""

    environment: Environment
    suite: str  # name of the suite, or of the command that made the cases
    policy: Policy
    plan: Sequence[Job]
    records: Sequence[Record] = ()  # the last record of each job, in order of their ends
    started: str = ""  # time of the start, ISO 8601, UTC
    argv: tuple[str, ...] = ()  # the command line
    versions: Mapping[str, str] = field(default_factory=dict)  # backend -> version of its library
    specs: Mapping[str, str] = field(default_factory=dict)  # backend -> "module:object" that it was loaded from
    interpreters: Mapping[str, str] = field(default_factory=dict)  # backend -> path of its Python, where one was chosen
    peak: Mapping[str, float] = field(default_factory=dict)  # dtype -> FLOP/s given by --peak; "" for every dtype
    reduced: bool = False  # a baseline: each measurement holds one value, for the gate
    method: int = 1  # number of the measuring method (core/policy.py); unlike methods are not comparable
    check: int = 1  # number of the check (core/policy.py); results that an old check calls wrong may be right
    bits: tuple[str, ...] = ()  # what a choice from its cells must have (results/bits.py), by --bits
    search: Search | None = None  # the search of `attnbench capacity`; the plan holds each search's first step
    turns: str = ""  # identity of an `attnbench ab` whose two runs alternated by round; a plan holds the first round
    replaced: Sequence[Record] = ()  # earlier records of jobs that were measured again

    @cached_property
    def own_code(self) -> frozenset[str]:
        """The backends that are a person's own code, which the command line named by its file or module.

        Backends that ship, or that an installed package registers, are named by their name.
        """
        return frozenset(
            name for name, spec in self.specs.items() if ".py:" in spec or any(spec in word for word in self.argv)
        )

    @cached_property
    def planned_rounds(self) -> int:
        """The number of planned rounds."""
        return 1 + max((job.round for job in self.plan), default=-1)

    def __repr__(self) -> str:
        records = count(len(self.records), "record")
        return f"<Run {self.suite} on {self.environment.device.name}, {self.started}: {records}>"


def fit_measurements(call: float, inputs: int, memory: Mapping[str, int]) -> dict[str, Measurement]:
    """Return the measurements of a step of a search: seconds of a call, bytes of the inputs and of other memory."""
    found = {"call": Measurement("s", (call,)), "memory_inputs": Measurement("B", (inputs,))}
    return {**found, **{name: Measurement("B", (value,)) for name, value in memory.items()}}
