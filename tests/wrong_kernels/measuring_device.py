"""Measure a wrong kernel like a run, through a worker, and read the record like a report.

The files wrong_results.py, stale_results.py, wrong_dropout.py, wrong_fp8.py, mislabelled_kernels.py, hidden_costs.py
and wrong_on_gpu.py have kernels with one fault each; right_attention.py has right ones. Each test names the fault of a
kernel or of the machine ("Fault"), and the outcome that shows it ("Found").
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import torch

from attnbench import judge
from attnbench.analysis.report.cautions import cautions
from attnbench.analysis.report.facts import facts
from attnbench.backends.base import BackendBase
from attnbench.backends.shared.function import Function
from attnbench.core.backend import Signature
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device, Environment
from attnbench.core.policy import CHECK, METHOD, Policy
from attnbench.core.record import Forecast, Job, Record, Run
from attnbench.results.cells import Cell, cells
from attnbench.run.judge import JobHearing, Judge
from attnbench.worker.serve import Worker
from judge_here import judge_here

CPU = Device("cpu", 0, "CPU", 2**34, 2**34, l2=2**16)
POLICY = Policy(l2="warm", warmup_s=0.0, min_samples=8, min_seconds=0.0, max_seconds=0.05, target=1.0)
QUICK = Policy(l2="warm", warmup_s=0.0, min_samples=3, max_samples=3, min_seconds=0.0)  # for tests without figures
NOISE = ("Noisy", "Getting slower", "Still getting faster", "Few samples", "L2 not proven")  # may appear by chance
OF_ANY_RECORD = ("Uncertainty of the latency",)  # a fact on every figure
ALL_ROWS = 2**23  # score elements that the check may recompute: all of a small case
JUDGES: dict[str, Judge] = {}  # device -> process that judges it


def case(direction: Any = "fwd", seqlen: int = 64, dtype: Any = "fp32", causal: bool = False, **sizes: int) -> Case:
    """Return a small case with grouped heads; seqlen_k=... gives it more keys than queries."""
    known = {"batch": 2, "seqlen_q": seqlen, "seqlen_k": seqlen, "nheads": 4, "nheads_k": 2}
    return Case(Shape(**{**known, "headdim": 16, "headdim_v": 16, **sizes}), dtype, direction, causal)


class Textbook(BackendBase):
    """A backend that refuses no case and names no kernels."""

    def unsupported(self, case: Case, device: Device) -> str | None:
        return None

    def signature(self, case: Case, device: Device) -> Signature:
        return Signature()


class Clock:
    """A simulated clock in ns. Each reading takes `step` seconds, so a sample lasts `step` plus its own time."""

    def __init__(self, step: float = 1e-3) -> None:
        self.now = 0
        self.step = step

    def __call__(self) -> int:
        self.spend(self.step)
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)


@dataclass
class MeasuringDevice:
    """A worker on one device that measures kernels, and the report on their records."""

    worker: Worker
    device: Device
    policy: Policy = POLICY
    beside: Judge | None = None
    environment: Environment = field(init=False)
    hearing: JobHearing | None = None  # of the latest job, by the judge beside the worker

    def __post_init__(self) -> None:
        self.environment = Environment(self.device, "3", "Linux", torch.__version__, "a CPU")

    @property
    def measurer(self) -> Any:
        """The worker's CellMeasurer."""
        return self.worker.measurer(self.device)

    def measure(self, kernel: Any, which: Case, policy: Policy | None = None, budget: int | None = None) -> Record:
        """Measure one job and return its record. `kernel` is a backend or an attention function.

        On a CPU the check may recompute `budget` score elements: where they are few, it takes a sample of the rows.
        """
        self.worker.backend = kernel if hasattr(kernel, "prepare") else Function("own", kernel)
        if self.beside:
            self.hearing = self.beside.hear(which, (policy or self.policy).seed)
        with patch.dict(judge.SCORE_BUDGET, {"cpu": budget} if budget else {}):
            job = Job(which, "own", 0, Forecast(1.0, 0.1, 0))
            record = self.worker.run(job, policy or self.policy, self.device)
        if self.beside is None:
            return record
        own = f"(pid {self.beside.pid})"  # the judge is a child of the worker here, not a sibling
        return replace(record, others=tuple(other for other in record.others if not other.endswith(own)))

    def passes(self, kernel: Any, which: Case, policy: Policy | None = None, budget: int | None = None) -> Record:
        """Measure a kernel, and assert that it is right."""
        record = self.measure(kernel, which, policy, budget)
        assert record.status == "ok", record.reason
        return record

    def finds_wrong(self, kernel: Any, which: Case, policy: Policy | None = None, budget: int | None = None) -> str:
        """Measure a kernel, assert that it is wrong, and return the reason."""
        record = self.measure(kernel, which, policy, budget)
        assert record.status == "wrong"
        return str(record.reason)

    def run(self, record: Record, policy: Policy | None = None) -> Run:
        """Return a run with the record only."""
        job = Job(record.case, record.backend, record.round, Forecast(1.0, 0.1, 0))
        peak = {"": 989e12}  # otherwise the report has a caution on the unknown peak
        return Run(
            self.environment,
            "wrong kernels",
            policy or self.policy,
            (job,),
            (record,),
            peak=peak,
            method=METHOD,
            check=CHECK,
        )

    def cell(self, record: Record, policy: Policy | None = None) -> Cell:
        """Return the cell of the record only."""
        (found,) = cells([self.run(record, policy)])
        return found

    def value(self, record: Record, metric: str) -> float | None:
        """Return one metric of a record, as the report shows it."""
        return self.cell(record).value(metric)

    def cautions(self, record: Record, policy: Policy | None = None) -> list[str]:
        """Return the report's cautions on the record."""
        run = self.run(record, policy)
        said = [str(c) for c in cautions(cells([run]), [run])]
        return [text for text in said if not text.startswith(OF_ANY_RECORD)]

    def facts(self, record: Record, policy: Policy | None = None) -> list[str]:
        """Return the report's facts on the record."""
        said = [str(c) for c in facts(cells([self.run(record, policy)]))]
        return [text for text in said if not text.startswith(OF_ANY_RECORD)]

    def objections(self, record: Record, policy: Policy | None = None) -> list[str]:
        """Return what marks the record as wrong or doubtful: its status, and the report's cautions and facts except
        noise.

        Empty where the record passes as right.
        """
        said = [*self.cautions(record, policy), *self.facts(record, policy)]
        status = [f"{record.status}: {record.reason}"] if record.status in ("wrong", "wrong-kernel", "failed") else []
        return status + [text for text in said if not text.startswith(NOISE)]


def measuring_device(device: Device, clock: Clock | None = None) -> Iterator[MeasuringDevice]:
    """Yield a MeasuringDevice, on a simulated clock if one is given, as the body of a fixture."""
    made = judged_device(device)
    if clock:
        made.measurer.timer.clock = clock
    yield made


def judged_device(device: Device, policy: Policy = POLICY) -> MeasuringDevice:
    """Return a MeasuringDevice with a judge beside it, on a GPU in another process, as one cannot share memory."""
    beside = judge_of(device) if device.kind == "cuda" else None

    def ask_beside(request: Mapping[str, Any]) -> dict[str, Any]:
        assert made.hearing
        return made.hearing.answer(request, 60.0)

    made = MeasuringDevice(Worker(ask_beside if beside else judge_here(device)), device, policy, beside)
    made.worker.is_judged = True
    return made


def judge_of(device: Device) -> Judge:
    """Return the judge of a device, which ends with this process."""
    if str(device) not in JUDGES:
        JUDGES[str(device)] = Judge(device, None)
        atexit.register(JUDGES[str(device)].close)
    return JUDGES[str(device)]
