"""Run files -> machines: what stands side by side. Files of one machine are its rounds.

Two files are of one machine where nothing that Environment.differences sees sets them apart and they were measured
alike (timer, L2), or where --name gives them one name. Several units of one GPU model, with the same power limit and
software, are one machine too, since a buyer gets any of them; how far apart they lie is said. Where this leaves a
single machine, every file stands for itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

from attnbench.core.case import Case
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.record import Job, Record, Run
from attnbench.results import columns
from attnbench.results.cells import Cell, Key, cells, keyed

_BRANDS = re.compile(r"\(R\)|\(TM\)|\bNVIDIA\b|\bAMD\b|\bIntel\b|\bTesla\b|\bProcessor\b|\bCPU\b.*|\d+-Core\b|@.*")
_CORES = re.compile(r"\s*\(\d+ cores\)$")


@dataclass(frozen=True)
class File:
    path: Path
    run: Run
    rounds: range = range(0)  # of the machine's that are this file's


@dataclass(frozen=True, eq=False)
class Machine:
    """`label` is unique. `run` holds the records of all files, whose rounds are numbered on."""

    label: str
    files: tuple[File, ...]
    run: Run = field(repr=False)
    known: dict[Case, Case] = field(repr=False)  # of all machines: equal cases are one object, so look-ups are quick

    @cached_property
    def cells(self) -> Mapping[Key, Cell]:
        """In the order of a report."""
        return keyed(cells([self.run]), self.known)

    @cached_property
    def logs(self) -> Mapping[Key, Mapping[int, float]]:
        """Of every cell with a figure, in the order of a report: round -> logarithm of the latency."""
        found = {}
        for key, cell in self.cells.items():
            if cell.status == "ok":
                each = {number: math.log(t) for number, t in cell.rounds("latency").items() if t}
                if each:
                    found[key] = each
        return found

    @cached_property
    def means(self) -> Mapping[Key, float]:
        """The mean of the rounds' logarithms."""
        return {key: math.fsum(each.values()) / len(each) for key, each in self.logs.items()}


def machines(paths: Sequence[Path], runs: Sequence[Run], names: Mapping[Path, str] | None = None) -> list[Machine]:
    """In the order of their first file. `names` are labels that were asked for; files with one label are joined."""
    names = names or {}
    files = [File(path, run) for path, run in zip(paths, runs, strict=True)]
    groups = _groups(files, names)
    if len(groups) == 1 and not names:
        groups = [[file] for file in files]
    given = [next((names[f.path] for f in group if f.path in names), None) for group in groups]
    labels = _labels([group[0].run for group in groups], given)
    known: dict[Case, Case] = {}
    return [_machine(label, group, known) for label, group in zip(labels, groups, strict=True)]


def alike(found: Iterable[Machine]) -> list[list[File]]:
    """The files of all machines, those together that nothing known sets apart: of one unit, or of several."""
    return _groups([file for machine in found for file in machine.files], {})


def parse_names(options: Iterable[str], paths: Sequence[Path]) -> dict[Path, str]:
    """--name FILE=LABEL; FILE is a path as given, its name, or that without .jsonl."""
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


def reference(found: Sequence[Machine], name: str | None) -> Machine:
    """The first, or the one that --to names: its label, or a part of it that no other has."""
    if name is None:
        return found[0]
    fit = matching(found, name)
    if len(fit) != 1:
        why = f"stands for {' and '.join(m.label for m in fit)}" if fit else "is none of the machines"
        raise UserError(f"--to: {name!r} {why}{did_you_mean(name, [m.label for m in found])}")
    return fit[0]


def matching(found: Sequence[Machine], name: str) -> list[Machine]:
    """Those whose label it is, whatever its case; else those with its words in label or device name."""
    word = name.casefold().strip()
    if exact := [m for m in found if m.label.casefold() == word]:
        return exact
    inside = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
    return [m for m in found if inside.search(f"{m.label}\n{m.run.environment.device.name}".casefold())]


