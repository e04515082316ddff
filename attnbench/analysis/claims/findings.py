"""Printed figures beside measured ones, and the verdict; docs/claims.md says how a figure is judged.

The uncertainty over several cases is the mean of their uncertainties, since one cause may move all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from attnbench.analysis.claims.claim_file import Figure, Setting
from attnbench.core import gpus, stats
from attnbench.core.case import Case
from attnbench.core.machine import Device
from attnbench.core.record import WRONG, Run
from attnbench.core.text import count
from attnbench.results import case_names
from attnbench.results.cells import Cell, runs_of
from attnbench.results.metrics import METRICS
from attnbench.results.uncertainty import NORMAL

Outcome = Literal["reproduced", "not reproduced", "cannot be tried here"]
NOT_THERE = "not among these results; attnbench claims measures it, given the time"
SPOKEN_WITH_A_VOWEL = "AEFHILMNORSX"  # letters: an H200, a B200
SUSTAINED = {"latency": "sustained_latency", "tflops": "sustained_tflops"}  # metric -> the same without pauses


@dataclass(frozen=True)
class Measured:
    """A measured figure: value (mean or best over the cases), 95 % interval, least and most over the cases."""

    value: float
    low: float
    high: float
    least: float  # of the cases
    most: float
    cases: int


@dataclass(frozen=True)
class Finding:
    """One figure of a claim on one GPU model: what was measured, and the verdict with its reason."""

    setting: Setting
    figure: Figure
    gpu: str
    bursts: Measured | None
    sustained: Measured | None
    outcome: Outcome
    why: str
    ran: tuple[str, ...] = ()  # the backends that were measured, with their versions
    runs: tuple[Run, ...] = field(default=(), repr=False)  # that it was measured in

    @property
    def off(self) -> float | None:
        """The nearer of the two measured values over the printed value, less 1; None where nothing was measured.

        0 within a printed range, beyond a printed bound, and where the printed value is between the two measured
        values.
        """
        offs = [_off(self.figure, found) for found in (self.bursts, self.sustained) if found]
        if not offs:
            return None
        return 0.0 if min(offs) < 0 < max(offs) else min(offs, key=abs)


Cells = Mapping[tuple[Case, str], Cell]


def gpu_of(device: Device) -> str:
    """Return the GPU model of a device, by attnbench's table; else the device's own name."""
    known = gpus.find(device.name, device.memory, device.multiprocessors)
    return known.name if known else device.name


def by_gpu(cells: Sequence[Cell]) -> dict[str, dict[tuple[Case, str], Cell]]:
    """Return GPU model -> (case, backend) -> its cell; the latest cell that gave a result, right or wrong."""
    found: dict[str, dict[tuple[Case, str], Cell]] = {}
    for cell in sorted(cells, key=lambda cell: (cell.status in ("ok", *WRONG), cell.run.started)):
        found.setdefault(gpu_of(cell.run.environment.device), {})[cell.key] = cell
    return found


def judge(setting: Setting, gpu: str, cells: Cells) -> list[Finding]:
    """Return a finding for each figure of a claim on a GPU model; `cells` are of the claim's FLOPs convention."""
    if setting.claim.cannot:
        return []
    return [_judged(setting, figure, gpu, cells) for figure in setting.figures]


def _judged(setting: Setting, figure: Figure, gpu: str, cells: Cells) -> Finding:
    def cannot(why: str) -> Finding:
        return Finding(setting, figure, gpu, None, None, "cannot be tried here", why)

    if figure not in setting.figures_for(gpu):
        return cannot(f"printed for {'an' if setting.gpu[0] in SPOKEN_WITH_A_VOWEL else 'a'} {setting.gpu}")
    sides = [_side(setting.cases, names, cells) for names in (figure.backends, figure.over) if names]
    if missing := [side for side in sides if isinstance(side, str)]:
        return cannot("; ".join(filter(None, dict.fromkeys(missing))) or NOT_THERE)
    measured = [side for side in sides if not isinstance(side, str)]
    together = [case for case in setting.cases if all(case in side for side in measured)]
    if not together:
        return cannot("no case was measured on both")
    bursts = _measured(figure, figure.metric, together, measured)
    sustained = None
    if also := SUSTAINED.get(figure.metric):
        on_gpu = [case for case in together if not any(side[case].is_launch_bound for side in measured)]
        sustained = _measured(figure, also, on_gpu, measured)
    ran = tuple(_with_version(next(iter(side.values()))) for side in measured)
    runs = tuple(runs_of(side[case] for side in measured for case in together))
    asked = [names[0] for names in (figure.backends, figure.over) if names]
    own = [next(iter(side.values())).backend for side in measured]
    instead = [f"{had} for {name}" for name, had in zip(asked, own, strict=True) if had != name]
    some = [] if len(together) == len(setting.cases) else [f"{len(together)} of {count(len(setting.cases), 'case')}"]
    why = ", ".join(some + instead)
    held = [found for found in (bursts, sustained) if found]
    if not held:
        return cannot(f"{figure.metric} was not measured")
    low, high = _allowed(figure)
    holds = max(found.high for found in held) >= low and min(found.low for found in held) <= high
    if some and not holds and figure.printed.kind == "up to":
        return cannot(f"{some[0]} measured, and the best may be another")
    if instead and not holds:
        return cannot(f"{', '.join(instead)} gives {held[0].value:.3g}; a substitute cannot refute a claim")
    if holds:
        return Finding(setting, figure, gpu, bursts, sustained, "reproduced", why, ran, runs)
    why = "; ".join(filter(None, (why, setting.claim.why)))
    return Finding(setting, figure, gpu, bursts, sustained, "not reproduced", why, ran, runs)


