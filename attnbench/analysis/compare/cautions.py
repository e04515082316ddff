"""The cautions of a comparison: doubts that its intervals leave out, and differences other than the hardware."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attnbench.analysis.cautions import Places, Rule, stated, when
from attnbench.analysis.compare.common_cells import common
from attnbench.analysis.compare.findings import Comparison
from attnbench.analysis.compare.machines import CODE, Machine, is_own_kernel, libraries
from attnbench.analysis.compare.speed_ratio import ROUNDS, TABLE
from attnbench.analysis.report.cautions import RANK_CHANGE, rank_change
from attnbench.core.formats import percent
from attnbench.core.groups import grouped
from attnbench.core.text import count, listed, some
from attnbench.render.document import Caution
from attnbench.results import case_names
from attnbench.results.cells import Key
from attnbench.results.run_setup import setup, setup_texts
from attnbench.results.uncertainty import NORMAL, spread

NOT_INSTALLED = "not there"
MOST_NAMED = 3  # files, cells or versions


def cautions(c: Comparison) -> tuple[Caution, ...]:
    """Return the cautions of a comparison, the most serious first."""
    return stated(CAUTIONS, c)


def facts(c: Comparison) -> tuple[Caution, ...]:
    """Return the sources of the intervals, if no caution names them, and the difference between cards of a model."""
    return stated(FACTS, c)


def _of_one_round(c: Comparison) -> list[Machine]:
    return [m for m in c.machines if any(len(rounds) == 1 for rounds in m.log_rounds.values())]


def _sources(c: Comparison) -> set[str]:
    """Return the sources of the intervals: ROUNDS, TABLE or both."""
    ratios = [figures.ratio(label) for figures in c.figures for label in c.labels]
    return {source for ratio in ratios if ratio for source in ratio.sources}


def _reduced(c: Comparison) -> Places:
    """Return the baselines that keep one value per round, from which no interval can be computed."""
    reduced = [machine.label for machine in _of_one_round(c) if any(file.run.reduced for file in machine.files)]
    return when(reduced and TABLE in _sources(c), labels=", ".join(reduced))


def _from_table(c: Comparison) -> Places:
    single, sources = _of_one_round(c), _sources(c)
    rounds = ", from rounds, and where a cell has only one" if ROUNDS in sources else ""
    spreads = "; ".join(dict.fromkeys(str(spread(m.environment.device)) for m in single))
    labels = ", ".join(machine.label for machine in single)
    return when(TABLE in sources and not _reduced(c), rounds=rounds, labels=labels, spreads=spreads)


def _undecided(host_bound: bool) -> Callable[[Comparison], Places]:
    """Return a function that finds cases left out because the fastest figure is host-bound, or else hardly known."""

    def where(c: Comparison) -> Iterator[dict[str, Any]]:
        for figures in c.figures:
            machines, backends = figures.machines, "shared backends" if figures.shared else "own fastest"
            own = [(label, key) for label, key in figures.undecided if machines[label].is_host_bound(key) == host_bound]
            cases = count(len({key[0] for _, key in own}), "case")
            yield from when(own, cases=cases, pace=figures.pace, backends=backends, names=_named(own, c))

    return where


def _named(cells: Sequence[tuple[str, Key]], c: Comparison) -> str:
    """Return the cells as text, grouped by case, each cell with its machines."""
    several = len({case.dtype for case in c.cases}) > 1
    each = (
        listed(
            f"{case_names.case_name(backend, case, several)} on {listed(label for label, _ in of_key)}"
            for (case, backend), of_key in grouped(of_case, lambda pair: pair[1]).items()
        )
        for of_case in grouped(cells, lambda pair: pair[1][0]).values()
    )
    return some(each, MOST_NAMED)


def _lacking(c: Comparison) -> Iterator[dict[str, Any]]:
    """Yield the backends that each machine lacks: the ones that others have, and the fastest ones on another."""
    machines = c.main.machines
    asked = c.workload.cases if c.workload else common(machine.fastest for machine in machines.values())
    every = [key for machine in machines.values() for key in machine.log_rounds if key[1] not in machine.own_code]
    measured = {backend for case, backend in every if not c.workload or case in asked}
    best = [(name, m.fastest[case]) for name, m in machines.items() for case in asked if case in m.fastest]
    winners = {key: [name for name, _ in pairs] for key, pairs in grouped(best, lambda pair: pair[1]).items()}
    for label, machine in machines.items():
        has = {backend for _, backend in machine.log_rounds}
        lost = {backend: Counter[str]() for backend in measured - has}
        for key, names in winners.items():
            if key not in machine.log_rounds:
                lost.setdefault(key[1], Counter()).update(names)
        named = []
        for backend in sorted(lost, key=lambda name: (-lost[name].total(), case_names.backend_rank(name))):
            numbers = [(name, lost[backend][name]) for name in machines]
            where = ", ".join(f"{count(n, 'case')} on {name}" for name, n in numbers if n)
            if backend in has:  # in some cases
                named.append(f"{backend} where it is the fastest ({where})")
            else:
                named.append(f"{backend} (the fastest in {where})" if where else backend)
        if named:
            yield {"label": label, "named": some(named, MOST_NAMED)}


def _unlike_kernels(c: Comparison) -> Places:
    """Return the backends that ran unlike kernels on machines that could run the same ones."""
    alike = grouped(c.unlike.items(), lambda pair: (pair[0][1], pair[1]))
    return [
        {"backend": backend, "cases": count(len(keys), "case"), "kernels": kernels}
        for (backend, kernels), keys in alike.items()
    ]


def _unlike_versions(c: Comparison) -> Places:
    """Return the backends with unlike versions on the machines, with the number of their cases."""
    machines = {key: [of.versions[key][1] for of in c.machines if key in of.versions] for key in c.of_unlike_versions}
    cases = Counter(key[1] for key, versions in machines.items() if len({*versions}) > 1)  # methods have their own rule
    each = some([f"{backend} ({count(n, 'case')})" for backend, n in cases.most_common()], MOST_NAMED)
    counted = {*c.of_unlike_versions} & {*c.cells}
    so = "A ratio includes the difference of the software" if counted else "There they do not count as shared backends"
    return when(cases, each=each, so=so)


def _methods(c: Comparison) -> Places:
    """Return the number of compared cells that the machines measured by unlike methods."""
    methods = [[str(machine.cells[key].run.method) for machine in c.machines] for key in c.cells]
    apart = [of for of in methods if len({*of}) > 1]
    own = zip(c.machines, zip(*apart, strict=True), strict=bool(apart))
    each = (f"method {' and '.join(sorted({*of}))} on {machine.label}" for machine, of in own)
    where = "" if len(apart) == len(methods) else f" in {len(apart)} of {count(len(methods), 'cell')}"
    return when(apart, each=", ".join(each), where=where)


def _joined(c: Comparison) -> Iterator[dict[str, Any]]:
    """Yield the differences between the setups of one machine's files."""
    for machine in c.machines:
        runs = [file.run for file in machine.files]
        packages = {name for run in runs for name in run.environment.packages}
        backends = set.intersection(*({*run.versions} for run in runs))
        texts: dict[str, dict[str, None]] = {}
        for run in runs:
            tools = {name: value for name, value in setup(run).items() if name not in packages}
            for name, value in {**tools, **libraries(run, sorted(packages), backends)}.items():
                texts.setdefault(name, {})[NOT_INSTALLED if value is None else str(value)] = None
        apart = [f"{name} {some(sorted(of), MOST_NAMED)}" for name, of in texts.items() if len(of) > 1]
        yield from when(apart, files=count(len(runs), "file"), label=machine.label, apart="; ".join(apart))


