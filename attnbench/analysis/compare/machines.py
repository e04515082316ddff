"""Run files -> machines: what a comparison sets side by side. The files of one machine are its rounds.

Two files are of one machine where nothing differs between their setups (results/run_setup.py) and --name gives both one
label or none. Several units of one GPU model with the same power limit and software count as one machine, because a
buyer gets any of them; unit_spread.py shows how far apart they lie. Where this leaves a single machine, each file is a
machine of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from attnbench.core.case import Case
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.machine import Environment
from attnbench.core.record import Record, Run
from attnbench.core.text import listed
from attnbench.results import run_file
from attnbench.results.cells import Cell, Key, by_key, cells
from attnbench.results.run_setup import clashes, differences, setup_texts, unique_labels

_BRANDS = re.compile(r"\(R\)|\(TM\)|\bNVIDIA\b|\bAMD\b|\bIntel\b|\bTesla\b|\bProcessor\b|\bCPU\b.*|\d+-Core\b|@.*")
_CORES = re.compile(r"\s*\(\d+ cores\)$")


@dataclass(frozen=True)
class File:
    """A run file: where it is and what it holds."""

    path: Path
    run: Run


@dataclass(frozen=True, eq=False)
class Machine:
    """One of the machines that are compared, with all that was measured on it. Its label is unique."""

    label: str
    files: tuple[File, ...]
    run: Run = field(repr=False)  # of the first file, with the records of all; the rounds of each follow the last one's
    beside: tuple[Run, ...] = field(default=(), repr=False)  # the runs of all machines that it is compared with
    metric: Literal["latency", "sustained_latency", "joules"] = "latency"  # what its figures are of

    @property
    def environment(self) -> Environment:
        return self.run.environment

    @property
    def is_gpu(self) -> bool:
        return self.environment.device.kind == "cuda"

    @cached_property
    def cards(self) -> frozenset[str | None]:
        """The cards that measured it; None for one that is not named."""
        return frozenset(file.run.environment.device.uuid for file in self.files)

    def same_card(self, other: Machine) -> bool:
        """Return whether both were measured on one card, as far as the files tell."""
        if self.environment.device.name != other.environment.device.name:
            return False
        return None in self.cards | other.cards or bool(self.cards & other.cards)

    @cached_property
    def cells(self) -> Mapping[Key, Cell]:
        """All cells, with and without a figure, in the order of a report."""
        return by_key(cells([self.run], beside=self.beside))

    @cached_property
    def log_rounds(self) -> Mapping[Key, Mapping[int, float]]:
        """Round -> natural logarithm of its latency in seconds, or energy in joules, of every cell with a figure."""
        rounds = {key: cell.rounds(self.metric) for key, cell in self.cells.items() if cell.value(self.metric)}
        return {key: {n: math.log(value) for n, value in found.items() if value} for key, found in rounds.items()}

    @cached_property
    def sustained(self) -> Machine:
        """The same machine without pauses; it has only the cells that were measured so."""
        return replace(self, metric="sustained_latency")

    @cached_property
    def energy(self) -> Machine:
        """The same machine with the energy of a call as its figure, instead of the latency."""
        return replace(self, metric="joules")

    @cached_property
    def log_figure(self) -> Mapping[Key, float]:
        """The logarithm of the latency, or energy, of every cell that has a figure: of the median over its rounds."""
        return {key: math.log(self.value(key, self.metric)) for key in self.log_rounds}

    def value(self, key: Key, metric: str) -> float:
        """Return a metric of a cell that has it."""
        found = self.cells[key].value(metric)
        assert found is not None, f"{key} has no {metric}"
        return found

    @cached_property
    def fastest(self) -> Mapping[Case, Key]:
        """Case -> its cell with the fastest backend, of every case that has a figure."""
        return self.fastest_of(self.log_rounds)

    def fastest_of(self, keys: Iterable[Key]) -> dict[Case, Key]:
        """Return case -> the fastest of these cells that is no approximation; each has a figure."""
        best: dict[Case, Key] = {}
        for key in (key for key in keys if self.cells[key].is_exact):
            rival = best.setdefault(key[0], key)
            if self.log_figure[key] < self.log_figure[rival]:
                best[key[0]] = key
        return best

    def latency(self, key: Key) -> float:
        """Return the seconds of a cell that has a figure."""
        return self.value(key, self.metric)

    def tflops(self, key: Key) -> float:
        """Return the TFLOP/s of a cell that has a figure, by exact FLOPs."""
        return self.value(key, "tflops" if self.metric == "latency" else "sustained_tflops")

    def utilization(self, key: Key) -> float | None:
        """Return TFLOP/s over the datasheet's peak; None where that is not known."""
        return self.cells[key].value("utilization" if self.metric == "latency" else "sustained_utilization")

    def watts(self, key: Key) -> float | None:
        """Return the power while the cell ran without pauses; None in bursts.

        NVML's samples of bursts hold the pauses between them, and its average lags by a second. For sdpa-cudnn on an
        H200 (4k, d128, causal, fwd) they give 4.7 TFLOP/s per watt where 0.72 is right
        (results/20261121-060508-sustained-nvidia-h200.jsonl).
        """
        return self.cells[key].value("sustained_power") if self.metric == "sustained_latency" else None


