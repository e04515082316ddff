"""Notes on a gate: what a reader must know of all figures together, and of the runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from attnbench.analysis.gate.margins import ROUNDS, TIMED, Margins
from attnbench.analysis.gate.run_effects import SEVERAL
from attnbench.analysis.gate.verdicts import Finding, signed
from attnbench.core import stats
from attnbench.core.formats import FAR, percent
from attnbench.core.record import Run
from attnbench.core.text import count, some
from attnbench.results import run_file, uncertainty
from attnbench.results.cells import Cell
from attnbench.results.run_setup import seconds_started

ALIKE = 1.1  # largest ratio of a ceiling between two undisturbed runs
OLD = 90  # days
TOGETHER = 10  # cells; from this number on a change of all is worth a note


def approximations(cells: Iterable[Cell]) -> list[str]:
    """Return a line for each backend that only approximates attention, with its largest error."""
    errors: dict[str, float] = {}
    for cell in cells:
        if not cell.is_exact:
            errors[cell.backend] = max(errors.get(cell.backend, 0.0), cell.value("approximation_error") or 0.0)
    return [
        f"{backend} is an approximation of attention, off by up to {percent(error)}; its time is "
        "compared with its own earlier time."
        for backend, error in errors.items()
    ]


def unmeasured(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield one line that counts the cells for which an A/B had no time."""
    if names := [f.name for f in findings if f.unmeasured]:
        left = f"{count(len(names), 'cell')} left out for want of time, which is no pass"
        yield f"{left}: {some(names)}; give a longer --time-limit."


def timed(findings: Sequence[Finding], in_turns: bool, burst: float) -> Iterator[str]:
    """Yield notes on the latencies, or cycles: one round, a common change, clocks that were held down.

    `burst`: seconds after which the clock was measured. Within a longer call the clock moves, so cycles mean less
    there.
    """
    judged = [f for f in findings if f.metric in TIMED and f.decision]
    if not in_turns and any(1 in f.rounds for f in judged):
        yield _one_round(judged)
    if changes := _changes(judged):
        low, middle, high = map(signed, changes)
        if in_turns or not _moved(judged):
            what = f"Of {len(judged)} cells the median {judged[0].metric} changed by {middle}"
            yield f"{what}, the middle half by {low} to {high}."
        yield from _between_runs(judged, stats.median([f.margin or 0.0 for f in judged]))
    if held := [f for f in judged if f.held_down]:
        line = f"~ {count(len(held), 'cell')}: a limit held the clock below its best, and so set the latency"
        short = any(f.baseline is not None and f.baseline < burst for f in held)
        yield line + ("; --metric cycles compares without the clock." if short else ".")


