"""What `attnbench compare` prints: speeds, rates, power and money, with their intervals (docs/compare.md).

A machine is the files of one model of device with one power limit. A ratio of speeds is exp(L_A - L_B), with L = sum of
w log t over the cells that count.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import latency, work
from .audit import Audit, printed
from .device import NORMAL, Spread, peak, spread
from .latency import MEDIAN, Figure, Prior
from .names import headdim, mask
from .raw import Cell, Key, Record, RunFile, cells_of, middle, over_rounds, read, samples

OWN_KERNELS = ("triton", "gluon")  # attnbench's, whose version holds its commit
Weights = Mapping[Key, float]


@dataclass(frozen=True)
class Price:
    """What a device costs: `amount` for `hours`; bought, it needs power beside it."""

    amount: float
    hours: float = 1.0
    bought: bool = False


@dataclass(frozen=True)
class Scenario:
    """A comparison: files, options, and what these say of prices, by words in a machine's name."""

    files: tuple[str, ...]
    options: tuple[str, ...] = ()
    prices: Mapping[str, Price] = field(default_factory=dict)
    energy_price: float = 0.0  # of a kWh, times the PUE


# ---- Which files are one machine, and which rounds count.


def machine_of(file: RunFile) -> tuple[Any, ...]:
    """Return what is alike in the files of one machine: the model of device, its power limit, the way of timing."""
    device, policy = file.device, file.head["policy"]
    told = (device["kind"], device["name"], device["memory"], device.get("threads"))
    limit = file.head["environment"].get("power_limit_w")
    return (*told, limit, policy.get("timer", "events"), policy.get("l2", "cold"))


def version(file: RunFile, record: Record) -> tuple[int, str]:
    """Return the measuring method of a record and the version of its backend."""
    found = record.get("version") or file.head.get("versions", {}).get(record["backend"], "")
    if record["backend"].split("-")[-1] in OWN_KERNELS:
        environment = file.head["environment"]
        found = f"{found}, attnbench {environment.get('attnbench', '')} {environment.get('git', '')}"
    return file.method, found


def versions_that_count(files: Iterable[RunFile]) -> dict[Key, tuple[int, str]]:
    """Return of each cell with a figure or a wrong result the newest method, and its version that came last."""
    found: dict[Key, tuple[int, str, tuple[int, str]]] = {}
    for file in files:
        for record in file.records:
            if record["status"] in ("ok", "wrong", "wrong-kernel"):
                key = record["case"].key, record["backend"]
                this = file.method, file.head["started"], version(file, record)
                found[key] = max(found.get(key, this), this)
    return {key: of for key, (_, _, of) in found.items()}


def pooled(files: Sequence[RunFile]) -> dict[Key, Cell]:
    """Return the cells of the files of one machine. The rounds of a file follow those of the file before it."""
    count = versions_that_count(files)
    found: dict[Key, Cell] = {}
    first = 0
    for file in files:
        after = first
        kept = [r for r in file.records if count.get((r["case"].key, r["backend"])) in (None, version(file, r))]
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
        count = versions_that_count(files)
        by_method: dict[int, list[Cell]] = defaultdict(list)
        for key, cell in self.cells.items():
            by_method[count[key][0] if key in count else 0].append(cell)
        self.figures: dict[str, dict[Key, Figure]] = {"latency": {}, "sustained": {}, "joules": {}}
        for cells in by_method.values():
            prior = latency.common_prior(cells, self.spans, self.spread)
            for cell in cells:
                self._add(cell, prior)

    def _add(self, cell: Cell, prior: Prior) -> None:
        found = {
            "latency": latency.latency(cell, self.spans, self.spread, prior),
            "sustained": latency.sustained(cell, self.spread, prior),
            "joules": latency.joules(cell, self.spread, prior),
        }
        for name, one in found.items():
            if one:
                self.figures[name][cell.key] = one

    def fastest(self, what: str, among: Collection[Key]) -> dict[str, Key]:
        """Return case -> the cell of the least time; none where that is hardly known."""
        best: dict[str, Key] = {}
        for key in self.figures[what]:
            if key in among and key[1] not in self.approximate:
                best[key[0]] = min(best.get(key[0], key), key, key=lambda k: self.figures[what][k].value)
        return {case: key for case, key in best.items() if not self.figures[what][key].is_hardly_known}

    def watts(self, key: Key) -> float | None:
        return over_rounds(self.cells[key], lambda record: middle(record, "sustained_power"))

    def tflops(self, key: Key, what: str = "latency") -> float:
        """Return TFLOP/s, with several ranks of each."""
        case = self.cells[key].case
        return self.figures[what][key].rate(work.flops(case) / case.ranks / 1e12)

    def gbps(self, key: Key, what: str = "latency") -> float:
        case = self.cells[key].case
        return self.figures[what][key].rate(work.ideal_bytes(case) / case.ranks / 1e9)


