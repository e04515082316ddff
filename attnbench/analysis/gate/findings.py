"""The judgement of a gate: from two runs to findings, one verdict on the whole, and its exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

from attnbench.analysis.gate import ab_files, first_calls, notes, run_differences
from attnbench.analysis.gate.cell_states import compare_states, worked_in_neither
from attnbench.analysis.gate.margins import RULES, Margins, between_units
from attnbench.analysis.gate.metric_findings import metric_findings
from attnbench.analysis.gate.run_differences import Difference
from attnbench.analysis.gate.verdicts import Finding, Verdict, in_order
from attnbench.core.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_NOT_COMPARABLE,
    EXIT_PASS,
    EXIT_REGRESSION,
    EXIT_WRONG_RESULT,
    UserError,
)
from attnbench.core.record import Run
from attnbench.core.text import count, some
from attnbench.results import run_file
from attnbench.results.case_names import full_name
from attnbench.results.cells import Cell, Key, by_key, cells
from attnbench.results.run_setup import seconds_started
from attnbench.results.together import together

Choice = Literal["pass", "fail"]
CHOICES: tuple[Choice, ...] = get_args(Choice)
GRAVEST_FIRST = (EXIT_WRONG_RESULT, EXIT_REGRESSION, EXIT_INCONCLUSIVE)  # the time of a wrong kernel means nothing


@dataclass(frozen=True)
class Request:
    """The metrics that a gate compares, their margins, and the findings that it lets pass."""

    metrics: tuple[str, ...]
    margins: Margins = field(default_factory=Margins)
    expect: tuple[str, ...] = ()  # names of differences between the runs that are expected
    inconclusive: Choice = "fail"
    missing: Choice = "fail"
    allow_wrong: bool = False  # a wrong result of the current run is expected, unless it was right in the baseline


@dataclass(frozen=True)
class Judgement:
    """The findings of a gate, and its verdict as an exit code."""

    baseline: Run
    current: Run
    request: Request
    findings: tuple[Finding, ...] = ()  # in the order of verdicts.in_order
    expected: tuple[Difference, ...] = ()  # differences between the runs that are meant
    refused: tuple[Difference, ...] = ()  # the other differences; if there are any, only wrong results are findings
    notes: tuple[str, ...] = ()
    heading: tuple[str, ...] = ()  # how an A/B was measured
    first: tuple[str, ...] = ()  # what a reader must know before the figures: rounds that differ, or were repeated
    earlier: tuple[Run, ...] = ()  # further runs of the baseline, which count too
    commands: tuple[str, ...] = ()  # shell commands that would settle the inconclusive cells

    def count(self, verdict: Verdict) -> int:
        """Return how many findings have a verdict."""
        return sum(f.verdict == verdict for f in self.findings)

    def let_pass(self, finding: Finding) -> bool:
        """Return whether a finding of a bad verdict does not count, because options or its metric let it pass."""
        return finding.verdict in ("wrong", "missing", "inconclusive") and self.exit_code_of(finding) == EXIT_PASS

    def exit_code_of(self, finding: Finding) -> int:
        """Return the exit code that the gate would have with this finding alone."""
        if finding.verdict == "wrong" and not self.request.allow_wrong:
            return EXIT_WRONG_RESULT
        if finding.verdict in ("regressed", "newly-failing"):
            return EXIT_REGRESSION
        if finding.verdict == "missing" and self.request.missing == "fail":
            return EXIT_REGRESSION
        if finding.verdict == "inconclusive" and self.request.inconclusive == "fail":
            return EXIT_PASS if finding.metric and RULES[finding.metric].cached else EXIT_INCONCLUSIVE
        return EXIT_PASS

    def only_missing(self) -> list[str]:
        """Return the names of the missing cells if they are the only cause of exit code 1; else []."""
        failures = [f for f in self.findings if self.exit_code_of(f) == EXIT_REGRESSION]
        alone = self.exit_code == EXIT_REGRESSION and all(f.verdict == "missing" for f in failures)
        return [f.name for f in failures] if alone else []

    def check_whole(self, damage: str, *, is_cut_off: bool = False) -> None:
        """Raise UserError where the damage of the current file, "FILE: what is lost", may hide a failure.

        A run that is cut off at its end fails anyway where cells are missing.
        """
        gone = [] if is_cut_off else self.only_missing()
        if damage and self.request.missing == "fail" and (gone or self.exit_code in (EXIT_PASS, EXIT_INCONCLUSIVE)):
            raise run_file.undecided(damage, some(gone) or "a wrong result")

    @cached_property
    def exit_code(self) -> int:
        """0: pass; 1: a regression, a new failure, a missing cell; 3: inconclusive; 4: not comparable; 5: wrong."""
        if self.refused:
            return EXIT_NOT_COMPARABLE
        codes = {self.exit_code_of(finding) for finding in self.findings}
        return next((code for code in GRAVEST_FIRST if code in codes), EXIT_PASS)


def judge(baseline: Run, current: Run, request: Request, earlier: Sequence[Run] = ()) -> Judgement:
    """Compare two runs; `earlier` are further runs of the baseline. Raises UserError where there is nothing to compare.

    Of several runs of a baseline, those on the current run's unit count, if there are any. Searches are not compared.
    """
    if current.search or any(run.search for run in (baseline, *earlier)):
        which = "the current run" if current.search else "the baseline"
        raise UserError(
            f"{which} is a file of attnbench capacity, which has no cells to judge; give a run file of attnbench run "
            "(attnbench capacity FILE... shows searches together)"
        )
    baseline, earlier, left = _chosen((baseline, *earlier), current)
    expected, refused, idle, told = split_differences(baseline, current, request.expect)
    in_turns = ab_files.in_turns(baseline, current)
    heading = ab_files.heading(baseline, current) if in_turns else ()
    whole = ab_files.whole_pairs(baseline, current) if in_turns else (baseline, current)
    beside = together(whole)
    before, after = (by_key(cells([run], beside=beside)) for run in whole)
    planned = {(job.case, job.backend) for job in run_file.missing(current)}
    of_cells, pairs, not_compared = compare_states(before, after, planned, in_turns, request.allow_wrong)
    wrong = [f for f in of_cells if f.verdict == "wrong"]
    if refused:
        found = in_order(wrong)
        return Judgement(baseline, current, request, found, tuple(expected), tuple(refused), tuple(told), heading)
    if before.keys().isdisjoint(after) and not wrong and planned.isdisjoint(before):
        raise UserError(
            f"the two runs have no cell in common ({count(len(before), 'cell')} in the baseline, "
            f"{len(after)} in the current run); measure the same suite in both"
        )
    if in_turns:
        of_cells += ab_files.left_out(before, after)
    margins = replace(request.margins, units=between_units(baseline, current))
    controls = run_differences.controls(baseline, current)
    further = [_comparable_cells(run, baseline) for run in earlier]
    of_metrics, early = metric_findings(pairs, request.metrics, margins, in_turns, further, controls)
    if in_turns:
        of_metrics, aside = ab_files.before_the_first_look(of_metrics)
    else:
        of_metrics, aside = first_calls.set_aside(of_metrics, baseline, current)
    findings = in_order([*of_cells, *of_metrics])
    if pairs and "cycles" in request.metrics and "cycles" not in {f.metric for f in findings}:
        raise UserError("cycles: no cell has a reading of the held clock in both runs; compare --metric latency")
    if not findings:
        why = worked_in_neither(before, after) or "; ".join(not_compared[:1])
        by = ",".join(request.metrics)
        why = f" ({why})" if why else f"; attnbench report -m {by} shows the cells that have it"
        raise UserError(f"nothing in the two runs can be compared by {by}{why}")
    names = (full_name(backend, case) for side in (before, after) for case, backend in side)
    said = [
        *(f"--expect {name}: the runs do not differ in it; are these the runs that were meant?" for name in idle),
        *(f"margins: no cell is called {glob!r}" for glob in request.margins.unused(names)),
        *(
            f"margins: {name} is not judged; --metric {','.join((*request.metrics, name))} judges it too"
            for name in request.margins.idle(request.metrics)
        ),
        *aside,
        *left,
        *(() if in_turns else notes.runs(1 + len(earlier), controls)),
        *notes.approximations(after.values()),
        *notes.unmeasured(findings),
        *notes.timed(findings, in_turns, baseline.policy.burst_s),
        *not_compared,
        *notes.incomplete("baseline", baseline),
        *notes.incomplete("current run", current),
        *notes.units(margins, baseline, current),
        *notes.age(baseline, current),
        *notes.ceilings(before.values(), after.values()),
        *told,
    ]
    moved = [] if in_turns or early else notes.moved_together(findings)
    first = (*early, *moved, *notes.repeated("baseline", baseline), *notes.repeated("current run", current))
    compared = Judgement(baseline, current, request, findings, tuple(expected), notes=tuple(said), heading=heading)
    return replace(compared, first=first, earlier=earlier)


def _chosen(runs: Sequence[Run], current: Run) -> tuple[Run, tuple[Run, ...], list[str]]:
    """Return the latest run, the others, and a note on the runs that do not count.

    Runs of the current run's unit count; where there are none, runs of all units do.
    """
    unit = current.environment.device.uuid
    own = [run for run in runs if unit and run.environment.device.uuid == unit]
    latest, *others = sorted(own or runs, key=lambda run: seconds_started(run) or 0.0, reverse=True)
    elsewhere = len(runs) - len(own or runs)
    left = f"{count(elsewhere, 'run')} of the baseline, of other units of this GPU, left out."
    return latest, tuple(others), [left] if elsewhere else []


def _comparable_cells(run: Run, latest: Run) -> dict[Key, Cell]:
    """Return the cells of an earlier run whose figures no difference from the latest run can have changed."""
    changed = run_differences.concerned(run, latest)
    return {key: cell for key, cell in by_key(cells([run])).items() if cell.backend not in changed}


def split_differences(
    baseline: Run, current: Run, expect: Sequence[str]
) -> tuple[list[Difference], list[Difference], list[str], list[str]]:
    """Return the expected differences between two runs, the others, names in `expect` that fit none, and notes.

    The builds of an A/B are expected to differ without being named. Raises UserError for an unknown name.
    """
    run_differences.check_names(expect, (baseline, current))
    found = run_differences.differences(baseline, current)
    if ab_files.in_turns(baseline, current):
        builds = {*ab_files.under_test(baseline, current)}
        expect = [*expect, *(name for d in found if builds & {*d.names} for name in d.names)]
    expected, refused, idle = run_differences.split(found, expect)
    return expected, refused, idle, run_differences.told(found, expected)