def machines(paths: Sequence[Path], runs: Sequence[Run], labels: Mapping[Path, str] | None = None) -> list[Machine]:
    """Return the machines in the order of their first file.

    `labels` are those that were asked for. Raises UserError where one label is given to files of different machines.
    """
    labels = labels or {}
    files = [File(path, run) for path, run in zip(paths, runs, strict=True) if not _is_other_search(run)]
    if not files:
        raise UserError("searches of a batch or within --memory say nothing of machines; give run files: attnbench run")
    groups = files_by_setup(files, labels)
    if len(groups) == 1 and not labels:
        groups = [[file] for file in files]
    names = [labels.get(group[0].path) or short_name(group[0].run) for group in groups]
    unique = unique_labels(names, [[*setup_texts(group[0].run).values()] for group in groups])
    return [machine_of(label, group, runs) for label, group in zip(unique, groups, strict=True)]


def files_by_setup(files: Iterable[File], labels: Mapping[Path, str] | None = None) -> list[list[File]]:
    """Return the files in groups of one given label, or of none and one setup.

    Raises UserError where files with one label are of different devices or methods.
    """
    labels = labels or {}
    groups: list[list[File]] = []
    for file in files:
        label = labels.get(file.path)
        for group in groups:
            first = group[0]
            if labels.get(first.path) != label:
                continue
            found = clashes(first.run, file.run) if label else differences(first.run, file.run)
            if found and label:
                raise UserError(f"--name: {file.path} is not of the same machine as {first.path}: {'; '.join(found)}")
            if not found:
                group.append(file)
                break
        else:
            groups.append([file])
    return groups


def parse_names(options: Iterable[str], paths: Sequence[Path]) -> dict[Path, str]:
    """Return path -> label of --name FILE=LABEL; FILE is a path as given, its name, or that without its ending."""
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
    """Return the machine that --to names; else the first. Raises UserError for a name of several machines or none."""
    if name is None:
        return machines[0]
    fit = named(machines, name, "--to")
    if len(fit) > 1:
        labels = [machine.label for machine in machines]
        several = listed(machine.label for machine in fit)
        raise UserError(f"--to: {name!r} fits several machines: {several}{did_you_mean(name, labels)}")
    return fit[0]


def named(machines: Sequence[Machine], name: str, option: str) -> list[Machine]:
    """Return the machine of that label, in any case; else those with the name as whole words in label or device.

    Raises UserError, which begins with the option, where there is none.
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
    """Return H200 for "NVIDIA H200", EPYC 9654 CPU for "AMD EPYC 9654 96-Core Processor (192 cores)"."""
    device = run.environment.device
    bare = " ".join(_BRANDS.sub(" ", _CORES.sub("", device.name)).split()) or device.name
    return f"{bare} CPU" if device.kind == "cpu" else bare


def _is_other_search(run: Run) -> bool:
    """Whether a run is a search that tells nothing of the longest sequence on all of the device's memory."""
    return run.search is not None and (run.search.of != "seqlen" or run.search.memory is not None)


def machine_of(label: str, files: Sequence[File], beside: Iterable[Run] = ()) -> Machine:
    """Return the machine of some files; the rounds of each file follow those of the file before it.

    `beside`: all runs that are compared.
    """
    records: list[Record] = []
    for file in files:
        before = 1 + max((record.round for record in records), default=-1)
        records += [replace(r, round=r.round + before) for r in file.run.records] if before else file.run.records
    plan = tuple(job for file in files for job in file.run.plan)
    return Machine(label, tuple(files), replace(files[0].run, records=tuple(records), plan=plan), tuple(beside))