def machines(paths: Iterable[Path]) -> list[Machine]:
    """Return the machines of run files; where all are of one model, each file is one."""
    files = [read(path) for path in paths]
    groups: dict[tuple[Any, ...], list[RunFile]] = {}
    for file in files:
        groups.setdefault(machine_of(file), []).append(file)
    joined = [*groups.values()] if len(groups) > 1 else [[file] for file in files]
    return [Machine(group, files) for group in joined]


# ---- Ratios and their intervals.


@dataclass(frozen=True)
class Ratio:
    value: float
    low: float | None
    high: float | None

    def times(self, by: float) -> Ratio:
        low, high = (None if end is None else end * by for end in (self.low, self.high))
        return Ratio(self.value * by, low, high)


def equal(keys: Collection[Key]) -> Weights:
    return dict.fromkeys(keys, 1 / len(keys))


def speed_ratio(
    home: Machine,
    ours: Weights,
    other: Machine,
    theirs: Weights,
    what: str,
    value: float | None = None,
    interpolation: float = 0.0,
) -> Ratio:
    """Return how many times as fast `other` is as `home`. `value` is the ratio, where it is not that of the means."""
    if home is other:
        return Ratio(1.0, 1.0, 1.0)
    if value is None:
        logs = [
            sum(w * math.log(m.figures[what][k].value) for k, w in of.items())
            for m, of in ((home, ours), (other, theirs))
        ]
        value = math.exp(logs[0] - logs[1])
    parts = [
        part(m, of, what)
        for part in (rounds_part, processes_part, samples_part)
        for m, of in ((home, ours), (other, theirs))
    ]
    half = math.hypot(*parts, cards_part((home, ours), (other, theirs), what=what), interpolation)
    if math.isinf(half):
        return Ratio(value, None, None)
    return Ratio(value, value * math.exp(-half), value * math.exp(half))


def by_card(machine: Machine, key: Key, what: str) -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = defaultdict(list)
    for number in machine.figures[what][key].rounds:
        found[machine.cells[key].card_of[number]].append(number)
    return found


def is_of_a_report(machine: Machine, weights: Weights, key: Key, what: str) -> bool:
    """Whether a cell has the uncertainty of a report: it is alone, of one card, and has several rounds."""
    return len(weights) == len(by_card(machine, key, what)) == 1 and len(machine.figures[what][key].rounds) > 1


def rounds_part(machine: Machine, weights: Weights, what: str) -> float:
    """Return t(d) times the root of the sum of e_r^2, where e_r is by how much round r, a process, moves L."""
    moves: dict[Any, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for key, weight in weights.items():
        one = machine.figures[what][key]
        if is_of_a_report(machine, weights, key, what):
            return math.inf if one.half is None else weight * one.half
        n = len(one.rounds)
        for card, numbers in by_card(machine, key, what).items():
            m = len(numbers)
            if m > 1:
                mean = statistics.fmean(math.log(one.rounds[number]) for number in numbers)
                by = (MEDIAN if n > 2 else 1) * weight / n * math.sqrt(m / (m - 1))
                for number in numbers:
                    moves[card][number] += by * (math.log(one.rounds[number]) - mean)
    freedom = sum(len(of) - 1 for of in moves.values())
    return latency.student(freedom) * math.hypot(*(e for of in moves.values() for e in of.values())) if moves else 0.0


def processes_part(machine: Machine, weights: Weights, what: str) -> float:
    """Return 1.96 p sqrt(sum of v^2): v is what a backend's cells of a round without another on its card have of L."""
    shares: dict[tuple[int, str], float] = defaultdict(float)
    for key, weight in weights.items():
        if is_of_a_report(machine, weights, key, what):
            continue
        for numbers in by_card(machine, key, what).values():
            if len(numbers) == 1:
                shares[numbers[0], key[1]] += weight / len(machine.figures[what][key].rounds)
    return NORMAL * machine.spread.processes * math.hypot(*shares.values())


def samples_part(machine: Machine, weights: Weights, what: str) -> float:
    """Return what the samples of cells with a single round leave open."""
    alone = ((w, machine.figures[what][k]) for k, w in weights.items())
    return math.hypot(*(math.inf if one.alone is None else w * one.alone for w, one in alone if len(one.rounds) == 1))


def cards_part(*sides: tuple[Machine, Weights], what: str) -> float:
    """Return 1.96 sqrt(sum over cards of (u (w_A - w_B))^2): a card moves all its cells alike."""
    moved: dict[Any, float] = defaultdict(float)
    for sign, (machine, weights) in zip((1, -1), sides, strict=True):
        for key, weight in weights.items():
            for card, numbers in by_card(machine, key, what).items():
                share = len(numbers) / len(machine.figures[what][key].rounds)
                moved[card] += sign * machine.spread.cards * weight * share
    return NORMAL * math.hypot(*moved.values())


# ---- What a comparison shows.


def geomean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value]
    return math.exp(statistics.fmean(map(math.log, known))) if known and len(known) == len(values) else None


