"""The findings behind a site's pages: machines, their fastest backend in each case, compared pairs and run files.

Machines, figures and ratios come from `compare` (docs/compare.md), which keeps a site and the command in agreement.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from urllib.parse import quote

from attnbench.analysis.compare import findings as compare
from attnbench.analysis.compare.findings import Comparison
from attnbench.analysis.compare.machines import Machine, machines, model, short_name
from attnbench.analysis.site.work import WORKS, Work, work_of
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.groups import grouped
from attnbench.core.record import Run
from attnbench.results import case_names, run_file
from attnbench.results.cells import Cell, Key, contest_of

MOST_PAIRS = 45  # with pages: all pairs of ten machines


@dataclass(frozen=True)
class RunFile:
    """A run file: its path as given, its run, the address of its page, and the file's own address if published."""

    path: Path
    run: Run
    address: str
    source: str = ""

    @property
    def name(self) -> str:
        return run_file.name(self.path)


@dataclass(frozen=True)
class Standing:
    """The ranking of the backends of a case on a machine. `fastest` is None if it is not known (docs/compare.md)."""

    case: Case
    fastest: Key | None
    alike: tuple[Key, ...]  # the cells that tie with the fastest
    measured: tuple[Key, ...]  # all cells of exact backends with a figure, the fastest first


@dataclass(frozen=True)
class Pair:
    """The comparison of two machines; ratios are to the first."""

    comparison: Comparison

    @property
    def labels(self) -> tuple[str, str]:
        """The compared machine, and the reference."""
        return self.comparison.others[0].label, self.comparison.reference.label

    @property
    def title(self) -> str:
        return " against ".join(self.labels)


class Findings:
    """All findings from run files that the pages of a site show.

    A person's own code has its pages and is in no ranking, unless there is nothing else, as in a comparison
    (`machines.own_code`).
    """

    def __init__(self, files: Sequence[RunFile]) -> None:
        self.files = tuple(files)
        self.machines = _machines(self.files)
        self.pairs, self.not_compared = _pairs(self.machines)
        self._file_of = {id(record.measurements): file for file in self.files for record in file.run.records}

    @cached_property
    def standings(self) -> Mapping[str, Mapping[Case, Standing]]:
        """Label of a machine -> case -> the ranking of its backends, in the order of a report."""
        return {machine.label: _standings(machine) for machine in self.machines}

    @cached_property
    def names(self) -> Mapping[Case, str]:
        """Case -> its name, with batch and heads if needed to distinguish cases."""
        cases = [*dict.fromkeys(case for of in self.standings.values() for case in of)]
        short = {case: case_names.case_name("", case, dtype=True).strip() for case in cases}
        number = Counter(short.values())
        return {
            case: case_names.full_name("", case).strip() if number[name] > 1 else name for case, name in short.items()
        }

    @cached_property
    def backends(self) -> tuple[str, ...]:
        """All backends with a figure for a kind of work, in the order of a report, without own code."""
        return tuple(name for name in self._every_backend if name not in self.own_code)

    @cached_property
    def own_code(self) -> tuple[str, ...]:
        """The names of own code with a figure for a kind of work."""
        own = {name for machine in self.machines for name in machine.own_code}
        return tuple(name for name in self._every_backend if name in own)

    @cached_property
    def _every_backend(self) -> tuple[str, ...]:
        found = {backend for machine in self.machines for case, backend in machine.log_rounds if work_of(case)}
        return tuple(sorted(found, key=case_names.backend_rank))

    @cached_property
    def _words(self) -> Mapping[tuple[str, str], str]:
        """(kind, name) -> the name as a part of an address, unique within the kind."""
        labels = [machine.label for machine in self.machines]
        gpus = {("gpu", label): one for label, one in zip(labels, words(labels), strict=True)}
        names = (*self.backends, *self.own_code)
        return gpus | {("backend", name): one for name, one in zip(names, words(names), strict=True)}

    def gpu(self, label: str) -> str:
        """Return the name of a machine as a part of an address."""
        return self._words["gpu", label]

    def short(self, label: str) -> str:
        """Return the shortest unique beginning of a machine's label, in whole words: H100."""
        parts = label.split()
        others = [machine.label.split() for machine in self.machines if machine.label != label]
        lengths = (n for n in range(1, len(parts)) if all(other[:n] != parts[:n] for other in others))
        return " ".join(parts[: next(lengths, len(parts))])

    def gpu_address(self, label: str) -> str:
        return f"gpu-{self.gpu(label)}.html"

    def backend_address(self, backend: str) -> str:
        return f"backend-{self._words['backend', backend]}.html"

    def pair(self, pair: Pair) -> str:
        """Return the name of a pair as a part of an address."""
        return "-against-".join(map(self.gpu, pair.labels))

    def pair_address(self, pair: Pair) -> str:
        return f"pair-{self.pair(pair)}.html"

    def of_work(self, machine: Machine, work: Work) -> list[Standing]:
        """Return the rankings of a machine's backends in the cases of a kind of work."""
        return [standing for case, standing in self.standings[machine.label].items() if work_of(case) == work]

    def works(self, machine: Machine) -> list[Work]:
        """Return the kinds of work with figures on a machine."""
        return [work for work in WORKS.values() if self.of_work(machine, work)]

    def sources(self, cell: Cell) -> list[RunFile]:
        """Return the run files behind the figure of a cell, the newest first."""
        found = {file.address: file for row in cell.ok if (file := self._file_of.get(id(row.record.measurements)))}
        return sorted(found.values(), key=lambda file: file.run.started, reverse=True)

    def files_of(self, runs: Iterable[Run]) -> list[RunFile]:
        """Return the run files of some runs, the newest first."""
        wanted = {id(run) for run in runs}
        found = [file for file in self.files if id(file.run) in wanted]
        return sorted(found, key=lambda file: file.run.started, reverse=True)

    def label(self, run: Run) -> str:
        """Return the label of a run's machine; the name of its device if it belongs to none."""
        return self._labels.get(model(run)) or short_name(run)

    @cached_property
    def _labels(self) -> Mapping[object, str]:
        return {machine.model: machine.label for machine in self.machines}

    def cards(self, machine: Machine, keys: Iterable[Key]) -> int:
        """Return the number of a machine's cards that measured some cells; all cards without a UUID count as one."""
        return len({machine.card_of_round[number] for key in keys for number in machine.log_rounds[key]})


