"""The plan of a run: a job for each case, backend and round, with a forecast or the reason why it is skipped.

The forecast time of a call is its FLOPs at a fraction of the measured matmul rate, plus its memory traffic at the
measured rate of a copy. The traffic includes tensors that the backend writes and reads again, such as scores. The
forecast need only be good enough to skip jobs that cannot be measured.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from attnbench.backends import kinds_of
from attnbench.core.backend import MASK_LAUNCHES, Workspace
from attnbench.core.case import DIRECTIONS, RESULT_ITEMSIZE, Case
from attnbench.core.flops import flops, ideal_bytes, input_bytes
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Forecast, Job, Record
from attnbench.core.sizes import format_bytes, format_duration, format_size

OVERHEAD = {"cuda": 0.24, "cpu": 0.45, "fake": 0.001}  # seconds of a job beside its calls: inputs, check, memory
BACKWARD_OVERHEAD = {"cuda": 0.05, "cpu": 0.15, "fake": 0.0}  # more seconds where the check has gradients
FIRST_OVERHEAD = {"cuda": 1.0, "cpu": 0.0, "fake": 0.0}  # more seconds of a worker's first job, which loads kernels
RANKS_OVERHEAD = {"cuda": 1.5, "cpu": 1.0, "fake": 0.0}  # more seconds of a job on several devices
UNTRUSTED_OVERHEAD = {"cuda": 6.0, "cpu": 3.0, "fake": 0.0}  # more seconds of a job with Policy.untrusted
LAUNCH = {"cuda": 20e-6, "cpu": 50e-6, "fake": 5e-6}  # seconds of a launch
LONG_CALL = 0.15  # seconds of a call from which fewer calls check a cell (worker/cell_steps.py)
TOO_LOW = 2.0  # assumed most of a run's time over its forecast
BITWISE_CALLS = 12  # calls whose bits are compared (worker/same_bits.py)
ROOM = 1.2  # an advised time limit over the forecast
CONTEXT = 6 * 2**28  # bytes of a worker's CUDA context, libraries, profiler and buffer to flush L2
SHARED = 3 * 2**30  # bytes of inputs and results that the judge shares with workers of a group (run/workers.py)

Problem = tuple[Any, ...]  # a case without its pass


@dataclass(frozen=True)
class CaseSupport:
    """A backend's answer for one case: why it cannot run it, or its facts for a forecast."""

    reason: str | None = None  # why it cannot; None where it can
    workspace: Workspace = field(default_factory=Workspace)  # memory beside inputs and outputs
    efficiency: float = 0.4  # speed over a matmul's, from 1e-6 to 10
    compiles: float = 0.0  # seconds that a first call of a kind of case takes on a GPU, up to an hour

    def __post_init__(self) -> None:
        if not (1e-6 <= self.efficiency <= 10 and 0 <= self.compiles <= 3600):
            raise ValueError(f"efficiency {self.efficiency!r} or compiles {self.compiles!r} is out of bounds")
        if self.workspace.nbytes < 0 or not 0 <= self.workspace.passes < math.inf:
            raise ValueError(f"{self.workspace} is not an amount of memory")