@dataclass(frozen=True)
class Figures:
    """Figures over the same cases on all machines: `chosen` has for each machine case -> the cell that counts."""

    what: str
    shared: bool
    chosen: Sequence[Mapping[str, Key]]


def all_figures(found: Sequence[Machine]) -> list[Figures]:
    """Return the figures, without pauses before bursts, shared backends before each machine's own."""
    every = []
    for what in ("sustained", "latency"):
        common = set.intersection(*({*machine.figures[what]} for machine in found))
        for shared in (True, False):
            best = [m.fastest(what, common if shared else m.figures[what]) for m in found]
            cases = [case for case in best[0] if all(case in of for of in best)]
            one = Figures(what, shared, [{case: of[case] for case in cases} for of in best])
            if cases and not (every and not shared and every[-1].what == what and every[-1].chosen == one.chosen):
                every.append(one)
    return every


def kind(cell: Cell, several_dtypes: bool) -> str:
    """Return the row of "Speed by kind of case" that a case belongs to."""
    case = cell.case
    way = "decode" if case.is_decode else case.direction
    devices = f" {case.ranks} devices" if case.ranks > 1 else ""
    return f"{case.dtype} " * several_dtypes + f"d{headdim(case)} {mask(case)} {way}{devices}"


def ratio(found: Sequence[Machine], of: Figures, i: int, cases: Collection[str]) -> Ratio:
    ours, theirs = (equal([of.chosen[j][case] for case in cases]) for j in (0, i))
    return speed_ratio(found[0], ours, found[i], theirs, of.what)


def check(
    audit: Audit, scenario: Scenario, paths: Sequence[Path]
) -> tuple[dict[str, Any], Sequence[Machine], Sequence[Figures], Sequence[Offer | None]]:
    """Compare all figures of a comparison with those that are computed here, and return both."""
    said = printed("compare", *paths, *scenario.options)
    found = _in_order(said, machines(paths))
    where = f"compare {' '.join(path.name.partition('-nvidia')[0] for path in paths)}"
    figures = all_figures(found)
    audit.same(where, "kinds of figures", len(said["figures"]), len(figures))
    costs = offers(scenario, found, figures[0])
    for shown, of in zip(said["figures"], figures, strict=True):
        pace = f"{where}: {of.what}, {'shared' if of.shared else 'own'}"
        audit.same(pace, "sustained", shown["sustained"], of.what == "sustained")
        audit.same(pace, "shared backends", shown["shared_backends"], of.shared)
        audit.same(pace, "cases", shown["cases"], len(of.chosen[0]))
        for i, row in enumerate(shown["machines"]):
            for name, value in machine_figures(found, of, i, costs).items():
                audit.same(f"{pace}, {row['name']}", name, row[name], value)
        _check_kinds(audit, pace, found, of, shown["groups"])
    for i, row in enumerate(said["machines"]):  # those that answer a buyer
        for name, value in machine_figures(found, figures[0], i, costs).items():
            audit.same(f"{where}: {row['name']}", name, row[name], value)
    _check_cells(audit, where, found, [row["name"] for row in said["machines"]], said["cells"])
    _check_missing(audit, where, found, said)
    _check_longest(audit, where, found, said)
    return said, found, figures, costs


def _in_order(said: dict[str, Any], found: Sequence[Machine]) -> list[Machine]:
    """Return the machines in the order in which they are printed, by the names of their files."""
    names = {frozenset(file.path.name for file in machine.files): machine for machine in found}
    return [names[frozenset(row["files"])] for row in said["machines"]]