def word(text: str) -> str:
    """Return a text as a part of an address: up to 100 letters, digits, dots and hyphens."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower())[:100].strip("-.") or "unnamed"


def words(names: Sequence[str]) -> list[str]:
    """Return `word` for each name, with a number if an earlier name has the same."""
    found: dict[str, None] = {}
    for name in names:
        plain = word(name)
        numbered = (f"{plain}-{i}" if i else plain for i in range(len(names)))
        found[next(one for one in numbered if one not in found)] = None
    return [*found]


def run_files(read: Sequence[tuple[Path, Run]], roots: Sequence[Path], published: str = "") -> list[RunFile]:
    """Return the run files with unique addresses, from their paths below the given folders.

    `published` is the address below which the files are published under these paths; "" if they are not.
    """
    below = [_below(path, roots) for path, _ in read]
    names = words(["-".join((*one.parts[:-1], run_file.name(one))) for one in below])
    base = published.rstrip("/")
    return [
        RunFile(path, run, f"run-{name}.html", f"{base}/{quote(one.as_posix())}" if published else "")
        for (path, run), name, one in zip(read, names, below, strict=True)
    ]


def _below(path: Path, roots: Sequence[Path]) -> Path:
    """Return the path of a file below the given folder, or its name."""
    return next((path.relative_to(root) for root in roots if path.is_relative_to(root)), Path(path.name))


def rate(machine: Machine, key: Key) -> float | None:
    """Return the rate of a cell in the unit of its limit; None for approximations, and where launching is the limit."""
    rates = {"memory": Machine.gbps, "compute": Machine.tflops}
    return rates[limit](machine, key) if (limit := machine.limit(key)) in rates else None


def _machines(files: Sequence[RunFile]) -> list[Machine]:
    """Return the machines, one for each model of device and power limit, even if all files are of one."""
    if not files:
        return []
    paths, runs = [file.path for file in files], [file.run for file in files]
    several = len({*map(model, runs)}) > 1
    try:
        return machines(paths, runs, None if several else {file.path: short_name(file.run) for file in files})
    except UserError:  # no file has the speed of a machine
        return []


def _pairs(found: Sequence[Machine]) -> tuple[list[Pair], int]:
    """Return (pairs of machines with the most common cases, the number of other pairs), compared as `compare` does."""
    cases = {machine: {case for case, _ in filter(machine.is_ranked, machine.log_rounds)} for machine in found}
    shared = {(a, b): len(cases[a] & cases[b]) for a, b in combinations(found, 2)}
    in_order = sorted((pair for pair in shared if shared[pair]), key=lambda pair: -shared[pair])
    pairs = []
    for ours, theirs in in_order[:MOST_PAIRS]:
        both = {file.path: (file.run, of.label) for of in (ours, theirs) for file in of.files}
        try:
            runs, labels = zip(*both.values(), strict=True)
            compared = compare.compare([*both], runs, names=dict(zip(both, labels, strict=True)))
        except UserError:
            continue
        if len(compared.machines) == 2:
            pairs.append(Pair(compared))
    return sorted(pairs, key=lambda pair: -len(pair.comparison.main.cases)), len(in_order[MOST_PAIRS:])


def _standings(machine: Machine) -> dict[Case, Standing]:
    """Return case -> ranking of a machine's backends, for every case in which an exact backend has a figure."""
    ranked = [key for key in machine.log_rounds if machine.is_ranked(key) and work_of(key[0])]
    found = {}
    for case, keys in grouped(ranked, lambda key: key[0]).items():
        contest = contest_of([machine.cells[key] for key in keys])
        winners = [cell.key for cell in contest.winners]
        fastest = machine.fastest.get(case) if winners else None
        alike = tuple(key for key in winners if fastest and key != fastest)
        in_order = sorted(keys, key=lambda key: machine.log_figure[key])
        found[case] = Standing(case, fastest, alike, tuple(in_order))
    return dict(sorted(found.items(), key=lambda pair: case_names.case_rank(pair[0])))
