"""Margins: the size from which a change matters, per metric, and per cell where a file says so.

    latency: 3%
    first_call: 100%
    cells:
      "sdpa-efficient 64k *": {latency: 5%}

The key of a cell is its name as the gate prints it, or a glob; if several match, the last one counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.record import Run
from attnbench.core.text import fits
from attnbench.results import uncertainty


@dataclass(frozen=True)
class Rule:
    """The rule by which a metric is judged by default. Lower is better in all of these metrics."""

    margin: float  # relative
    floor: float = 0.0  # in the metric's unit: a smaller value counts as this, so that changes below it do not count
    noisy: bool = True  # its value differs between rounds of the same code; else a single difference is a change
    # It depends on caches that outlive a process: rounds are compared in pairs, and an inconclusive cell does not make
    # the gate inconclusive.
    cached: bool = False
    of_unit: bool = False  # whether it differs between units of a model


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "latency": Rule(0.03, of_unit=True),
        "cycles": Rule(0.03, of_unit=True),
        "memory_peak": Rule(0.01, floor=2**20, noisy=False),
        # Each run draws the checked rows anew, so on long sequences, of which few rows are checked, the error differs
        # by up to a third between runs of the same code. A kernel of lower precision doubles it; fp16 rounds by 5e-4.
        "relative_error": Rule(0.50, floor=5e-4, noisy=False),
        "first_call": Rule(0.50, floor=0.1, cached=True),  # nobody notices less than 0.1 s
        "memory_driver": Rule(0.01, floor=2**20, noisy=False),
        "memory_saved": Rule(0.01, floor=2**20, noisy=False),
        "enqueue": Rule(0.10),
        "sustained_latency": Rule(0.03, of_unit=True),
        "joules": Rule(0.05),
    }
)
TIMED = ("latency", "cycles")
ROUNDS = 5  # a side, for which docs/dev/statistics.md states the error rates
UNITS = 3.72  # normal quantile of 1 - 1 % / 100
DEFAULT = ("latency", "memory_peak", "relative_error", "first_call")


@dataclass(frozen=True)
class Margins:
    """The margins that a person gave; elsewhere the margin of RULES counts."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    cells: tuple[tuple[str, Mapping[str, float]], ...] = ()  # (glob, metric -> margin)
    units: uncertainty.Cards = uncertainty.NO_CARDS  # the differences between units, where the runs are of two units

    def of(self, metric: str, cell: str, load: float = 1.0) -> float:
        """Return the margin of a metric for the cell with this full name, at a load from 0 to 1 (Cell.load)."""
        own = [amounts[metric] for glob, amounts in self.cells if metric in amounts and fits(cell, glob)]
        asked = own[-1] if own else self.metrics.get(metric, RULES[metric].margin)
        return max(asked, self.least(load)) if RULES[metric].of_unit else asked

    def least(self, load: float = 1.0) -> float:
        """Return the least margin of a latency: the largest relative difference of a cell between two units.

        In 99 of 100 gates of 100 cells, all cells lie within it: UNITS standard deviations (Bonferroni), from
        spreads.json. 0 for runs of one unit.
        """
        return math.expm1(UNITS * math.sqrt(2) * self.units.units(load))

    def unused(self, names: Iterable[str]) -> list[str]:
        """Return the globs that match none of these cells."""
        names = list(names) if self.cells else ()
        return [glob for glob, _ in self.cells if not any(fits(name, glob) for name in names)]

    def idle(self, metrics: Iterable[str]) -> list[str]:
        """Return the metrics with a margin that are none of these, without latency and cycles: one option sets both."""
        given = {*self.metrics, *(name for _, amounts in self.cells for name in amounts)}
        return sorted(given - {*metrics, "latency", "cycles"})


def between_units(baseline: Run, current: Run) -> uncertainty.Cards:
    """Return the differences between units of a GPU model for runs of two units, else NO_CARDS.

    Runs of which only one has a UUID may be of two units, and count as such. Runs without a UUID, as on a CPU, are
    taken to be of one unit.
    """
    ours, theirs = baseline.environment.device, current.environment.device
    if ours.uuid == theirs.uuid or ours.name != theirs.name:
        return uncertainty.NO_CARDS
    return uncertainty.spread(theirs).cards


def margins(options: Sequence[str], file: Path | None = None) -> Margins:
    """Return the margins of a YAML file, overridden by options: "3%" (of latency and cycles), "relative_error=20%".

    Raises UserError for a text that is no margin, and for a file that cannot be read.
    """
    found = _read(file) if file else Margins()
    own = dict(found.metrics)
    for option in options:
        if option.count("=") > 1:
            raise UserError(f"--margin: {option!r} is more than one margin; give the option once for each")
        metric, _, amount = option.rpartition("=")
        if "=" in option:
            own[gated(metric.strip(), "--margin")] = parse(amount, f"--margin {metric.strip()}")
        else:
            own["latency"] = own["cycles"] = parse(amount, "--margin")
    return Margins(own, found.cells)


def parse(amount: Any, what: str) -> float:
    """Return 0.03 for "3%" and for 0.03. `what` names the option or field in the error."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(%?)", str(amount).strip())
    if not match:
        raise UserError(f"{what}: {str(amount)!r} is not a margin; write 3% or 0.03")
    value = float(match[1]) / (100 if match[2] else 1)
    if value >= 1 and not match[2]:
        raise UserError(f"{what}: {amount} would be {100 * value:g} %; write {amount}% if that is what is meant")
    return value


def _read(file: Path) -> Margins:
    from attnbench.run import yaml_file

    data = yaml_file.read_yaml(file)
    data = _mapping(data or {}, f"{file}")
    cells = _mapping(data.pop("cells", None) or {}, f"{file}: cells")
    globs = ((str(glob), _mapping(own, f"{file}: {glob}")) for glob, own in cells.items())
    return Margins(_amounts(data, f"{file}"), tuple((glob, _amounts(own, f"{file}: {glob}")) for glob, own in globs))


def _mapping(data: Any, what: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise UserError(f"{what}: metrics and their margins are expected, as in latency: 3%")
    return dict(data)


def _amounts(data: Mapping[str, Any], what: str) -> dict[str, float]:
    return {gated(str(name), what): parse(amount, f"{what}: {name}") for name, amount in data.items()}


def gated(name: str, what: str) -> str:
    """Return the name of a metric that a gate compares. Raises UserError, which begins with `what`, for another."""
    if name not in RULES:
        cells = "; patterns of cells stand below cells:" if set(name) & set("* ") else did_you_mean(name, RULES)
        raise UserError(f"{what}: no metric {name!r} to gate{cells}")
    return name
