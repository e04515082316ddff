"""The machines of run files, their rounds that count, and their figures (docs/compare.md)."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import latency, work
from .device import Spread, bandwidth, peak, spread
from .latency import Figure, Prior
from .pool import Pool, Weights
from .raw import Cell, Key, Record, RunFile, cells_of, middle, over_rounds, read, samples

OWN_KERNELS = ("triton", "gluon", "tilelang", "helion")  # attnbench's own, whose version includes the commit


def _never_idle(record: Record) -> bool:
    """Return whether a launch takes 3 % of a call or less."""
    launch = max(samples(record, "enqueue"), default=0.0)
    return 0 < launch <= 0.03 * (middle(record, "time") or 0.0)


def machine_of(file: RunFile) -> tuple[Any, ...]:
    """Return the identity of a machine, equal in all its files: model of device, power limit, timing."""
    device, policy = file.device, file.head["policy"]
    told = (device["kind"], device["name"], device["memory"], device.get("threads"))
    limit = file.head["environment"].get("power_limit_w")
    return (*told, limit, policy.get("timer", "events"), policy.get("l2", "cold"))


def version(file: RunFile, record: Record) -> tuple[int, str]:
    """Return the measuring method of a record and the version of its backend."""
    found = record.get("version") or file.head.get("versions", {}).get(record["backend"], "")
    if record["backend"].split("-")[-1] in OWN_KERNELS:
        environment = file.head["environment"]
        commit = environment.get("git") or ""
        changed = f" of {file.head['started']}" if commit.endswith("+dirty") else ""
        found = f"{found}, attnbench {environment.get('attnbench', '')} {commit}{changed}"
    return file.method, found


def versions_that_count(files: Iterable[RunFile]) -> dict[Key, tuple[int, str]]:
    """Return the newest method and the last version of each cell that has a figure or a wrong result."""
    found: dict[Key, tuple[int, str, tuple[int, str]]] = {}
    for file in files:
        for record in file.records if not file.head.get("search") else ():
            if record["status"] in ("ok", "wrong", "wrong-kernel"):
                key = record["case"].key, record["backend"]
                this = file.method, file.head["started"], version(file, record)
                found[key] = max(found.get(key, this), this)
    return {key: of for key, (_, _, of) in found.items()}


def pooled(files: Sequence[RunFile]) -> dict[Key, Cell]:
    """Return the cells of the files of one machine, with rounds numbered on from file to file."""
    count = versions_that_count(files)
    found: dict[Key, Cell] = {}
    first = 0
    for file in files:
        after = first
        like = (None,) if file.head.get("search") else None  # a search has no figures, so it replaces none
        kept = [
            r for r in file.records if count.get((r["case"].key, r["backend"])) in (like or (None, version(file, r)))
        ]
        for key, cell in cells_of(kept, first).items():
            joined = found.setdefault(key, Cell(cell.case, cell.backend))
            joined.rounds |= cell.rounds
            joined.card_of |= dict.fromkeys(cell.rounds, file.card)
            after = max(after, *(number + 1 for number in cell.rounds))
        first = after
    return found


class Machine:
    """The files of one machine, with the figures of its cells."""

    def __init__(self, files: Sequence[RunFile], beside: Iterable[RunFile]) -> None:
        self.files, self.cells = files, pooled(files)
        self.spread: Spread = spread(files[0])
        self.spans = latency.timed_by_span(record for file in beside for record in file.records)
        self.approximate = {r["backend"] for file in files for r in file.records if r.get("approximation")}
        self.versions = count = versions_that_count(files)
        by_method: dict[int, list[Cell]] = defaultdict(list)
        for key, cell in self.cells.items():
            by_method[count[key][0] if key in count else 0].append(cell)
        self.figures: dict[str, dict[Key, Figure]] = {"latency": {}, "sustained": {}}
        self.host_bound: set[tuple[str, Key]] = set()  # (what, cell) whose figure includes the host's time
        for cells in by_method.values():
            prior = latency.common_prior(cells, self.spans, self.spread)
            for cell in cells:
                self._add(cell, prior)
        cards = {key: cell.card_of for key, cell in self.cells.items()}
        self.pools = {what: Pool(figures, cards, self.spread) for what, figures in self.figures.items()}
        self.known: dict[tuple[str, Key], float] = {}

    def _add(self, cell: Cell, prior: Prior) -> None:
        found = {
            "latency": latency.latency(cell, self.spans, self.spread, prior),
            "sustained": latency.sustained(cell, self.spread, prior),
        }
        for name, one in found.items():
            if one:
                self.figures[name][cell.key] = one
        for name, one in found.items():
            if one:
                one = self.figures[name][cell.key] = replace(one, by_memory=cell.case.is_decode)
            told = cell.backend not in self.approximate and not cell.case.is_decode  # otherwise the load is not known
            if one and told and (most := peak(self.files[0], cell.case.dtype)):
                share = one.rate(work.flops(cell.case) / cell.case.ranks / most)
                self.figures[name][cell.key] = replace(one, load=min(1.0, max(0.0, (share - 0.3) / 0.3)))
        called, launched = found["latency"], over_rounds(cell, lambda record: middle(record, "enqueue"))
        waits = bool(called and launched and launched > called.value)
        flagged = any(record.get("host_bound") and not _never_idle(record) for record in cell.ok.values())
        self.host_bound |= {(name, cell.key) for name in found if flagged or (waits and name != "latency")}

    def of_pairs(self, what: str, weights: Weights) -> Any:
        """Return the weights of the pairs of (cell, card) in a sum of cells."""
        pool = self.pools[what]
        if pool.predicting is None:
            telling = [k for k in pool.figures if self.cells[k].case.ranks == 1 and not self.decides_nothing(what, k)]
            pool.predicting = pool.prediction(telling)
        return pool.of_pairs(weights, pool.predicting)

    def seconds(self, what: str, key: Key) -> float:
        """Return the latency on a card of the model."""
        if (what, key) not in self.known:
            self.known[what, key] = math.exp(self.pools[what].sum(self.of_pairs(what, {key: 1.0})))
        return self.known[what, key]

    def decides_nothing(self, what: str, key: Key) -> bool:
        """Return whether a time is hardly known, or includes time in which the device waited for the host."""
        return self.figures[what][key].is_hardly_known or (what, key) in self.host_bound

    def fastest(self, what: str, among: Collection[Key]) -> dict[str, Key]:
        """Return case -> the fastest cell, without cases in which its time decides nothing (decides_nothing)."""
        best: dict[str, Key] = {}
        for key in self.figures[what]:
            if key in among and key[1] not in self.approximate:
                best[key[0]] = min(best.get(key[0], key), key, key=lambda k: self.seconds(what, k))
        return {case: key for case, key in best.items() if not self.decides_nothing(what, key)}

    def kernels(self, key: Key) -> set[str]:
        """Return the beginnings of the names of a cell's kernels, up to the pass, a number or a template argument."""
        found = set()
        for name in {name for record in self.cells[key].ok.values() for name in record.get("kernels", {})}:
            if not re.match(r"Memcpy|Memset|at::native::\w*elementwise_kernel<", name):
                inner = re.sub(r"^([\w:]*(device_kernel|Kernel\d*|enable_sm\w*)<)*", "", name)
                found.add(re.split(r"_?fwd|_?bwd|\d|<", inner, maxsplit=1, flags=re.IGNORECASE)[0])
        return found

    def limit(self, key: Key) -> str:
        """Return what limits the case of a cell, which says the unit of its speed."""
        case = self.cells[key].case
        return work.limit(case, peak(self.files[0], case.dtype), bandwidth(self.files[0]))

    def tflops(self, key: Key, what: str = "latency") -> float:
        """Return TFLOP/s, with several ranks per device."""
        case = self.cells[key].case
        return work.flops(case) / case.ranks / self.seconds(what, key) / 1e12

    def gbps(self, key: Key, what: str = "latency") -> float:
        case = self.cells[key].case
        return work.ideal_bytes(case) / case.ranks / self.seconds(what, key) / 1e9


