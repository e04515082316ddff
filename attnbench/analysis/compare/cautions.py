"""What to doubt in a comparison: what its intervals leave out, and what sets machines apart beside the hardware."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from attnbench.analysis.compare.compare import Comparison
from attnbench.analysis.compare.machines import Machine, is_own_kernel
from attnbench.analysis.compare.software import libraries
from attnbench.analysis.compare.speed_ratio import ROUNDS, TABLE
from attnbench.analysis.summary.cautions import rank_change
from attnbench.core.case import Case
from attnbench.core.formats import percent
from attnbench.core.text import count, listed, some
from attnbench.report.document import Caution
from attnbench.results import case_names
from attnbench.results.cells import Key
from attnbench.results.run_setup import setup, setup_texts
from attnbench.results.uncertainty import NORMAL, Spread, spread

FROM_ROUNDS = Caution("Intervals are 95 %, from rounds.")  # nothing to doubt
NOT_INSTALLED = "not there"
MOST_NAMED = 3  # files, cells or versions


def cautions(c: Comparison) -> list[Caution]:
    """Return what to doubt, the most serious first."""
    return [
        *_intervals(c),
        *(Caution(note) for note in (c.workload.notes if c.workload else ())),
        *_undecided(c),
        *_unlike_kernels(c),
        *_methods(c),
        *_setups(c.machines),
        *_joined(c.machines),
        *_left_out(c),
        *_clocks_held_down(c),
        *(caution for machine in c.machines for caution in rank_change(machine.cells.values(), machine.label)),
        *_no_power(c),
    ]


def _undecided(c: Comparison) -> Iterator[Caution]:
    """Yield which cases count for nothing, as what reads fastest there is hardly known, or holds the host's time."""
    for figures in c.figures:
        bound = [(label, key) for label, key in figures.undecided if figures.machines[label].is_host_bound(key)]
        unsure = [pair for pair in figures.undecided if pair not in bound]
        out = f"left out {figures.pace}, with {'shared backends' if figures.shared else 'own fastest'}"
        if unsure:
            yield Caution(
                f"{_cases(unsure)} {out}: what reads fastest there is known to no better than a factor of 1.5 "
                f"({_named(unsure, c)}).",
                "Which backend is fastest is not known there.",
                "Measure again, on a device that nothing else uses.",
            )
        if bound:
            yield Caution(
                f"{_cases(bound)} {out}: there the GPU waits for the host to launch what reads fastest "
                f"({_named(bound, c)}).",
                "Such a figure is not the speed of the GPU.",
            )


def _cases(cells: Sequence[tuple[str, Key]]) -> str:
    return count(len({key[0] for _, key in cells}), "case")


def _named(cells: Sequence[tuple[str, Key]], c: Comparison) -> str:
    """Return the cells by case, each with the machines that it is of: a case is named once."""
    by_case: dict[Case, dict[Key, list[str]]] = {}
    for label, key in cells:
        by_case.setdefault(key[0], {}).setdefault(key, []).append(label)
    each = (listed(f"{_name(key, c)} on {listed(on)}" for key, on in of.items()) for of in by_case.values())
    return some(each, MOST_NAMED)


def _unlike_kernels(c: Comparison) -> Iterator[Caution]:
    """Yield which backends ran unlike kernels on machines that could run the same ones."""
    by_backend: dict[tuple[str, str], list[Key]] = {}
    for key, kernels in c.unlike.items():
        by_backend.setdefault((key[1], kernels), []).append(key)
    for (backend, kernels), keys in by_backend.items():
        yield Caution(
            f"{backend} ran unlike kernels in {count(len(keys), 'case')}: {kernels}.",
            "It is no shared backend there: what differs is the software.",
            "Install one build on all machines.",
        )


def _name(key: Key, c: Comparison) -> str:
    return case_names.case_name(key[1], key[0], len({case.dtype for case in c.cases}) > 1)


def _methods(c: Comparison) -> Iterator[Caution]:
    """Yield in how many of the cells that are compared the machines measured by unlike methods."""
    methods = [[str(machine.cells[key].run.method) for machine in c.machines] for key in c.cells]
    apart = [of for of in methods if len({*of}) > 1]
    if apart:
        each = ", ".join(
            f"method {' and '.join(sorted({*of}))} on {m.label}"
            for m, of in zip(c.machines, zip(*apart, strict=True), strict=True)
        )
        where = "" if len(apart) == len(methods) else f" in {len(apart)} of {count(len(methods), 'cell')}"
        yield Caution(
            f"The measuring method differs{where}: {each}.", "It changes what a figure means: measure all anew."
        )


