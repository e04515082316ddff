"""The machines of a comparison, built from run files. docs/compare.md says which files are one machine.

A run file lists the libraries of the main environment. A backend may run in another interpreter (`--python`), whose
libraries are known only from the backend's own version: "torch 2.11.0, flash-attn-4 4.0.0b36".
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from attnbench.core.case import Case
from attnbench.core.checkout import DIRTY
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.flops import ideal_bytes
from attnbench.core.groups import grouped
from attnbench.core.machine import Environment
from attnbench.core.record import NO_ROOM_TO_CHECK, WRONG, Record, Run
from attnbench.core.text import listed, some
from attnbench.results import run_file
from attnbench.results.cells import Cell, Key, by_key, cells, is_of_earlier_check
from attnbench.results.metrics import limit
from attnbench.results.pool import Card, Pool, Reading
from attnbench.results.run_setup import (
    OF_ONE_MACHINE,
    VARIABLE,
    differing,
    phrase,
    setup,
    setup_texts,
    unique_labels,
)
from attnbench.results.together import Together, together
from attnbench.results.uncertainty import hardly_known, load, spread

_BRANDS = re.compile(r"\(R\)|\(TM\)|\bNVIDIA\b|\bAMD\b|\bIntel\b|\bTesla\b|\bProcessor\b|\bCPU\b.*|\d+-Core\b|@.*")
_CORES = re.compile(r"\s*\(\d+ cores\)$")
_OF_MODEL = [name for name in OF_ONE_MACHINE if name != "method"] + ["device threads", "device instructions"]
CODE = ", code "  # in a version: what is before a hash of code
_OWN_KERNELS = ("triton", "gluon", "tilelang", "helion")  # kernels of attnbench, whose code changes with its commits
SEARCH = "a search of a batch, or within --memory"
STEPS = "steps of whole models; compare them alone"
SILENT = "no time of a call"
MOST_VERSIONS = 3
Version = tuple[int, str]  # the measuring method, and the backend's version


@dataclass(frozen=True)
class File:
    """A run file: its path and its run."""

    path: Path
    run: Run

    @property
    def card(self) -> Card:
        device = self.run.environment.device
        return Card(device.name, device.uuid)


@dataclass(frozen=True, eq=False)
class Machine:
    """A machine of a comparison, with all its measurements. Its label is unique."""

    label: str
    files: tuple[File, ...]
    runs: tuple[Run, ...] = field(repr=False)  # its files joined: a run for each measuring method, the newest first
    versions: Mapping[Key, Version] = field(repr=False)  # of the cells with a figure or a wrong result
    older: Mapping[str, int]  # backend -> rounds left out for an older method or version
    card_of_round: Mapping[int, Card] = field(repr=False)
    cells: Mapping[Key, Cell] = field(repr=False)  # with and without a figure, in the order of a report
    own_code: frozenset[str] = frozenset()  # the backends that `own_code` names, which are in no ranking
    metric: Literal["latency", "sustained_latency", "joules"] = "latency"  # the quantity of its figures

    @property
    def run(self) -> Run:
        """The run by the newest method, with the setup and the versions of the last file."""
        return self.runs[0]

    @property
    def environment(self) -> Environment:
        return self.run.environment

    @property
    def is_gpu(self) -> bool:
        return self.environment.device.kind == "cuda"

    @cached_property
    def model(self) -> tuple[object, ...]:
        """The values that identify its model of device, with the power limit and the way of timing."""
        return model(self.run)

    @cached_property
    def cards(self) -> frozenset[Card]:
        """The cards on which the machine was measured."""
        return frozenset(file.card for file in self.files)

    def same_card(self, other: Machine) -> bool:
        """Return whether both machines were measured on one and the same card, as far as the files tell."""
        return len(self.cards | other.cards) == 1

    @cached_property
    def planned(self) -> frozenset[Key]:
        """The cells that its runs planned."""
        return frozenset((job.case, job.backend) for run in self.runs for job in run.plan)

    @cached_property
    def tried(self) -> frozenset[Key]:
        """The cells that have a figure, or cannot have one on this machine.

        Cells left out for time or by the plan, or without their library, are not included: they say nothing about the
        device.
        """
        cannot = {(r.case, r.backend) for file in self.files for r in file.run.records if _cannot_run(file.run, r)}
        return frozenset(cannot | self.log_rounds.keys())

    @cached_property
    def pool(self) -> Pool[Key]:
        """The machine's cells that have a figure, each from all cards on which it was measured."""
        return Pool({key: self._reading(key) for key in self.log_rounds}, spread(self.environment.device))

    def _reading(self, key: Key) -> Reading:
        rounds = self.log_rounds[key]
        cell, by_memory = self.cells[key], key[0].is_decode
        without_pauses = self.metric != "latency" and not by_memory
        return Reading(
            {card: {n: rounds[n] for n in of} for card, of in grouped(rounds, self.card_of_round.__getitem__).items()},
            process=key[1],
            load=load(cell.value("sustained_utilization")) if without_pauses else cell.load,
            by_memory=by_memory,
            informs=key[0].ranks == 1 and not self.decides_nothing(key),
        )

    @cached_property
    def log_rounds(self) -> Mapping[Key, Mapping[int, float]]:
        """Cell -> round -> natural logarithm of the latency in seconds, or energy in joules, for cells with a figure.

        A time that cannot be the computation's (Cell.not_computed) is no figure.
        """
        known = {key: cell for key, cell in self.cells.items() if cell.value(self.metric) and not cell.not_computed}
        rounds = {key: cell.rounds(self.metric) for key, cell in known.items()}
        return {key: {n: math.log(value) for n, value in found.items() if value} for key, found in rounds.items()}

    @cached_property
    def sustained(self) -> Machine:
        """The same machine with only the figures measured without pauses."""
        return replace(self, metric="sustained_latency")

    @cached_property
    def energy(self) -> Machine:
        """The same machine with the energy of a call as its figure, instead of the latency."""
        return replace(self, metric="joules")

    def within_process(self, key: Key) -> float:
        """Return half the 95 % interval of a cell from the samples of its process alone; infinite if not known."""
        known = self.cells[key].uncertainty_of(self.metric)
        return math.inf if known is None or known.within is None else math.hypot(known.within, known.added)

    @property
    def log_figure(self) -> Mapping[Key, float]:
        """Cell -> logarithm of its latency in seconds, or energy in joules, on a card of the model (Pool)."""
        return self.pool.values

    def value(self, key: Key, metric: str) -> float:
        """Return a metric of a cell that has it."""
        found = self.cells[key].value(metric)
        assert found is not None, f"{key} has no {metric}"
        return found

    @cached_property
    def fastest(self) -> Mapping[Case, Key]:
        """Case -> its cell with the fastest backend, for every case that has a figure."""
        return self.fastest_of(self.log_rounds)

    def fastest_of(self, keys: Iterable[Key]) -> dict[Case, Key]:
        """Return case -> the fastest of these cells, which have figures, without approximations.

        A case is left out if its fastest figure is too uncertain to count (`undecided_of`).
        """
        return {case: key for case, key in self._reads_fastest(keys).items() if not self.decides_nothing(key)}

    def undecided_of(self, keys: Iterable[Key]) -> list[Key]:
        """Return the cells with the fastest figure of their case among these, if it is too uncertain to count."""
        return [key for key in self._reads_fastest(keys).values() if self.decides_nothing(key)]

    def decides_nothing(self, key: Key) -> bool:
        """Return whether a figure cannot decide which backend is fastest: it is hardly known, or host-bound."""
        return self.is_hardly_known(key) or self.is_host_bound(key)

    def is_host_bound(self, key: Key) -> bool:
        """Return whether the device waited for the host in a cell, so that its figure is not the device's speed."""
        return self.cells[key].is_host_bound(self.metric)

    def is_hardly_known(self, key: Key) -> bool:
        """Return whether the figure of a cell is known to no better than a factor of 1.5, or has no known uncertainty.

        A baseline keeps one value of each measurement, and thus no uncertainty.
        """
        cell = self.cells[key]
        half = cell.half_interval(self.metric)
        return hardly_known(half) and not (half is None and cell.run.reduced)

    def is_ranked(self, key: Key) -> bool:
        """Return whether a cell takes part in rankings: it computed exact attention, by code that anyone can take."""
        return self.cells[key].is_ranked and key[1] not in self.own_code

    def _reads_fastest(self, keys: Iterable[Key]) -> dict[Case, Key]:
        best: dict[Case, Key] = {}
        for key in filter(self.is_ranked, keys):
            rival = best.setdefault(key[0], key)
            if self.log_figure[key] < self.log_figure[rival]:
                best[key[0]] = key
        return best

    def latency(self, key: Key) -> float:
        """Return the seconds of a cell that has a figure."""
        return math.exp(self.log_figure[key])

    def limit(self, key: Key) -> str:
        """Return what limits the speed of a cell's case here: "compute", "memory" or "launch" (metrics.limit)."""
        return limit(key[0], self.cells[key].rates)

    def gbps(self, key: Key) -> float | None:
        """Return the GB/s of each rank in a cell that has a figure, from the least bytes that a call must move.

        None for an approximation, which may move fewer.
        """
        if not self.cells[key].is_exact:
            return None
        return ideal_bytes(key[0]) / self.latency(key) / 1e9 / key[0].ranks

    def tflops(self, key: Key) -> float | None:
        """Return the TFLOP/s of a cell with a figure, from the FLOPs of exact attention; None for an approximation."""
        if not self.cells[key].is_exact:
            return None
        return self.cells[key].flops / self.latency(key) / 1e12 / key[0].ranks

    def utilization(self, key: Key) -> float | None:
        """Return TFLOP/s over the datasheet's peak; None if the peak is not known."""
        peak, tflops = self.cells[key].rates.peak, self.tflops(key)
        return tflops * 1e12 / peak if peak and tflops else None

    def watts(self, key: Key) -> float | None:
        """Return the power in watts while the cell ran without pauses; None in bursts.

        NVML's samples of bursts include the pauses between them, and its average lags by a second. For sdpa-cudnn on an
        H200 (4k, d128, causal, fwd) they give 4.7 TFLOP/s per watt where 0.72 is right
        (results/20261121-060508-sustained-nvidia-h200.jsonl).
        """
        return self.cells[key].value("sustained_power") if self.metric == "sustained_latency" else None