def _older(c: Comparison) -> Iterator[dict[str, Any]]:
    """Yield the rounds of each machine that are left out for an older method or version."""
    for machine in c.machines:
        older = machine.older
        each = some([f"{backend} ({count(n, 'round')})" for backend, n in sorted(older.items())], MOST_NAMED)
        yield from when(older, label=machine.label, rounds=count(sum(older.values()), "round"), each=each)


def _left_out(c: Comparison) -> Iterator[dict[str, Any]]:
    """Yield the files and machines that are left out of the comparison, and why."""
    for why, pairs in grouped(c.left_out.items(), lambda pair: pair[1]).items():
        names = some([path.name for path, _ in pairs], MOST_NAMED)
        yield {"what": f"{count(len(pairs), 'file')} left out: {names} ({why})"}
    yield from ({"what": f"Left out: {why}"} for why in c.machines_left_out.values())


def _held_down(c: Comparison) -> Places:
    held = {m.label: sum(m.cells[m.fastest[case]].held_down for case in c.cases) for m in c.machines}
    each = ", ".join(f"{label} in {n}" for label, n in held.items() if n)
    return when(each, each=each, cases=count(len(c.cases), "case"))


def _without_power(c: Comparison) -> Places:
    """Return the GPUs without a figure measured without pauses, or without its power."""
    gpus = [machine.sustained for machine in c.machines if machine.is_gpu]
    without = [machine.label for machine in gpus if not any(map(machine.watts, machine.log_rounds))]
    return when(without, labels=", ".join(without))