def short_name(run: Run) -> str:
    """H200 of "NVIDIA H200", EPYC 9654 CPU of "AMD EPYC 9654 96-Core Processor (192 cores)"."""
    device = run.environment.device
    bare = " ".join(_BRANDS.sub(" ", _CORES.sub("", device.name)).split()) or device.name
    return f"{bare} CPU" if device.kind == "cpu" else bare


def _alike(one: File, other: File) -> bool:
    same_policy = (one.run.policy.timer, one.run.policy.l2) == (other.run.policy.timer, other.run.policy.l2)
    return same_policy and not one.run.environment.differences(other.run.environment)


def _groups(files: Sequence[File], names: Mapping[Path, str]) -> list[list[File]]:
    groups: list[list[File]] = []
    for file in files:
        label = names.get(file.path)
        for group in groups:
            theirs = names.get(group[0].path)
            if label == theirs and (label is not None or _alike(group[0], file)):
                if not _alike(group[0], file):
                    what = "; ".join(group[0].run.environment.differences(file.run.environment)) or "timer or L2"
                    raise UserError(f"--name: {file.path} is not of the same machine as {group[0].path}: {what}")
                group.append(file)
                break
        else:
            groups.append([file])
    return groups


def _machine(label: str, files: Sequence[File], known: dict[Case, Case]) -> Machine:
    """Joined; the rounds of each file follow those of the one before."""
    numbered, start = [], 0
    for file in files:
        plan = file.run.plan if len(files) > 1 else ()
        last = max(chain(columns.of(file.run.records).rounds, (j.round for j in plan)), default=0)
        numbered.append(replace(file, rounds=range(start, start + last + 1)))
        start += last + 1
    run = files[0].run
    if len(files) > 1:
        shifted = [_shifted(file) for file in numbered]
        records = tuple(r for some, _ in shifted for r in some)
        run = replace(run, records=records, plan=tuple(j for _, some in shifted for j in some))
    return Machine(label, tuple(numbered), run, known)


def _shifted(file: File) -> tuple[list[Record], list[Job]]:
    """Its records and plan, with the machine's numbers of rounds."""
    shift, run = file.rounds.start, file.run
    records = [replace(r, round=r.round + shift) for r in run.records]
    return records, [replace(j, round=j.round + shift) for j in run.plan]


# What may tell machines of one name apart, in the order in which a reader would ask.
_TELLING: tuple[Callable[[Run], str], ...] = (
    lambda run: f"{run.environment.power_limit_w:g} W" if run.environment.power_limit_w else "",
    lambda run: f"torch {run.environment.torch}" if run.environment.torch else "",
    lambda run: f"driver {run.environment.driver}" if run.environment.driver else "",
    lambda run: f"{run.environment.device.threads} threads" if run.environment.device.threads else "",
    lambda run: f"{run.environment.device.memory / 2**30:.0f} GiB",
    lambda run: f"{run.policy.timer} L2 {run.policy.l2}",
    lambda run: f"attnbench {run.environment.attnbench}",
)


def _labels(runs: Sequence[Run], given: Sequence[str | None]) -> list[str]:
    labels = [name or short_name(run) for name, run in zip(given, runs, strict=True)]
    for name in dict.fromkeys(labels):
        alike = [i for i, label in enumerate(labels) if label == name and not given[i]]
        for telling in _TELLING:
            texts = {i: telling(runs[i]) for i in alike}
            if len({labels[i] for i in alike}) < len(alike) and len({*texts.values()}) > 1:
                for i in alike:
                    labels[i] = f"{labels[i]} {texts[i]}".strip()
    for name in [name for name in dict.fromkeys(labels) if labels.count(name) > 1]:
        for number, i in enumerate((i for i, label in enumerate(labels) if label == name), start=1):
            labels[i] = f"{name} #{number}"
    return labels
