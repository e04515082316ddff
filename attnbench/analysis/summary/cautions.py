"""What to doubt about the figures, why it matters, and what to do about it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from attnbench.analysis.summary.machine_summary import clock_range
from attnbench.core import stats
from attnbench.core.formats import digits, duration, percent
from attnbench.core.own_code import as_written
from attnbench.core.policy import SHORT
from attnbench.core.record import Run
from attnbench.core.text import count, one_line, some
from attnbench.report.characters import HELD_DOWN
from attnbench.report.document import Caution
from attnbench.results import case_names, run_file
from attnbench.results.cells import Cell
from attnbench.results.sustained import rank_changes
from attnbench.results.uncertainty import MIN_SAMPLES_INTERVAL

DRIFT = 0.02
DISAGREE = 0.02
ABOVE_PEAK = 1.02  # of the peak at the highest clock: a little more is a gauge's or a boost's error
ABOVE_CEILING = 1.1  # of what a large matmul reached: the two were read under unlike conditions


def cautions(cells: Sequence[Cell], runs: Sequence[Run], files: Sequence[Path] = ()) -> list[Caution]:
    """Return everything that should make a reader careful, most serious first. `files` are those of the runs."""
    measured, judged = [c for c in cells if c.status == "ok"], [c for c in cells if not c.of_earlier_check]
    return [
        *_wrong([c for c in judged if c.status == "wrong"], runs, files),
        *about(
            [c for c in cells if c.of_earlier_check],
            "{results} wrong by an earlier check of attnbench: {names}.",
            "Today's check may find no fault with them; none of their figures is shown.",
            "Measure them again.",
        ),
        *about(
            [c for c in judged if c.status == "wrong-kernel"],
            "{cells} where another kernel ran than the backend's: {names}.",
            "Its speed under this name would mislead, so none is shown.",
            "See above what ran; leave those cases out, or choose the backend whose kernel it is.",
        ),
        *incomplete(runs, files),
        *_replaced(runs),
        *_half_ok(measured),
        *_ecc(measured),
        *_reduced(runs),
        *_others([c for c in cells if c.status in ("ok", "wrong-kernel")]),
        *_disagree(measured),
        *about(
            [c for c in measured if any(row.host_bound for row in c.rows)],
            "Host-bound: {cells} where the device waited for the host: {names}.",
            "Their latency holds the time that Python takes to launch, not the kernels' alone.",
            "Launch fewer kernels, or capture them in a CUDA graph.",
        ),
        *_above_the_peak(measured),
        *_above_ceiling(measured),
        *_held_down(measured),
        *rank_change(measured),
        *_drifting(measured),
        *_few(measured),
        *_noisy(measured),
        *_assumed(measured),
        *_unproven(measured),
        *_no_peak(measured),
        *about(
            [
                c
                for c in measured
                if c.source.convention == "fa" and c.case.window_size != (None, None) and c.case.causal
            ],
            "The fa convention ignores windows.",
            "TFLOP/s of causal sliding windows are far too high.",
            "Use --flops-convention exact.",
        ),
    ]


def about(cells: Sequence[Cell], what: str, why: str, todo: str) -> list[Caution]:
    """Return a caution about some cells, none where there are none.

    In `what`, {cells} stands for how many cells there are, {results} for the same as results, {names} for their names.
    """
    if not cells:
        return []
    names, number = some(c.name for c in cells), len(cells)
    return [Caution(what.format(cells=count(number, "cell"), results=count(number, "result"), names=names), why, todo)]


def _wrong(cells: Sequence[Cell], runs: Iterable[Run], files: Iterable[Path]) -> Iterator[Caution]:
    """Tell which results are wrong, and what to do: of a person's own file `check` tries the same cells again."""
    text = "{results} wrong: {names}.", "The speed of a wrong answer says nothing, so none is shown."
    own = [c for c in cells if ".py:" in c.run.specs.get(c.backend, "")]
    for run, file in zip_longest(runs, files, fillvalue="FILE"):
        again = [c for c in own if c.run is run and c.case.ranks == 1]  # check splits no sequence
        functions = dict.fromkeys(as_written(c.run.specs[c.backend]) for c in again)
        command = shlex.join(["attnbench", "check", *functions, "--wrong", str(file)])
        yield from about(again, *text, f"See above by how much. The same cells again, without timing: {command}")
    yield from about([c for c in own if c.case.ranks > 1], *text, "See above by how much.")
    others = [c for c in cells if c not in own]
    yield from about(others, *text, "See above by how much; report it to the backend's authors.")


