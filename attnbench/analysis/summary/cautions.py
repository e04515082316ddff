"""Below the tables: what to doubt about the figures, why it matters, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from attnbench.analysis.summary.tables import HELD_DOWN
from attnbench.core import stats
from attnbench.core.flops import Convention
from attnbench.core.policy import SHORT
from attnbench.core.record import Run
from attnbench.results import batch, case_names, derive, metrics, run_file
from attnbench.results.cells import Cell, by_rates, by_sheet, having, values_of
from attnbench.results.sheet import Sheet

DRIFT = 0.02
DISAGREE = 0.02


@dataclass(frozen=True)
class Caution:
    """What happened, why it matters, what to do."""

    what: str
    why: str
    todo: str

    def __str__(self) -> str:
        return " ".join(filter(None, (self.what, self.why, self.todo)))


def cautions(cells: Sequence[Cell], runs: Sequence[Run], convention: Convention = "exact") -> list[Caution]:
    """Everything that should make a reader careful, most serious first."""
    measured = [c for c in cells if c.status == "ok"]
    found = [*_wrong(cells), *_wrong_kernel(cells), *_incomplete(runs), *_half_ok(measured), *_ecc(measured)]
    found += _reduced(runs)
    found += [
        *_others([c for c in cells if c.status in ("ok", "wrong-kernel")]),
        *_disagree(measured),
        *_host_bound(measured),
        *_held_down(measured),
    ]
    found += [*_drifting(measured), *_few(measured), *_noisy(measured), *_unproven(measured), *_no_peak(measured)]
    if convention == "fa" and any(c.case.window_size != (None, None) and c.case.causal for c in measured):
        found.append(
            Caution(
                "The fa convention ignores windows.",
                "TFLOP/s of causal sliding windows are far too high.",
                "Use --flops-convention exact.",
            )
        )
    return found


def _wrong(cells: Iterable[Cell]) -> Iterator[Caution]:
    wrong = [c for c in cells if c.status == "wrong"]
    if wrong:
        yield Caution(
            f"{case_names.count(len(wrong), 'result')} wrong: {_named(wrong)}.",
            "The speed of a wrong answer says nothing, so none is shown.",
            "See above by how much; report it to the backend's authors.",
        )


def _wrong_kernel(cells: Iterable[Cell]) -> Iterator[Caution]:
    other = [c for c in cells if c.status == "wrong-kernel"]
    if other:
        yield Caution(
            f"{case_names.count(len(other), 'cell')} where another kernel ran than the backend's: {_named(other)}.",
            "Its speed under this name would mislead, so none is shown.",
            "See above what ran; leave those cases out, or choose the backend whose kernel it is.",
        )


def _incomplete(runs: Iterable[Run]) -> Iterator[Caution]:
    for run in runs:
        missing = run_file.unfinished(run)
        open_ = [job for job, ended in missing if job.skip is None and not ended]
        later = [job for job, ended in missing if ended]
        if open_ and run.turns:
            yield Caution(
                f"Incomplete: {case_names.count(len(open_), 'cell')} of {len(run.plan)} of this half of an A/B have no "
                "record: it ended early.",
                "",
                "attnbench gate A B says what that means for the comparison; an A/B is not resumed.",
            )
        elif open_:
            yield Caution(
                f"Incomplete: {len(open_)} of {case_names.count(len(run.plan), 'planned job')} of suite "
                f'"{run.suite}" have no record.',
                "What is missing may change who is fastest.",
                "Finish with: attnbench run --resume FILE",
            )
        elif later:
            yield Caution(
                f"Incomplete: {case_names.count(len(later), 'job')} skipped for want of time.",
                "",
                "A longer --time-limit of attnbench ab measures them."
                if run.turns
                else "Measure them with: attnbench run --resume FILE",
            )


def _reduced(runs: Iterable[Run]) -> Iterator[Caution]:
    if some := [run for run in runs if run.reduced]:
        yield Caution(
            f"{case_names.count(len(some), 'baseline')} among these: a baseline keeps one value a round.",
            "Percentiles of the latency are that value, and spread within a round is not known.",
            "The run file that was saved has the samples.",
        )


def _half_ok(cells: Sequence[Cell]) -> Iterator[Caution]:
    odd = having(cells, lambda sheet: [i for i, status in enumerate(sheet.columns.statuses) if status != "ok"])
    if odd:
        other = next(r for r in odd[0].records if r.status != "ok")
        yield Caution(
            f"{case_names.count(len(odd), 'cell')} measured in some rounds only: {_named(odd)} "
            f"({case_names.ENDINGS[other.status]}: {case_names.one_line(other.reason or 'no reason given')}).",
            "Their figures are of the rounds that worked.",
            "Read them as unstable.",
        )


def _ecc(cells: Sequence[Cell]) -> Iterator[Caution]:
    struck = having(cells, lambda sheet: sheet.columns.ecc_errors)
    if struck:
        number = sum(c.columns.ecc_errors.get(i, 0) for c in struck for i in c.rows)
        yield Caution(
            f"The GPU counted {case_names.count(number, 'uncorrected memory error')} during {_named(struck)}.",
            "The card is failing, and what it computes may be wrong.",
            "Look at nvidia-smi -q -d ECC, and measure on another.",
        )


def _others(cells: Sequence[Cell]) -> Iterator[Caution]:
    shared = having(cells, lambda sheet: sheet.columns.others)
    if shared:
        names = sorted({name for c in shared for i in c.rows for name in c.columns.others.get(i, ())})
        yield Caution(
            f"Shared GPU: others computed on it during {len(shared)} of {case_names.count(len(cells), 'cell')}: "
            f"{case_names.some(names)}.",
            "Their work is in these latencies, and can make a kernel look as if another had run.",
            "Stop them and run again, or use another GPU (--device cuda:N).",
        )


def _disagree(cells: Iterable[Cell]) -> Iterator[Caution]:
    """Of long calls: in short ones the launch gap is expected."""
    turns = [c for c in cells if c.compared]
    apart = [(d, c) for c in turns if (d := c.value("disagreement")) is not None and d > DISAGREE and _long_turns(c)]
    if apart:
        worst, cell = max(apart, key=lambda pair: pair[0])
        yield Caution(
            f"Instruments disagree: by more than {metrics.percent(DISAGREE)} in {case_names.count(len(apart), 'cell')} of "
            f"{metrics.duration(SHORT)} and more, by {metrics.percent(worst)} in the worst: {case_names.name(cell)}.",
            "One of them sees work, or a gap, that another does not.",
            "Trust these no better than that; -m disagreement has it by cell, run --timer another reading.",
        )


def _long_turns(cell: Cell) -> bool:
    readings = [v for r in cell.records for v in derive.values(r, "turns_events")]
    return bool(readings) and stats.median(readings) >= SHORT


def _host_bound(cells: Sequence[Cell]) -> Iterator[Caution]:
    bound = having(cells, lambda sheet: sheet.columns.host_bound)
    if bound:
        yield Caution(
            f"Host-bound: {case_names.count(len(bound), 'cell')} where the device waited for the host: {_named(bound)}.",
            "Their latency holds the time that Python takes to launch, not the kernels' alone.",
            "Launch fewer kernels, or capture them in a CUDA graph.",
        )


def _held_down(cells: Sequence[Cell]) -> Iterator[Caution]:
    held = [c for c in cells if c.held_down]
    if held:
        limits = sorted({limit for c in held for i in c.rows for limit in c.columns.limits.get(i, ())})
        clocks = [hz for sheet, some in by_sheet(held) for hz in batch.clocks(sheet.columns, _ok(some))]
        seen = f", SM clock {_range(clocks)}" if clocks else ""
        top = held[0].run.environment.clock_max_hz
        most = f" of {top / 1e6:.0f} MHz" if top and clocks else " MHz" if clocks else ""
        yield Caution(
            f"Clock held down{' by ' if limits else ''}{', '.join(limits)} in {len(held)} of "
            f"{case_names.count(len(cells), 'cell')}{seen}{most}.",
            f"Marked {HELD_DOWN}: their speed is what the machine sustains, not what the kernel could do, and moves by "
            "some percent from run to run.",
            "Compare them by -m utilization_clock, or within one run over several --rounds; run --isolate-power lets "
            "the GPU rest before each cell.",
        )


def _drifting(cells: Sequence[Cell]) -> Iterator[Caution]:
    drifts = [(d, c) for d, c in zip(values_of(cells, "drift"), cells, strict=True) if d and abs(d) > DRIFT]
    faster = [(d, c) for d, c in drifts if d < 0]
    slower = [(d, c) for d, c in drifts if d > 0]
    if faster:
        most, cell = min(faster, key=lambda pair: pair[0])
        yield Caution(
            f"Still getting faster while measured: {case_names.count(len(faster), 'cell')}, by {metrics.percent(-most)} at "
            f"most: {case_names.name(cell)}.",
            "They were not warm yet, so their medians are too slow.",
            "Raise warmup_s or max_seconds in the suite.",
        )
    if slower:
        most, cell = max(slower, key=lambda pair: pair[0])
        yield Caution(
            f"Getting slower while measured: {case_names.count(len(slower), 'cell')}, by {metrics.percent(most)} at most: "
            f"{case_names.name(cell)}.",
            "The clock fell meanwhile, or something else began to run.",
            "Give run --isolate-power, or lower burst_s in the suite; -m clock_held,power,temperature tells more."
            if cell.run.environment.device.kind == "cuda"
            else "Leave the machine alone meanwhile.",
        )


def _few(cells: Sequence[Cell]) -> Iterator[Caution]:
    def too_few(sheet: Sheet) -> list[int]:
        enough = min(sheet.run.policy.min_samples, derive.MIN_SAMPLES_INTERVAL)
        counts = () if sheet.run.reduced else batch.values("samples", sheet.columns)
        return [i for i, n in enumerate(counts) if n is not None and n < enough]

    few = [(int(min(c.rounds("samples").values())), c) for c in having(cells, too_few)]
    if few:
        fewest, cell = min(few, key=lambda pair: pair[0])
        yield Caution(
            f"Few samples in {case_names.count(len(few), 'cell')}, the fewest {fewest}: {case_names.name(cell)}.",
            f"Their spread is hardly known: below {derive.MIN_SAMPLES_INTERVAL} no 95 % interval exists.",
            f"Raise max_seconds in the suite (it was {cell.run.policy.max_seconds:g} s a cell).",
        )


def _noisy(cells: Sequence[Cell]) -> Iterator[Caution]:
    each = zip(values_of(cells, "ci"), cells, strict=True)
    noisy = [(ci, c) for ci, c in each if ci is not None and ci > c.run.policy.target]
    if noisy:
        worst, cell = max(noisy, key=lambda pair: pair[0])
        target = metrics.percent(cell.run.policy.target)
        yield Caution(
            f"Noisy: {len(noisy)} of {case_names.count(len(cells), 'cell')} not known to {target}, the worst to "
            f"{metrics.percent(worst)}: {case_names.name(cell)}.",
            "Smaller differences than that are not real.",
            "Leave the machine alone meanwhile, or raise max_seconds in the suite "
            f"({cell.run.policy.max_seconds:g} s a cell).",
        )


def _unproven(cells: Sequence[Cell]) -> Iterator[Caution]:
    unproven = having(cells, lambda sheet: [i for i, l2 in enumerate(sheet.columns.l2) if l2 == "unproven"])
    if unproven:
        policy, kind = unproven[0].run.policy, unproven[0].run.environment.device.kind
        other = "events" if policy.timer == "cupti" else "cupti"
        yield Caution(
            f"L2 not proven {policy.l2} in {len(unproven)} of {case_names.count(len(cells), 'cell')}: "
            "a read that fits in it did not show it.",
            "What fits in the cache may be timed in another state than promised.",
            f"Compare with run --timer {other}." if kind == "cuda" else "Trust what exceeds the cache.",
        )


def _no_peak(cells: Iterable[Cell]) -> Iterator[Caution]:
    unknown: dict[str, set[str]] = {}
    for rates, (cell, *_) in by_rates(cells):
        if rates.peak is None and cell.run.environment.device.kind == "cuda":
            unknown.setdefault(cell.run.environment.device.name, set()).add(cell.case.dtype)
    for device, dtypes in unknown.items():
        names = sorted(dtypes)
        yield Caution(
            f"Utilisation unknown: no {' or '.join(names)} peak is on file for {device}.",
            "TFLOP/s are not affected.",
            f"Give the datasheet's dense TFLOP/s: {' '.join(f'--peak {n}=...' for n in names)}",
        )


def _named(cells: Iterable[Cell]) -> str:
    return case_names.some(case_names.name(c) for c in cells)


def _ok(cells: Iterable[Cell]) -> Iterator[int]:
    return (i for c in cells for i in c.ok)


def _range(hertz: Sequence[float]) -> str:
    low, high = f"{min(hertz) / 1e6:.0f}", f"{max(hertz) / 1e6:.0f}"
    return low if low == high else f"{low}-{high}"
