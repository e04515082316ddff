"""Settles the open cells of a gate: measures the baseline's build and the current build on them in turns.

Each build must be the one that its run measured. The gate's own comparison of runs checks this: machine, driver, torch,
libraries, and the source of a person's own code. Where a build is another one, or where both runs name the same build,
the verdict of the gate stands, and one sentence says which option to give. Code and interpreters that a run file names
are run on the conditions of `run --resume`: this machine would choose them itself, or --trust is given.
"""

from __future__ import annotations

import glob
import itertools
import math
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from attnbench.analysis.ab import run_ab
from attnbench.analysis.ab.run_ab import Open, open_results
from attnbench.analysis.gate import run_differences
from attnbench.analysis.gate.findings import Judgement
from attnbench.analysis.gate.verdicts import Finding, in_order
from attnbench.core.case import Case
from attnbench.core.errors import EXIT_BY_SIGNAL, UserError
from attnbench.core.groups import grouped
from attnbench.core.record import Forecast, Job, Run
from attnbench.core.sizes import format_duration
from attnbench.core.text import count, some
from attnbench.results import run_file
from attnbench.results.disturbed import doubt
from attnbench.run.ab.builds import Build, interpreter, is_code, one_code
from attnbench.run.ab.in_turns import check_files, environments
from attnbench.run.ab.schedule import certain
from attnbench.run.ab.turns import AbObserver
from attnbench.run.select import available_backends, check_trusted, is_executable, present_spec, select_interpreters
from attnbench.run.suite import Resolved

SETTLED = ("regressed", "improved", "unchanged")
Loaded = tuple[str, str | None]  # "module:object", and the Python that it runs in where it is not this one


