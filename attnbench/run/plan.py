"""Cases x backends x device -> jobs, each with a forecast of its time and memory, or the reason why it is skipped.

The forecast of one call is its FLOPs at a fraction of the matmul rate read at the start, plus the traffic of what the
backend writes to memory and reads again (scores). It need only be right enough to skip what cannot be measured.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from attnbench.core.backend import MASK_LAUNCHES, Workspace
from attnbench.core.case import RESULT_ITEMSIZE, Case
from attnbench.core.flops import flops, ideal_bytes
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Forecast, Job, Record
from attnbench.core.sizes import format_bytes, format_duration

OVERHEAD = {"cuda": 0.15, "cpu": 0.35, "fake": 0.001}  # seconds a job costs beside its calls: inputs, check, memory
LAUNCH = {"cuda": 20e-6, "cpu": 50e-6, "fake": 5e-6}
CONTEXT = 6 * 2**28  # bytes that one worker's CUDA context, libraries, profiler and flush take


@dataclass(frozen=True)
class CaseSupport:
    """What a backend says of one case: why not, or what memory it needs and how close to a matmul it may come."""

    reason: str | None = None
    workspace: Workspace = field(default_factory=Workspace)
    efficiency: float = 0.4


def make_plan(
    cases: Sequence[Case],
    answers: Mapping[str, Sequence[CaseSupport]],
    device: Device,
    policy: Policy,
    *,
    time_limit: float | None = None,
    rounds: int = 1,
) -> tuple[Job, ...]:
    """Every case on every backend, `rounds` times; in each round cases are shuffled, and the backends of each case."""
    jobs = []
    free = device.free - CONTEXT * len(answers) if device.kind == "cuda" else device.free
    for round_ in range(rounds):
        order = random.Random(f"{policy.seed}/{round_}")
        shuffled = list(enumerate(cases))
        order.shuffle(shuffled)
        for index, case in shuffled:
            names = list(answers)
            order.shuffle(names)
            for name in names:
                answer = answers[name][index]
                forecast = forecast_job(case, answer, device, policy)
                skip = answer.reason or _too_large(forecast, answer.workspace, free)
                jobs.append(Job(case, name, round_, forecast, skip))
    return tuple(_within(jobs, time_limit) if time_limit else jobs)


def forecast_job(case: Case, answer: CaseSupport, device: Device, policy: Policy) -> Forecast:
    """Seconds of the job and of one call, and bytes at the peak."""
    rate = device.matmul.get(case.dtype) or 1e11
    copy = device.copy or 1e10
    traffic = ideal_bytes(case) + answer.workspace.nbytes * answer.workspace.passes
    work = flops(replace(case, causal=False, window_size=(None, None)) if answer.workspace.dense else case)
    call = LAUNCH[device.kind] + work / (rate * answer.efficiency) + traffic / copy
    least = policy.min_samples if call < 0.015 else min(6 if call < 1 else 3, policy.min_samples)
    sampling = max(least * call, min(policy.max_seconds, 100 * call))
    calls = 3 + (2 if case.has_backward else 0)  # checked, for memory, traced; forwards for a backward
    if case.dropout_p:
        calls += _reading(case)
    seconds = OVERHEAD[device.kind] + calls * call + sampling + min(policy.warmup_s, 100 * call) + policy.sustained_s
    if device.kind == "cuda":
        seconds += policy.cross_check * 24 * max(2.5 * call, 0.04)
    return Forecast(seconds, call, _tensors(case) + int(answer.workspace.nbytes))


def _reading(case: Case) -> int:
    """Calls that read the mask of dropout, twice, and a few that look at how it is drawn (dropout_mask.py)."""
    if case.has_backward:
        return 3 + 2 * 8  # for the rows of a large case; small ones take more, and no time
    return 3 + 2 * min(MASK_LAUNCHES, math.ceil(case.shape.seqlen_k / case.shape.headdim_v))


def _tensors(case: Case) -> int:
    """Bytes of inputs, outputs and gradients, once as given and once in the library's own layout.

    The inputs of an fp8 case are given in bf16.
    """
    s, size = case.shape, RESULT_ITEMSIZE[case.dtype]
    rows = s.batch * s.seqlen_q * s.nheads * (s.headdim + s.headdim_v)
    keys = s.batch * s.seqlen_k * s.nheads_k * (s.headdim + s.headdim_v)
    return (rows + keys) * size * (4 if case.has_backward else 2)


def _too_large(forecast: Forecast, workspace: Workspace, free: int) -> str | None:
    if forecast.nbytes <= free:
        return None
    if workspace.nbytes > forecast.nbytes / 2:
        return f"needs {format_bytes(workspace.nbytes)} of {workspace.what}; {format_bytes(free)} free"
    return f"needs {format_bytes(forecast.nbytes)}; {format_bytes(free)} free"


def _within(jobs: list[Job], limit: float) -> list[Job]:
    """Skips the dearest jobs, as few as needed, so that the forecast keeps the limit."""
    left, kept = limit, set()
    for index in sorted((i for i, j in enumerate(jobs) if not j.skip), key=lambda i: jobs[i].forecast.seconds):
        if jobs[index].forecast.seconds <= left:
            left -= jobs[index].forecast.seconds
            kept.add(index)
    return [j if j.skip or i in kept else skip_over_limit(j, limit) for i, j in enumerate(jobs)]


def skip_over_limit(job: Job, limit: float) -> Job:
    reason = (
        f"forecast {format_duration(job.forecast.seconds)}; no room for it beside cheaper jobs "
        f"within the time limit of {format_duration(limit)} (--time-limit)"
    )
    return replace(job, skip=reason, resumable=True)


def skipped_record(job: Job) -> Record:
    """How a job ends that will not run."""
    return Record(job.case, job.backend, job.round, "skipped", job.skip, forecast=job.forecast, resumable=job.resumable)
