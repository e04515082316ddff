"""The time of a plan: the cells with a plan, the timed part, and the report of waits for the device."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench.backends import BACKENDS, load
from attnbench.backends.pytorch.eager import Eager
from attnbench.core.backend import Inputs, Prepared
from attnbench.core.case import Case, Shape
from attnbench.core.policy import Policy
from attnbench.core.record import Forecast, Job, Record
from attnbench.judge import inputs
from attnbench.worker.plan_time import PLANS, time_plan
from attnbench.worker.serve import Worker
from worker_here import CPU, SHORT

RAGGED = Case(Shape(2, 32, 32, 2, 2, 16, 16), "fp32", "fwd_bwd", True, lengths=((1, 32, 32), (1, 9, 9)))


class Planned(Eager):
    """Eager attention with a plan."""

    def __init__(self, plan: Callable[[Prepared], object]) -> None:
        self.plan = plan

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        made = super().prepare(case, inputs)
        return replace(made, plan=lambda: self.plan(made))


def measure(worker: Worker, backend: Any, policy: Policy = SHORT) -> Record:
    worker.backend = backend
    return worker.run(Job(RAGGED, "own", 0, Forecast(1.0, 0.1, 0)), policy, CPU)


def test_a_plan_is_timed_apart_from_the_launches(worker: Worker) -> None:
    calls: list[None] = []

    def plan(_: Prepared) -> None:
        calls.append(None)
        time.sleep(0.1)  # longer than a launch on a busy machine

    record = measure(worker, Planned(plan))
    assert record.status == "ok", record.reason
    found = record.measurements["plan"]
    assert (found.unit, len(found.values), len(calls)) == ("s", PLANS, PLANS + 1)  # one more for the memory
    assert record.measurements["plan_memory"].unit == "B"
    assert all(0.1 <= seconds < 1 for seconds in found.values)
    assert max(record.measurements["time"].values) < 0.1
    assert record.phases["plan"] >= 0.5
    assert not any("plan" in note for note in record.notes)


def test_a_backend_without_a_plan_has_no_such_measurement(worker: Worker) -> None:
    record = measure(worker, Eager())
    assert record.status == "ok", record.reason
    assert "plan" not in record.measurements
    assert "plan" not in record.phases


def test_a_plan_that_is_another_when_built_again_is_found(worker: Worker) -> None:
    """A plan that differs when built again is found, because the following launches are checked."""

    class Broken(Eager):
        def prepare(self, case: Case, inputs: Inputs) -> Prepared:
            made = super().prepare(case, inputs)
            factor = [1.0]

            def canonical(raw: Any) -> dict[str, Tensor]:
                return {name: t * factor[0] for name, t in made.canonical(raw).items()}

            return replace(made, canonical=canonical, plan=lambda: factor.__setitem__(0, 1.5))

    record = measure(worker, Broken())
    assert record.status in ("wrong", "wrong-kernel"), record.reason


def test_waits_for_the_device_are_counted_in_a_call_that_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[Any] = [0]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    instruments: Any = SimpleNamespace(device=torch.device("cuda"), synchronize=lambda: None)
    seen: list[Any] = []

    def plan() -> None:
        seen.append(modes[-1])
        for _ in range(2 if modes[-1] == "warn" else 0):
            warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)

    found, note = time_plan(instruments, plan)
    assert note == "its plan waits for the device 2 times or more, by torch's count"
    assert len(found.values) == PLANS
    assert seen == ["warn", *[0] * PLANS]
    assert modes == [0, "warn", 0]
    assert time_plan(instruments, lambda: None)[1] == ""


@pytest.mark.parametrize(("name", "planned"), [("eager", False), ("triton", True)])
def test_which_backends_of_our_own_have_a_plan(name: str, planned: bool) -> None:
    case = replace(RAGGED, direction="fwd")
    prepared = load(name, BACKENDS[name]).prepare(case, inputs.make(case, "cpu", seed=0))
    assert (prepared.plan is not None) == planned
    if prepared.plan is not None:
        starts: Any = prepared.plan()
        assert [t.tolist() for t in starts] == [[0, 32, 41]] * 2