def _cannot_run(run: Run, record: Record) -> bool:
    """Return whether a record shows that a backend cannot run a case on a device."""
    if record.status == "skipped":
        installed = record.backend in run.versions or not run.versions
        return installed and not record.resumable
    unknown = is_of_earlier_check(run, record) or NO_ROOM_TO_CHECK in (record.reason or "")
    return record.status in (*WRONG, "oom", "failed") and not unknown


def machines(paths: Sequence[Path], runs: Sequence[Run], labels: Mapping[Path, str] | None = None) -> list[Machine]:
    """Return the machines in the order of their first file.

    `labels` are the labels from --name. Raises UserError if one label is given to files of different machines, or no
    file is of use for a comparison.
    """
    labels = labels or {}
    unusable = left_out(paths, runs, bool(labels))
    files = [File(path, run) for path, run in zip(paths, runs, strict=True) if path not in unusable]
    if not files:
        raise UserError(
            "searches of a batch or within --memory do not compare machines; give files of attnbench run; "
            f"attnbench capacity {shlex.quote(str(paths[0]))} shows what a search found"
        )
    groups = _by_model(files, labels)
    if len(groups) == 1 and not labels:
        groups = [[file] for file in files]
    names = [labels.get(group[0].path) or short_name(group[0].run) for group in groups]
    setups = [setup_texts(group[0].run) for group in groups]
    days = [group[0].run.started[:10] for group in groups]
    texts = [[*({**of, "method": ""}).values(), day, of["method"]] for of, day in zip(setups, days, strict=True)]
    unique = unique_labels(names, texts)
    used, own = together(file.run for file in files), own_code([file.run for file in files])
    return [machine_of(label, group, used, own) for label, group in zip(unique, groups, strict=True)]