def incomplete(runs: Iterable[Run], files: Iterable[Path]) -> Iterator[Caution]:
    """Tell where planned jobs have no final record; run.turns are those of an A/B, which cannot be resumed."""
    for run, file in zip_longest(runs, files, fillvalue="FILE"):
        assert isinstance(run, Run)
        resume = run_file.resume_command(run, file)
        missing = run_file.unfinished(run)
        unrecorded = sum(job.skip is None and not ended for job, ended in missing)
        if unrecorded and run.turns:
            what = f"{count(unrecorded, 'cell')} of {len(run.plan)} of this half of an A/B have no record"
            todo = "attnbench gate A B says what that means for the comparison; an A/B is not resumed."
            yield Caution(f"Incomplete: {what}: it ended early.", "", todo)
        elif unrecorded:
            to_measure = sum(job.skip is None for job in run.plan)
            what = f'{unrecorded} of {count(to_measure, "job")} to measure of suite "{run.suite}" have no record'
            todo = f"Finish with: {resume}"
            yield Caution(f"Incomplete: {what}.", "What is missing may change who is fastest.", todo)
        elif later := sum(ended for _, ended in missing):
            todo = f"Measure them with: {resume}"
            if run.turns:
                todo = "A longer --time-limit of attnbench ab measures them."
            yield Caution(f"Incomplete: {count(later, 'job')} skipped for want of time.", "", todo)


def _replaced(runs: Iterable[Run]) -> Iterator[Caution]:
    """Tell where records that worked were replaced by later ones of the same job, as `--again` does."""
    if number := sum(record.status == "ok" for run in runs for record in run.replaced):
        yield Caution(
            f"{count(number, 'record')} replaced by a later one of the same job.",
            "The later figures count; where nobody gave --again, they may be another run's.",
            "Measure again what is in doubt.",
        )


def _reduced(runs: Iterable[Run]) -> Iterator[Caution]:
    if baselines := [run for run in runs if run.reduced]:
        yield Caution(
            f"{count(len(baselines), 'baseline')} among these: a baseline keeps one value per round.",
            "Percentiles of the latency are that value, and spread within a round is not known.",
            "The run file that was saved has the samples.",
        )


def _half_ok(cells: Sequence[Cell]) -> Iterator[Caution]:
    odd = [c for c in cells if len(c.ok) < len(c.rows)]
    if odd:
        other = next(row.record for row in odd[0].rows if not row.ok)
        yield Caution(
            f"{count(len(odd), 'cell')} measured in some rounds only: {some(c.name for c in odd)} "
            f"({case_names.ENDINGS[other.status]}: {one_line(other.reason or 'no reason given')}).",
            "Their figures are of the rounds that worked.",
            "Read them as unstable.",
        )


def _ecc(cells: Sequence[Cell]) -> Iterator[Caution]:
    struck = [c for c in cells if any(row.record.ecc_errors for row in c.rows)]
    if struck:
        number = sum(row.record.ecc_errors for c in struck for row in c.rows)
        yield Caution(
            f"The GPU counted {count(number, 'uncorrected memory error')} during {some(c.name for c in struck)}.",
            "The card is failing, and what it computes may be wrong.",
            "Look at nvidia-smi -q -d ECC, and measure on another.",
        )


def _others(cells: Sequence[Cell]) -> Iterator[Caution]:
    shared = [c for c in cells if any(row.record.others for row in c.rows)]
    if shared:
        names = sorted({name for c in shared for row in c.rows for name in row.record.others})
        yield Caution(
            f"Shared GPU: others computed on it during {len(shared)} of {count(len(cells), 'cell')}: {some(names)}.",
            "Their work is in these latencies, and can make a kernel look as if another had run.",
            "Stop them and run again, or use another GPU (--device cuda:N).",
        )


def _above_ceiling(cells: Sequence[Cell]) -> Iterator[Caution]:
    shares = [(share, c) for c in cells if (share := c.value("utilization_ceiling")) and share > ABOVE_CEILING]
    found = [(share, c) for share, c in shares if c.source.convention == "exact"]  # fa has another caution for it
    if found:
        most, cell = max(found, key=lambda pair: pair[0])
        loaded = any(row.load > 0 for _, c in found for row in c.ok)
        why = "other work disturbed the ceiling" if loaded else "the ceiling was disturbed, or results are stored"
        yield Caution(
            f"{count(len(found), 'cell')} above the measured ceiling ({percent(most)}): {cell.name}.",
            f"No kernel is that much faster than a large matmul: {why}.",
            "Leave the machine alone meanwhile, and measure again; from twice the ceiling on it wins nothing.",
        )


