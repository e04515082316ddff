"""The A/A test: two processes measure one implementation in turns, to see what is error on this machine.

With the default policy and through the same pool as a run, so that whatever spoils a run spoils it too. The processes
swap their order every turn; resolution.py says what the differences mean.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from attnbench.analysis.doctor.resolution import MIN_TURNS, Resolution, resolve
from attnbench.core import stats
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Job, Record
from attnbench.core.sizes import duration, short
from attnbench.run.plan import CaseSupport, forecast_job
from attnbench.run.workers import WorkerPool

PAIR = ("a", "b")
MAX_TURNS = 24


@dataclass(frozen=True)
class CaseTrial:
    """Readings of one case, in seconds: one a turn of either process."""

    case: Case
    a: tuple[float, ...]
    b: tuple[float, ...]

    @property
    def differences(self) -> list[float]:
        return [math.log(b / a) for a, b in zip(self.a, self.b, strict=True)]


@dataclass(frozen=True)
class Trial:
    """The A/A test as it went."""

    backend: str
    seconds: float
    cases: tuple[CaseTrial, ...]
    failed: Record | None = None  # the job that ended it
    limits: tuple[str, ...] = ()  # what held the clock down meanwhile
    others: tuple[str, ...] = ()  # who computed on the GPU meanwhile
    ecc_errors: int = 0
    host_bound: bool = False

    def resolutions(self) -> list[tuple[Case, Resolution]]:
        """Of the cases with enough turns."""
        told = [c for c in self.cases if len(c.a) >= MIN_TURNS]
        return [(c.case, resolve(c.differences, len(told))) for c in told]

    def worst(self) -> tuple[Case, Resolution] | None:
        """The case whose smallest difference is the largest: what holds for all of them."""
        return max(self.resolutions(), key=lambda pair: pair[1].one, default=None)


def trial_cases(kind: str) -> list[Case]:
    """A short one, a long one (on a GPU held by its power), and one between."""
    if kind == "cpu":
        sizes = [(4, 128, 4, 64), (1, 512, 4, 64), (2, 256, 4, 64)]
    else:
        sizes = [(16, 1024, 16, 128), (1, 16384, 16, 128), (4, 4096, 16, 128)]
    shapes = [Shape(batch, n, n, heads, heads, dim, dim) for batch, n, heads, dim in sizes]
    return [Case(shape, "fp32" if kind == "cpu" else "bf16", "fwd", causal=True) for shape in shapes]


def try_out(
    pool: WorkerPool,
    backend: str,
    cases: Sequence[Case],
    device: Device,
    seconds: float,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Trial:
    """Turns in pairs, so that going first or second cancels, while another pair fits the time.

    Where no MIN_TURNS of all cases fit, only the first one goes on.
    """
    policy, began, turn, longest = Policy(), clock(), 0, 0.0
    readings: dict[str, dict[str, list[float]]] = {case.key: {"a": [], "b": []} for case in cases}
    records: list[Record] = []
    going = list(cases)
    while True:
        started = clock()
        left = max(0.0, seconds - (started - began))
        say(f"A/A test: turn {turn + 1}, {duration(left)} left at most")
        for case in going:
            for name in PAIR if turn % 2 == 0 else PAIR[::-1]:
                job = Job(case, name, turn, forecast_job(case, CaseSupport(), device, policy))
                records.append(record := pool.measure(job, policy, device))
                if record.status != "ok":
                    return _trial(backend, cases, readings, records, clock() - began)
                readings[case.key][name].append(stats.median(record.measurements["time"].values))
        turn += 1
        longest = max(longest, clock() - started)
        if turn % 2:
            continue
        left = seconds - (clock() - began)
        if turn < MIN_TURNS and left < (MIN_TURNS - turn) * longest:
            longest /= len(going)
            going = going[:1]
        if turn >= MAX_TURNS or left < 2 * longest:
            return _trial(backend, cases, readings, records, clock() - began)


def _trial(
    backend: str,
    cases: Sequence[Case],
    readings: Mapping[str, Mapping[str, Sequence[float]]],
    records: Sequence[Record],
    seconds: float,
) -> Trial:
    measured = []
    for case in cases:
        a, b = readings[case.key]["a"], readings[case.key]["b"]
        turns = min(len(a), len(b))
        measured.append(CaseTrial(case, tuple(a[:turns]), tuple(b[:turns])))
    return Trial(
        backend,
        seconds,
        tuple(measured),
        next((r for r in records if r.status != "ok"), None),
        tuple(dict.fromkeys(limit for r in records for limit in r.limits)),
        tuple(dict.fromkeys(other for r in records for other in r.others)),
        sum(r.ecc_errors for r in records),
        any(r.host_bound for r in records),
    )


def label(case: Case) -> str:
    """1k b16: what tells the cases of a trial apart."""
    return f"{short(case.shape.seqlen_q)} b{case.shape.batch}"
