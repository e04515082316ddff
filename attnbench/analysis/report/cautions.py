"""The cautions of a report: what is doubtful about its figures, why it matters, and what to do about it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

from attnbench.analysis.cautions import Places, Rule, furthest, in_cells, stated, when
from attnbench.analysis.report.machine_summary import clock_range
from attnbench.core import stats
from attnbench.core.formats import digits, duration, percent
from attnbench.core.own_code import IN_PROCESS, as_written
from attnbench.core.policy import SHORT
from attnbench.core.record import Run
from attnbench.core.text import count, one_line, some
from attnbench.render.characters import HELD_DOWN
from attnbench.render.document import Caution
from attnbench.results import case_names, run_file
from attnbench.results.cells import Cell
from attnbench.results.sustained import rank_changes
from attnbench.results.uncertainty import MIN_SAMPLES_INTERVAL

DRIFT = 0.02
DISAGREE = 0.02
ABOVE_CEILING = 1.1  # times the rate of a large matmul: the two were measured under unlike conditions


@dataclass(frozen=True)
class Reported:
    """The cells and runs of a report; `files` are the run files."""

    cells: Sequence[Cell]
    runs: Sequence[Run] = ()
    files: Sequence[Path] = ()

    @cached_property
    def measured(self) -> list[Cell]:
        """The cells that have a figure."""
        return [cell for cell in self.cells if cell.status == "ok"]

    def ended_as(self, status: str) -> list[Cell]:
        """Return the cells with this status, without those that an earlier version's check judged."""
        return [cell for cell in self.cells if cell.status == status and not cell.of_earlier_check]


def cautions(cells: Sequence[Cell], runs: Sequence[Run], files: Sequence[Path] = ()) -> tuple[Caution, ...]:
    """Return everything that should make a reader careful, most serious first. `files` are the run files."""
    return stated(CAUTIONS, Reported(cells, runs, files))


def measured(test: Callable[[Cell], object]) -> Callable[[Reported], Places]:
    """Return a function that finds the measured cells that pass a test, as places of a caution."""
    return lambda of: in_cells(filter(test, of.measured))


def _in_file(cell: Cell) -> bool:
    """Whether a cell is of a function in a person's file."""
    return ".py:" in cell.run.specs.get(cell.backend, "")


def _given_here(cell: Cell) -> bool:
    """Whether a cell is of a function that was measured in the process that gave it."""
    return cell.run.specs.get(cell.backend, "").startswith(f"{IN_PROCESS}:")


def _wrong(of: Reported) -> Iterator[dict[str, Any]]:
    """Yield wrong results by what to do: of a person's own file `check` tries the same cells again."""
    cells = of.ended_as("wrong")
    own = [c for c in cells if _in_file(c) or _given_here(c)]
    for run, file in zip_longest(of.runs, of.files, fillvalue="FILE"):
        again = [c for c in own if c.run is run and _in_file(c) and c.case.ranks == 1]  # check splits no sequence
        functions = dict.fromkeys(as_written(c.run.specs[c.backend]) for c in again)
        fenced = ["--untrusted"] if isinstance(run, Run) and run.policy.untrusted else []
        command = shlex.join(["attnbench", "check", *functions, *fenced, "--wrong", str(file)])
        yield from in_cells(again, todo=f". The same cells again, without timing: {command}")
    yield from in_cells([c for c in own if c.case.ranks > 1 or not _in_file(c)], todo=".")
    yield from in_cells([c for c in cells if c not in own], todo="; report it to the backend's authors.")


def _incomplete(of: Any) -> Iterator[dict[str, Any]]:
    """Yield where planned jobs have no final record. A run with `turns` is half of an A/B, which cannot be resumed."""
    for run, file in zip_longest(of.runs, of.files, fillvalue="FILE"):
        assert isinstance(run, Run)
        resume = run_file.resume_command(run, file)
        missing = run_file.unfinished(run)
        unrecorded = sum(job.skip is None and not ended for job, ended in missing)
        if unrecorded and run.turns:
            what = f"{count(unrecorded, 'cell')} of {len(run.plan)} of this half of an A/B have no record: "
            todo = "attnbench gate A B compares the rest; an A/B cannot be resumed."
            yield {"what": f"{what}it ended early", "why": "", "todo": todo}
        elif unrecorded:
            to_measure = sum(job.skip is None for job in run.plan)
            what = f'{unrecorded} of {count(to_measure, "job")} to measure of suite "{run.suite}" have no record'
            why = "The missing cells may change which backend is fastest."
            yield {"what": what, "why": why, "todo": f"Finish with: {resume}"}
        elif later := sum(ended for _, ended in missing):
            todo = "A longer --time-limit of attnbench ab measures them." if run.turns else ""
            what = f"{count(later, 'job')} skipped for want of time"
            yield {"what": what, "why": "", "todo": todo or f"Measure them with: {resume}"}


