"""What sets machines apart beside the hardware: software, power limits, how they were measured, clocks held down."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from attnbench.analysis.compare.machines import Machine
from attnbench.core.case import Case
from attnbench.core.record import Run
from attnbench.core.text import count
from attnbench.report.document import Caution
from attnbench.results import case_names

NOT_INSTALLED = "not there"


def setup_differences(machines: Sequence[Machine], cases: Sequence[Case]) -> Iterator[Caution]:
    """Yield a caution for each difference, the most serious first. `cases` are those that all machines have."""
    yield from _software(machines)
    yield from _power_limits(machines)
    yield from _method(machines)
    yield from _fastest_backend_not_measured(machines, cases)
    yield from _clocks_held_down(machines, cases)
    yield from _spans_and_events(machines, cases)


def _software(machines: Sequence[Machine]) -> Iterator[Caution]:
    """Yield versions that differ, then those of backends whose library is no package that was already named."""
    gpus = [machine for machine in machines if machine.is_gpu]
    readers: list[tuple[str, Sequence[Machine], Callable[[Run], str | None]]] = [
        ("torch", machines, lambda run: run.environment.torch),
        ("CUDA", gpus, lambda run: run.environment.cuda),
        ("driver", gpus, lambda run: run.environment.driver),
        ("attnbench", machines, lambda run: run.environment.attnbench or None),
    ]
    packages = sorted({name for machine in machines for name in machine.environment.packages})
    readers += [(name, machines, lambda run, name=name: run.environment.packages.get(name)) for name in packages]  # type: ignore[misc]
    named = set()
    for name, owners, read in readers:
        versions = [read(machine.run) for machine in owners]
        if len(set(versions)) > 1:
            named.add(tuple(versions))
            yield Caution(f"{name} differs: {_by_value(owners, versions)}.", "It may explain a part of the ratio.")
    backends = {backend for machine in machines for _, backend in machine.log_latencies}
    for backend in sorted(backends, key=case_names.backend_rank):
        users = [machine for machine in machines if backend in machine.run.versions]
        versions = [machine.run.versions[backend] for machine in users]
        if len(set(versions)) > 1 and tuple(versions) not in named:
            yield Caution(f"{backend} differs: {_by_value(users, versions)}.", "It may explain a part of its ratio.")
    hosts = [machine.environment.cpu for machine in gpus]
    if len(set(hosts)) > 1:
        yield Caution(f"The host's CPU differs: {_by_value(gpus, hosts)}.", "Short calls may wait for it.")


def _power_limits(machines: Sequence[Machine]) -> Iterator[Caution]:
    models: dict[str, list[Machine]] = {}
    for machine in machines:
        models.setdefault(machine.environment.device.name, []).append(machine)
    for name, of_model in models.items():
        limits = [machine.environment.power_limit_w for machine in of_model]
        if len(set(limits)) > 1:
            texts = [None if watts is None else f"{watts:g} W" for watts in limits]
            yield Caution(f"The power limit of {name} differs: {_by_value(of_model, texts)}.")


def _method(machines: Sequence[Machine]) -> Iterator[Caution]:
    gpus = [machine for machine in machines if machine.is_gpu]
    for name, values in (
        ("The timer", [machine.run.policy.timer for machine in gpus]),
        ("L2 before each sample", [machine.run.policy.l2 for machine in gpus]),
    ):
        if len(set(values)) > 1:
            yield Caution(f"{name} differs: {_by_value(gpus, values)}.", "It changes the latency of short calls.")
    if {"fake"} < {machine.environment.device.kind for machine in machines}:
        yield Caution("A simulated device is among them:", "its figures mean nothing.")


def _fastest_backend_not_measured(machines: Sequence[Machine], cases: Sequence[Case]) -> Iterator[Caution]:
    for machine in machines:
        missing: dict[str, int] = {}
        for case in cases:
            for backend in dict.fromkeys(other.fastest[case] for other in machines):
                cell = machine.cells.get((case, backend))
                if cell is None or all(row.record.resumable for row in cell.rows):
                    missing[backend] = missing.get(backend, 0) + 1
        if missing:
            each = ", ".join(f"{backend} in {count(n, 'case')}" for backend, n in missing.items())
            yield Caution(
                f"{machine.label} was not measured with what is fastest on another: {each}.",
                "It may be faster than it seems here.",
            )


def _clocks_held_down(machines: Sequence[Machine], cases: Sequence[Case]) -> Iterator[Caution]:
    held = {m.label: sum(m.cells[case, m.fastest[case]].held_down for case in cases) for m in machines}
    if any(held.values()):
        each = ", ".join(f"{label} in {n}" for label, n in held.items() if n)
        yield Caution(
            f"A limit held the clock below its best: {each} of {count(len(cases), 'case')}.",
            "The speed there is what power and cooling sustain, and moves by some percent from run to run.",
        )


def _spans_and_events(machines: Sequence[Machine], cases: Sequence[Case]) -> Iterator[Caution]:
    """Yield how many cases have the kernels' span as latency on one GPU, and on another what CUDA events read."""
    gpus = [machine for machine in machines if machine.is_gpu]
    mixed = sum(len({m.cells[case, m.fastest[case]].uses_span for m in gpus}) > 1 for case in cases)
    if mixed:
        yield Caution(
            f"{count(mixed, 'case')}: one GPU's latency is the kernels' span, another's is what CUDA events read,",
            "which includes a launch gap of 1 to 4 us; so does the ratio.",
        )


def _by_value(machines: Sequence[Machine], values: Sequence[str | None]) -> str:
    """Return which machines have which value: "2.11.0 on H200 and H200 500 W, 2.12.0 on H100"."""
    labels: dict[str, list[str]] = {}
    for machine, value in zip(machines, values, strict=True):
        labels.setdefault(value or NOT_INSTALLED, []).append(machine.label)
    return ", ".join(f"{value} on {' and '.join(having)}" for value, having in labels.items())