def machine_figures(found: Sequence[Machine], of: Figures, i: int, costs: Sequence[Offer | None]) -> dict[str, Any]:
    """Return the figures of a machine, by the names that the JSON has for them. The first machine is the reference."""
    machine, keys = found[i], [*of.chosen[i].values()]
    decode = [key for key in keys if machine.cells[key].case.is_decode]
    computing = [key for key in keys if key not in decode]
    tflops = geomean([machine.tflops(key, of.what) for key in computing])
    gbps = geomean([machine.gbps(key, of.what) for key in decode])
    shares = [_share(machine, key, of.what) for key in computing]
    watts = geomean([machine.watts(key) if of.what == "sustained" else None for key in keys])
    speed = ratio(found, of, i, of.chosen[0])
    rate, home, offer = tflops or gbps, costs[0], costs[i]
    money = worth = hour = None
    if home and offer and offer.is_own:
        hour, money = offer.hour, speed.times(home.hour / offer.hour)
    if home and offer and i:
        worth = Ratio(*(end and offer.price_at(end * home.hour) for end in (speed.value, speed.low, speed.high)))
    return {
        "tflops": tflops,
        "gbps": gbps,
        "utilization": geomean(shares),
        "watts": watts,
        "tflops_per_watt": tflops / watts if tflops and watts and not gbps else None,
        "bought": rate * 3.6 / hour if rate and hour else None,
        "bought_of_decode": gbps * 3.6 / hour if gbps and hour else None,
        **_ends("ratio", speed),
        **_ends("per_watt_ratio", _per_watt(found, of, i, speed, watts)),
        **_ends("money_ratio", money),
        **_ends("worth_below", worth),
    }


def _ends(name: str, of: Ratio | None) -> dict[str, float | None]:
    found = (of.value, of.low, of.high) if of else (None, None, None)
    return dict(zip((name, f"{name}_low", f"{name}_high"), found, strict=True))


def _share(machine: Machine, key: Key, what: str) -> float | None:
    most = peak(machine.files[0], machine.cells[key].case.dtype)
    return machine.tflops(key, what) * 1e12 / most if most else None


def _per_watt(found: Sequence[Machine], of: Figures, i: int, speed: Ratio, watts: float | None) -> Ratio | None:
    """Return the ratio of the work for a joule: of speeds over that of the watts, with the interval of the energy."""
    home = geomean([found[0].watts(key) for key in of.chosen[0].values()]) if of.what == "sustained" else None
    if not home or not watts:
        return None
    ours, theirs = (equal([*of.chosen[j].values()]) for j in (0, i))
    return speed_ratio(found[0], ours, found[i], theirs, "joules", speed.value * home / watts)


def _check_kinds(audit: Audit, where: str, found: Sequence[Machine], of: Figures, groups: Sequence[Any]) -> None:
    cells = found[0].cells
    several = len({cells[key].case.dtype for key in of.chosen[0].values()}) > 1
    kinds: dict[str, list[str]] = defaultdict(list)
    for case, key in of.chosen[0].items():
        kinds[kind(cells[key], several)].append(case)
        kinds["all"].append(case)
    audit.same(where, "kinds", sorted(group["name"] for group in groups) == sorted(kinds), True)
    for group in groups:
        cases = kinds.get(group["name"], [])
        audit.same(f"{where}, {group['name']}", "cases of a kind", group["cases"], len(cases))
        for i, shown in enumerate(group["ratios"].values()):
            for name, value in _ends("ratio", ratio(found, of, i, cases)).items():
                audit.same(f"{where}, {group['name']}", f"{name} of a kind", shown[name], value)


def _check_cells(
    audit: Audit, where: str, found: Sequence[Machine], names: Sequence[str], rows: Sequence[dict[str, Any]]
) -> None:
    """Compare each cell on each machine, and its ratio with the same backend on both."""
    shown = {(row["machine"], row["case"], row["backend"]): row for row in rows}
    every = {(name, *key) for machine in found for key in machine.cells for name in names}
    audit.same(where, "rows of cells", shown.keys() == every, True)
    for machine, name in zip(found, names, strict=True):
        fastest = machine.fastest("latency", machine.figures["latency"])
        for case, backend in {key for each in found for key in each.cells}:
            row, key = shown[name, case, backend], (case, backend)
            for what, value in _cell(found, machine, key, fastest).items():
                audit.same(f"{where}: {name}, {backend} {case}", f"{what} of a cell", row[what], value)