def _replaced(of: Reported) -> Places:
    """Return the records that worked and were replaced by later ones of the same job, as `--again` does."""
    number = sum(record.status == "ok" for run in of.runs for record in run.replaced)
    return when(number, records=count(number, "record"))


def _reduced(of: Reported) -> Places:
    number = sum(run.reduced for run in of.runs)
    return when(number, baselines=count(number, "baseline"))


def _in_some_rounds(of: Reported) -> Places:
    odd = [c for c in of.measured if len(c.ok) < len(c.rows)]
    other = next((row.record for c in odd for row in c.rows if not row.ok), None)
    why = one_line((other and other.reason) or "no reason given")
    return in_cells(odd, ended=other and f"{case_names.ENDINGS[other.status]}: {why}")


def _memory_errors(of: Reported) -> Places:
    errors = sum(row.record.ecc_errors for c in of.measured for row in c.rows)
    struck = [c for c in of.measured if any(row.record.ecc_errors for row in c.rows)]
    return in_cells(struck, errors=count(errors, "uncorrected memory error"))


def _shared(of: Reported) -> Places:
    cells = [c for c in of.cells if c.status in ("ok", "wrong-kernel")]
    who = some(sorted({name for c in cells for row in c.rows for name in row.record.others}))
    shared = [c for c in cells if any(row.record.others for row in c.rows)]
    return in_cells(shared, of=count(len(cells), "cell"), who=who)


def _disagreeing(of: Reported) -> Places:
    """Return where the instruments disagree on long calls: in short ones the launch gap is expected."""
    apart = [(d, c) for c in of.measured if (d := c.value("disagreement")) is not None and d > DISAGREE]
    return furthest([(d, c) for d, c in apart if _long_turns(c)])


def _long_turns(cell: Cell) -> bool:
    readings = [v for row in cell.rows for v in row.measured("turns_events")]
    return bool(readings) and stats.median(readings) >= SHORT


def _above_ceiling(of: Reported) -> Places:
    shares = [(share, c) for c in of.measured if (share := c.value("utilization_ceiling")) and share > ABOVE_CEILING]
    return furthest([(share, c) for share, c in shares if c.source.convention == "exact"])  # fa has its own caution


def _held_down(of: Reported) -> Places:
    held = [c for c in of.measured if c.held_down]
    limits = sorted({limit for c in held for row in c.rows for limit in row.record.limits})
    by = f" by {', '.join(limits)}" if limits else ""
    clock = clock_range(held)
    return in_cells(held, by=by, of=count(len(of.measured), "cell"), clock=f", {clock}" if clock else "")


def rank_change(cells: Iterable[Cell], machine: str = "") -> Places:
    """Return where bursts and runs without pauses rank two backends differently, on a machine if it is named."""
    found = rank_changes(cells)
    if not found:
        return []
    most, pairs = found[0], count(len(found), "pair")
    by = {"in_bursts": _by(most.lead_in_bursts), "sustained": _by(most.lead_sustained)}
    return [{"on": f" on {machine}" if machine else "", "pairs": pairs, "most": most, **by}]


def _by(lead: float) -> str:
    """Return by how much a latency is longer than another: "by 12%", from a factor of 2 on "by a factor of 6.39"."""
    return f"by {percent(lead)}" if lead < 1 else f"by a factor of {digits(1 + lead)}"


def _drifts(of: Reported) -> list[tuple[float, Cell]]:
    """Return the cells that became slower, or faster, while they were measured, except those that time the host."""
    drifts = ((c.value("drift") or 0.0, c) for c in _by_seconds(of) if not c.is_host_bound())
    return [(drift, c) for drift, c in drifts if abs(drift) > DRIFT]


def _slower(of: Reported) -> Iterator[dict[str, Any]]:
    for values in furthest(slower := [(drift, c) for drift, c in _drifts(of) if drift > 0]):
        cell, on_gpu = values["cell"], values["cell"].run.environment.device.kind == "cuda"
        told = "Give run --isolate-power; -m clock_held,temperature tells more."
        why = _why_slower(cell, max(drift for drift, _ in slower))
        yield {**values, "why": why, "todo": told if on_gpu else "Leave the machine alone meanwhile."}


