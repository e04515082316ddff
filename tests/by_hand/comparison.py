"""What `attnbench compare` prints: speeds, rates, power and money, with their intervals (docs/compare.md)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .audit import Audit, printed
from .device import peak
from .machines import Machine, alike, machine_of, machines, shared_cells
from .ratios import Ratio, equal, speed_ratio
from .raw import Key, middle, over_rounds, samples


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
    """Return the figures: shared backends before each machine's own, without pauses first if that has all cases."""
    every: list[Figures] = []
    for what in ("latency", "sustained"):
        common = shared_cells(found, what)
        for shared in (True, False):
            best = [m.fastest(what, common if shared else m.figures[what]) for m in found]
            cases = [case for case in best[0] if all(case in of for of in best)]
            out = () if shared else untried(found, what)
            one = Figures(what, shared, [{case: of[case] for case in cases if case not in out} for of in best])
            before = every[-1] if every and every[-1].what == what else None
            if one.chosen[0] and not (before and _is_told_by(found, before, one)):
                every.append(one)
    bursts, others = ([one for one in every if one.what == what] for what in ("latency", "sustained"))
    covers = others and others[0].shared == bursts[0].shared and {*bursts[0].chosen[0]} <= {*others[0].chosen[0]}
    return [*others, *bursts] if covers else [*bursts, *others]


def untried(found: Sequence[Machine], what: str) -> list[str]:
    """Return the cases in which not all machines tried, by like kernels, what is fastest on each."""
    best = [m.fastest(what, m.figures[what]) for m in found]
    return [
        case
        for case in best[0]
        if all(case in of for of in best) and not all(tried_by_all(found, what, of[case]) for of in best)
    ]


def tried_by_all(found: Sequence[Machine], what: str, key: Key) -> bool:
    """Whether each machine has a figure of a cell, by like kernels, or cannot run it."""
    have = [machine for machine in found if key in machine.figures[what]]
    alike_kernels = all(alike(a, b, key) for a in have for b in have)
    return alike_kernels and all(machine.has_tried(what, key) for machine in found)


def _is_told_by(found: Sequence[Machine], shared: Figures, own: Figures) -> bool:
    """Whether own backends are the shared ones, and no case is left out of them as what is fastest is hardly known."""
    decided = [m.fastest(own.what, m.figures[own.what]) for m in found]
    same = all(
        ours[case] == theirs.get(case) for ours, theirs in zip(own.chosen, shared.chosen, strict=True) for case in ours
    )
    return same and all(case in of for of in decided for case in shared.chosen[0])


def powered(figures: Sequence[Figures]) -> Figures:
    """Return the first figures without pauses, which alone have watts; the first of all where there are none."""
    return next((of for of in figures if of.what == "sustained"), figures[0])


def ratio(found: Sequence[Machine], of: Figures, i: int) -> Ratio:
    ours, theirs = (equal([*of.chosen[j].values()]) for j in (0, i))
    return speed_ratio(found[0], ours, found[i], theirs, of.what)


def check(audit: Audit, scenario: Scenario, paths: Sequence[Path]) -> None:
    """Compare all figures of a comparison with those that are computed here."""
    said = printed("compare", *paths, *scenario.options)
    names = {frozenset(file.path.name for file in machine.files): machine for machine in machines(paths)}
    found = [names[frozenset(row["files"])] for row in said["machines"]]
    where = f"compare {' '.join(path.name.partition('-nvidia')[0] for path in paths)}"
    figures = all_figures(found)
    audit.same(where, "kinds of figures", len(said["figures"]), len(figures))
    costs = offers(scenario, found, powered(figures))
    for shown, of in zip(said["figures"], figures, strict=True):
        pace = f"{where}: {of.what}, {'shared' if of.shared else 'own'}"
        audit.same(pace, "sustained", shown["sustained"], of.what == "sustained")
        audit.same(pace, "shared backends", shown["shared_backends"], of.shared)
        audit.same(pace, "cases", shown["cases"], len(of.chosen[0]))
        for i, row in enumerate(shown["machines"]):
            for name, value in machine_figures(found, of, i, costs).items():
                audit.same(f"{pace}, {row['name']}", name, row[name], value)
    for i, row in enumerate(said["machines"]):  # those that answer a buyer
        for name, value in machine_figures(found, figures[0], i, costs).items():
            audit.same(f"{where}: {row['name']}", name, row[name], value)
    _check_cells(audit, where, found, [row["name"] for row in said["machines"]], said["cells"])
    audit.same(where, "untried", str(sorted(said["untried"])), str(sorted(untried(found, figures[0].what))))