def _units(c: Comparison) -> Iterator[dict[str, Any]]:
    """Yield the difference between cards of a model, unless all machines were measured on one card."""
    if all(machine.same_card(c.reference) for machine in c.others):
        return
    for known, machines in grouped(c.machines, lambda machine: spread(machine.environment.device)).items():
        each = ", ".join(f"{count(len(m.cards), 'unit')} of {m.label}" for m in machines)
        deviations = (math.hypot(known.processes, known.cards.units(load)) for load in (1.0, 0.0))
        most, least = (percent(NORMAL * math.sqrt(2) * deviation) for deviation in deviations)
        yield from when(any(known.cards), each=each, most=most, least=least, known=known)


def _setups(c: Comparison) -> Iterator[dict[str, Any]]:
    """Yield each difference between machines in software, power limits and the way of measuring, but not hardware."""
    machines, gpus = c.machines, [machine for machine in c.machines if machine.is_gpu]
    setups = {machine.label: [setup(file.run) for file in machine.files] for machine in machines}

    def values(name: str, among: Sequence[Machine] = machines) -> dict[str, str | None]:
        """Return label -> the values of all files of a machine; None if no file has a value."""
        found = {m.label: {str(of[name]) for of in setups[m.label] if of.get(name)} for m in among}
        return {label: some(sorted(texts), MOST_NAMED) or None for label, texts in found.items()}

    packages = sorted({name for m in machines for file in m.files for name in file.run.environment.packages})
    common_backends = set.intersection(*({backend for _, backend in m.log_rounds} for m in machines))
    used = {m.label: [libraries(file.run, packages, common_backends) for file in m.files] for m in machines}

    def versions_of(name: str) -> dict[str, str | None]:
        """Return label -> the versions of a library, for the machines whose versions are known."""
        known = {label: {of[name] for of in found if name in of} for label, found in used.items()}
        return {label: some(sorted(filter(None, texts)), MOST_NAMED) or None for label, texts in known.items() if texts}

    software = {
        "torch": values("torch"),
        "CUDA": values("cuda", gpus),
        "driver": values("driver", gpus),
        "attnbench": values("attnbench"),
        **{name: versions_of(name) for name in packages},
    }
    yield from _differing(software, "It may explain a part of the ratio.")
    if any(is_own_kernel(key[1]) and CODE not in m.versions[key][1] for m in machines for key in m.log_rounds):
        commits = {m.label: {file.run.environment.git or "unknown" for file in m.files} for m in machines}
        told = {label: some(sorted(found), MOST_NAMED) for label, found in commits.items()}
        yield from _differing({"attnbench's commit": told}, "It may explain a part of the ratio of its own kernels.")
    backends = sorted({backend for m in machines for _, backend in m.log_rounds}, key=case_names.backend_rank)
    versions = {
        name: {m.label: v for m in machines if (v := m.run.versions.get(name)) is not None} for name in backends
    }
    named = [{label: v for label, v in found.items() if v is not None} for found in software.values()]
    others = {name: found for name, found in versions.items() if found not in named}  # a library is named once
    yield from _differing(others, "It may explain a part of its ratio.")
    yield from _differing({"The host's CPU": values("cpu", gpus)}, "Short calls may wait for it.")
    for model, own in grouped(machines, lambda machine: machine.environment.device.name).items():
        limits = {machine.label: setup_texts(machine.run)["power_limit_w"] for machine in own}
        yield from _differing({f"The power limit of {model}": limits})
    method = {"The timer": values("timer", gpus), "L2 before each sample": values("l2", gpus)}
    yield from _differing(method, "It changes the latency of short calls.")


