"""The values that flow through attnbench, all frozen, standard library only.

    suite -> cases -> plan -> execute (workers) -> records -> store -> reports

Each stage takes some of these and gives others; nothing downstream reaches back up.
Units are SI and unprefixed everywhere below the report layer: seconds, bytes, FLOP/s, bytes/s, Hz, joules.
Tensors are (batch, seqlen, nheads, headdim); names are flash-attn's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, get_args

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.inputs import Inputs

Dtype = Literal["bf16", "fp16", "fp32", "fp8"]
Direction = Literal["fwd", "bwd", "fwd_bwd"]
Status = Literal["ok", "skipped", "wrong", "wrong-kernel", "oom", "failed", "timeout"]
Instrument = Literal["events", "graph", "cupti"]

DTYPES: tuple[Dtype, ...] = get_args(Dtype)
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
STATUSES: tuple[Status, ...] = get_args(Status)
INSTRUMENTS: tuple[Instrument, ...] = get_args(Instrument)
SHORT = 100e-6  # seconds as CUDA events read; below, a launch gap counts and the kernels' own span is read too
MASK_LAUNCHES = 128  # at most, that read which probabilities dropout keeps (reference/dropout.py)
ITEMSIZE: Mapping[str, int] = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1}  # bytes of an element of q, k and v
RESULT_ITEMSIZE: Mapping[str, int] = {**ITEMSIZE, "fp8": 2}  # of results and their gradients; bf16 of fp8


@dataclass(frozen=True)
class Shape:
    """The sizes of one attention call: q is (batch, seqlen_q, nheads, headdim), k and v have seqlen_k and nheads_k."""

    strict: ClassVar[bool] = True

    batch: int
    seqlen_q: int
    seqlen_k: int
    nheads: int
    nheads_k: int
    headdim: int
    headdim_v: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.nheads % self.nheads_k:
            raise ValueError(f"nheads ({self.nheads}) must be a multiple of nheads_k ({self.nheads_k})")


@dataclass(frozen=True)
class Case:
    """One thing to measure, whatever the backend: sizes, dtype, mask and pass.

    `causal` is aligned bottom-right: query i sees keys j <= i + seqlen_k - seqlen_q.
    `window_size` is (left, right), None for open. A query that sees no key has output 0. fp8 is forward only (fp8.py).
    """

    strict: ClassVar[bool] = True  # a field that is not known would make it another case

    shape: Shape
    dtype: Dtype
    direction: Direction
    causal: bool = False
    window_size: tuple[int | None, int | None] = (None, None)
    softcap: float = 0.0
    dropout_p: float = 0.0

    @cached_property
    def key(self) -> str:
        """Stable identity: a hash of the fields that differ from their default, so a new field orphans no baseline."""
        return _key(self)

    @cached_property
    def _hash(self) -> int:
        return int(self.key, 16)

    def __hash__(self) -> int:
        """Computed once, and the same in every process: a report looks cases up some hundred thousand times."""
        return self._hash

    @property
    def softmax_scale(self) -> float:
        return 1 / math.sqrt(self.shape.headdim)

    @property
    def has_forward(self) -> bool:
        return self.direction != "bwd"

    @property
    def has_backward(self) -> bool:
        return self.direction != "fwd"


@dataclass(frozen=True)
class Policy:
    """How to measure: instrument, cache state, and when there are enough samples."""

    timer: Instrument = "events"  # on a CPU perf_counter_ns takes its place
    l2: Literal["cold", "warm"] = "cold"
    warmup_s: float = 0.025
    min_samples: int = 10  # where one call takes under 15 ms; else 6, and 3 over 250 ms
    max_samples: int = 1000
    target: float = 0.005  # stop when the 95 % interval of the median is within this fraction of it
    min_seconds: float = 0.04  # of sampling, pauses included
    max_seconds: float = 0.2  # time cap of the samples of one cell, once min_samples are there
    burst_s: float = 0.015  # work between two looks at the clock, and pauses where it fell
    cross_check: float = 0.0  # share of the cells that all three instruments measure, in turns
    sustained_s: float = 0.0  # how long a cell may run without pauses to find its steady speed; 0 for not
    isolate_power: bool = False  # wait before each cell until the last one's power and heat are gone
    caches: Literal["kept", "fresh"] = "kept"  # fresh: each cell in a new process that finds no compiled kernel
    timeout_s: float = 120.0  # for a job before it is killed; more where it is forecast long, or starts a compiler
    seed: int = 0


@dataclass(frozen=True)
class Device:
    """What a plan must know of the device, read in a worker.

    Rates are quick readings for forecasts, not ceilings, and may come after backends were asked what they support.
    """

    kind: Literal["cuda", "cpu", "fake"]
    index: int
    name: str
    memory: int  # bytes in all
    free: int  # bytes free when read
    capability: tuple[int, int] | None = None  # CUDA compute capability
    multiprocessors: int | None = None
    l2: int | None = None  # bytes; on a CPU its last-level cache
    threads: int | None = None  # CPU: torch's intra-op threads
    matmul: Mapping[str, float] = field(default_factory=dict)  # dtype -> FLOP/s read in a moment
    copy: float | None = None  # bytes/s, read plus write
    uuid: str | None = None  # which unit of its model it is, as the driver tells

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}" if self.kind == "cuda" else self.kind

    @property
    def slug(self) -> str:
        """Its name as part of a file's: nvidia-h200."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")[:40]


