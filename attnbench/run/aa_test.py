"""The A/A test: two processes measure the same implementation in turns, so that any difference between them is error.

It uses the default policy and the pool of workers of a run, so that all causes that disturb a run disturb the test too.
The processes swap their order every turn. analysis/doctor/resolution.py judges the differences.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnbench.core import stats
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Job, Record
from attnbench.core.sizes import format_duration, format_size
from attnbench.run.plan import CaseSupport, forecast_job
from attnbench.run.workers import WorkerPool

PAIR = ("a", "b")  # names of the two processes
MAX_TURNS = 24
MIN_TURNS = 4  # the least turns that give the spread enough degrees of freedom


@dataclass(frozen=True)
class CaseReadings:
    """The latencies of one case in seconds, one per process and turn."""

    case: Case
    a: tuple[float, ...]
    b: tuple[float, ...]

    @property
    def differences(self) -> list[float]:
        """ln(b / a) of each turn."""
        return [math.log(b / a) for a, b in zip(self.a, self.b, strict=True)]


@dataclass(frozen=True)
class AATest:
    """The readings of an A/A test, and events on the machine during the test."""

    backend: str
    seconds: float  # duration of the test
    cases: tuple[CaseReadings, ...]
    failed: Record | None = None  # the job whose failure ended the test
    limits: tuple[str, ...] = ()  # limits that held the clock down
    others: tuple[str, ...] = ()  # other processes that computed on the GPU
    ecc_errors: int = 0
    host_bound: bool = False


def aa_test_cases(kind: str) -> list[Case]:
    """Return a short case, a long case (which a GPU's power limit slows), and one between, for a kind of device."""
    if kind == "cpu":
        sizes = [(4, 128, 4, 64), (1, 512, 4, 64), (2, 256, 4, 64)]
    else:
        sizes = [(16, 1024, 16, 128), (1, 16384, 16, 128), (4, 4096, 16, 128)]
    shapes = [Shape(batch, n, n, heads, heads, dim, dim) for batch, n, heads, dim in sizes]
    return [Case(shape, "fp32" if kind == "cpu" else "bf16", "fwd", causal=True) for shape in shapes]


def case_label(case: Case) -> str:
    """Return the name of a case within an A/A test: "1k b16"."""
    return f"{format_size(case.shape.seqlen_q)} b{case.shape.batch}"


def run_aa_test(
    pool: WorkerPool,
    backend: str,
    cases: Sequence[Case],
    device: Device,
    seconds: float,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> AATest:
    """Measure the cases in turns for about `seconds`, by the pool's two workers PAIR, which both run the backend.

    Turns come in pairs, so that the effect of the order cancels, and pairs are added while they fit the time. Where
    MIN_TURNS of all cases do not fit, only the first case is continued. The first job that is not ok ends the test.
    """
    policy, began, turn, longest = Policy(), clock(), 0, 0.0
    records: list[Record] = []
    going = list(cases)
    while True:
        started = clock()
        left = max(0.0, seconds - (started - began))
        say(f"A/A test: turn {turn + 1}, {format_duration(left)} left at most")
        for case in going:
            for name in PAIR if turn % 2 == 0 else PAIR[::-1]:
                job = Job(case, name, turn, forecast_job(case, CaseSupport(), device, policy))
                records.append(pool.measure(job, policy, device))
                if records[-1].status != "ok":
                    return _aa_test(backend, cases, records, clock() - began)
        turn += 1
        longest = max(longest, clock() - started)
        if turn % 2:
            continue
        left = seconds - (clock() - began)
        if turn < MIN_TURNS and left < (MIN_TURNS - turn) * longest:
            longest /= len(going)
            going = going[:1]
        if turn >= MAX_TURNS or left < 2 * longest:
            return _aa_test(backend, cases, records, clock() - began)


def _aa_test(backend: str, cases: Sequence[Case], records: Sequence[Record], seconds: float) -> AATest:
    """Return the A/A test of these records, in their order; a turn that only one process measured is left out."""

    def latencies(case: Case, name: str) -> list[float]:
        own = (r for r in records if r.status == "ok" and (r.case, r.backend) == (case, name))
        return [stats.median(r.measurements["time"].values) for r in own]

    turns = [(case, [*zip(*(latencies(case, name) for name in PAIR), strict=False)]) for case in cases]
    return AATest(
        backend,
        seconds,
        tuple(CaseReadings(case, tuple(a for a, _ in pairs), tuple(b for _, b in pairs)) for case, pairs in turns),
        next((r for r in records if r.status != "ok"), None),
        tuple(dict.fromkeys(limit for r in records for limit in r.limits)),
        tuple(dict.fromkeys(other for r in records for other in r.others)),
        sum(r.ecc_errors for r in records),
        any(r.host_bound for r in records),
    )
