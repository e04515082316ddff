"""Check `attnbench recommend` on a run file: ranking, ties, the recommendation and its gain (docs/recommend.md)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from . import work
from .audit import Audit, printed
from .device import bandwidth, peak
from .latency import Measured, fastest
from .raw import Case, Cell, Key, memory_peak, over_rounds, read

DEFAULTS = ("sdpa", "hf-sdpa")  # PyTorch's default: the first of these that was measured
TRAINING = "fwd + bwd"

Way = tuple[Key, ...]  # the cells by which one backend computes a problem


def check(audit: Audit, path: Path) -> None:
    """Check all output of `recommend` on a run file."""
    run = Measured(read(path))
    right = {key for key in run.latency if run.is_exact(key)}
    rows = {(row["case"], row["step"]): row for row in printed("recommend", path)["recommendations"]}
    problems = {
        problem: {way[0][1]: way for way in ways if all(key in right for key in way)}
        for problem, ways in _problems(run.cells).items()
    }
    _answer_both_passes_once(run, problems)
    audit.same(path.name, "rows of recommend", rows.keys() == problems.keys(), True)
    for problem in rows.keys() & problems.keys():
        _check_row(audit, f"{path.name}: recommend {' '.join(problem)}", rows[problem], run, problems[problem])


def _problems(cells: dict[Key, Cell]) -> dict[tuple[str, str], list[Way]]:
    """Return (case, step) -> ways to compute it. A backward with its forward is a training step."""
    found: dict[tuple[str, str], list[Way]] = {}
    cases = {cell.case.key for cell in cells.values()}
    for (case, backend), cell in cells.items():
        forward = _forward(cell.case)
        if cell.case.direction == "bwd" and forward in cases:
            ways = found.setdefault((forward, TRAINING), [])
            if (forward, backend) in cells:
                ways.append(((forward, backend), (case, backend)))
        else:
            found.setdefault((case, cell.case.direction), []).append(((case, backend),))
    return found


def _forward(case: Case) -> str:
    return Case({k: v for k, v in case.line.items() if k != "direction"} | {"direction": "fwd"}).key


def _answer_both_passes_once(run: Measured, problems: dict[tuple[str, str], dict[str, Way]]) -> None:
    """Keep one answer for a case whose passes were timed together and apart.

    A sum that is below the time together by more than both uncertainties is dropped.
    """
    forwards = {cell.case.key: _forward(cell.case) for cell in run.cells.values()}
    for case, step in [*problems]:
        summed = forwards[case], TRAINING
        if step != "fwd_bwd" or summed not in problems:
            continue
        as_one, apart = problems[case, step], problems[summed]
        for name in as_one.keys() & apart.keys():
            (whole, of_whole), (total, of_total) = _latency(run, as_one[name]), _latency(run, apart[name])
            unsure = 0.0 if of_total is None or of_whole is None else math.hypot(of_whole, of_total)
            if of_whole is not None and math.log(whole / total) > unsure:
                apart[name] = as_one[name]
        ours, theirs = ({n: _latency(run, way) for n, way in ways.items()} for ways in (as_one, apart))
        best, named = fastest(ours), fastest(theirs)
        if best and (set(named) <= as_one.keys() or ours[best[0]][0] < theirs[named[0]][0]):
            del problems[summed]
        elif named:
            del problems[case, step]


def _latency(run: Measured, way: Way) -> tuple[float, float | None]:
    return _sum([(run.latency[key].value, run.latency[key].half) for key in way])


def _sum(parts: list[tuple[float, float | None]]) -> tuple[float, float | None]:
    """Return a sum of latencies, whose uncertainty is the sum of its parts' uncertainties."""
    total = sum(seconds for seconds, _ in parts)
    halves = [seconds * half for seconds, half in parts if half is not None]
    return total, sum(halves) / total if len(halves) == len(parts) else None


def _check_row(audit: Audit, where: str, row: dict[str, Any], run: Measured, ways: dict[str, Way]) -> None:
    """Check a row against the ways to compute its problem, by backend, which are all right."""
    found = {name: _latency(run, way) for name, way in ways.items()}
    ranked = sorted(found, key=lambda name: found[name][0])
    default = next((name for name in DEFAULTS if name in found), None)
    winners = fastest({name: found[name] for name in ranked})
    use = default if default in winners else next(iter(winners), None)
    audit.same(where, "measured", row["measured"], "; ".join(ranked))
    audit.same(where, "alike", row["alike"], "; ".join(winners))
    audit.same(where, "use", row["use"], use)
    audit.same(where, "default", row["default"], default)
    audit.same(where, "default_latency", row["default_latency"], found[default][0] if default else None)
    seconds, half = found[use] if use else (None, None)
    audit.same(where, "latency", row["latency"], seconds)
    audit.same(where, "ci", row["ci"], half)
    gain = low = high = None
    if use and default and use != default:
        gain, apart = found[default][0] / found[use][0], math.hypot(found[use][1], found[default][1])
        low, high = gain * math.exp(-apart), gain * math.exp(apart)
    for name, value in (("gain", gain), ("gain_low", low), ("gain_high", high)):
        audit.same(where, name, row[name], value)
    tflops = gbps = memory = None
    if use and seconds:
        own = [run.cells[key] for key in ways[use]]
        peaks = [over_rounds(cell, memory_peak) for cell in own]
        memory = max((peak for peak in peaks if peak is not None), default=None)
        case = own[0].case
        by_memory = work.limit(case, peak(run.file, case.dtype), bandwidth(run.file)) == "memory"
        amount, unit = (work.ideal_bytes, 1e9) if by_memory else (work.flops, 1e12)
        each = ((run.latency[cell.key], amount(cell.case) / cell.case.ranks / unit) for cell in own)
        rate = sum(one.rate(part) * one.value for one, part in each) / seconds  # the mean rate over the whole time
        tflops, gbps = (None, rate) if by_memory else (rate, None)
    for name, value in (("tflops", tflops), ("gbps", gbps), ("memory_peak", memory)):
        audit.same(where, name, row[name], value)