def make_plan(
    cases: Sequence[Case],
    answers: Mapping[str, Sequence[CaseSupport]],
    device: Device,
    policy: Policy,
    *,
    rounds: int = 1,
    only: Mapping[Case, Sequence[str]] | None = None,
    devices: int | None = None,
    last: Collection[str] = (),
) -> tuple[Job, ...]:
    """Return a job for every case, backend and round; `answers` has one answer of each backend for each case.

    A case in `only` has jobs of only the backends with one of its names or patterns; a backend that computes another
    kind of attention, of other cases, has no job where a backend of the case's kind has one. In each round the cases,
    and the backends of each case, are in another random order. But the first round begins with the cases of
    `headline`, the cheapest first, so that a waiting person sees them soon; and the backends of `last` come after all
    others. Jobs whose memory does not fit, or with more ranks than `devices`, are skipped. `within` chooses among the
    jobs for a time limit.
    """
    jobs: list[Job] = []
    opening = sum(any(answer.reason is None for answer in of_cases) for of_cases in answers.values())
    workers = 1 + opening * len({case.ranks for case in cases})  # 1 is the judge
    beside = CONTEXT * workers + (SHARED if opening > 1 else 0)
    free = device.free - beside if device.kind == "cuda" else device.free
    kinds, computed = {case.kind for case in cases}, {name: kinds_of(name) for name in answers}
    for round_ in range(rounds):
        order = random.Random(f"{policy.seed}/{round_}")
        shuffled = list(enumerate(cases))
        order.shuffle(shuffled)
        if round_ == 0:
            first = headline(cases)
            shuffled.sort(key=lambda of: flops(of[1]) if of[1] in first else math.inf)
        for index, case in shuffled:
            patterns = (only or {}).get(case, ("*",))
            names = [name for name in answers if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
            if any(case.kind in computed[name] for name in names):
                names = [name for name in names if case.kind in computed[name] or kinds.isdisjoint(computed[name])]
            order.shuffle(names)
            for name in names:
                answer = answers[name][index]
                forecast = forecast_job(case, answer, device, policy)
                skip = answer.reason or too_few_devices(case, devices) or _too_large(forecast, answer.workspace, free)
                jobs.append(Job(case, name, round_, forecast, skip))
    jobs.sort(key=lambda job: (job.round, job.backend in last))
    compiles = {name: max((of.compiles for of in of_cases), default=0.0) for name, of_cases in answers.items()}
    return tuple(_with_first_jobs(jobs, FIRST_OVERHEAD[device.kind], compiles if device.kind == "cuda" else {}))


def _with_first_jobs(jobs: Iterable[Job], seconds: float, compiles: Mapping[str, float]) -> Iterator[Job]:
    """Yield jobs, with the seconds of first calls added to their forecasts.

    The first job of each backend and round takes `seconds` more, the first of each backend in a kind of case the
    seconds in `compiles`: compilers specialise for all but batch and lengths, and later rounds find their results on
    disk.
    """
    begun: set[Any] = set()
    for job in jobs:
        kind = job.backend, _panel(job.case), job.case.direction, job.case.is_decode
        more: dict[Any, float] = {(job.backend, job.round): seconds, kind: compiles.get(job.backend, 0.0)}
        if job.skip is None:
            added = sum(more[one] for one in more.keys() - begun)
            begun |= more.keys()
            job = replace(job, forecast=replace(job.forecast, seconds=job.forecast.seconds + added))
        yield job


def headline(cases: Collection[Case]) -> set[Case]:
    """Return the cases that a person looks at first: one panel of a report, with all lengths and passes.

    It is the panel with the most cases; among several, a causal one; among these, with a headdim closest to 128.
    """
    panels: dict[Any, list[Case]] = {}
    for case in cases:
        panels.setdefault(_panel(case), []).append(case)
    most = max(panels.values(), key=lambda of: (len(of), of[0].causal, -abs(of[0].shape.headdim - 128)), default=[])
    return {*most}


def _panel(case: Case) -> tuple[Any, ...]:
    """Return the common fields of a panel's cases: all except batch, lengths and pass."""
    s, own = case.shape, {field.name: getattr(case, field.name) for field in fields(case)}
    del own["shape"], own["direction"]
    return (s.nheads, s.nheads_k, s.headdim, s.headdim_v, *own.values())


def forecast_job(
    case: Case, answer: CaseSupport, device: Device, policy: Policy, *, with_copies: bool = True
) -> Forecast:
    """Return the forecast of a job: its seconds, the seconds of one call, and the bytes at the peak.

    `with_copies` counts a second copy of the inputs, which a run makes.
    """
    rate = device.matmul.get(case.dtype) or 1e11
    copy = device.copy or 1e10
    traffic = ideal_bytes(case) / case.ranks + answer.workspace.nbytes * answer.workspace.passes
    work = flops(replace(case, causal=False, window_size=(None, None), mask="") if answer.workspace.dense else case)
    call = LAUNCH[device.kind] + work / (rate * case.ranks * answer.efficiency) + traffic / copy
    least = policy.min_samples if call < 0.005 else min(6 if call < 0.05 else 3, policy.min_samples)
    longest = policy.min_seconds if device.kind == "cuda" else policy.max_seconds  # samples on a CPU scatter
    sampling = max(least * call, min(longest, 100 * call))
    repeated = call < LONG_CALL
    overhead = OVERHEAD[device.kind]
    calls = 3 + repeated  # one on hard inputs, one for memory, one traced; the others repeat old inputs
    if case.has_backward:
        calls += 3  # forwards of a backward
        overhead += BACKWARD_OVERHEAD[device.kind]
    if case.dropout_p:
        calls += _calls_to_read_dropout(case)
    if policy.bitwise:  # in this process, of one sequence, and in another process
        calls += BITWISE_CALLS
        overhead += OVERHEAD[device.kind]
    if policy.untrusted:  # chains of launches, and a new process
        overhead += UNTRUSTED_OVERHEAD[device.kind]
    seconds = overhead + calls * call + sampling + min(policy.warmup_s, 100 * call) + policy.sustained_s
    if case.ranks > 1:  # joining the group, whole heads on rank 0, calls without communication
        seconds += RANKS_OVERHEAD[device.kind] + 4 * call + sampling
    if case.step:  # the exact answer takes about as many calls, in fp32
        seconds += 10 * call + (5.0 if device.kind != "fake" else 0.0)
    if device.kind == "cuda":
        seconds += policy.cross_check * 24 * max(2.5 * call, 0.04)
    tensors = _tensor_bytes(case) // case.ranks // (1 if with_copies else 2)
    return Forecast(seconds, call, tensors + int(answer.workspace.nbytes))


def _calls_to_read_dropout(case: Case) -> int:
    """Return the number of calls that read dropout's mask twice and check its distribution (judge/)."""
    if case.has_backward:
        return 3 + 2 * 8  # for the rows of a large case; the further calls of small cases take no time
    return 3 + 2 * min(MASK_LAUNCHES, math.ceil(case.shape.seqlen_k / case.shape.headdim_v))


def _tensor_bytes(case: Case) -> int:
    """Return the bytes of inputs, outputs and gradients, both as given and as a copy in the library's own layout.

    The gradients of packed inputs are counted once more, as parts of one tensor. The inputs of an fp8 case are in bf16.
    """
    if case.step:  # weights and their gradients
        return input_bytes(case) * (2 if case.has_backward else 1)
    s, size = case.extent, RESULT_ITEMSIZE[case.dtype]
    rows = s.batch * s.seqlen_q * s.nheads * (s.headdim + s.headdim_v)
    keys = s.batch * s.seqlen_k * s.nheads_k * (s.headdim + s.headdim_v)
    packed = s.batch * s.seqlen_q * (s.nheads + 2 * s.nheads_k) * s.headdim if case.layout == "packed" else 0
    return ((rows + keys) * 4 + packed if case.has_backward else (rows + keys) * 2) * size


def too_few_devices(case: Case, devices: int | None) -> str | None:
    """Return why a case cannot run on `devices` GPUs; None where it can, or where they are not counted (on a CPU)."""
    if devices is None or case.ranks <= devices:
        return None
    return f"needs {case.ranks} GPUs; there {'is' if devices == 1 else 'are'} {devices} (--device cuda:0-3 names them)"


def _too_large(forecast: Forecast, workspace: Workspace, free: int) -> str | None:
    if forecast.nbytes <= free:
        return None
    if workspace.nbytes > forecast.nbytes / 2:
        return f"needs {format_bytes(workspace.nbytes)} of {workspace.what}; {format_bytes(free)} free"
    return f"needs {format_bytes(forecast.nbytes)}; {format_bytes(free)} free"


def longest_sequence(case: Case) -> int:
    """Return the longer of a case's two sequence lengths."""
    return max(case.shape.seqlen_q, case.shape.seqlen_k)


def problem(case: Case) -> Problem:
    """Return a case without its pass; the passes of a problem are measured together."""
    return tuple(getattr(case, field.name) for field in fields(case) if field.name != "direction")


def places(jobs: Sequence[Job], kind: str) -> dict[Problem, int]:
    """Return problem -> its place in the order for a time limit: the cheapest first, on a CPU the shortest.

    The cost of a problem is the forecast of its jobs on all backends, in all passes and rounds.
    """
    costs = _costs(jobs)
    lengths = {problem(job.case): longest_sequence(job.case) if kind == "cpu" else 0 for job in jobs}
    return {one: place for place, one in enumerate(sorted(costs, key=lambda one: (lengths[one], costs[one])))}


def _costs(jobs: Sequence[Job]) -> dict[Problem, float]:
    costs: dict[Problem, float] = {}
    for job in jobs:
        key = problem(job.case)
        costs[key] = costs.get(key, 0.0) + (job.forecast.seconds if job.skip is None or job.resumable else 0.0)
    return costs


def within(jobs: Sequence[Job], limit: float, kind: str, last: Collection[str] = ()) -> tuple[Job, ...]:
    """Return the jobs for a time limit (seconds) on a device of this kind: whole problems, the first by `places`.

    The measured problems are then complete, on all backends and in all passes. The first problem that does not fit is
    left out, and so are all later ones: on a CPU, where the longest sequences take hours, they have no jobs, else their
    jobs are skipped. Where not even one problem fits, the cheapest jobs of the first are measured.

    Where the forecasts might be too low, the jobs of a round are in the order of their problems, and within these by
    pass, so that whole problems are measured; jobs of the backends in `last` come after the others.
    """
    costs, order = _costs(jobs), places(jobs, kind)
    spent = dict(zip(order, itertools.accumulate(costs[one] for one in order), strict=True))
    fitting = {one for one in order if spent[one] <= limit}
    first = next((one for one in order if costs[one]), None)
    kept: set[str] = set()  # jobs of a problem that does not fit as a whole
    if first is not None and first not in fitting:
        left = limit
        for job in sorted((j for j in jobs if problem(j.case) == first), key=lambda j: j.forecast.seconds):
            if not job.skip and job.forecast.seconds <= left:
                left -= job.forecast.seconds
                kept.add(job.id)
    found = [
        job if job.skip or problem(job.case) in fitting or job.id in kept else skip_over_limit(job, limit)
        for job in jobs
        if kind != "cpu" or problem(job.case) in fitting or problem(job.case) == first
    ]
    if kind == "cpu" or TOO_LOW * sum(costs.values()) > limit:
        found.sort(
            key=lambda j: (j.round, j.backend in last, order[problem(j.case)], DIRECTIONS.index(j.case.direction))
        )
    return tuple(found)


def left_out(jobs: Sequence[Job], kept: Sequence[Job], limit: float, kind: str) -> str:
    """Return a line with the lengths that a time limit left out, and the option that includes them; "" where none.

    `kept` are the jobs of `jobs` that `within` chose.
    """
    costs, order = _costs(jobs), places(jobs, kind)
    planned = {problem(job.case) for job in kept}
    measured = {problem(job.case) for job in kept if not job.skip}
    out = [one for one in order if one not in (measured if costs[one] else planned)]
    if not out:
        return ""
    lengths = {problem(job.case): longest_sequence(job.case) for job in jobs}
    missing = sorted({lengths[one] for one in out})
    cases = {job.case for job in jobs}
    left = sum(problem(case) in out for case in cases)
    ends = " to ".join(dict.fromkeys(format_size(length) for length in (missing[0], missing[-1])))
    next_ = _as_option(sum(costs[one] for one in order if order[one] <= order[out[0]]))
    everything = _as_option(sum(costs.values()))
    more = f"{next_} takes in the next, " if next_ != everything else ""
    return (
        f"the time limit of {format_duration(limit)} leaves out {left} of {len(cases)} cases, of seqlen {ends}: "
        f"--time-limit {more}{everything} all of them"
    )


def _as_option(seconds: float) -> str:
    """Return a time limit, with some room, for jobs with a forecast of `seconds`: "12m", "3h"."""
    minutes = math.ceil(ROOM * seconds / 60)
    return f"{minutes}m" if minutes < 120 else f"{math.ceil(minutes / 60)}h"


def skip_over_limit(job: Job, limit: float) -> Job:
    """Return a job as skipped because of the time limit (seconds); --resume measures it."""
    reason = (
        f"forecast {format_duration(job.forecast.seconds)}; no room for it beside cheaper cases "
        f"within the time limit of {format_duration(limit)} (--time-limit)"
    )
    return replace(job, skip=reason, resumable=True)


def skipped_record(job: Job) -> Record:
    """Return the record of a job that is skipped."""
    return Record(job.case, job.backend, job.round, "skipped", job.skip, forecast=job.forecast, resumable=job.resumable)