@dataclass(frozen=True)
class Request:
    """The options of `attnbench gate --settle`."""

    time_limit: float  # seconds
    a: str | None = None  # the build of the baseline, as `ab` takes it
    b: str | None = None  # the build of the current run
    trust: bool = False  # run the code and the interpreters that the run files name
    argv: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise UserError for a build that is neither an interpreter nor code."""
        for option, given in (("--a", self.a), ("--b", self.b)):
            if given:
                (one_code if is_code(given) else interpreter)(option, given)


@dataclass(frozen=True)
class _Side:
    """One of the two runs of a gate, and the build that a person gave for it."""

    option: str
    what: str
    run: Run
    path: Path
    given: str | None

    @property
    def python(self) -> str | None:
        """The interpreter that was given."""
        return interpreter(self.option, self.given) if self.given and not is_code(self.given) else None

    @property
    def code(self) -> tuple[str, Loaded] | None:
        """The code that was given: its name, and what it is loaded from."""
        if not self.given or not is_code(self.given):
            return None
        name, spec = one_code(self.option, self.given)
        return name, (spec, select_interpreters((), [name]).get(name))

    @property
    def words(self) -> tuple[str | None, ...]:
        """The code and the interpreters that a person has named; those of the run files are left out."""
        return (self.python, *(self.code[1] if self.code else ()))


def settle(
    judgement: Judgement,
    files: tuple[Path, Path],
    request: Request,
    watcher: AbObserver,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Judgement, int]:
    """Measure the open results of a gate in turns.

    Return the judgement in which the settled results replace the open ones, and the exit code of an interrupt (0
    without one). `files`: the run files of the baseline and of the current run. Where nothing can be measured, the
    judgement says why.
    """
    wanted, began = open_results(judgement), clock()
    if not wanted or certain(judgement.exit_code, at_look=True):
        said = ["Not settled in turns: the exit code is certain already."] if wanted else []
        return replace(judgement, first=(*said, *judgement.first)), 0
    try:
        outcome, without = _in_turns(judgement, wanted, files, request, watcher, clock)
    except UserError as error:
        return replace(judgement, first=(f"Not settled in turns: {error}", *judgement.first)), 0
    settled = _with_settled(judgement, wanted, outcome)
    took = format_duration(clock() - began)
    cells = {(case, backend) for case, backend, _ in wanted}
    left = {(case, backend) for case, backend, _ in open_results(settled)} & cells
    turns = outcome.judgement
    first = [
        f"{len(cells - left)} of {count(len(cells), 'open cell')} settled in turns against the baseline's build, by "
        f"{count(outcome.pairs, 'pair')} of turns, in {took}; run files: {', '.join(map(str, outcome.paths))}",
        *([f"Not settled in turns: {without}"] if without else []),
        *_contradicted(judgement, settled),
        *(f"While measuring in turns: {line}" for line in (doubt([turns.baseline, turns.current]) if turns else ())),
    ]
    heading = [*filter(None, [outcome.ended]), *(turns.heading[1:] if turns else ())]
    settled = replace(settled, first=(*first, *settled.first), heading=(*settled.heading, *heading))
    return settled, outcome.exit_code if outcome.exit_code in EXIT_BY_SIGNAL else 0


def _measurable(
    sides: tuple[_Side, _Side], names: Sequence[str], request: Request
) -> tuple[tuple[dict[str, Loaded], dict[str, Loaded]], list[str], str]:
    """Return how each side loads the open backends, the names that can be measured, and why the others cannot.

    Raises UserError where none can.
    """
    before, now = (side.run for side in sides)
    controls = run_differences.controls(before, now)
    loaded = _loaded(sides, names, controls)
    alike = [name for name in names if name not in controls and _is_one_build(*(of.get(name) for of in loaded))]
    without = _why_not(before, alike, request) if alike else ""
    apart = [name for name in names if name not in alike]
    if not apart or (alike and {*apart} <= controls):  # controls alone decide nothing
        raise UserError(without)
    return loaded, apart, without


def _in_turns(
    judgement: Judgement,
    wanted: Collection[Open],
    files: tuple[Path, Path],
    request: Request,
    watcher: AbObserver,
    clock: Callable[[], float],
) -> tuple[run_ab.Outcome, str]:
    """Measure the open cells. Return how the A/B ended, and why some cells could not be measured.

    Raises UserError where none can be measured, or where a build is not the one of its run.
    """
    deadline, before, current = clock() + request.time_limit, judgement.baseline, judgement.current
    if before.turns or current.turns:
        raise UserError("the two run files are of one A/B already; start attnbench ab anew, for longer")
    if any(case.ranks > 1 for case, *_ in wanted):
        raise UserError("ab measures on one device, and the open cells are of several")
    sides = (
        _Side("--a", "the baseline", before, files[0], request.a),
        _Side("--b", "the current run", current, files[1], request.b),
    )
    loaded, names, without = _measurable(sides, sorted({backend for _, backend, _ in wanted}), request)
    left = frozenset(one for one in wanted if one[1] in names)
    backends = grouped(dict.fromkeys((case, backend) for case, backend, _ in sorted(left, key=str)), lambda one: one[0])
    cells = {case: [glob.escape(backend) for _, backend in own] for case, own in backends.items()}
    if not request.trust:
        _check_trust(sides, loaded, names, cells)
    both = [_build(side, {name: of[name] for name in names}) for side, of in zip(sides, loaded, strict=True)]
    out = _folder(files[1])
    check_files(out)
    watcher.say("reading the device")
    here = environments(str(current.environment.device), sorted({case.dtype for case in cells}), both, False)
    metrics = tuple(name for name in judgement.request.metrics if any(name == metric for *_, metric in left))
    sustained = current.policy.sustained_s if {*metrics} & {"sustained_latency", "joules"} else 0.0
    policy = replace(current.policy, sustained_s=sustained, cross_check=0.0)
    versions = {*before.versions, *current.versions}
    expect = tuple(d.names[0] for d in judgement.expected if d.names[0] not in versions)
    asked = run_ab.Request(
        sides[0].given or str(files[0]),
        sides[1].given or str(files[1]),
        judged_by=replace(judgement.request, metrics=metrics, expect=expect),
        time_limit=request.time_limit,
        out=out,
        argv=request.argv,
    )
    resolved = Resolved(current.suite, tuple(cells), tuple(names), policy, None)
    limits = run_ab.Limits(left, cells, lambda a, b: _check_builds(sides, (a, b)))
    outcome = run_ab.measure(asked, resolved, both, here, deadline, watcher, clock, limits)
    if outcome.judgement and outcome.judgement.refused:
        raise UserError("; ".join(d.what for d in outcome.judgement.refused))
    return outcome, without


def _loaded(
    sides: Sequence[_Side], names: Sequence[str], controls: Collection[str]
) -> tuple[dict[str, Loaded], dict[str, Loaded]]:
    """Return, for each side, backend -> code and interpreter; the baseline may lack some backends."""
    (before, now), known = sides, available_backends()
    usual = select_interpreters((), names)

    def loaded(side: _Side, specs: Mapping[str, str | None]) -> dict[str, Loaded]:
        pythons = side.run.interpreters if side.run.specs else usual
        found = {
            name: (present_spec(name, spec), side.python or pythons.get(name)) for name, spec in specs.items() if spec
        }
        if side.code and (of := _named(side, side.code[0], names, controls)):
            found[of] = side.code[1]
        return found

    current = loaded(now, {name: now.run.specs.get(name) or known.get(name) for name in names})
    if unknown := [name for name in names if name not in current]:
        raise UserError(f"{now.path} does not say where the code of {some(unknown)} is; give --b")
    # Two interpreters run the same code, where the baseline does not say which.
    same = {name: spec for name, (spec, _) in current.items()} if before.python else known
    return loaded(before, {name: before.run.specs.get(name) or same.get(name) for name in names}), current


def _named(side: _Side, name: str, names: Sequence[str], controls: Collection[str]) -> str | None:
    """Return the open backend of which a piece of code is a build: the one with its name, else the one under test.

    None where that backend is not open. Raises UserError where it may be one of several.
    """
    tested = [name for name in names if name not in controls]
    if name in names:
        return name
    if name in side.run.versions or not tested:
        return None
    if len(tested) > 1:
        raise UserError(f"{side.option}: {side.given} fits several open backends, {some(names)}; give a Python")
    return tested[0]


def _is_one_build(a: Loaded | None, b: Loaded | None) -> bool:
    """Return whether both sides load the same code in the same Python, or one side is not known."""
    if a is None or b is None:
        return True
    places = [(os.path.realpath(os.path.dirname(path)), os.path.realpath(path)) for path in (_python(a), _python(b))]
    return a[0] == b[0] and places[0] == places[1]


def _python(loaded: Loaded) -> str:
    return loaded[1] or sys.executable


def _why_not(baseline: Run, names: Sequence[str], request: Request) -> str:
    """Return why an A/B of these backends would compare a build with itself, and which option to give instead."""
    if request.a and request.a == request.b:
        return f"--a and --b are one build, {request.a}, which would be compared with itself; give another"
    commit = baseline.environment.git or ""
    is_one = re.fullmatch("[0-9a-f]{7,64}", commit)  # a stranger's file may hold any text
    where = f" (git worktree add ../baseline {commit} has its commit)" if is_one else ""
    return (
        f"the baseline's build of {some(names)} is not known here: give --a, a Python that has it or "
        f"FILE.py:function{where}"
    )


def _check_trust(
    sides: Sequence[_Side], both: Sequence[Mapping[str, Loaded]], names: Sequence[str], cases: Collection[Case]
) -> None:
    """Raise UserError where a run file, and no person, names code or interpreters that would not be chosen here."""
    given = {word for side in sides for word in side.words}
    for side, loaded in zip(sides, both, strict=True):
        specs = {name: loaded[name][0] for name in names}
        pythons = {name: python for name in names if (python := loaded[name][1]) and python not in given}
        known = {name: spec for name, spec in specs.items() if spec not in given}
        plan = [Job(case, "", 0, Forecast(0.0, 0.0, 0)) for case in cases]  # whatever the file planned
        check_trusted(side.path, replace(side.run, specs=known, interpreters=pythons, plan=plan))


def _build(side: _Side, loaded: Mapping[str, Loaded]) -> Build:
    """Return the build of one side. Raises UserError where an interpreter is not here."""
    pythons = {name: python for name, (_, python) in loaded.items() if python}
    for name, python in pythons.items():
        if not is_executable(python):
            raise UserError(f"{name} of {side.what} ran in {python}, which is not here; give {side.option}")
    recorded = bool(pythons) and all(side.run.interpreters.get(name) == of for name, of in pythons.items())
    label = f"{side.option} {side.given}" if side.given else f"the build of {side.what}"
    return Build(label, {name: spec for name, (spec, _) in loaded.items()}, pythons, None if recorded else side.python)


def _check_builds(sides: Sequence[_Side], measured: Sequence[Run]) -> None:
    """Raise UserError where a side would measure another build than its run did."""
    for side, now in zip(sides, measured, strict=True):
        if found := [d.what for d in run_differences.differences(side.run, now) if d.matters]:
            raise UserError(
                f"the build found here differs from the build of {side.what}: {'; '.join(found)}; "
                f"name the right one with {side.option}"
            )


def _folder(current: Path) -> Path:
    """Return a new folder for the run files, beside that of the current run: NAME-settle, NAME-settle-2, ..."""
    stem = current.with_name(f"{run_file.name(current)}-settle")
    others = (stem.with_name(f"{stem.name}-{number}") for number in itertools.count(2))
    return next(folder for folder in (stem, *itertools.islice(others, 1000)) if not os.path.lexists(folder))


def _contradicted(before: Judgement, after: Judgement) -> list[str]:
    """Return a line on the results whose change in turns contradicts the change between the runs; [] for none."""
    old = {(f.case, f.backend, f.metric): f for f in before.findings}
    names = [
        f.name for f in after.findings if f.in_turns and f.decision and _apart(f, old[f.case, f.backend, f.metric])
    ]
    if not names:
        return []
    return [
        f"{count(len(names), 'cell')} changed otherwise in turns than between the runs: {some(dict.fromkeys(names))}. "
        "Either whole runs differ, or the builds in turns are not the builds of the runs."
    ]


def _apart(one: Finding, other: Finding) -> bool:
    """Return whether the intervals of two findings on one result do not overlap.

    An unknown interval is taken to reach as far as the margin.
    """
    (low, high), (least, most) = (_interval(f) for f in (one, other))
    return low > most or least > high


def _interval(finding: Finding) -> tuple[float, float]:
    decision, margin = finding.decision, finding.margin or 0.0
    if not decision:
        return -1.0, math.inf
    if decision.low is None or decision.high is None:
        return decision.change - margin, decision.change + margin
    return decision.low, decision.high


def _with_settled(judgement: Judgement, wanted: Collection[Open], outcome: run_ab.Outcome) -> Judgement:
    """Return a judgement in which the findings of an A/B replace the open ones.

    A wrong result or a failure of the current build replaces the finding on its time.
    """
    if not outcome.judgement:
        return judgement
    found = {(f.case, f.backend, f.metric): f for f in outcome.judgement.findings}
    broken = [
        replace(f, in_turns=True, reason=f"in turns: {f.reason}")
        for f in outcome.judgement.findings
        if f.metric is None and f.verdict in ("wrong", "newly-failing")
    ]
    gone = {(f.case, f.backend) for f in broken}
    findings = list(broken)
    for f in judgement.findings:
        if not f.metric or (key := (f.case, f.backend, f.metric)) not in wanted:
            findings.append(f)
        elif (f.case, f.backend) not in gone:
            seen = found.get(key)
            if seen and seen.verdict in SETTLED:
                findings.append(replace(seen, in_turns=True, reason="in turns"))
            elif seen and seen.decision:
                findings.append(replace(f, reason=f"{f.reason}; {count(seen.rounds[0], 'pair')} in turns did not"))
            else:
                findings.append(f)
    return replace(judgement, findings=in_order(findings))
