"""Run files -> machines: what a comparison sets side by side. The files of one machine are its rounds.

Two files are of one machine where Environment.differences finds nothing and both were measured with the same timer and
L2 state, or where --name gives both one label. Several units of one GPU model with the same power limit and software
count as one machine too, because a buyer gets any of them; unit_spread.py shows how far apart they lie. Where this
leaves a single machine, each file is a machine of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from attnbench.core.case import Case
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.flops import flops
from attnbench.core.machine import Environment
from attnbench.core.record import Job, Record, Run
from attnbench.results.cells import Cell, Key, by_key, cells

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

    @property
    def environment(self) -> Environment:
        return self.run.environment

    @property
    def is_gpu(self) -> bool:
        return self.environment.device.kind == "cuda"

    @cached_property
    def cells(self) -> Mapping[Key, Cell]:
        """All cells, with and without a figure, in the order of a report."""
        return by_key(cells([self.run]))

    @cached_property
    def log_latencies(self) -> Mapping[Key, Mapping[int, float]]:
        """Round -> natural logarithm of its latency in seconds, of every cell that has a figure."""
        found = {}
        for key, cell in self.cells.items():
            if cell.status == "ok":
                logs = {number: math.log(seconds) for number, seconds in cell.rounds("latency").items() if seconds}
                if logs:
                    found[key] = logs
        return found

    @cached_property
    def mean_log_latency(self) -> Mapping[Key, float]:
        """The mean over the rounds of the logarithm of the latency, of every cell that has a figure."""
        return {key: math.fsum(logs.values()) / len(logs) for key, logs in self.log_latencies.items()}

    @cached_property
    def fastest(self) -> Mapping[Case, str]:
        """Case -> its fastest backend, of every case that has a figure."""
        return self.fastest_of(self.log_latencies)

    def fastest_of(self, keys: Iterable[Key]) -> dict[Case, str]:
        """Return case -> its fastest backend among these cells, each of which has a figure."""
        best: dict[Case, Key] = {}
        for key in keys:
            rival = best.setdefault(key[0], key)
            if self.mean_log_latency[key] < self.mean_log_latency[rival]:
                best[key[0]] = key
        return {case: backend for case, (_, backend) in best.items()}

    def latency(self, key: Key) -> float:
        """Return seconds: the geometric mean of the rounds' medians."""
        return math.exp(self.mean_log_latency[key])

    def tflops(self, key: Key) -> float:
        """Return TFLOP/s: the case's exact FLOPs over `latency`."""
        return flops(key[0]) / self.latency(key) / 1e12


def machines(paths: Sequence[Path], runs: Sequence[Run], names: Mapping[Path, str] | None = None) -> list[Machine]:
    """Return the machines in the order of their first file.

    `names` are the labels that were asked for; files with one label are joined. Raises UserError where those are not of
    one machine.
    """
    names = names or {}
    files = [File(path, run) for path, run in zip(paths, runs, strict=True)]
    groups = _grouped(files, names)
    if len(groups) == 1 and not names:
        groups = [[file] for file in files]
    given = [next((names[f.path] for f in group if f.path in names), None) for group in groups]
    labels = _labels([group[0].run for group in groups], given)
    return [_joined(label, group) for label, group in zip(labels, groups, strict=True)]


def indistinguishable_files(machines: Iterable[Machine]) -> list[list[File]]:
    """Return the files of all machines in groups that nothing in their files sets apart: of one unit or of several."""
    return _grouped([file for machine in machines for file in machine.files], {})


def parse_names(options: Iterable[str], paths: Sequence[Path]) -> dict[Path, str]:
    """Return path -> label of --name FILE=LABEL; FILE is a path as given, its name, or its name without .jsonl."""
    found: dict[Path, str] = {}
    for option in options:
        word, equals, label = (part.strip() for part in option.rpartition("="))
        if not equals or not word or not label:
            raise UserError(f"--name: {option!r} is not FILE=LABEL, as in --name lab.jsonl=lab")
        fit = [p for p in paths if word in (str(p), p.name, p.stem)]
        if len(fit) != 1:
            why = "stands for several files" if fit else f"is none of the files{did_you_mean(word, map(str, paths))}"
            raise UserError(f"--name: {word!r} {why}")
        found[fit[0]] = label
    return found


