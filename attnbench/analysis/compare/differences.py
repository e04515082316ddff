"""What sets machines apart beside the hardware: software, power limits, how they were measured, clocks held down."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from attnbench.analysis.compare.join import Best
from attnbench.analysis.compare.machines import Machine
from attnbench.core.case import Case
from attnbench.core.record import Run
from attnbench.results import case_names

NOT_THERE = "not there"


def warnings(found: Sequence[Machine], bests: Sequence[Best], cases: Sequence[Case]) -> Iterator[str]:
    """One line each, the gravest first."""
    yield from _software(found)
    yield from _power_limits(found)
    yield from _method(found)
    yield from _untried(found, bests, cases)
    yield from _clocks(found, bests, cases)
    yield from _spans(found, bests, cases)


def _software(found: Sequence[Machine]) -> Iterator[str]:
    """What Environment.differences sees and is no hardware, then backends whose library is known by no package."""
    gpus = [m for m in found if m.run.environment.device.kind == "cuda"]
    readers: list[tuple[str, Sequence[Machine], Callable[[Run], str | None]]] = [
        ("torch", found, lambda run: run.environment.torch),
        ("CUDA", gpus, lambda run: run.environment.cuda),
        ("driver", gpus, lambda run: run.environment.driver),
        ("attnbench", found, lambda run: run.environment.attnbench or None),
    ]
    packages = sorted({name for m in found for name in m.run.environment.packages})
    readers += [(name, found, lambda run, name=name: run.environment.packages.get(name)) for name in packages]  # type: ignore[misc]
    told = set()
    for name, some, read in readers:
        values = [read(m.run) for m in some]
        if len(set(values)) > 1:
            told.add(tuple(values))
            yield f"{name} differs: {_each(some, values)}. Part of the ratio may be its doing."
    backends = {backend for m in found for _, backend in m.logs}
    for backend in sorted(backends, key=case_names.backend_rank):
        users = [m for m in found if backend in m.run.versions]
        values = [m.run.versions[backend] for m in users]
        if len(set(values)) > 1 and tuple(values) not in told:
            yield f"{backend} differs: {_each(users, values)}. Part of its ratio may be its doing."
    hosts = [m.run.environment.cpu for m in gpus]
    if len(set(hosts)) > 1:
        yield f"The host's CPU differs: {_each(gpus, hosts)}. Short calls may wait for it."


def _power_limits(found: Sequence[Machine]) -> Iterator[str]:
    models: dict[str, list[Machine]] = {}
    for machine in found:
        models.setdefault(machine.run.environment.device.name, []).append(machine)
    for name, alike in models.items():
        limits = [m.run.environment.power_limit_w for m in alike]
        if len(set(limits)) > 1:
            said = [None if w is None else f"{w:g} W" for w in limits]
            yield f"The power limit of {name} differs: {_each(alike, said)}."


def _method(found: Sequence[Machine]) -> Iterator[str]:
    gpus = [m for m in found if m.run.environment.device.kind == "cuda"]
    for name, values in (
        ("The timer", [m.run.policy.timer for m in gpus]),
        ("L2 before each sample", [m.run.policy.l2 for m in gpus]),
    ):
        if len(set(values)) > 1:
            yield f"{name} differs: {_each(gpus, values)}. Short calls read differently."
    if {"fake"} < {m.run.environment.device.kind for m in found}:
        yield "A simulated device is among them: its figures mean nothing."


def _untried(found: Sequence[Machine], bests: Sequence[Best], cases: Sequence[Case]) -> Iterator[str]:
    """Fastest backends that another machine was never asked for."""
    for machine in found:
        missing: dict[str, int] = {}
        for case in cases:
            for backend in {best[case] for best in bests}:
                cell = machine.cells.get((case, backend))
                if cell is None or all(i in cell.columns.resumable for i in cell.rows):
                    missing[backend] = missing.get(backend, 0) + 1
        if missing:
            each = ", ".join(f"{backend} in {case_names.count(n, 'case')}" for backend, n in missing.items())
            yield (
                f"{machine.label} was not measured with what is fastest on another: {each}. "
                "It may be faster than it seems here."
            )


def _clocks(found: Sequence[Machine], bests: Sequence[Best], cases: Sequence[Case]) -> Iterator[str]:
    held = {m.label: sum(m.cells[c, best[c]].held_down for c in cases) for m, best in zip(found, bests, strict=True)}
    if any(held.values()):
        each = ", ".join(f"{label} in {n}" for label, n in held.items() if n)
        yield (
            f"A limit held the clock below its best: {each} of {case_names.count(len(cases), 'case')}. "
            "The speed there is what power and cooling sustain, and moves by some percent from run to run."
        )


def _spans(found: Sequence[Machine], bests: Sequence[Best], cases: Sequence[Case]) -> Iterator[str]:
    """Cases read by the kernels' span on one GPU and by events, launch gap included, on another."""
    gpus = [(m, b) for m, b in zip(found, bests, strict=True) if m.run.environment.device.kind == "cuda"]
    mixed = 0
    for case in cases:
        used = {m.cells[case, best[case]].spans for m, best in gpus}
        mixed += len(used) > 1
    if mixed:
        yield (
            f"{case_names.count(mixed, 'case')}: one GPU's latency is the kernels' span, another's is what events read, "
            "which holds a launch gap of 1 to 4 us; the ratio has it."
        )


def _each(found: Sequence[Machine], values: Sequence[str | None]) -> str:
    """2.11.0 on H200 and H200 500 W, 2.12.0 on H100."""
    by_value: dict[str, list[str]] = {}
    for machine, value in zip(found, values, strict=True):
        by_value.setdefault(value or NOT_THERE, []).append(machine.label)
    return ", ".join(f"{value} on {' and '.join(labels)}" for value, labels in by_value.items())