def _cell(found: Sequence[Machine], machine: Machine, key: Key, fastest: Mapping[str, Key]) -> dict[str, Any]:
    cell, one = machine.cells.get(key), machine.figures["latency"].get(key)
    told: dict[str, Any] = {"status": cell.status if cell else "not planned", "fastest": fastest.get(key[0]) == key}
    speed = None
    names = ("rounds", "latency", "tflops", "gbps", "utilization", "sustained_tflops", "sustained_tflops_per_watt")
    told |= dict.fromkeys((*names, "power", "memory_peak")) | {"rounds": 0}
    if cell and one:
        told |= {"rounds": len(one.rounds), "latency": one.value, "tflops": machine.tflops(key)}
        told |= {"gbps": machine.gbps(key)}
        if key[1] not in machine.approximate:
            told["utilization"] = _share(machine, key, "latency")
        if key in machine.figures["sustained"]:
            told["sustained_tflops"] = machine.tflops(key, "sustained")
        if key in machine.figures["joules"]:
            told["sustained_tflops_per_watt"] = machine.tflops(key, "joules")
        told["power"] = over_rounds(cell, lambda record: middle(record, "power"))
        told["memory_peak"] = over_rounds(cell, lambda r: max(samples(r, "memory_peak"), default=None))
        if key in found[0].figures["latency"]:
            speed = speed_ratio(found[0], {key: 1.0}, machine, {key: 1.0}, "latency")
    return told | _ends("ratio", speed)


def _check_missing(audit: Audit, where: str, found: Sequence[Machine], said: dict[str, Any]) -> None:
    """Compare how many cells each machine lacks that another has a figure of."""
    every = {key for machine in found for key in machine.figures["latency"]}
    for machine, row in zip(found, said["machines"], strict=True):
        lacks = sum(one["cells"] for one in said["missing"] if one["machine"] == row["name"])
        audit.same(f"{where}: {row['name']}", "missing", lacks, len(every - machine.figures["latency"].keys()))


def _check_longest(audit: Audit, where: str, found: Sequence[Machine], said: dict[str, Any]) -> None:
    """Compare the longest sequence of each kind that was measured, and the next that memory refused."""
    several = len({cell.case.dtype for machine in found for cell in machine.cells.values()}) > 1
    rows: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for i, machine in enumerate(found):
        lengths: dict[tuple[str, str], list[tuple[str, int]]] = defaultdict(list)
        for cell in machine.cells.values():
            case = cell.case
            name = f"{case.dtype} " * several + f"d{headdim(case)} {case.direction}"
            no_room = cell.status == "oom" or (cell.status == "skipped" and _is_for_memory(cell))
            lengths[name, cell.backend].append(("oom" if no_room else cell.status, case.seqlen_k))
        for row, of in lengths.items():
            longest = max((n for status, n in of if status == "ok"), default=0)
            refused = min((n for status, n in of if status == "oom" and n > longest), default=None)
            rows[row] += [None] * (i - len(rows[row]))
            rows[row].append({"longest": longest or None, "refused": refused} if longest or refused else None)
    for row in rows.values():
        row += [None] * (len(found) - len(row))
    shown = {(row["cases"], row["backend"]): row["machines"] for row in said["longest"]}
    expected = {name: row for name, row in rows.items() if any(row)}
    audit.same(where, "rows of the longest sequences", shown.keys() == expected.keys(), True)
    for name in shown.keys() & expected.keys():
        audit.same(f"{where}, {name}", "longest sequence", str(shown[name]), str(expected[name]))


def _is_for_memory(cell: Cell) -> bool:
    """Whether the first reason of a cell that was skipped is that it needs more memory than is free."""
    reason = next(record.get("reason") or "" for _, record in sorted(cell.rounds.items()))
    return reason.startswith("needs ") and reason.endswith(" free")


# ---- Money.


@dataclass(frozen=True)
class Offer:
    """What a device costs: its price, or else how the reference is paid, and the power of an hour beside a purchase."""

    price: Price
    energy: float
    is_own: bool  # the machine has a price itself

    @property
    def hour(self) -> float:
        return self.price.amount / self.price.hours + self.energy

    def price_at(self, hour: float) -> float:
        """Return the price of the device at which an hour costs so much."""
        return (hour - self.energy) * self.price.hours


def offers(scenario: Scenario, found: Sequence[Machine], main: Figures) -> list[Offer | None]:
    """Return what each machine costs; None where the reference has no price. One model has one price, so none."""
    own = [next((p for word, p in scenario.prices.items() if word in m.files[0].device["name"]), None) for m in found]
    if not own[0] or len({machine_of(machine.files[0]) for machine in found}) == 1:
        return [None] * len(found)
    made: list[Offer | None] = []
    for i, price in enumerate(own):
        watts = geomean([found[i].watts(key) for key in main.chosen[i].values()]) or 0.0
        paid = price or own[0]
        made.append(Offer(paid, watts / 1000 * scenario.energy_price if paid.bought else 0.0, bool(price)))
    return made
