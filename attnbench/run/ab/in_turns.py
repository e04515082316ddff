"""An A/B from the request to two finished run files."""

from __future__ import annotations

import re
import shlex
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from attnbench.core.case import Case
from attnbench.core.errors import UserError, nearest
from attnbench.core.machine import Environment
from attnbench.core.record import Job, Run
from attnbench.core.sizes import format_duration
from attnbench.core.text import fits
from attnbench.results.case_names import full_name
from attnbench.results.cells import Key
from attnbench.run import plan as planning
from attnbench.run.ab.builds import Build, builds, is_code
from attnbench.run.ab.schedule import LOOKS, START
from attnbench.run.ab.turns import LABELS, AbObserver, Gate, Half, Turns
from attnbench.run.device_probe import probe_device
from attnbench.run.select import Chosen, is_user_code, parse_device
from attnbench.run.session import Session, check_output_path, create
from attnbench.run.suite import Resolved, Settings, load_suite, resolve, resolve_suite_for

FILES = ("a.jsonl", "b.jsonl")  # the run files in the folder of --out


@dataclass(frozen=True)
class Request:
    """The options of `attnbench ab`."""

    a: str
    b: str
    suite: str = "default"
    settings: Settings = field(default_factory=Settings)
    device: str = "auto"
    time_limit: float = 600.0  # seconds
    pythons: tuple[str, ...] = ()
    out: Path | None = None  # the folder of the run files
    argv: tuple[str, ...] = ()
    allow_busy: bool = False  # also measure on a GPU that other processes use
    cell: str = ""  # the full name, or a glob, of the only cells to measure


class TooShortError(UserError):
    """The time limit is too short for one pair of turns."""


@dataclass(frozen=True)
class Measured:
    """The result of measuring an A/B. `paths` is empty where the gate refused it."""

    runs: tuple[Run, Run]
    paths: tuple[Path, ...] = ()
    pairs: int = 0  # complete pairs of turns
    interrupt: int = 0  # the exit code of an interrupting signal
    why_ended: Callable[[int], Sequence[str]] = lambda _: ()  # number of open cells -> lines about the end


def prepare(
    request: Request, on_gpus: bool, observer: AbObserver
) -> tuple[Resolved, tuple[Build, Build], Sequence[Environment]]:
    """Return the resolved suite of an A/B, its two builds, and the environment of each. Raises UserError.

    `on_gpus` is whether its metrics need a GPU.
    """
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
    observer.say("reading the device")
    dtypes = sorted({c.dtype for p in found for c in p.cases})
    here = environments(device, dtypes, next(iter(pairs_of.values())), request.allow_busy)
    resolved = resolve(suite, here[0].device.kind, request.settings)
    if on_gpus and here[0].device.kind != "cuda":
        raise UserError("--metric cycles: the clock held is known only for a GPU; compare latency")
    return resolved, pairs_of[resolved.backends], here


def measure(
    request: Request,
    resolved: Resolved,
    both: Sequence[Build],
    here: Sequence[Environment],
    gate: Gate,
    deadline: float,
    observer: AbObserver,
    clock: Callable[[], float] = time.monotonic,
    only: Mapping[Case, Sequence[str]] | None = None,
    option: str = "--time-limit",
) -> Measured:
    """Measure the cells of a resolved suite with two builds in turns until the deadline.

    `here` is the environment of each build, `only` a mapping of cases to patterns of their backends, all of which both
    builds must have, and `option` the name of the option that set the time limit. Raises UserError where no cell can be
    measured in both builds.
    """
    with ExitStack() as stack:
        sessions = [stack.enter_context(Session(None, Chosen(build.specs, build.interpreters))) for build in both]
        for session, environment in zip(sessions, here, strict=True):
            session.environment = environment
        runs, plans = _prepare(request, resolved, both, sessions, observer, only)
        if gate.refuses(*runs):
            return Measured(runs)
        keys = _cells(runs)
        least = 2 * START[here[0].device.kind] + min(keys.values())
        if least > deadline - clock():
            limit = format_duration(request.time_limit)
            raise TooShortError(f"{option}: {limit} is too short for one pair of turns; give more")
        a = stack.enter_context(closing(create(runs[0], request.out and request.out / FILES[0], ("-a", "-b"))))
        assert a.path
        paths = [a.path, a.path.with_stem(f"{a.path.stem[:-1]}b")]  # a new name for a is new for both
        b = stack.enter_context(closing(create(runs[1], paths[1])))
        halves = [Half(*of) for of in zip(sessions, (a, b), plans, strict=True)]
        sessions[0].have_judged()
        sessions[1].pool.judge = sessions[0].pool.judge  # one judge, as both measure the same cases
        observer.begun(*runs, len(keys), paths, [*resolved.notes, *sessions[0].commit_notes()])
        turns = Turns(halves, gate, observer, request.time_limit, deadline, clock)
        turns.measure(keys)
    return Measured(turns.measured, tuple(paths), turns.pairs, turns.interrupt, turns.notes)