def own_code(runs: Sequence[Run]) -> frozenset[str]:
    """Return the names of a person's own code (Run.own_code) in some runs; none if nothing else was measured.

    A reader cannot take such code, so it is ranked only where there is nothing else.
    """
    measured = [{record.backend for record in run.records if record.status == "ok"} for run in runs]
    others = {name for run, names in zip(runs, measured, strict=True) for name in names - run.own_code}
    return frozenset(name for run in runs for name in run.own_code) - others if others else frozenset()


def left_out(paths: Sequence[Path], runs: Sequence[Run], labelled: bool) -> dict[Path, str]:
    """Return file -> reason, for the files without any use for a comparison. `labelled`: --name was given."""
    pairs = [*zip(paths, runs, strict=True)]
    found = {path: SEARCH for path, run in pairs if run.search and (run.search.of != "seqlen" or run.search.memory)}
    steps = {path: STEPS for path, run in pairs if any(record.case.model_step for record in run.records)}
    found |= steps if len({**found, **steps}) < len(pairs) else {}
    rest = [(path, run) for path, run in pairs if path not in found]
    if not labelled and len({model(run) for _, run in rest}) == 1:  # each file is a machine of its own
        silent = {path: SILENT for path, run in rest if not any("time" in r.measurements for r in run.records)}
        found |= silent if len(silent) < len(rest) - 1 else {}
    return found


