"""An A/B from the request to two finished run files and their judgement."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.analysis.ab.builds import Build, builds, is_code
from attnbench.analysis.ab.schedule import START, Open, unsettled
from attnbench.analysis.ab.turns import LABELS, Half, Turns
from attnbench.analysis.gate import judge
from attnbench.analysis.gate.findings import full_name
from attnbench.analysis.gate.repeated_looks import LOOKS
from attnbench.core.case import Case
from attnbench.core.errors import EXIT_INTERRUPTED, UserError
from attnbench.core.machine import Environment
from attnbench.core.policy import CHECK, METHOD
from attnbench.core.record import Job, Run
from attnbench.core.sizes import format_duration
from attnbench.core.text import fits
from attnbench.results import run_file
from attnbench.results.cells import Key
from attnbench.run import plan as planning
from attnbench.run.device_probe import probe_device
from attnbench.run.select import is_user_code, parse_device
from attnbench.run.session import check_output_path, new_run_paths
from attnbench.run.suite import Resolved, Settings, load_suite, resolve, resolve_suite_for
from attnbench.run.workers import WorkerPool, closing_workers

if TYPE_CHECKING:
    from attnbench.report.progress.ab_progress import AbProgress

FILES = ("a.jsonl", "b.jsonl")  # in the folder of --out


@dataclass(frozen=True)
class Request:
    """The options of `attnbench ab`."""

    a: str
    b: str
    judged_by: judge.Request
    suite: str = "default"
    settings: Settings = field(default_factory=Settings)
    device: str = "auto"
    time_limit: float = 600.0  # seconds
    pythons: tuple[str, ...] = ()
    out: Path | None = None  # folder
    argv: tuple[str, ...] = ()
    allow_busy: bool = False  # measure also on a GPU that other processes use
    cell: str = ""  # the full name of a cell, or a glob: no other is measured


class TooShortError(UserError):
    """The time limit is short of one pair of turns."""


@dataclass(frozen=True)
class Limits:
    """What an A/B is limited to that settles what a gate left open (settle.py)."""

    open: frozenset[Open]  # what is judged: it goes on until these are decided
    cells: Mapping[Case, Sequence[str]]  # case -> patterns of its backends
    check: Callable[[Run, Run], None]  # raises UserError where a build is not the one that is meant
    option: str = "--settle"  # that sets the time limit


@dataclass(frozen=True)
class Outcome:
    """How an A/B ended.

    `judgement` is None where it was stopped before anything could be judged. `paths` is empty where the builds differ
    in more than what is under test, so that nothing was measured.
    """

    judgement: judge.Judgement | None
    paths: tuple[Path, ...] = ()
    exit_code: int = 0
    pairs: int = 0  # complete pairs of turns
    ended: str = ""  # why it ended, in one line; "" where all was settled
    interrupt: int = 0  # the exit code of the signal that interrupted it


def ab(request: Request, watcher: AbProgress, clock: Callable[[], float] = time.monotonic) -> Outcome:
    """Measure two builds in turns and judge them. What was measured is in the run files, however it ends.

    Raises UserError for builds, options and files that are wrong, and where no cell can be measured in both builds.
    """
    deadline = clock() + request.time_limit
    device = parse_device(request.device)
    suite = load_suite(request.suite)
    found = resolve_suite_for(suite, device, request.settings)
    if request.settings.backends and is_code(request.a) and is_code(request.b):
        raise UserError("--backend: --a and --b name the code already; leave it out")
    if any(case.ranks > 1 for resolved in found for case in resolved.cases):
        raise UserError("--ranks: ab measures on one device; compare two files of attnbench run by gate")
    pairs_of = {
        p.backends: builds(request.a, request.b, p.backends, request.pythons, suite.interpreters) for p in found
    }
    check_files(request.out)
    watcher.say("reading the device")
    dtypes = sorted({c.dtype for p in found for c in p.cases})
    here = environments(device, dtypes, next(iter(pairs_of.values())), request.allow_busy)
    resolved = resolve(suite, here[0].device.kind, request.settings)
    both = pairs_of[resolved.backends]
    if "cycles" in request.judged_by.metrics and here[0].device.kind != "cuda":
        raise UserError("--metric cycles: only a GPU tells the clock that was held; compare latency")
    return measure(request, resolved, both, here, deadline, watcher, clock)


def measure(
    request: Request,
    resolved: Resolved,
    both: Sequence[Build],
    here: Sequence[Environment],
    deadline: float,
    watcher: AbProgress,
    clock: Callable[[], float],
    limits: Limits | None = None,
) -> Outcome:
    """Measure the cells of a resolved suite with two builds in turns until the deadline, and judge them.

    `here`: the environment of each build. Raises UserError as `ab` does.
    """
    pools = (WorkerPool({}), WorkerPool({}))
    with closing_workers(*pools):
        runs, plans = _prepare(request, resolved, both, here, pools, watcher, limits)
        if limits:
            limits.check(*runs)
        if judge.split_differences(*runs, request.judged_by.expect)[1]:
            refused = judge.judge(*runs, request.judged_by)
            return Outcome(refused, exit_code=refused.exit_code)
        keys = _cells(runs)
        least = 2 * START[here[0].device.kind] + min(keys.values())
        if least > deadline - clock():
            option = limits.option if limits else "--time-limit"
            limit = format_duration(request.time_limit)
            raise TooShortError(f"{option}: {limit} is short of one pair of turns; give more")
        paths = [request.out / file for file in FILES] if request.out else new_run_paths(runs[0], ("-a", "-b"))
        halves = [
            Half(run, pool, jobs, run_file.RunFile.create(path, run))
            for run, jobs, pool, path in zip(runs, plans, pools, paths, strict=True)
        ]
        watcher.begun(*runs, len(keys), paths, resolved.notes)
        only = limits.open if limits else None
        turns = Turns(halves, request.judged_by, watcher, request.time_limit, deadline, clock, only)
        try:
            turns.measure(keys)
        finally:
            for half in halves:
                half.file.close()
    try:
        judgement = turns.judged()
    except UserError:
        if turns.interrupt:
            return Outcome(None, tuple(paths), turns.interrupt, turns.pairs, interrupt=turns.interrupt)
        raise
    ended = turns.notes(len(unsettled(judgement)))
    judgement = replace(judgement, notes=(*judgement.notes, *ended))
    by_person = turns.interrupt in (0, EXIT_INTERRUPTED)  # who then wants to know what there is
    code = judgement.exit_code if by_person else turns.interrupt
    return Outcome(judgement, tuple(paths), code, turns.pairs, "".join(ended), turns.interrupt)


def check_files(out: Path | None) -> None:
    """Raise UserError where the run files of an A/B cannot be created in a folder."""
    if out and out.exists() and not out.is_dir():
        raise UserError(f"--out: {out} is a file; give a folder, for a.jsonl and b.jsonl")
    for name in FILES:
        if out and (out / name).exists():
            raise UserError(f"{out / name} is there already and is not overwritten; choose another --out")
        check_output_path(out / name if out else None)


def environments(device: str, dtypes: Sequence[str], both: Sequence[Build], allow_busy: bool) -> list[Environment]:
    """Return the environment of each build; where both have one interpreter it is read once."""
    known: dict[str | None, Environment] = {}
    for build in both:
        if build.python not in known:
            try:
                known[build.python] = probe_device(device, dtypes, build.python, allow_busy=allow_busy)
            except UserError as error:
                raise UserError(f"{build.label}: {error}") from None
    return [known[build.python] for build in both]


def _prepare(
    request: Request,
    resolved: Resolved,
    both: Sequence[Build],
    here: Sequence[Environment],
    pools: Sequence[WorkerPool],
    watcher: AbProgress,
    limits: Limits | None,
) -> tuple[tuple[Run, Run], list[tuple[Job, ...]]]:
    """Return the two runs without records, with the first round as their plan, and all jobs of all rounds of each."""
    runs, plans = [], []
    started, shared = datetime.now(timezone.utc).isoformat(timespec="seconds"), uuid.uuid4().hex[:12]
    for build, environment, pool in zip(both, here, pools, strict=True):
        pool.specs, pool.interpreters = build.specs, build.interpreters
        watcher.say(f"importing {', '.join(build.specs)} ({build.label})")
        probes = pool.probe()
        for name, probe in probes.items():
            if not probe.usable and (limits or is_code(request.a) or is_user_code(build.specs[name])):
                raise UserError(f"{build.label}: {probe.why_not}")
        answers = pool.survey(probes, resolved.cases, environment.device)
        pool.close()  # each turn starts processes of its own, when those of the other build are gone
        only = limits.cells if limits else None
        plan = planning.make_plan(
            resolved.cases, answers, environment.device, resolved.policy, rounds=LOOKS[-1], only=only
        )
        if request.cell:
            plan = tuple(job for job in plan if fits(full_name(job.backend, job.case), request.cell))
            if not plan:
                raise UserError(f"no cell is called {request.cell!r} on {environment.device.name}")
        plans.append(plan)
        runs.append(
            Run(
                environment=environment,
                suite=resolved.name,
                policy=resolved.policy,
                plan=tuple(job for job in plan if not job.round),
                started=started,
                argv=request.argv,
                versions={name: p.version for name, p in probes.items() if p.version},
                specs=build.specs,
                interpreters=build.interpreters,
                turns=shared,
                method=METHOD,
                check=CHECK,
            )
        )
    return (runs[0], runs[1]), plans


def _cells(runs: Sequence[Run]) -> dict[Key, float]:
    """Return the cells that run on either side, with the forecast seconds of both sides together.

    A cell that only one side can run is measured once, for the judgement to say that it is missing or new. Raises
    UserError where no cell runs on both.
    """
    able = [{(j.case, j.backend): j.forecast.seconds for j in run.plan if not j.skip} for run in runs]
    if not able[0].keys() & able[1].keys():
        why = (next((j.skip for j in run.plan if j.skip), None) for run in runs)
        reasons = "; ".join(f"{label}: {reason}" for label, reason in zip(LABELS, why, strict=True) if reason)
        raise UserError(f"no cell can be measured in both builds ({re.sub(r'[.;]$', '', reasons)})")
    return {key: sum(side.get(key, 0.0) for side in able) for key in {**able[0], **able[1]}}
