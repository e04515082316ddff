"""How large a change must be to matter: a margin per metric, and per cell where a file says so.

    latency: 3%
    first_call: 100%
    cells:
      "sdpa-efficient 64k *": {latency: 5%}

The key of a cell is its name as the gate prints it, or a glob; of several that match, the last one counts.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attnbench.core.errors import UserError, did_you_mean


@dataclass(frozen=True)
class Rule:
    """How a metric is judged unless told otherwise. Lower is better in all of them."""

    margin: float  # relative
    floor: float = 0.0  # in the metric's unit: a smaller reading counts as this, so what changes below it is no change
    noisy: bool = True  # differs between rounds of the same code; else a single difference is a change
    cached: bool = False  # moves with caches that outlive a process: rounds are compared in pairs, and what stays
    # inconclusive does not make the gate so


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "latency": Rule(0.03),
        "cycles": Rule(0.03),
        "memory_peak": Rule(0.01, floor=2**20, noisy=False),
        "error": Rule(0.10, floor=0.1, noisy=False),  # of what is allowed
        "first_call": Rule(0.50, floor=0.1, cached=True),  # nobody waits for less than 0.1 s
        "memory_driver": Rule(0.01, floor=2**20, noisy=False),
        "memory_saved": Rule(0.01, floor=2**20, noisy=False),
        "enqueue": Rule(0.10),
        "sustained_latency": Rule(0.03),
        "joules": Rule(0.05),
    }
)
DEFAULT = ("latency", "memory_peak", "error", "first_call")


@dataclass(frozen=True)
class Margins:
    metrics: Mapping[str, float] = field(default_factory=dict)
    cells: tuple[tuple[str, Mapping[str, float]], ...] = ()  # (glob, metric -> margin)

    def of(self, metric: str, cell: str) -> float:
        """The margin of a metric for the cell of this name."""
        for glob, own in reversed(self.cells):
            if metric in own and fnmatch.fnmatchcase(cell, glob):
                return own[metric]
        return self.metrics.get(metric, RULES[metric].margin)

    def unused(self, names: Iterable[str]) -> list[str]:
        """The globs that fit none of these cells."""
        names = list(names) if self.cells else ()
        return [glob for glob, _ in self.cells if not any(fnmatch.fnmatchcase(name, glob) for name in names)]


def margins(options: Sequence[str], file: Path | None = None) -> Margins:
    """From the file, and over it from options such as "3%" (of latency, or cycles) and "memory_peak=1%"."""
    found = _read(file) if file else Margins()
    own = dict(found.metrics)
    for option in options:
        metric, _, amount = option.rpartition("=")
        if metric:
            own[_metric(metric.strip(), "--margin")] = parse(amount, f"--margin {metric.strip()}")
        else:
            own["latency"] = own["cycles"] = parse(amount, "--margin")
    return Margins(own, found.cells)


def parse(amount: Any, what: str) -> float:
    """0.03 of "3%" or 0.03."""
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
    return {_metric(str(name), what): parse(amount, f"{what}: {name}") for name, amount in data.items()}


def _metric(name: str, what: str) -> str:
    if name not in RULES:
        raise UserError(f"{what}: no metric {name!r} to gate{did_you_mean(name, RULES)}")
    return name