@dataclass(frozen=True)
class Environment:
    """What must match for two runs to be comparable, and what a reader wants to know of the machine."""

    device: Device
    python: str
    platform: str
    torch: str | None
    cpu: str
    driver: str | None = None
    cuda: str | None = None  # the CUDA (or ROCm) version torch was built for
    power_limit_w: float | None = None
    clock_max_hz: float | None = None
    attnbench: str = ""
    git: str | None = None  # commit of the working directory, with "+dirty"
    packages: Mapping[str, str] = field(default_factory=dict)  # attention libraries and their versions

    def differences(self, other: Environment) -> list[str]:
        """What makes figures of `other` not comparable with these, one phrase each; empty when nothing does."""
        found = []
        for name in ("attnbench", "torch", "driver", "cuda", "power_limit_w", "packages", "cpu"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                found.append(f"{name} was {_brief(ours, theirs)} and is {_brief(theirs, ours)}")
        for name in ("kind", "name", "memory", "threads"):
            ours, theirs = getattr(self.device, name), getattr(other.device, name)
            if ours != theirs:
                found.append(f"device {name} was {ours} and is {theirs}")
        return found


@dataclass(frozen=True)
class Probe:
    """What a backend says of itself on this machine: a version, or why it cannot be used and what would help."""

    version: str | None = None
    reason: str | None = None
    install: str | None = None  # the command that would make it usable, where there is one

    @property
    def usable(self) -> bool:
        return self.reason is None

    @property
    def why_not(self) -> str | None:
        """The reason, and what to do; None where it can be used."""
        return None if self.usable else "; ".join(filter(None, [self.reason, self.install]))


@dataclass(frozen=True)
class Workspace:
    """Memory that a backend needs beyond inputs, outputs and gradients, and what it is for."""

    nbytes: int = 0
    what: str = "workspace"
    passes: float = 0.0  # how often one call reads or writes all of it, for the time forecast
    dense: bool = False  # masked pairs are computed too, as when the scores are a matmul


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


@dataclass(frozen=True)
class Script:
    """What a simulated backend says in place of a real measurement; see backends/fake.py."""

    clock: Callable[[], int]  # ns
    accuracy: Accuracy
    memory: Mapping[str, int]


@dataclass(frozen=True)
class Prepared:
    """One case made ready on one backend: closures that launch, and nothing else.

    `launch` runs one pass of the case's direction and returns its raw results; `canonical` names them
    ("out"; "dq", "dk", "dv") as views in (batch, seqlen, nheads, headdim); an e4m3 "out" of an fp8 case comes with
    "descale_out", the float32 to multiply it by. `forward` runs the forward alone, keeping for backward what it keeps,
    and returns what holds that alive. `reads` are the tensors "q", "k", "v" and "dout" that `launch` reads, where they
    are not the inputs' own memory but copies made for it, headdim last: the check changes them in place, and the
    results must follow. In fp8 the e4m3 copies of q, k and v must be named.
    """

    launch: Callable[[], Any]
    canonical: Callable[[Any], Mapping[str, Tensor]]
    forward: Callable[[], Any] | None = None
    script: Script | None = None
    reads: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Signature:
    """What a backend's kernels look like, as regular expressions to be found in their names (operators on a CPU)."""

    runs: tuple[str, ...] = ()  # each in at least one
    never: tuple[str, ...] = ()  # none of these in any


class Backend(Protocol):
    """An attention implementation. One file in backends/ and one line in its map; see CONTRIBUTING.md."""

    name: str

    def probe(self) -> Probe:
        """Whether it can be used in this interpreter. May import the library."""

    def unsupported(self, case: Case, device: Device) -> str | None:
        """Why it cannot run this case, or None. Pure; imports nothing heavy."""

    def workspace(self, case: Case) -> Workspace:
        """What it allocates beyond inputs, outputs and gradients, for the forecast. Pure."""

    def signature(self, case: Case, device: Device) -> Signature:
        """What its kernels look like: a cell in which others ran is wrong-kernel. Pure."""

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        """All that is not the launch happens here: layouts, masks, compilation, plans. May raise Unsupported."""


class Unsupported(Exception):
    """Raised by `prepare` or a first launch: the library refuses this case, with its own reason. A skip."""


def _key(case: Case) -> str:
    said: dict[str, Any] = {
        "shape": vars(case.shape),
        "dtype": case.dtype,
        "direction": case.direction,
    }
    for f in dataclasses.fields(case):
        value = getattr(case, f.name)
        if f.default is not dataclasses.MISSING and value != f.default:
            said[f.name] = float(value) if isinstance(f.default, float) else value  # 30 and 30.0 are one case
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def _brief(value: Any, other: Any) -> str:
    """A value for an error line; of two mappings only what differs."""
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return str({k: value.get(k) for k in {*value, *other} if value.get(k) != other.get(k)})
    return str(value)