def shared_cells(found: Sequence[Machine], what: str = "latency") -> set[Key]:
    """Return the cells with a figure on all machines and with like kernels.

    For unlike models these are the cells of one version only, if they cover half of the cases or more.
    """
    common = set.intersection(*({*machine.figures[what]} for machine in found))
    kernels_alike = {key for key in common if all(alike(a, b, key) for a in found for b in found)}
    if len({machine_of(machine.files[0]) for machine in found}) == 1:
        return kernels_alike
    of_one = {key for key in kernels_alike if len({machine.versions[key] for machine in found}) == 1}
    return (
        of_one if 2 * len({case for case, _ in of_one}) >= len({case for case, _ in kernels_alike}) else kernels_alike
    )


def alike(first: Machine, second: Machine, key: Key) -> bool:
    """Return whether a cell has a common kernel on GPUs of one compute capability, or this is not known."""
    ours, theirs = (machine.files[0].device for machine in (first, second))
    if ours["kind"] != "cuda" or theirs["kind"] != "cuda" or ours.get("capability") != theirs.get("capability"):
        return True
    kernels = [machine.kernels(key) for machine in (first, second)]
    return not all(kernels) or not kernels[0].isdisjoint(kernels[1])


def machines(paths: Iterable[Path]) -> list[Machine]:
    """Return the machines of run files; where all have one model, each file is a machine."""
    files = [read(path) for path in paths]
    groups: dict[tuple[Any, ...], list[RunFile]] = {}
    for file in files:
        groups.setdefault(machine_of(file), []).append(file)
    joined = [*groups.values()] if len(groups) > 1 else [[file] for file in files]
    return [Machine(group, files) for group in joined]