def model(run: Run) -> tuple[object, ...]:
    """Return the values that runs of one machine share: device, power limit, environment variables, way of timing."""
    found = setup(run)
    return (*(found[name] for name in _OF_MODEL), *sorted(run.environment.variables.items()))


def _by_model(files: Iterable[File], labels: Mapping[Path, str]) -> list[list[File]]:
    """Return the files in groups: by label, and without a label by model.

    Raises UserError if files with one label are of different devices.
    """
    groups = [*grouped(files, lambda file: labels.get(file.path) or model(file.run)).values()]
    for first, *others in groups:
        if other := next((file for file in others if model(file.run) != model(first.run)), None):
            apart = differing(setup(first.run), setup(other.run))
            telling = (name for name in apart if name in _OF_MODEL or name.startswith(VARIABLE))
            found = "; ".join(phrase(name, *apart[name]) for name in telling)
            raise UserError(f"--name: {other.path} is not of the same machine as {first.path}: {found}")
    return groups


def parse_names(options: Iterable[str], paths: Sequence[Path]) -> dict[Path, str]:
    """Return path -> label from --name FILE=LABEL; FILE is a path as given, or its name with or without the ending."""
    found: dict[Path, str] = {}
    for option in options:
        word, equals, label = (part.strip() for part in option.rpartition("="))
        if not equals or not word or not label:
            raise UserError(f"--name: {option!r} is not FILE=LABEL, as in --name lab.jsonl=lab")
        fit = [p for p in paths if word in (str(p), p.name, run_file.name(p))]
        if len(fit) != 1:
            why = "stands for several files" if fit else f"is none of the files{did_you_mean(word, map(str, paths))}"
            raise UserError(f"--name: {word!r} {why}")
        found[fit[0]] = label
    return found


def reference(machines: Sequence[Machine], name: str | None) -> Machine:
    """Return the machine that --to names, else the first. Raises UserError unless the name fits one machine."""
    if name is None:
        return machines[0]
    fit = named(machines, name, "--to")
    if len(fit) > 1:
        labels = [machine.label for machine in machines]
        several = listed(machine.label for machine in fit)
        raise UserError(f"--to: {name!r} fits several machines: {several}{did_you_mean(name, labels)}")
    return fit[0]


def named(machines: Sequence[Machine], name: str, option: str) -> list[Machine]:
    """Return the machine with this label (letter case ignored), else all with the name as words in label or device.

    Raises UserError, which begins with the option, if there is none.
    """
    word = name.casefold().strip()
    if exact := [m for m in machines if m.label.casefold() == word]:
        return exact
    inside = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
    found = [m for m in machines if inside.search(f"{m.label}\n{m.environment.device.name}".casefold())]
    if not found:
        raise UserError(f"{option}: {name!r} is none of the machines{did_you_mean(name, [m.label for m in machines])}")
    return found


def short_name(run: Run) -> str:
    """Return a short device name: H200 for "NVIDIA H200", EPYC 9654 CPU for "AMD EPYC 9654 96-Core Processor"."""
    device = run.environment.device
    bare = " ".join(_BRANDS.sub(" ", _CORES.sub("", device.name)).split()) or device.name
    return f"{bare} CPU" if device.kind == "cpu" else bare


def machine_of(
    label: str, files: Sequence[File], beside: Together | None = None, own: frozenset[str] = frozenset()
) -> Machine:
    """Return the machine measured in some files. `beside` has the facts of all compared runs, `own` the own code."""
    beside = together(file.run for file in files) if beside is None else beside
    versions = _versions_that_count(files)
    runs, older, card_of_round = _joined(files, versions)
    found = {key: cell for run in reversed(runs) for key, cell in by_key(cells([run], beside=beside)).items()}
    return Machine(label, tuple(files), runs, versions, older, card_of_round, found, own)