def _joined(machines: Sequence[Machine]) -> Iterator[Caution]:
    """Yield how the setups of the files of one machine differ, and which of its rounds count for nothing."""
    for machine in machines:
        runs = [file.run for file in machine.files]
        packages = {name for run in runs for name in run.environment.packages}
        backends = set.intersection(*({*run.versions} for run in runs))
        texts: dict[str, dict[str, None]] = {}
        for run in runs:
            tools = {name: value for name, value in setup(run).items() if name not in packages}
            for name, value in {**tools, **libraries(run, sorted(packages), backends)}.items():
                texts.setdefault(name, {})[NOT_INSTALLED if value is None else str(value)] = None
        apart = [f"{name} {some(sorted(of), MOST_NAMED)}" for name, of in texts.items() if len(of) > 1]
        if apart:
            yield Caution(
                f"The {count(len(machine.files), 'file')} of {machine.label} differ: {'; '.join(apart)}.",
                "A cell is of one measuring method and one version of its backend.",
            )
        if older := machine.pooled.older:
            each = some([f"{backend} ({count(n, 'round')})" for backend, n in sorted(older.items())], MOST_NAMED)
            yield Caution(
                f"Of {machine.label}, {count(sum(older.values()), 'round')} by an older method or version count for "
                f"nothing, as newer ones measured the same cells: {each}."
            )


def _left_out(c: Comparison) -> Iterator[Caution]:
    """Yield which files and machines say nothing for a comparison, and why."""
    by_reason: dict[str, list[str]] = {}
    for path, why in c.left_out.items():
        by_reason.setdefault(why, []).append(path.name)
    for why, names in by_reason.items():
        yield Caution(f"{count(len(names), 'file')} left out: {some(names, MOST_NAMED)} ({why}).")
    yield from (Caution(f"Left out: {why}.") for why in c.machines_left_out.values())


def _intervals(c: Comparison) -> list[Caution]:
    """Return a caution that says what the intervals are computed from, and what they therefore leave out."""
    ratios = [figures.ratio(label) for figures in c.figures for label in c.labels]
    sources = {source for ratio in ratios if ratio for source in ratio.sources}
    single = [m for m in c.machines if any(len(rounds) == 1 for rounds in m.log_rounds.values())]
    reduced = [machine.label for machine in single if any(file.run.reduced for file in machine.files)]
    if TABLE in sources and reduced:
        return [
            Caution(
                f"No intervals of what a baseline with one round measured ({', '.join(reduced)}):",
                "it keeps one value per round, and so nothing of its noise.",
                "Compare the run files, or run --rounds 5.",
            )
        ]
    if TABLE not in sources:
        return [FROM_ROUNDS] if sources else []
    rounds = ", from rounds, and where a cell has only one" if ROUNDS in sources else ""
    spreads = dict.fromkeys(str(spread(m.environment.device)) for m in single)
    return [
        Caution(
            f"Intervals are 95 %{rounds} from the samples of a single round ({', '.join(m.label for m in single)}) and "
            f"a table of what sets processes apart ({'; '.join(spreads)}).",
            "",
            "run --rounds 5 measures it instead.",
        )
    ]


def units(c: Comparison) -> Iterator[Caution]:
    """Yield what cards of a model differ by, where the machines are not of one card."""
    if all(machine.same_card(c.reference) for machine in c.others):
        return
    measured: dict[Spread, list[Machine]] = {}
    for machine in c.machines:
        measured.setdefault(spread(machine.environment.device), []).append(machine)
    for known, of_it in measured.items():
        if known.units:
            each = ", ".join(f"{count(len(m.cards), 'unit')} of {m.label}" for m in of_it)
            apart = NORMAL * math.sqrt(2) * math.hypot(known.processes, known.units)
            yield Caution(
                f"Measured on {each}.",
                f"The same cell differs between two units of one model by up to {percent(apart)}, in 95 % of cells "
                f"({known}); the intervals hold that.",
                "More units of a model tell more.",
            )