def moved_together(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield a note where nearly all cells became slower together, or faster, for the first lines."""
    judged = [f for f in findings if f.metric in TIMED and f.decision]
    if _moved(judged):
        low, middle, high = map(signed, _changes(judged))
        yield (
            f"Nearly all of {len(judged)} cells changed in one direction: "
            f"the median {judged[0].metric} by {middle}, the middle "
            f"half by {low} to {high}. The machine is as likely the cause (clock, power, load) as the code: measure "
            "the baseline again and gate anew."
        )


def _changes(judged: Sequence[Finding]) -> tuple[float, ...]:
    """Return the quartiles of the changes; () of fewer than TOGETHER cells."""
    changes = [f.decision.change for f in judged if f.decision]
    return tuple(stats.percentile(changes, p) for p in (25, 50, 75)) if len(changes) >= TOGETHER else ()


def _moved(judged: Sequence[Finding]) -> bool:
    """Return whether most cells changed in one direction, by a third of the margin or more."""
    if not (changes := _changes(judged)):
        return False
    low, middle, high = changes
    return low * high > 0 and abs(middle) > stats.median([f.margin or 0.0 for f in judged]) / 3


def _between_runs(judged: Sequence[Finding], margin: float) -> Iterator[str]:
    """Yield a note on cells that differ between the runs by more than their rounds explain."""
    between = max(f.decision.between for f in judged if f.decision)
    if between >= margin / 10:
        yield (
            f"Cells differ between the runs by {percent(between)} (standard deviation) more than their rounds do, some "
            "slower and some faster: either most cells changed, or any two runs on this machine differ as much. "
            "The verdicts allow for it. More rounds do not lessen this spread; more runs of the baseline (baseline "
            "save --add) do, "
            "and attnbench ab, which measures in turns."
        )


def _one_round(judged: Sequence[Finding]) -> str:
    """Return a note on runs with one round on each side, whose noise is hardly known."""
    intervals = [(d.high, d.change) for f in judged if (d := f.decision) and d.high is not None and d.change > -1]
    if not intervals:
        return (
            "One round on each side does not show the noise, and there are too few cells to estimate it from; "
            f"run --rounds {ROUNDS}."
        )
    halves = [math.log1p(high) - math.log1p(change) for high, change in intervals]
    half = stats.median(halves)
    known = f"no better than a factor of {FAR}" if half > math.log(FAR) else percent(half)
    noise = "the other side's" if any(max(f.rounds) > 1 for f in judged) else "the spread of the cells' changes"
    return (
        f"One round is weak: its noise is taken from {noise}, a disturbed cell cannot be told from a changed one, and "
        f"the typical change is known to {known}. Run both with --rounds {ROUNDS}."
    )


def runs(number: int, controls: Collection[str]) -> Iterator[str]:
    """Yield a note on the spread between whole runs, and on what it is estimated from.

    `number`: of runs of the baseline; `controls`: backends that no difference between the runs can have changed.
    """
    beside = f"the latency of {some(sorted(controls))}, which belong to the same torch" if controls else ""
    if number >= SEVERAL:
        also = f" and {beside}" if beside else ""
        yield f"The spread between runs is estimated from {number} runs of the baseline{also}; verdicts allow for it."
    else:
        few = "One run" if number == 1 else "Two runs"
        alone = f"; {beside}, shows a part of it" if beside else ""
        yield (
            f"{few} of the baseline cannot show the spread between runs{alone}. {SEVERAL} runs can: "
            "attnbench baseline save RUN --add."
        )


def repeated(side: str, run: Run) -> Iterator[str]:
    """Yield a note on rounds with cells that were measured again after they had worked; the later figures count."""
    if again := Counter(record.round for record in run.replaced if record.status == "ok"):
        told = ", ".join(f"round {n} in {count(number, 'cell')}" for n, number in sorted(again.items()))
        yield f"The {side} has figures that were measured again, of which the later count: {told}."


def incomplete(side: str, run: Run) -> Iterator[str]:
    """Yield a note on a run that was interrupted; none on a saved baseline, which has no plan, and on an A/B."""
    left = run_file.missing(run)
    if left and not run.turns:
        number = f"{len(left)} of {count(len(run.plan), 'planned job')}"
        yield f"The {side} is incomplete: {number} not measured. Finish it with attnbench run --resume, and gate again."


def units(margins: Margins, baseline: Run, current: Run) -> Iterator[str]:
    """Yield a note on runs that are of two units of one GPU model, or may be."""
    if not any(margins.units):
        return
    sides = {"baseline": baseline.environment.device.uuid, "current run": current.environment.device.uuid}
    unknown = [side for side, uuid in sides.items() if uuid is None]
    whose = "The runs are of two units of this GPU model"
    if unknown:
        whose = f"The runs may be of two units of this GPU model, as the {unknown[0]} has no UUID"
    yield (
        f"{whose}, and cells of two units differ by up to {percent(margins.least())}, which no round shows "
        f"({uncertainty.spread(current.environment.device)}). A smaller margin of latency is raised to this; for a "
        f"smaller margin measure the baseline on this unit{'' if unknown else ' too'}."
    )


def age(baseline: Run, current: Run) -> Iterator[str]:
    """Yield a note on a baseline that was measured long before the current run."""
    then, now = seconds_started(baseline), seconds_started(current)
    days = 0 if then is None or now is None else int((now - then) / 86400)
    if days >= OLD:
        yield (
            f"The baseline is of {baseline.started[:10]}, {days} days before the current run: a driver, a compile "
            "cache or a card may have changed unseen since. Measure the baseline again."
        )


def ceilings(before: Iterable[Cell], after: Iterable[Cell]) -> Iterator[str]:
    """Yield a note where a matmul or a copy, which no change of a kernel touches, was not as fast in both runs."""
    then, now = (_ceilings(cells) for cells in (before, after))
    ratios = {name: now[name] / then[name] for name in then if name in now}
    if not all(1 / ALIKE < ratio < ALIKE for ratio in ratios.values()):
        said = ", ".join(f"{name} {ratio:.2g}x" for name, ratio in ratios.items())
        yield (
            f"Rates that no kernel under test changes differ between the current run and the baseline: {said}. So one "
            "run was disturbed, or the machine is another; measure both again with nothing else running."
        )


def _ceilings(cells: Iterable[Cell]) -> dict[str, float]:
    """Return the ceilings that a run measured, by name: "matmul bf16", "copy"; in FLOP/s and B/s."""
    found: dict[str, float] = {}
    for source in {id(cell.source): cell.source for cell in cells}.values():
        found |= {f"matmul {dtype}": rate for dtype, rate in source.matmul_ceilings.items()}
        found |= {"copy": source.copy_ceiling} if source.copy_ceiling else {}
    return found