def machine_figures(found: Sequence[Machine], of: Figures, i: int, costs: Sequence[Offer | None]) -> dict[str, Any]:
    """Return the figures of a machine, by the names that the JSON has for them. The first machine is the reference."""
    machine, keys = found[i], [*of.chosen[i].values()]
    decode = [key for key in keys if machine.cells[key].case.is_decode]
    computing = [key for key in keys if key not in decode]
    tflops = geomean([machine.tflops(key, of.what) for key in computing])
    gbps = geomean([machine.gbps(key, of.what) for key in decode])
    shares = [_share(machine, key, of.what) for key in computing]
    watts = geomean([machine.watts(key) if of.what == "sustained" else None for key in keys])
    speed = ratio(found, of, i)
    rate, hour = tflops or gbps, costs[i].hour if costs[i] and costs[i].is_own else None
    return {
        "tflops": tflops,
        "gbps": gbps,
        "utilization": geomean(shares),
        "watts": watts,
        "tflops_per_watt": tflops / watts if tflops and watts and not gbps else None,
        "bought": rate * 3.6 / hour if rate and hour else None,
        "bought_of_decode": gbps * 3.6 / hour if gbps and hour else None,
        **ends("ratio", speed),
        **ends("per_watt_ratio", _per_watt(found, of, i, speed, watts)),
        **money(speed, i, costs),
    }


def ends(name: str, of: Ratio | None) -> dict[str, float | None]:
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
    told |= dict.fromkeys((*names, "sustained_power", "memory_peak")) | {"rounds": 0}
    if cell and one:
        told |= {"rounds": len(one.rounds), "latency": one.value}
        if key[1] not in machine.approximate:  # those have no rate, as their work is not attention's
            told |= {"tflops": machine.tflops(key), "gbps": machine.gbps(key)}
            told["utilization"] = _share(machine, key, "latency")
            if key in machine.figures["sustained"]:
                told["sustained_tflops"] = machine.tflops(key, "sustained")
            if key in machine.figures["joules"]:
                told["sustained_tflops_per_watt"] = machine.tflops(key, "joules")
        told["sustained_power"] = over_rounds(cell, lambda record: middle(record, "sustained_power"))
        told["memory_peak"] = over_rounds(cell, lambda r: max(samples(r, "memory_peak"), default=None))
        if key in found[0].figures["latency"] and alike(found[0], machine, key):
            speed = speed_ratio(found[0], {key: 1.0}, machine, {key: 1.0}, "latency")
    return told | ends("ratio", speed)


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


def money(speed: Ratio, i: int, costs: Sequence[Offer | None]) -> dict[str, float | None]:
    """Return what a machine gives for the money, and the price below which it gives more than the reference."""
    home, offer = costs[0], costs[i]
    gives = speed.times(home.hour / offer.hour) if home and offer and offer.is_own else None
    worth = None
    if home and offer and i:
        worth = Ratio(*(end and offer.price_at(end * home.hour) for end in (speed.value, speed.low, speed.high)))
    return {**ends("money_ratio", gives), **ends("worth_below", worth)}


def offers(scenario: Scenario, found: Sequence[Machine], main: Figures) -> list[Offer | None]:
    """Return what each machine costs; None where the reference has no price. One model has one price, so none.

    `main` are the figures whose watts a purchase pays for.
    """
    own = [next((p for word, p in scenario.prices.items() if word in m.files[0].device["name"]), None) for m in found]
    if not own[0] or len({machine_of(machine.files[0]) for machine in found}) == 1:
        return [None] * len(found)
    made: list[Offer | None] = []
    for i, price in enumerate(own):
        watts = geomean([found[i].watts(key) for key in main.chosen[i].values()]) or 0.0
        paid = price or own[0]
        made.append(Offer(paid, watts / 1000 * scenario.energy_price if paid.bought else 0.0, bool(price)))
    return made