def _setups(machines: Sequence[Machine]) -> Iterator[Caution]:
    """Yield each difference in software, power limits and how machines were measured; hardware is what is compared."""
    gpus = [machine for machine in machines if machine.is_gpu]
    setups = {machine.label: [setup(file.run) for file in machine.files] for machine in machines}

    def values(name: str, among: Sequence[Machine] = machines) -> dict[str, str | None]:
        """Return label -> the values of all files of a machine; None where none has one."""
        found = {m.label: {str(of[name]) for of in setups[m.label] if of.get(name)} for m in among}
        return {label: some(sorted(texts), MOST_NAMED) or None for label, texts in found.items()}

    packages = sorted({name for m in machines for file in m.files for name in file.run.environment.packages})
    common_backends = set.intersection(*({backend for _, backend in m.log_rounds} for m in machines))
    used = {m.label: [libraries(file.run, packages, common_backends) for file in m.files] for m in machines}

    def versions_of(name: str) -> dict[str, str | None]:
        """Return label -> the versions of a library, of the machines of which they are known."""
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
    if any(is_own_kernel(backend) for m in machines for _, backend in m.log_rounds):
        commits = {
            m.label: some(sorted({of.run.environment.git or "unknown" for of in m.files}), MOST_NAMED) for m in machines
        }
        yield from _differing({"attnbench's commit": commits}, "It may explain a part of the ratio of its own kernels.")
    backends = sorted({backend for m in machines for _, backend in m.log_rounds}, key=case_names.backend_rank)
    versions = {
        name: {m.label: v for m in machines if (v := m.run.versions.get(name)) is not None} for name in backends
    }
    named = [{label: v for label, v in found.items() if v is not None} for found in software.values()]
    others = {name: found for name, found in versions.items() if found not in named}  # a library is named once
    yield from _differing(others, "It may explain a part of its ratio.")
    yield from _differing({"The host's CPU": values("cpu", gpus)}, "Short calls may wait for it.")
    limits: dict[str, dict[str, str | None]] = {}
    for machine in machines:
        of_model = limits.setdefault(f"The power limit of {machine.environment.device.name}", {})
        of_model[machine.label] = setup_texts(machine.run)["power_limit_w"]
    yield from _differing(limits)
    method = {"The timer": values("timer", gpus), "L2 before each sample": values("l2", gpus)}
    yield from _differing(method, "It changes the latency of short calls.")
    if {"fake"} < {machine.environment.device.kind for machine in machines}:
        yield Caution("A simulated device is among them:", "its figures mean nothing.")


def _differing(found: Mapping[str, Mapping[str, str | None]], why: str = "") -> Iterator[Caution]:
    """Yield "torch differs: 2.11.0 on H200 and H200 500 W, 2.12.0 on H100." of name -> label -> value."""
    for name, values in found.items():
        labels: dict[str, list[str]] = {}
        for label, value in values.items():
            labels.setdefault(value or NOT_INSTALLED, []).append(label)
        if len(labels) > 1:
            each = ", ".join(f"{value} on {' and '.join(having)}" for value, having in labels.items())
            yield Caution(f"{name} differs: {each}.", why)


def _clocks_held_down(c: Comparison) -> Iterator[Caution]:
    held = {m.label: sum(m.cells[m.fastest[case]].held_down for case in c.cases) for m in c.machines}
    if any(held.values()):
        each = ", ".join(f"{label} in {n}" for label, n in held.items() if n)
        yield Caution(
            f"A limit held the clock below its best: {each} of {count(len(c.cases), 'case')}, "
            "with each machine's own fastest backend.",
            "The speed there is what power and cooling sustain, and moves by some percent from run to run.",
        )


def _no_power(c: Comparison) -> Iterator[Caution]:
    """Yield a caution that names the GPUs without a figure of their work without pauses, or of its power."""
    gpus = [machine.sustained for machine in c.machines if machine.is_gpu]
    without = [machine.label for machine in gpus if not any(map(machine.watts, machine.log_rounds))]
    if without:
        yield Caution(
            f"No power of work without pauses of {', '.join(without)}, so no TFLOP/s per watt:",
            "bursts may be faster than what power and cooling sustain, and power samples of them hold their pauses.",
            "Measure all with run --sustained 10s.",
        )