def _side(cases: Sequence[Case], names: Sequence[str], cells: Cells) -> dict[Case, Cell] | str:
    """Return the measured cells, by case, of the first backend of `names` that has any.

    If none has, return how a cell of theirs ended, or "" if none was tried.
    """
    for name in names:
        own = {case: cell for case in cases if (cell := cells.get((case, name))) and cell.status == "ok"}
        if own:
            return own
    ended = {name: [cell for case in cases if (cell := cells.get((case, name)))] for name in names}
    name, cells_of_it = next(((name, own) for name, own in ended.items() if own), ("", []))
    worst = next((cell for cell in cells_of_it if cell.status in WRONG), cells_of_it[0] if cells_of_it else None)
    return f"{name}: {case_names.ENDINGS[worst.status]}, {worst.reason or 'without a reason'}" if worst else ""


def _measured(
    figure: Figure, metric: str, cases: Sequence[Case], sides: Sequence[Mapping[Case, Cell]]
) -> Measured | None:
    """Return the figure in a metric over cases, of one side or as the ratio of two; None where it has no value."""
    values, halves = [], []
    for case in cases:
        of_sides = [side[case].value(metric) for side in sides]
        known = [value for value in of_sides if value]
        if len(known) < len(of_sides):
            continue
        higher = METRICS[metric].better == "higher"
        values.append(known[0] if len(known) == 1 else known[0] / known[1] if higher else known[1] / known[0])
        halves.append(_half_interval(metric, [side[case] for side in sides]))
    if not values:
        return None
    half = sum(halves) / len(halves)
    value = {"up to": max(values), "at least": min(values)}.get(figure.printed.kind) or stats.geomean(values)
    return Measured(value, value * stats.exp(-half), value * stats.exp(half), min(values), max(values), len(values))


def _half_interval(metric: str, cells: Sequence[Cell]) -> float:
    """Return the uncertainty of a metric of one cell, or of its ratio of two cells of one card; 0 where not known."""
    sure = METRICS[metric].sure_as
    halves = [cell.half_interval(sure) or 0.0 for cell in cells] if sure else [0.0]
    units = NORMAL * cells[0].units if sure and len(cells) == 1 and cells[0].uncertainty else 0.0
    return math.hypot(*halves, units)


def _allowed(figure: Figure) -> tuple[float, float]:
    """Return the least and the largest value that a printed figure allows, by its tolerance; inf beyond a bound."""
    printed, factor = figure.printed, 1 + figure.tolerance
    has_end = printed.kind in ("equal", "range")
    return printed.low / factor, printed.high * factor if has_end else math.inf


def _off(figure: Figure, found: Measured) -> float:
    printed = figure.printed
    if found.value < printed.low:
        return found.value / printed.low - 1
    beyond = printed.kind in ("equal", "range") and found.value > printed.high
    return found.value / printed.high - 1 if beyond else 0.0


def _with_version(cell: Cell) -> str:
    version = cell.rows[0].record.version or cell.run.versions.get(cell.backend)
    return f"{cell.backend} ({version})" if version else cell.backend


def outcome_of(findings: Sequence[Finding]) -> Outcome:
    """Return the verdict of a claim: reproduced if all figures that were tried are, not reproduced if one is not."""
    outcomes = {finding.outcome for finding in findings}
    if "not reproduced" in outcomes:
        return "not reproduced"
    return "reproduced" if "reproduced" in outcomes else "cannot be tried here"