def check_files(out: Path | None) -> None:
    """Raise UserError where the run files of an A/B cannot be created in a folder."""
    if out and out.exists() and not out.is_dir():
        raise UserError(f"--out: {out} is a file; give a folder, for a.jsonl and b.jsonl")
    for name in FILES:
        if out and (out / name).exists():
            raise UserError(f"{out / name} is there already and is not overwritten; choose another --out")
        check_output_path(out / name if out else None)


def environments(device: str, dtypes: Sequence[str], both: Sequence[Build], allow_busy: bool) -> list[Environment]:
    """Return the environment of each build; it is read once for a common interpreter."""
    known: dict[str | None, Environment] = {}
    for build in both:
        if build.python not in known:
            try:
                known[build.python] = probe_device(device, dtypes, build.python, allow_busy=allow_busy)
            except UserError as error:
                raise type(error)(f"{build.label}: {error}") from None
    return [known[build.python] for build in both]


def _prepare(
    request: Request,
    resolved: Resolved,
    both: Sequence[Build],
    sessions: Sequence[Session],
    observer: AbObserver,
    only: Mapping[Case, Sequence[str]] | None,
) -> tuple[tuple[Run, Run], list[tuple[Job, ...]]]:
    """Return the two runs without records, which plan the first round, and the jobs of all rounds of each."""
    runs, plans, shared = list[Run](), [], uuid.uuid4().hex[:12]
    for build, session in zip(both, sessions, strict=True):
        observer.say(f"importing {', '.join(build.specs)} ({build.label})")
        session.probes = session.pool.probe()
        for name, probe in session.probes.items():
            if not probe.usable and (only or is_code(request.a) or is_user_code(build.specs[name])):
                raise UserError(f"{build.label}: {probe.why_not}")
        answers = session.survey(resolved.cases)
        session.pool.close()  # each turn starts processes of its own after the end of the other build's
        plan = planning.make_plan(resolved.cases, answers, session.device, resolved.policy, rounds=LOOKS[-1], only=only)
        if request.cell:
            there = dict.fromkeys(full_name(job.backend, job.case) for job in plan)
            plan = tuple(job for job in plan if fits(full_name(job.backend, job.case), request.cell))
            if not plan:
                meant = (nearest(request.cell, there) or [*there])[:1]
                hint = "".join(f"; one cell is {shlex.quote(name)}" for name in meant)
                raise UserError(f"--cell: none is called {request.cell!r} on {session.device.name}{hint}")
        plans.append(plan)
        first = [job for job in plan if not job.round]
        run = session.new_run(resolved.name, resolved.policy, first, argv=request.argv, turns=shared)
        runs.append(replace(run, started=runs[0].started) if runs else run)
    return (runs[0], runs[1]), plans


def _cells(runs: Sequence[Run]) -> dict[Key, float]:
    """Return the cells that run on either side, with the forecast seconds of both sides together.

    A cell that only one side can run is measured once, so that it is reported as missing or new. Raises UserError where
    no cell runs on both.
    """
    able = [{(j.case, j.backend): j.forecast.seconds for j in run.plan if not j.skip} for run in runs]
    if not able[0].keys() & able[1].keys():
        why = (next((j.skip for j in run.plan if j.skip), None) for run in runs)
        reasons = "; ".join(f"{label}: {reason}" for label, reason in zip(LABELS, why, strict=True) if reason)
        raise UserError(f"no cell can be measured in both builds ({re.sub(r'[.;]$', '', reasons)})")
    return {key: sum(side.get(key, 0.0) for side in able) for key in {**able[0], **able[1]}}