def _why_slower(cell: Cell, drift: float) -> str:
    """Return why a cell became slower by `drift`: the clock, where it is known and fell by half of `drift` or more."""
    clocks = next((found for row in cell.ok if len(found := row.measured("clock_held")) > 1), None)
    if clocks is None:
        return "The clock fell meanwhile, or something else began to run."
    if clocks[-1] < (1 - drift / 2) * clocks[0]:
        return "The clock fell meanwhile."
    return "The clock held, so something else began to run, or its calls have several speeds."


def _by_seconds(of: Reported) -> list[Cell]:
    """Return the measured cells for which --max-seconds counts: it does not with --untrusted."""
    return [cell for cell in of.measured if not cell.run.policy.untrusted]


def _few(of: Reported) -> Places:
    counts = [(min(len(row.samples) for row in cell.ok), cell) for cell in _by_seconds(of) if not cell.run.reduced]
    few = [(n, cell) for n, cell in counts if n < min(cell.run.policy.min_samples, MIN_SAMPLES_INTERVAL)]
    return furthest(few, str, min)


def _noisy(of: Reported) -> Iterator[dict[str, Any]]:
    noisy = [(ci, c) for c in _by_seconds(of) if (ci := c.value("ci_within")) is not None and ci > c.run.policy.target]
    for values in furthest(noisy):
        target = percent(values["cell"].run.policy.target)
        yield {**values, "of": count(len(of.measured), "cell"), "target": target}


def _unproven(of: Reported) -> Iterator[dict[str, Any]]:
    unproven = [c for c in of.measured if any(row.record.l2 == "unproven" for row in c.rows)]
    for values in in_cells(unproven, of=count(len(of.measured), "cell")):
        policy, kind = unproven[0].run.policy, unproven[0].run.environment.device.kind
        other = f"Compare with run --timer {'events' if policy.timer == 'cupti' else 'cupti'}."
        yield {**values, "l2": policy.l2, "todo": other if kind == "cuda" else "Trust sizes beyond the cache."}


def _without_peak(of: Reported) -> Iterator[dict[str, Any]]:
    cells = [c for c in of.measured if c.rates.peak is None and c.run.environment.device.kind == "cuda"]
    for device in dict.fromkeys(c.run.environment.device.name for c in cells):
        names = sorted({c.case.dtype for c in cells if c.run.environment.device.name == device})
        options = " ".join(f"--peak {name}=..." for name in names)
        yield {"dtypes": " or ".join(names), "device": device, "options": options}


