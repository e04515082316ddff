"""Which backends are usable and what they support, found with as few imports as possible, for lists and dry runs.

A missing library, and a backend that refuses every case on this device, are known without an import: the backend's
class is asked in this process, as for the support matrix. Workers are asked only for backends that may run here, or
that are of other interpreters or other packages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnbench.backends import BACKENDS, load
from attnbench.core.backend import Probe, refusal
from attnbench.core.case import Case
from attnbench.core.machine import Device
from attnbench.run.plan import CaseSupport
from attnbench.run.workers import WorkerPool


def first_look(
    pool: WorkerPool, cases: Sequence[Case], device: Device
) -> tuple[Mapping[str, Probe], Mapping[str, Sequence[CaseSupport]]]:
    """Return the results of WorkerPool.probe and .survey; workers are started only for backends that need one."""
    known: dict[str, tuple[Probe, Sequence[CaseSupport]]] = {}
    for name, spec in pool.specs.items():
        if name in pool.interpreters or BACKENDS.get(name) != spec or device.kind == "fake":
            continue
        backend: Any = load(name, spec)
        found: Probe | None = backend.installed()
        if found is None:
            continue
        if not found.usable:
            known[name] = found, [CaseSupport(reason=found.why_not)] * len(cases)
            continue
        answers = [_answer(backend, case, device) for case in cases]
        if not backend.probe_imports or all(answer.reason for answer in answers):
            known[name] = found, answers
    rest = replace(pool, specs={name: spec for name, spec in pool.specs.items() if name not in known})
    probes = rest.probe()
    answered = rest.survey(probes, cases, device)
    known |= {name: (probes[name], answered[name]) for name in probes}
    return {name: known[name][0] for name in pool.specs}, {name: known[name][1] for name in pool.specs}


def _answer(backend: Any, case: Case, device: Device) -> CaseSupport:
    reason = refusal(backend, case, device)
    if reason:
        return CaseSupport(reason)
    return CaseSupport(None, backend.workspace(case), backend.efficiency, backend.compiles)