def _disagree(cells: Iterable[Cell]) -> Iterator[Caution]:
    # of long calls: in short ones the launch gap is expected
    apart = [(d, c) for c in cells if (d := c.value("disagreement")) is not None and d > DISAGREE and _long_turns(c)]
    if apart:
        worst, cell = max(apart, key=lambda pair: pair[0])
        yield Caution(
            f"Instruments disagree: by more than {percent(DISAGREE)} in {count(len(apart), 'cell')} of "
            f"{duration(SHORT)} and more, by {percent(worst)} in the worst: {cell.name}.",
            "One of them sees work, or a gap, that another does not.",
            "Trust these no better than that; -m disagreement has it by cell, run --timer another reading.",
        )


def _long_turns(cell: Cell) -> bool:
    readings = [v for row in cell.rows for v in row.measured("turns_events")]
    return bool(readings) and stats.median(readings) >= SHORT


def _held_down(cells: Sequence[Cell]) -> Iterator[Caution]:
    held = [c for c in cells if c.held_down]
    if held:
        limits = sorted({limit for c in held for row in c.rows for limit in row.record.limits})
        clock = clock_range(held)
        yield Caution(
            f"Clock held down{' by ' if limits else ''}{', '.join(limits)} in {len(held)} of "
            f"{count(len(cells), 'cell')}{f', {clock}' if clock else ''}.",
            f"Marked {HELD_DOWN}: their speed is what the machine sustains, not what the kernel could do, and moves by "
            "some percent from run to run.",
            "Compare them by -m utilization_clock, or within one run over several --rounds; run --isolate-power lets "
            "the GPU rest before each cell.",
        )


def rank_change(cells: Iterable[Cell], machine: str = "") -> Iterator[Caution]:
    """Tell where bursts and runs without pauses rank two backends differently, on a machine if it is named."""
    if found := rank_changes(cells):
        most = found[0]
        yield Caution(
            f"Bursts and runs without pauses rank backends differently{f' on {machine}' if machine else ''} in "
            f"{count(len(found), 'pair')} of cells: "
            f"{most.in_bursts.name} is faster than {most.sustained.backend_name} {_by(most.lead_in_bursts)} in "
            f"bursts, slower {_by(most.lead_sustained)} without pauses.",
            "Without pauses power lowers the clock, most for the kernel that draws most.",
            "-m tflops,sustained_tflops has both.",
        )


def _by(lead: float) -> str:
    """Return by how much a latency is longer than another: "by 12%", from twice as long on "by a factor of 6.39"."""
    return f"by {percent(lead)}" if lead < 1 else f"by a factor of {digits(1 + lead)}"


def _drifting(cells: Sequence[Cell]) -> Iterator[Caution]:
    known = [c for c in cells if not c.is_host_bound()]  # there the host's time moves
    drifts = [(d, c) for c in known if (d := c.value("drift")) and abs(d) > DRIFT]
    faster = [(d, c) for d, c in drifts if d < 0]
    slower = [(d, c) for d, c in drifts if d > 0]
    if faster:
        most, cell = min(faster, key=lambda pair: pair[0])
        yield Caution(
            f"Still getting faster while measured: {count(len(faster), 'cell')}, by {percent(-most)} at "
            f"most: {cell.name}.",
            "They were not warm yet, so their medians are too slow.",
            "Give run a longer --warmup or --max-seconds.",
        )
    if slower:
        most, cell = max(slower, key=lambda pair: pair[0])
        yield Caution(
            f"Getting slower while measured: {count(len(slower), 'cell')}, by {percent(most)} at most: {cell.name}.",
            _why_slower(cell, most),
            "Give run --isolate-power; -m clock_held,temperature tells more."
            if cell.run.environment.device.kind == "cuda"
            else "Leave the machine alone meanwhile.",
        )


def _why_slower(cell: Cell, drift: float) -> str:
    """Return what made a cell slower by `drift`: the clock, where that is known and fell by half of it or more."""
    clocks = next((found for row in cell.ok if len(found := row.measured("clock_held")) > 1), None)
    if clocks is None:
        return "The clock fell meanwhile, or something else began to run."
    if clocks[-1] < (1 - drift / 2) * clocks[0]:
        return "The clock fell meanwhile."
    return "The clock held, so something else began to run, or its calls have several speeds."


def _few(cells: Sequence[Cell]) -> Iterator[Caution]:
    few = []
    for cell in cells:
        enough = 0 if cell.run.reduced else min(cell.run.policy.min_samples, MIN_SAMPLES_INTERVAL)
        if (fewest := min(len(row.samples) for row in cell.ok)) < enough:
            few.append((fewest, cell))
    if few:
        fewest, cell = min(few, key=lambda pair: pair[0])
        yield Caution(
            f"Few samples in {count(len(few), 'cell')}, the fewest {fewest}: {cell.name}.",
            f"Below {MIN_SAMPLES_INTERVAL} the interval takes their noise to be normal.",
            f"Give run more --min-samples, or more --max-seconds (it was {cell.run.policy.max_seconds:g}s a cell).",
        )


