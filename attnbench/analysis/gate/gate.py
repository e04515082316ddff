"""Two runs -> a finding per cell and metric -> the verdict of the whole, with its exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from attnbench.analysis.gate import comparable, notes, turns
from attnbench.analysis.gate.comparable import Difference
from attnbench.analysis.gate.endings import endings, state
from attnbench.analysis.gate.findings import Finding, Findings, Kind, Verdict, name
from attnbench.analysis.gate.margins import RULES, Margins
from attnbench.analysis.gate.measured import measured
from attnbench.analysis.gate.readings import CYCLES
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.record import Run
from attnbench.results import case_names, run_file
from attnbench.results.cells import cells, keyed

EXIT_PASS, EXIT_REGRESSION, EXIT_INCONCLUSIVE, EXIT_NOT_COMPARABLE = 0, 1, 3, 4

Choice = Literal["pass", "fail"]


@dataclass(frozen=True)
class Request:
    metrics: tuple[str, ...]
    margins: Margins = field(default_factory=Margins)
    expect: tuple[str, ...] = ()
    inconclusive: Choice = "fail"
    missing: Choice = "fail"


@dataclass(frozen=True)
class Judgement:
    baseline: Run
    current: Run
    request: Request
    findings: Sequence[Finding] = ()
    meant: tuple[Difference, ...] = ()
    refused: tuple[Difference, ...] = ()  # if any, nothing was compared
    notes: tuple[str, ...] = ()
    heading: tuple[str, ...] = ()  # how it was measured, where that is not the usual way

    @cached_property
    def kinds(self) -> list[Kind]:
        """Of the findings."""
        return self.findings.kinds if isinstance(self.findings, Findings) else [f.kind for f in self.findings]

    @cached_property
    def counts(self) -> Mapping[Kind, int]:
        return Counter(self.kinds)

    def count(self, *verdicts: Verdict) -> int:
        return sum(number for kind, number in self.counts.items() if kind.verdict in verdicts)

    def those(self, which: Callable[[Kind], bool]) -> list[Finding]:
        """The findings of some kinds, in order."""
        wanted = set(filter(which, self.counts))
        return [self.findings[i] for i, kind in enumerate(self.kinds) if kind in wanted]

    def fails(self, kind: Kind) -> bool:
        """Whether such a finding alone makes the gate fail as a regression does."""
        return kind.verdict in ("regressed", "newly-failing") or (
            kind.verdict == "missing" and self.request.missing == "fail"
        )

    def unsettles(self, kind: Kind) -> bool:
        """Whether such a finding alone makes the gate inconclusive."""
        counts = kind.metric is None or not RULES[kind.metric].cached
        return kind.verdict == "inconclusive" and counts and self.request.inconclusive == "fail"

    @property
    def exit_code(self) -> int:
        if self.refused:
            return EXIT_NOT_COMPARABLE
        if any(map(self.fails, self.counts)):
            return EXIT_REGRESSION
        return EXIT_INCONCLUSIVE if any(map(self.unsettles, self.counts)) else EXIT_PASS


def judge(baseline: Run, current: Run, request: Request) -> Judgement:
    """Raises UserError where there is nothing to compare."""
    meant, refused, idle = differing(baseline, current, request.expect)
    in_turns = turns.in_turns(baseline, current)
    heading = turns.heading(baseline, current) if in_turns else ()
    if refused:
        return Judgement(baseline, current, request, meant=tuple(meant), refused=tuple(refused), heading=heading)
    compared = turns.whole_pairs(baseline, current) if in_turns else (baseline, current)
    known: dict[Case, Case] = {}
    before, after = (keyed(cells([run]), known) for run in compared)
    if before.keys().isdisjoint(after):
        raise UserError(
            f"the two runs have no cell in common ({case_names.count(len(before), 'cell')} in the baseline, "
            f"{len(after)} in the current run); measure the same suite in both"
        )
    planned = {(job.case, job.backend) for job in run_file.missing(current)}
    whole, both = endings(before, after, planned)
    if in_turns:  # which measure a cell no more once it has failed
        both = [pair for pair in both if {*map(state, pair)} == {"works"}]
    late = turns.left_out(before, after) if in_turns else {}
    whole += [Finding(*key, None, "inconclusive", (0, 0), reason=why) for key, why in late.items()]
    missing, figures = measured(both, request.metrics, request.margins, in_turns)
    findings = Findings([*whole, *missing], figures)
    if both and CYCLES in request.metrics and CYCLES not in {kind.metric for kind in findings.kinds}:
        raise UserError("cycles: no cell knows the clock that was held in both runs; compare --metric latency")
    if not findings:
        raise UserError(f"nothing in the two runs can be compared by {', '.join(request.metrics)}")
    every = (name(backend, case) for side in (before, after) for case, backend in side)
    said = [
        *(f"--expect {n}: nothing differs there; is this the run that was meant?" for n in idle),
        *(f"margins: no cell is called {glob!r}" for glob in request.margins.unused(every)),
        *notes.unmeasured(findings),
        *(notes.timed(findings, figures, in_turns, baseline.policy.burst_s) if figures else ()),
        *notes.beside(before, after, in_turns),
        *notes.incomplete("baseline", baseline),
        *notes.incomplete("current run", current),
        *notes.units(baseline, current),
    ]
    return Judgement(baseline, current, request, findings, tuple(meant), notes=tuple(said), heading=heading)


def differing(
    baseline: Run, current: Run, expect: Sequence[str]
) -> tuple[list[Difference], list[Difference], list[str]]:
    """comparable.split of two runs. The builds of an A/B are meant to differ without being named."""
    comparable.check_names(expect, (baseline, current))
    found = comparable.differences(baseline, current)
    builds = turns.under_test(baseline, current) if turns.in_turns(baseline, current) else []
    meant, refused, idle = comparable.split(found, [*expect, *turns.meant(found, builds)])
    return meant, refused, idle