def _differing(found: Mapping[str, Mapping[str, str | None]], why: str = "") -> Iterator[dict[str, Any]]:
    """Yield ("torch", "2.11.0 on H200 and H200 500 W, 2.12.0 on H100") from name -> label -> value."""
    for name, values in found.items():
        having = grouped(values.items(), lambda pair: pair[1] or NOT_INSTALLED)
        each = (f"{value} on {' and '.join(label for label, _ in pairs)}" for value, pairs in having.items())
        yield from when(len(having) > 1, name=name, each=", ".join(each), why=why)


CAUTIONS: Sequence[Rule[Comparison]] = (
    Rule(
        _reduced,
        "No intervals for the figures of a baseline with one round ({labels}):",
        "it keeps one value per round, which does not show the noise.",
        "Compare the run files, or run --rounds 5.",
    ),
    Rule(lambda c: ({"note": note} for note in (c.workload.notes if c.workload else ())), "{note}"),
    Rule(
        _unlike_versions,
        "The machines have unlike versions of {each}.",
        "{so}.",
        "Measure one version on all machines.",
    ),
    Rule(
        _unlike_kernels,
        "{backend} ran unlike kernels in {cases}: {kernels}.",
        "There it does not count as a shared backend, as the software differs.",
        "Install one build on all machines.",
    ),
    Rule(_lacking, "{label} has no figure of {named}."),
    Rule(
        _undecided(host_bound=False),
        "{cases} left out {pace}, with {backends}: the backend that seems fastest there is known no better than "
        "to a factor of 1.5 ({names}).",
        "Which backend is fastest is not known there.",
        "Measure again, on a device that nothing else uses.",
    ),
    Rule(
        _undecided(host_bound=True),
        "{cases} left out {pace}, with {backends}: there the GPU waits for the host to launch the backend that "
        "seems fastest ({names}).",
        "Such a figure is not the speed of the GPU.",
    ),
    Rule(
        _methods,
        "The measuring method differs{where}: {each}.",
        "It changes what a figure means: measure all anew.",
    ),
    Rule(_setups, "{name} differs: {each}.", "{why}"),
    Rule(
        lambda c: when({"fake"} < {machine.environment.device.kind for machine in c.machines}),
        "A simulated device is among them:",
        "its figures mean nothing.",
    ),
    Rule(
        _joined,
        "The {files} of {label} differ: {apart}.",
        "A cell is of one measuring method and one version of its backend.",
    ),
    Rule(
        _older,
        "Of {label}, {rounds} by an older method or version are not used, as newer rounds measured the same cells: "
        "{each}.",
    ),
    Rule(_left_out, "{what}."),
    Rule(
        _held_down,
        "A limit held the clock below its best: {each} of {cases}, with each machine's own fastest backend.",
        "The speed there is what power and cooling sustain, and moves by some percent from run to run.",
    ),
    Rule(
        _from_table,
        "Intervals are 95 %{rounds} from the samples of a single round ({labels}) and a table of "
        "the spread between processes ({spreads}).",
        todo="run --rounds 5 measures it instead.",
    ),
    Rule(
        lambda c: (place for machine in c.machines for place in rank_change(machine.cells.values(), machine.label)),
        *RANK_CHANGE,
    ),
    Rule(
        _without_power,
        "The power without pauses is not known for {labels}, so there is no TFLOP/s per watt:",
        "bursts may be faster than power and cooling sustain, and their power samples include the pauses.",
        "Measure all with run --sustained 10s.",
    ),
)
FACTS: Sequence[Rule[Comparison]] = (
    Rule(lambda c: when(_sources(c) == {ROUNDS}), "Intervals are 95 %, from rounds."),
    Rule(
        _units,
        "Measured on {each}.",
        "Two units of one model differ in a cell by up to {most} near the power limit and {least} far from it, in "
        "95 % of cells ({known}); the intervals include that.",
        "Runs on more units of a model narrow them.",
    ),
)