def reference(machines: Sequence[Machine], name: str | None) -> Machine:
    """Return the machine that --to names, by its label or a part of it that no other label has; else the first."""
    if name is None:
        return machines[0]
    fit = matching(machines, name)
    if len(fit) != 1:
        why = f"stands for {' and '.join(m.label for m in fit)}" if fit else "is none of the machines"
        raise UserError(f"--to: {name!r} {why}{did_you_mean(name, [m.label for m in machines])}")
    return fit[0]


def matching(machines: Sequence[Machine], name: str) -> list[Machine]:
    """Return the machine of that label, in any case; else those with the name as whole words in label or device."""
    word = name.casefold().strip()
    if exact := [m for m in machines if m.label.casefold() == word]:
        return exact
    inside = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
    return [m for m in machines if inside.search(f"{m.label}\n{m.environment.device.name}".casefold())]


def short_name(run: Run) -> str:
    """Return H200 for "NVIDIA H200", EPYC 9654 CPU for "AMD EPYC 9654 96-Core Processor (192 cores)"."""
    device = run.environment.device
    bare = " ".join(_BRANDS.sub(" ", _CORES.sub("", device.name)).split()) or device.name
    return f"{bare} CPU" if device.kind == "cpu" else bare


def _indistinguishable(one: File, other: File) -> bool:
    same_policy = (one.run.policy.timer, one.run.policy.l2) == (other.run.policy.timer, other.run.policy.l2)
    return same_policy and not one.run.environment.differences(other.run.environment)


def _grouped(files: Sequence[File], names: Mapping[Path, str]) -> list[list[File]]:
    groups: list[list[File]] = []
    for file in files:
        label = names.get(file.path)
        for group in groups:
            first = group[0]
            if label == names.get(first.path) and (label is not None or _indistinguishable(first, file)):
                if not _indistinguishable(first, file):
                    what = "; ".join(first.run.environment.differences(file.run.environment)) or "timer or L2"
                    raise UserError(f"--name: {file.path} is not of the same machine as {first.path}: {what}")
                group.append(file)
                break
        else:
            groups.append([file])
    return groups


def _joined(label: str, files: Sequence[File]) -> Machine:
    """Return the machine of some files; the rounds of each file follow those of the file before it."""
    run = files[0].run
    if len(files) > 1:
        records: list[Record] = []
        plan: list[Job] = []
        shift = 0
        for own in (file.run for file in files):
            records += [replace(record, round=record.round + shift) for record in own.records]
            plan += [replace(job, round=job.round + shift) for job in own.plan]
            rounds = [*(record.round for record in own.records), *(job.round for job in own.plan)]
            shift += 1 + max(rounds, default=0)
        run = replace(run, records=tuple(records), plan=tuple(plan))
    return Machine(label, tuple(files), run)


# What may tell machines of one name apart, in the order in which a reader would ask.
_DISTINCTIONS: tuple[Callable[[Run], str], ...] = (
    lambda run: f"{run.environment.power_limit_w:g} W" if run.environment.power_limit_w else "",
    lambda run: f"torch {run.environment.torch}" if run.environment.torch else "",
    lambda run: f"driver {run.environment.driver}" if run.environment.driver else "",
    lambda run: f"{run.environment.device.threads} threads" if run.environment.device.threads else "",
    lambda run: f"{run.environment.device.memory / 2**30:.0f} GiB",
    lambda run: f"{run.policy.timer} L2 {run.policy.l2}",
    lambda run: f"attnbench {run.environment.attnbench}",
)


def _labels(runs: Sequence[Run], given: Sequence[str | None]) -> list[str]:
    """Return a unique label for each run: the one given, else its short name with what tells it from its namesakes."""
    labels = [name or short_name(run) for name, run in zip(given, runs, strict=True)]
    for name in dict.fromkeys(labels):
        namesakes = [i for i, label in enumerate(labels) if label == name and not given[i]]
        for distinction in _DISTINCTIONS:
            texts = {i: distinction(runs[i]) for i in namesakes}
            if len({labels[i] for i in namesakes}) < len(namesakes) and len({*texts.values()}) > 1:
                for i in namesakes:
                    labels[i] = f"{labels[i]} {texts[i]}".strip()
    for name in [name for name in dict.fromkeys(labels) if labels.count(name) > 1]:
        for number, i in enumerate((i for i, label in enumerate(labels) if label == name), start=1):
            labels[i] = f"{name} #{number}"
    return labels
