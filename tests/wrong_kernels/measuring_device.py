"""How a lie is put to attnbench: through a worker, as a job is, and then through the report, as a reader sees it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from attnbench.analysis.summary.cautions import cautions
from attnbench.analysis.summary.facts import facts
from attnbench.backends.function import Function
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device, Environment
from attnbench.core.policy import Policy
from attnbench.core.record import Forecast, Job, Record, Run
from attnbench.results.cells import Cell, cells
from attnbench.worker.serve import Worker

CPU = Device("cpu", 0, "CPU", 2**34, 2**34, l2=2**16)
POLICY = Policy(l2="warm", warmup_s=0.0, min_samples=8, min_seconds=0.0, max_seconds=0.05, target=1.0)
NOISE = ("Noisy", "Getting slower", "Still getting faster", "Few samples", "L2 not proven")  # may come by luck
SDP = ("math", "mem_efficient", "flash", "cudnn")


def case(direction: Any = "fwd", seqlen: int = 64, dtype: Any = "fp32", causal: bool = False, **sizes: int) -> Case:
    """Small, with grouped heads; more keys than queries with seqlen_k=..."""
    known = {"batch": 2, "seqlen_q": seqlen, "seqlen_k": seqlen, "nheads": 4, "nheads_k": 2}
    return Case(Shape(**{**known, "headdim": 16, "headdim_v": 16, **sizes}), dtype, direction, causal)


class Clock:
    """A simulated clock in ns: each reading takes 1 ms, so that each sample is 1 ms and what is spent in it."""

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
    """A worker, and what came out of it."""

    worker: Worker
    device: Device
    policy: Policy = POLICY
    environment: Environment = field(init=False)

    def __post_init__(self) -> None:
        self.environment = Environment(self.device, "3", "Linux", torch.__version__, "a CPU")

    @property
    def measurer(self) -> Any:
        return self.worker.measurer(self.device)

    def measure(self, kernel: Any, which: Case, policy: Policy | None = None) -> Record:
        """The record of one job. `accused` is a backend or a function."""
        self.worker.backend = kernel if hasattr(kernel, "prepare") else Function("own", kernel)
        return self.worker.run(Job(which, "own", 0, Forecast(1.0, 0.1, 0)), policy or self.policy, self.device)

    def run(self, record: Record, policy: Policy | None = None) -> Run:
        job = Job(record.case, record.backend, record.round, Forecast(1.0, 0.1, 0))
        peak = {"": 989e12}  # known, or the report says that it is not
        return Run(self.environment, "lies", policy or self.policy, (job,), (record,), peak=peak)

    def cell(self, record: Record, policy: Policy | None = None) -> Cell:
        (found,) = cells([self.run(record, policy)])
        return found

    def value(self, record: Record, metric: str) -> float | None:
        """Return one metric of a record, as the report shows it."""
        return self.cell(record).value(metric)

    def cautions(self, record: Record, policy: Policy | None = None) -> list[str]:
        """What the report tells a reader to doubt."""
        run = self.run(record, policy)
        return [str(c) for c in cautions(cells([run]), [run])]

    def facts(self, record: Record, policy: Policy | None = None) -> list[str]:
        """What the report tells a reader to know."""
        return [str(c) for c in facts(cells([self.run(record, policy)]))]

    def objections(self, record: Record, policy: Policy | None = None) -> list[str]:
        """How it is caught: its status, or what the report says of it, noise aside; empty where it passes for true."""
        said = [*self.cautions(record, policy), *self.facts(record, policy)]
        status = [f"{record.status}: {record.reason}"] if record.status in ("wrong", "wrong-kernel", "failed") else []
        return status + [text for text in said if not text.startswith(NOISE)]


def measuring_device(device: Device, clock: Clock | None = None) -> Iterator[MeasuringDevice]:
    """The body of a fixture; with a clock, on that instead of the host's."""
    made = MeasuringDevice(Worker(), device)
    if clock:
        made.measurer.timer.clock = clock
    yield made
    gc.unfreeze()


@contextmanager
def switches() -> Iterator[None]:
    """Puts back what a worker sets in torch for good: here it shares a process with other tests."""
    chosen = {name: getattr(torch.backends.cuda, f"{name}_sdp_enabled")() for name in SDP}
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(precision)
    for name, was in chosen.items():
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(was)