def _noisy(cells: Sequence[Cell]) -> Iterator[Caution]:
    noisy = [(ci, c) for c in cells if (ci := c.value("ci_within")) is not None and ci > c.run.policy.target]
    if noisy:
        worst, cell = max(noisy, key=lambda pair: pair[0])
        target = percent(cell.run.policy.target)
        yield Caution(
            f"Noisy: {len(noisy)} of {count(len(cells), 'cell')} not known to {target} within their process, the worst "
            f"to {percent(worst)}: {cell.name}.",
            "Their uncertainty holds it (-m ci).",
            "Leave the machine alone meanwhile, or give run more --max-seconds "
            f"(it was {cell.run.policy.max_seconds:g}s a cell).",
        )


def _assumed(cells: Iterable[Cell]) -> Iterator[Caution]:
    """Tell where nobody measured what sets processes of a device apart."""
    found = {c.device: known for c in cells if (known := c.uncertainty) and known.rounds == 1 and known.processes}
    for device, known in found.items():
        if not known.spread.measured:
            yield Caution(
                f"How far processes differ on {device} was not measured: {percent(known.processes)} is assumed "
                f"({known.spread.source}).",
                "The uncertainty of the latencies rests on it.",
                "run --rounds 5 measures it for these cells.",
            )


def _unproven(cells: Sequence[Cell]) -> Iterator[Caution]:
    unproven = [c for c in cells if any(row.record.l2 == "unproven" for row in c.rows)]
    if unproven:
        policy, kind = unproven[0].run.policy, unproven[0].run.environment.device.kind
        other = "events" if policy.timer == "cupti" else "cupti"
        yield Caution(
            f"L2 not proven {policy.l2} in {len(unproven)} of {count(len(cells), 'cell')}: "
            "a read that fits in it did not show it.",
            "What fits in the cache may be timed in another state than promised.",
            f"Compare with run --timer {other}." if kind == "cuda" else "Trust what exceeds the cache.",
        )


def _above_the_peak(cells: Iterable[Cell]) -> Iterator[Caution]:
    """Tell of figures that no device of this model can reach, at its highest clock: a fault of attnbench's own."""
    if above := [cell for cell in cells if is_above_the_peak(cell)]:
        yield Caution(
            f"{count(len(above), 'figure')} above what the device can do: {some([cell.name for cell in above])}.",
            "Their work is counted wrongly, or their time: do not use them.",
            "It is a fault of attnbench's; please report it with the run file.",
        )


def is_above_the_peak(cell: Cell) -> bool:
    """Return whether a cell that computes attention has a rate that no device of this model can reach."""
    return cell.is_exact and (_beats_tensor_cores(cell) or _beats_memory(cell))


def _beats_tensor_cores(cell: Cell) -> bool:
    """Return whether a cell computes faster than the datasheet's peak, scaled to the highest clock.

    A peak that a person gave (run --peak) tells nothing of attnbench.
    """
    peak, clock, top = cell.rates.peak, cell.rates.clock, cell.run.environment.clock_max_hz
    if not peak or cell.run.peak or cell.source.convention != "exact":
        return False
    limit = peak * max(1.0, top / clock) if clock and top else peak
    return (cell.value("tflops") or 0.0) * 1e12 > ABOVE_PEAK * limit


def _beats_memory(cell: Cell) -> bool:
    """Return whether a step of generation reads faster than the datasheet's memory allows, with nothing in L2."""
    is_cold = all(row.record.l2 == "cold" for row in cell.ok)
    return cell.case.is_decode and is_cold and (cell.value("bandwidth_utilization") or 0.0) > ABOVE_PEAK


def _no_peak(cells: Iterable[Cell]) -> Iterator[Caution]:
    unknown: dict[str, set[str]] = {}
    for cell in cells:
        if cell.rates.peak is None and cell.run.environment.device.kind == "cuda":
            unknown.setdefault(cell.run.environment.device.name, set()).add(cell.case.dtype)
    for device, dtypes in unknown.items():
        names = sorted(dtypes)
        yield Caution(
            f"Utilisation unknown: no {' or '.join(names)} peak is on file for {device}.",
            "TFLOP/s are not affected.",
            f"Give the datasheet's dense TFLOP/s: {' '.join(f'--peak {n}=...' for n in names)}",
        )
