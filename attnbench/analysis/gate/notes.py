"""What a reader must know of all figures of a gate together, and of the cells that it did not compare."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from attnbench.analysis.gate.endings import state
from attnbench.analysis.gate.findings import Finding, Findings, name
from attnbench.analysis.gate.measured import Measured
from attnbench.analysis.gate.readings import CYCLES, signed
from attnbench.core import stats
from attnbench.core.record import Run
from attnbench.results import case_names, run_file
from attnbench.results.cells import Cell, Key
from attnbench.results.metrics import percent

ROUNDS = 5  # a side, at which docs/gate.md states the error rates
TIMED = ("latency", CYCLES)
TOGETHER = 10  # cells, from which a change common to them is worth a line


def unmeasured(findings: Findings) -> list[str]:
    """In a line: the findings say of each cell the same."""
    names = [findings[i].name for i, kind in enumerate(findings.kinds) if kind.unmeasured]
    if not names:
        return []
    number = case_names.count(len(names), "cell")
    return [
        f"{number} left out for want of time, which is no pass: {case_names.some(names)}; give a longer --time-limit."
    ]


def timed(findings: Findings, measured: Measured, in_turns: bool, burst: float) -> list[str]:
    """Of the latencies, or cycles. `burst`: seconds, behind which the clock was read; in a longer call it moves."""
    notes = []
    some = [i for i, metric in enumerate(measured.metrics) if metric in TIMED]
    if not in_turns and 1 in (*measured.tests.n[some].tolist(), *measured.tests.m[some].tolist()):
        notes.append(_weakness([measured[i] for i in some]))
    changes = [measured.changes[i] for i in some]
    if len(changes) >= TOGETHER:
        low, middle, high = (stats.percentile(changes, p) for p in (25, 50, 75))
        margin = stats.median(measured.tests.margin[some].tolist())
        metric = next(kind.metric for kind in findings.kinds if kind.metric in TIMED and kind.verdict != "missing")
        line = f"Of {len(changes)} cells the median {metric} changed by {signed(middle)}, "
        line += f"the middle half by {signed(low)} to {signed(high)}."
        if not in_turns and low * high > 0 and abs(middle) > margin / 3:
            line += " Nearly all moved together: that is as likely the machine as the code; measure the baseline again."
        notes.append(line)
    held = sum(measured.held_down)
    if held:
        line = f"~ {case_names.count(held, 'cell')}: a limit held the clock below its best, so latency is the machine's too"
        calls = (measured[i].baseline for i in some if measured.held_down[i] and measured.metrics[i] == "latency")
        short = any(seconds is not None and seconds < burst for seconds in calls)
        notes.append(line + ("; --metric cycles compares without the clock." if short else "."))
    return notes


def _weakness(timed: Sequence[Finding]) -> str:
    some = [(d.high, d.change) for f in timed if (d := f.decision) and d.high is not None and d.change > -1]
    sides = {min(f.rounds) for f in timed if max(f.rounds) > 1}
    if not some:
        return f"One round a side says nothing of the noise, and the cells are too few to; run --rounds {ROUNDS}."
    halves = [math.log1p(high) - math.log1p(change) for high, change in some]
    known = f"the typical change is known to {percent(stats.median(halves))}"
    if sides:
        return f"One side has one round only, so its noise is taken to be the other's; {known}. Run --rounds {ROUNDS}."
    return (
        "One round a side is weak: noise is taken from how differently the cells changed, a disturbed cell cannot be "
        f"told from a changed one, and {known}. Run both with --rounds {ROUNDS}."
    )


def beside(before: Mapping[Key, Cell], after: Mapping[Key, Cell], in_turns: bool) -> list[str]:
    """Cells that were not compared, or not in all their rounds. An A/B compares none that failed on both sides."""
    pairs = {key: (state(old), state(after.get(key))) for key, old in before.items()}
    failing = [key for key, (was, now) in pairs.items() if was in ("fails", "absent") and now == "fails"]
    flaky = [key for key, (was, now) in pairs.items() if was == now == "flaky"]
    partly = [key for key, (was, now) in pairs.items() if was in ("fails", "absent") and now == "flaky"]
    new = [key for key in after if key not in before]
    said = (
        (failing, "worked in neither run"),
        (
            flaky,
            f"failed in some rounds of both runs, {'not compared' if in_turns else 'of which those that worked count'}",
        ),
        (partly, "worked in some rounds, and not in the baseline: not compared"),
        (new, "in the current run only, not compared"),
    )
    return [f"{case_names.count(len(keys), 'cell')} {what}: {_names(keys)}" for keys, what in said if keys]


def _names(keys: Iterable[Key]) -> str:
    return case_names.some(name(backend, case) for case, backend in keys)


def incomplete(side: str, run: Run) -> list[str]:
    """Of a run that was interrupted, or is not done. A baseline that was saved has no plan."""
    left = run_file.missing(run)
    if not left or run.turns:
        return []
    number = f"{len(left)} of {case_names.count(len(run.plan), 'planned job')}"
    return [f"The {side} is incomplete: {number} not measured. Finish it with attnbench run --resume, and gate again."]


def units(baseline: Run, current: Run) -> list[str]:
    """Of GPUs that are known to be two."""
    ours, theirs = baseline.environment.device.uuid, current.environment.device.uuid
    models = {run.environment.device.name for run in (baseline, current)}
    if ours is None or theirs is None or ours == theirs or len(models) > 1:
        return []
    return [
        "The runs are of two units of this GPU model. Units differ by some percent, and no round shows by how much."
    ]