INCOMPLETE: Rule[Any] = Rule(_incomplete, "Incomplete: {what}.", "{why}", "{todo}")
RANK_CHANGE = (
    "Bursts and runs without pauses rank backends differently{on} in {pairs} of cells: {most.in_bursts.name} is faster "
    "than {most.sustained.backend_name} {in_bursts} in bursts, slower {sustained} without pauses.",
    "Without pauses the power limit lowers the clock, most for the kernel that draws most power.",
    "-m tflops,sustained_tflops has both.",
)
CAUTIONS: Sequence[Rule[Reported]] = (
    Rule(
        _wrong,
        "{results} wrong: {names}.",
        "The speed of a wrong answer means nothing, so no speed is shown.",
        "The errors are above{todo}",
    ),
    Rule(
        measured(_given_here),
        "Measured in the process that gave the function: {cells}.",
        "attnbench does not guard that process, and the clock in it, against the function.",
        "Put it in a file of its own, and give that: file.py:function.",
    ),
    Rule(
        lambda of: in_cells(c for c in of.cells if c.of_earlier_check),
        "{results} wrong by an earlier check of attnbench: {names}.",
        "The check of this version may find them right; none of their figures is shown.",
        "Measure them again.",
    ),
    Rule(
        lambda of: in_cells(of.ended_as("wrong-kernel")),
        "{cells} where a kernel ran that is not the backend's: {names}.",
        "Its speed under this name would mislead, so no speed is shown.",
        "The kernels that ran are named above; leave these cases out, or choose the backend whose kernel it is.",
    ),
    INCOMPLETE,
    Rule(
        measured(lambda c: c.case.deterministic and c.value("deterministic") == 0),
        "{results} of a deterministic variant with other bits in another launch or process: {names}.",
        "The library was asked for the variant that repeats itself, and does not have it there.",
        "Choose another backend where bits must repeat; report --cell shows what differs.",
    ),
    Rule(
        _replaced,
        "{records} replaced by a later one of the same job.",
        "The later figures count; where nobody gave --again, they may be another run's.",
        "Measure doubtful cells again.",
    ),
    Rule(
        _in_some_rounds,
        "{cells} measured in some rounds only: {names} ({ended}).",
        "Their figures are from the rounds that worked.",
        "These backends are unstable there.",
    ),
    Rule(
        _memory_errors,
        "The GPU counted {errors} during {names}.",
        "The card is failing, and its results may be wrong.",
        "Look at nvidia-smi -q -d ECC, and measure on another card.",
    ),
    Rule(
        _reduced,
        "{baselines} among these: a baseline keeps one value per round.",
        "Percentiles of the latency are that value, and the spread within a round is not known.",
        "The run file that was saved has the samples.",
    ),
    Rule(
        _shared,
        "Shared GPU: other processes computed on it during {number} of {of}: {who}.",
        "Their work is in these latencies, and can make a kernel look as if another had run.",
        "Stop them and run again, or use another GPU (--device cuda:N).",
    ),
    Rule(
        _disagreeing,
        f"Instruments disagree: by more than {percent(DISAGREE)} in {{cells}} of {duration(SHORT)} and more, by "
        "{most} in the worst: {cell.name}.",
        "One of them measures work, or a gap, that another does not.",
        "Trust these figures no further than that; -m disagreement has it by cell, run --timer another reading.",
    ),
    Rule(
        measured(lambda c: any(row.host_bound for row in c.rows)),
        "Host-bound: {cells} where the device waited for the host: {names}.",
        "Their latency includes the time that Python takes to launch.",
        "Launch fewer kernels, or capture them in a CUDA graph.",
    ),
    Rule(  # figures that no device of this model can reach, at its highest clock
        lambda of: in_cells(c for c in of.measured if c.is_above_the_peak),
        "{figures} above what the device can do: {names}.",
        "Their work or their time is counted wrongly: do not use them.",
        "This is a fault of attnbench; please report it with the run file.",
    ),
    Rule(
        _above_ceiling,
        "{cells} above the measured ceiling ({most}): {cell.name}.",
        "No kernel is that much faster than a large matmul: other work disturbed the matmul, or results are stored.",
        "Leave the machine alone meanwhile, and measure again; cells at twice the ceiling or more are not ranked.",
    ),
    Rule(
        _held_down,
        "Clock held down{by} in {number} of {of}{clock}.",
        f"Marked {HELD_DOWN}: their speed is what the machine sustains, not what the kernel could do, and moves by "
        "some percent from run to run.",
        "Compare them by -m utilization_clock, or within one run over several --rounds; run --isolate-power lets "
        "the GPU rest before each cell.",
    ),
    Rule(lambda of: rank_change(of.measured), *RANK_CHANGE),
    Rule(
        lambda of: furthest([(-drift, c) for drift, c in _drifts(of) if drift < 0]),
        "Still getting faster while measured: {cells}, by {most} at most: {cell.name}.",
        "They were not warm yet, so their medians are too slow.",
        "Give run a longer --warmup or --max-seconds.",
    ),
    Rule(_slower, "Getting slower while measured: {cells}, by {most} at most: {cell.name}.", "{why}", "{todo}"),
    Rule(
        _few,
        "Few samples in {cells}, the fewest {most}: {cell.name}.",
        f"Below {MIN_SAMPLES_INTERVAL} the interval takes their noise to be normal.",
        "Give run more --max-seconds (it was {cell.run.policy.max_seconds:g}s a cell).",
    ),
    Rule(
        _noisy,
        "Noisy: {number} of {of} not known to {target} from the samples of their process, the worst to {most}: "
        "{cell.name}.",
        "Their uncertainty includes this noise (-m ci).",
        "Leave the machine alone meanwhile, or give run more --max-seconds (it was {cell.run.policy.max_seconds:g}s a "
        "cell).",
    ),
    Rule(
        _unproven,
        "L2 not proven {l2} in {number} of {of}: a read that fits in L2 did not show it.",
        "Cells that fit in the cache may be timed in another state than stated.",
        "{todo}",
    ),
    Rule(
        _without_peak,
        "Utilisation unknown: no {dtypes} peak is on file for {device}.",
        "TFLOP/s are not affected.",
        "Give the datasheet's dense TFLOP/s: {options}",
    ),
    Rule(
        measured(lambda c: c.source.convention == "fa" and c.case.causal and c.case.window_size != (None, None)),
        "The fa convention ignores windows.",
        "TFLOP/s of causal sliding windows are far too high.",
        "Use --flops-convention exact.",
    ),
)