def _joined(
    files: Sequence[File], counts: Mapping[Key, Version]
) -> tuple[tuple[Run, ...], Mapping[str, int], Mapping[int, Card]]:
    """Return the fields `runs`, `older` and `card_of_round` of a machine, each cell with one method and version.

    The rounds of a file follow those of the file before it.
    """
    records: dict[int, list[Record]] = {file.run.method: [] for file in files}
    cards: dict[int, Card] = {}
    older = Counter[str]()
    after = 0
    for file in files:
        before = after
        for record in file.run.records:
            version = counts.get((record.case, record.backend))
            counted = version == version_of(file.run, record) and not is_of_earlier_check(file.run, record)
            if version is None or (not file.run.search and counted):
                number = before + record.round
                after = max(after, number + 1)
                cards[number] = file.card
                is_first = number == record.round
                records[file.run.method].append(record if is_first else replace(record, round=number))
            elif record.status == "ok" and not file.run.search:
                older[record.backend] += 1
    runs = []
    for method in sorted(records, reverse=True):
        of_method = sorted((file.run for file in files if file.run.method == method), key=lambda run: run.started)
        plan = tuple(job for run in of_method for job in run.plan)
        versions = {backend: version for run in of_method for backend, version in run.versions.items()}
        runs.append(replace(of_method[-1], records=tuple(records[method]), plan=plan, versions=versions))
    return tuple(runs), older, cards


def is_own_kernel(backend: str) -> bool:
    """Return whether a backend's kernels are attnbench's own, which change with its commits."""
    return backend.rpartition("-")[2] in _OWN_KERNELS


def version_of(run: Run, record: Record) -> Version:
    """Return the method and version that all rounds of one cell must share.

    For attnbench's own kernels whose version has no hash of their code, as in files before 2026-11-30, this includes
    the commit and, with uncommitted changes, the start of the run.
    """
    found = record.version or run.versions.get(record.backend, "")
    if is_own_kernel(record.backend) and CODE not in found:
        commit = run.environment.git or ""
        changed = f" of {run.started}" if commit.endswith(DIRTY) else ""
        found = f"{found}, attnbench {run.environment.attnbench} {commit}{changed}"
    return run.method, found


def _versions_that_count(files: Sequence[File]) -> dict[Key, Version]:
    """Return the newest method, with its last measured version, for each cell with a figure or a wrong result.

    A wrong result by an earlier check counts only for a cell without anything else.
    """
    found: dict[Key, tuple[int, str, Version]] = {}
    for run in (file.run for file in files if not file.run.search):
        for record in run.records:
            if record.status == "ok" or (record.status in WRONG and not is_of_earlier_check(run, record)):
                key, this = (record.case, record.backend), (run.method, run.started, version_of(run, record))
                found[key] = max(this, found.get(key, this))
    return {key: version for key, (_, _, version) in found.items()}


def libraries(run: Run, names: Collection[str], backends: Collection[str]) -> dict[str, str | None]:
    """Return library -> its version in a run, for the `names` that are known; None for a missing library.

    The versions are from the backends, else from the main environment. A library that is missing there may be in
    another interpreter of the run, and is then not known.
    """
    records = {(record.backend, record.version) for record in run.records}
    said = [version for name, version in {*run.versions.items(), *records} if name in backends and version]
    pairs = {tuple(part.split(" ", 1)) for version in said for part in version.split(", ")}
    found: dict[str, str | None] = {}
    for library in names:
        used = sorted(pair[1] for pair in pairs if len(pair) == 2 and pair[0] == library)
        version = some(used, MOST_VERSIONS) or run.environment.packages.get(library)
        if version or not run.interpreters:
            found[library] = version
    return found


def setup_differs(one: Run, other: Run) -> bool:
    """Return whether the setups of two runs are known to differ, apart from the interpreter that has a library."""
    names = {*one.environment.packages, *other.environment.packages}
    backends = one.versions.keys() & other.versions.keys()
    ours, theirs = (libraries(run, names, backends) for run in (one, other))
    apart = [name for name in differing(setup(one), setup(other)) if name not in names]
    return bool(apart) or any(ours[name] != theirs[name] for name in ours.keys() & theirs.keys())
