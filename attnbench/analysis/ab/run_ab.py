"""An A/B with its judgement: run/ab measures two builds in turns; the gate judges their records, also in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from attnbench.analysis.gate import findings as gate_findings
from attnbench.analysis.gate.margins import RULES
from attnbench.core.case import Case
from attnbench.core.errors import EXIT_INTERRUPTED, UserError
from attnbench.core.machine import Environment
from attnbench.core.record import Run
from attnbench.results.cells import Key
from attnbench.run.ab import in_turns
from attnbench.run.ab.builds import Build
from attnbench.run.ab.turns import AbObserver, Standing
from attnbench.run.suite import Resolved

Open = tuple[Case, str, str]  # a case, a backend, and the metric whose verdict is open


@dataclass(frozen=True, kw_only=True)
class Request(in_turns.Request):
    """The options of `attnbench ab`."""

    judged_by: gate_findings.Request


@dataclass(frozen=True)
class Limits:
    """The limits of an A/B that settles the open results of a gate (settle.py)."""

    open: frozenset[Open]  # the results that are judged; the A/B goes on until all are decided
    cells: Mapping[Case, Sequence[str]]  # case -> patterns of its backends
    check: Callable[[Run, Run], None]  # raises UserError where a build is not the one that is meant


@dataclass(frozen=True)
class Outcome:
    """How an A/B ended.

    `judgement` is None where it was stopped before anything could be judged. `paths` is empty where the builds differ
    in more than what is under test, so that nothing was measured.
    """

    judgement: gate_findings.Judgement | None
    paths: tuple[Path, ...] = ()
    exit_code: int = 0
    pairs: int = 0  # complete pairs of turns
    ended: str = ""  # why it ended, in one line; "" where all was settled
    interrupt: int = 0  # the exit code of the signal that interrupted it


@dataclass(frozen=True)
class _Gate:
    """The gate behind the interface that run/ab calls."""

    asked: gate_findings.Request
    limits: Limits | None

    def refuses(self, a: Run, b: Run) -> bool:
        if self.limits:
            self.limits.check(a, b)
        return bool(gate_findings.split_differences(a, b, self.asked.expect)[1])

    def standing(self, a: Run, b: Run) -> Standing:
        judgement = self.judgement(a, b)
        return Standing(unsettled(judgement), judgement.exit_code)

    def judgement(self, a: Run, b: Run) -> gate_findings.Judgement:
        judgement = gate_findings.judge(a, b, self.asked)
        if self.limits is None:
            return judgement
        findings = (f for f in judgement.findings if not f.metric or (f.case, f.backend, f.metric) in self.limits.open)
        return replace(judgement, findings=tuple(findings))


def ab(request: Request, watcher: AbObserver, clock: Callable[[], float] = time.monotonic) -> Outcome:
    """Measure two builds in turns and judge them. However that ends, the run files hold all records.

    Raises UserError for builds, options and files that are wrong, and where no cell can be measured in both builds.
    """
    deadline = clock() + request.time_limit
    resolved, both, here = in_turns.prepare(request, "cycles" in request.judged_by.metrics, watcher)
    return measure(request, resolved, both, here, deadline, watcher, clock)


def measure(
    request: Request,
    resolved: Resolved,
    both: Sequence[Build],
    here: Sequence[Environment],
    deadline: float,
    watcher: AbObserver,
    clock: Callable[[], float],
    limits: Limits | None = None,
) -> Outcome:
    """Measure the cells of a resolved suite with two builds in turns until the deadline, and judge them.

    `here`: the environment of each build. Raises UserError as `ab` does.
    """
    gate = _Gate(request.judged_by, limits)
    only, option = (limits.cells, "--settle") if limits else (None, "--time-limit")
    found = in_turns.measure(request, resolved, both, here, gate, deadline, watcher, clock, only, option)
    if not found.paths:
        refused = gate_findings.judge(*found.runs, request.judged_by)
        return Outcome(refused, exit_code=refused.exit_code)
    try:
        judgement = gate.judgement(*found.runs)
    except UserError:
        if found.interrupt:
            return Outcome(None, found.paths, found.interrupt, found.pairs, interrupt=found.interrupt)
        raise
    ended = found.why_ended(len(unsettled(judgement)))
    judgement = replace(judgement, notes=(*judgement.notes, *ended))
    by_person = found.interrupt in (0, EXIT_INTERRUPTED)  # a person who interrupts wants the verdict so far
    code = judgement.exit_code if by_person else found.interrupt
    return Outcome(judgement, found.paths, code, found.pairs, "".join(ended), found.interrupt)


def unsettled(judgement: gate_findings.Judgement) -> set[Key]:
    """Return the cells that more rounds may decide."""
    return {(case, backend) for case, backend, _ in open_results(judgement)}


def open_results(judgement: gate_findings.Judgement) -> set[Open]:
    """Return the results of a judgement that more rounds may decide."""
    return {
        (f.case, f.backend, f.metric)
        for f in judgement.findings
        if f.verdict == "inconclusive" and f.metric is not None and not RULES[f.metric].cached
    }
