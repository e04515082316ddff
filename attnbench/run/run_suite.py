"""`attnbench run`: from a request to a finished run file, in the steps suite -> plan -> measure -> store."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from attnbench.core.case import DTYPES, Case
from attnbench.core.errors import EXIT_BY_SIGNAL, EXIT_DONE, EXIT_NOTHING_MEASURED, EXIT_WRONG_RESULT, UserError
from attnbench.core.machine import Device
from attnbench.core.other_work import is_too_busy, other_work
from attnbench.core.record import Job, Record, Run
from attnbench.core.sizes import parse_duration
from attnbench.core.text import some
from attnbench.results import run_file
from attnbench.results.exit_codes import exit_code
from attnbench.run import numpy_rates, venvs
from attnbench.run import plan as planning
from attnbench.run.axes import Axes
from attnbench.run.job_order import TimeLimit, measure_jobs, ranks_ahead
from attnbench.run.plan import CaseSupport
from attnbench.run.select import Chosen, choose, notes_on_strangers, parse_devices
from attnbench.run.session import Recording, Session, check_output_path, create, named_again, reopen
from attnbench.run.suite import DURATIONS, Resolved, Settings, Suite, load_suite, resolve, resolve_suite_for
from attnbench.run.workers import has_nvidia_gpu

Further = Callable[[Run], Mapping[Case, Sequence[str]]]  # what was measured -> cases to measure too, on which backends

MAX_ROUNDS = 1000
NO_LIMIT = "the time limit of the run does not apply to the remaining jobs; --time-limit TIME sets one"
MAY_COMPILE = "may compile for minutes in a first call, which is not in the forecast; with --time-limit they come last"
OTHER_UNIT = "measured on another card of this GPU model than the run began on; cards differ by some percent"


@dataclass(frozen=True)
class Request:
    """The options of `attnbench run`."""

    suite: str | Suite = "default"  # name of a shipped suite, path of a YAML file, or a suite
    suite_for: Callable[[Device], Suite] | None = None  # the part of the suite for a device, with the same backends
    settings: Settings = field(default_factory=Settings)
    device: str = "auto"
    rounds: int = 1
    out: Path | None = None
    resume: Path | None = None
    trust: bool = False  # run the code and the interpreters that the resumed file names
    again: tuple[int, ...] = ()  # rounds that a resumed run measures anew
    dry_run: bool = False
    pythons: tuple[str, ...] = ()
    peak: tuple[str, ...] = ()
    allow_wrong: bool = False  # wrong results do not change the exit code
    allow_busy: bool = False  # also measure on a GPU that other processes use
    argv: tuple[str, ...] = ()
    here: Mapping[str, Callable[[], Any]] = field(default_factory=dict)  # spec -> maker of its worker in this process
    live: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # spec -> required state of its function
    bits: tuple[str, ...] = ()  # as in Run
    further: Further | None = None  # asked after the plan, and again after each answer, until its answer has no new job
    check: Callable[[Run], object] | None = None  # raises UserError where the planned run cannot give what is wanted


@dataclass(frozen=True)
class Outcome:
    """A finished run, its file (None for a dry run, or without anything to measure) and the exit code."""

    run: Run
    path: Path | None
    exit_code: int = EXIT_DONE

    @property
    def gravest(self) -> int:
        """The exit code of an interrupt or a wrong result, which overrides a document's own; else 0."""
        return self.exit_code if self.exit_code in (*EXIT_BY_SIGNAL, EXIT_WRONG_RESULT) else EXIT_DONE


class RunObserver(Protocol):
    """Receives the events of a run; render/progress shows them to a person."""

    def say(self, text: str, *, also_in_a_pipe: bool = False) -> None:
        """Take a text about the present activity, valid until the next event."""

    def planned(
        self, run: Run, todo: Sequence[Job], path: Path | None, notes: Sequence[str], limit: float | None = None
    ) -> None:
        """Take the plan before anything of it is measured.

        `run` has no records yet, `todo` are the jobs to measure, `path` is the run file (None for a dry run), `limit`
        is the time limit in seconds from now (None without one).
        """

    def extended(self, jobs: Sequence[Job]) -> None:
        """Take jobs that are added to the plan."""

    def started(self, job: Job) -> None:
        """Take a job whose measurement begins."""

    def ended(self, job: Job, record: Record) -> None:
        """Take a job and its record, which is in the run file."""


def run_suite(request: Request, observer: RunObserver) -> Outcome:
    """Measure a suite, or finish the run file that the request resumes, and return the outcome.

    Raises UserError for mistakes in the request. Records that are already written stay in the run file.
    """
    device, *others = parse_devices(request.device)
    if request.again and not request.resume:
        raise UserError("--again measures rounds of a run file anew; name it with --resume FILE")
    if request.again and request.settings.time_limit:
        raise UserError("--again measures whole rounds, since a skip would replace a figure; leave out --time-limit")
    if request.resume:
        return _resume(request, request.resume, device, observer)
    checked = _checked(request, device, others)
    allow_busy = request.allow_busy or request.dry_run
    with Session(
        device,
        with_torch=not request.dry_run,
        allow_busy=allow_busy,
        here=request.here,
        live=request.live,
        untrusted=checked.untrusted,
    ) as session:
        planned, chosen = _planned(request, checked, session, observer)
        nothing = not request.out and all(job.skip and not job.resumable for job in planned.plan)
        if request.dry_run or nothing:
            observer.planned(planned, planned.plan, None, chosen.notes)
        if request.dry_run:
            return Outcome(planned, None)
        if nothing:  # no empty file in results/
            skipped = tuple(map(planning.skipped_record, planned.plan))
            return Outcome(replace(planned, records=skipped), None, EXIT_NOTHING_MEASURED)
        if request.check:
            request.check(planned)
        recording = create(planned, request.out)
        observer.planned(planned, planned.plan, recording.path, chosen.notes, chosen.time_limit)
        _measure(recording, planned.plan, session, observer, chosen.time_limit, further=request.further)
    return _outcome(recording, request)


def _outcome(recording: Recording, request: Request) -> Outcome:
    measured = recording.measured
    return Outcome(measured, recording.path, recording.interrupt or exit_code(measured, request.allow_wrong))


@dataclass(frozen=True)
class _Checked:
    """A checked request, before the device is known: a resolved suite and backends for each possible kind of device."""

    suite: Suite
    resolved: Sequence[Resolved]
    backends: Mapping[tuple[str, ...], Chosen]  # key: names of backends in the suite
    others: Sequence[str]  # the named devices of the ranks after the first
    together: bool  # whether all workers load libraries, and open the device, at the same time
    untrusted: bool  # whether workers are fenced
    peak: Mapping[str, float]

    @property
    def dtypes(self) -> set[str]:
        """The dtypes of all cases."""
        return {case.dtype for resolved in self.resolved for case in resolved.cases}

    @property
    def ranks(self) -> int:
        """The most ranks of any case."""
        return max(case.ranks for resolved in self.resolved for case in resolved.cases)


def _checked(request: Request, device: str, others: Sequence[str]) -> _Checked:
    """Check a request as far as possible before anything slow starts. Raises UserError."""
    suite = request.suite if isinstance(request.suite, Suite) else load_suite(request.suite)
    found = resolve_suite_for(suite, device, request.settings)
    backends = {
        p.backends: choose(p.backends, request.pythons, min(case.ranks for case in p.cases), suite.interpreters)
        for p in found
    }
    _check_rounds(request.rounds)
    if request.settings.axes.batch and request.settings.tokens:
        raise UserError("--batch and --tokens both set the batch size; give one of them")
    if not request.dry_run:
        check_output_path(request.out)
    untrusted = any(of.policy.untrusted for of in found)
    together = len(backends) == 1 and device != "cpu" and has_nvidia_gpu() and not untrusted
    return _Checked(suite, found, backends, others, together, untrusted, parse_peak(request.peak))


def _check_rounds(rounds: int) -> None:
    if not 1 <= rounds <= MAX_ROUNDS:
        raise UserError(f"--rounds: {rounds} is not from 1 to {MAX_ROUNDS}")


def _check_jobs(jobs: int) -> None:
    if jobs > run_file.MOST_JOBS:
        raise UserError(
            f"that is {jobs} jobs (cases x backends x rounds), more than the {run_file.MOST_JOBS} that a run may have; "
            "give fewer sizes, backends or --rounds"
        )


def _planned(request: Request, checked: _Checked, session: Session, observer: RunObserver) -> tuple[Run, Resolved]:
    """Return the planned run without records, and its resolved suite, with the backends of the session loaded.

    On a machine with a GPU all workers load their libraries, and then open the device, at the same time. If a CPU may
    be measured, nothing else runs while its rates are probed.
    """
    chosen, answers = _surveyed(request, checked, session, observer)
    opened: set[str] = set()
    if checked.together:
        if not request.dry_run and chosen.policy.caches == "kept":
            observer.say("opening the device")
            opened = _open_device(session, chosen.cases, answers, twice=chosen.policy.bitwise)
        observer.say("timing a matmul and a copy")
        session.measure_rates(checked.dtypes)
    jobs, notes = _jobs(request, chosen, session, answers)
    for name in opened - {job.backend for job in jobs if not job.skip}:
        session.pool.close_worker(name)  # a worker without jobs must not hold the device
    planned = session.new_run(chosen.name, chosen.policy, jobs, argv=request.argv, peak=checked.peak, bits=request.bits)
    return planned, replace(chosen, notes=(*chosen.notes, *notes))


def _surveyed(
    request: Request, checked: _Checked, session: Session, observer: RunObserver
) -> tuple[Resolved, Mapping[str, Sequence[CaseSupport]]]:
    """Return the suite for the present device, and the answers of each of its backends for each case."""
    observer.say("looking at the device")
    if checked.together:
        session.choose(*checked.backends.values())
        session.pool.start_loading(import_ahead=not request.dry_run)
    device = session.describe(checked.ranks, checked.others).device
    kind = device.kind
    if checked.together and not request.dry_run and kind == "cuda":
        session.open_judge()
    chosen = resolve(request.suite_for(device) if request.suite_for else checked.suite, kind, request.settings)
    notes: list[str] = []
    if not checked.together:
        session.choose(checked.backends[chosen.backends])
        if request.dry_run and numpy_rates.suffice(session.device, chosen.cases):
            session.environment = replace(session.environment, device=numpy_rates.with_numpy_rates(session.device))
            notes.append(numpy_rates.NOTE)
        else:
            session.measure_rates(checked.dtypes)
        if checked.untrusted and not request.dry_run:
            session.have_judged()
    pool = session.pool
    _check_jobs(len(chosen.cases) * len(pool.specs) * request.rounds)
    notes += venvs.missing_venv_notes(name for name in pool.specs if name not in pool.interpreters)
    notes += session.commit_notes()
    if not checked.untrusted:
        notes += notes_on_strangers(pool.specs.values())
    if request.dry_run and not checked.together:
        observer.say("asking each backend what it supports here")
        answers = session.first_look(chosen.cases)
        session.refuse_broken_code("--backend ")
    else:
        observer.say(f"importing {', '.join(pool.specs)}")
        session.load("--backend ", partial(observer.say, also_in_a_pipe=True))
        answers = session.survey(chosen.cases)
    return replace(chosen, notes=(*chosen.notes, *notes)), answers


def _open_device(
    session: Session, cases: Sequence[Case], answers: Mapping[str, Sequence[CaseSupport]], *, twice: bool
) -> set[str]:
    """Let the backends that support a case open the device, all at the same time; return their names.

    `twice`: each in its second process too, whose bits are compared.
    """
    supported = [
        (name, ranks_ahead(case, session.device))
        for name, said in answers.items()
        for case, answer in zip(cases, said, strict=True)
        if answer.reason is None and planning.too_few_devices(case, session.gpus) is None
    ]
    session.pool.open_device(dict.fromkeys(supported), session.device)
    names = {name for name, _ in supported}
    if twice and session.pool.others:
        session.pool.others.open_device([(name, 1) for name in sorted(names)], session.device)
    return names


def _jobs(
    request: Request, chosen: Resolved, session: Session, answers: Mapping[str, Sequence[CaseSupport]]
) -> tuple[tuple[Job, ...], list[str]]:
    """Return the plan, and notes on jobs beyond the time limit and on backends that may compile for minutes."""
    device, notes = session.device, list[str]()
    # long compilation would leave no time for the other backends
    last = session.pool.compilers if request.settings.time_limit else ()
    jobs = planning.make_plan(
        chosen.cases,
        answers,
        device,
        chosen.policy,
        rounds=request.rounds,
        only=chosen.only,
        devices=session.gpus,
        last=last,
    )
    if chosen.time_limit:
        every = jobs
        jobs = planning.within(every, chosen.time_limit, device.kind, last)
        if left_out := planning.left_out(every, jobs, chosen.time_limit, device.kind):
            notes.append(left_out)
    compiling = dict.fromkeys(job.backend for job in jobs if not job.skip and job.backend in session.pool.compilers)
    if compiling:
        notes.append(f"{some(compiling)} {MAY_COMPILE}")
    return jobs, notes


def _resume(request: Request, path: Path, device: str, observer: RunObserver) -> Outcome:
    """Measure the jobs that a run file lacks, with its original settings."""
    old, problems = run_file.read(path)
    _check_resumable(request, path, old)
    named = named_again(request.settings.backends, path, old)
    recording = reopen(path, old, trust=request.trust, named=named, lock=not request.dry_run)
    had = recording.run.planned_rounds
    recording.run = old = run_file.with_rounds(recording.run, request.rounds)
    todo = _todo(old, path, request.again)
    limit = (parse_duration(given, "--time-limit") if (given := request.settings.time_limit) else 0.0) or None
    was = old.environment.device
    if device not in ("auto", str(was)):
        raise UserError(f"{path} was measured on {was}, not on {device}; leave out --device")
    allow_busy = request.allow_busy or request.dry_run or not todo
    specs = {**old.specs, **named}
    untrusted = old.policy.untrusted
    with Session(str(was), Chosen(specs, old.interpreters), allow_busy=allow_busy, untrusted=untrusted) as session:
        observer.say(f"looking at the device, and importing {', '.join(old.specs)}")
        now = session.describe_again(old, path, "start a new run, or restore the old environment")
        there = f"resuming: {len(old.plan) - len(todo)} of {len(old.plan)} jobs are there"
        elsewhere = (OTHER_UNIT,) if was.uuid not in (None, now.uuid) else ()
        users = (other_work(now),) if was.kind != "cpu" and is_too_busy(now) else ()
        unlimited = any(job.resumable for job in run_file.missing(old)) and not limit
        notes = [*problems, there if todo else "nothing is missing", *([NO_LIMIT] if unlimited else []), *elsewhere]
        if request.dry_run or not (todo or request.further):
            observer.planned(old, todo, None, notes)
            return Outcome(replace(old, plan=tuple(todo)), path) if request.dry_run else _outcome(recording, request)
        if request.check:
            request.check(old)
        if untrusted:
            session.have_judged()
        session.load_again(old, path, partial(observer.say, also_in_a_pipe=True))
        if request.rounds > had:
            recording.add_rounds(request.rounds)
        observer.planned(old, todo, path, notes, limit)
        _measure(recording, todo, session, observer, limit, elsewhere, users, request.further)
    return _outcome(recording, request)


def _check_resumable(request: Request, path: Path, old: Run) -> None:
    """Raise UserError where a run file cannot be resumed, or not with these options."""
    if given := _not_with_resume(request):
        raise UserError(f"--resume uses the settings of {path}; leave out {', '.join(given)}")
    if old.turns:
        raise UserError(f"{path} is one half of an A/B in turns, and one half cannot be resumed; start the A/B anew")
    if old.search:
        raise UserError(f"{path} is a search; attnbench capacity --resume {shlex.quote(str(path))} continues it")
    if old.reduced:
        raise UserError(f"{path} is a baseline, which has no plan; resume the run from which it was saved")
    if unknown_code := {job.backend for job in old.plan} - old.specs.keys():
        raise UserError(f"{path} names no code for {min(unknown_code)}, which it plans; start a new run")
    _check_rounds(request.rounds)
    _check_jobs(run_file.jobs_with(old, request.rounds))
    if 1 < request.rounds < (had := old.planned_rounds):
        raise UserError(f"--rounds: {path} has {had} rounds; with --resume give the number of rounds in all")


def _todo(old: Run, path: Path, again: Sequence[int]) -> list[Job]:
    """Return the jobs that a run lacks, and all jobs of the rounds to measure again. Raises UserError."""
    todo = [replace(j, skip=None, resumable=False) if j.resumable else j for j in run_file.missing(old)]
    rounds = {job.round for job in old.plan}
    if unknown := {*again} - rounds:
        there = f", but 0 to {max(rounds)}" if rounds else ""
        raise UserError(f"--again: {path} has no round {min(unknown)}{there}")
    left = {(job.case, job.backend, job.round) for job in todo}
    anew = (job for job in old.plan if job.round in again and not job.skip)
    return [*todo, *(job for job in anew if (job.case, job.backend, job.round) not in left)]


def _measure(
    recording: Recording,
    todo: Sequence[Job],
    session: Session,
    observer: RunObserver,
    limit: float | None,
    notes: tuple[str, ...] = (),
    users: tuple[str, ...] = (),
    further: Further | None = None,
) -> None:
    """Measure jobs, and those that `further` adds, until the end or an interrupt.

    `notes` are added to each measured record; so are `users`, other processes on the GPU, where the worker named none.
    """
    session.have_judged()
    time_limit = TimeLimit(limit) if limit else None
    with recording:
        while True:
            for job, record in measure_jobs(todo, session.pool, recording.run.policy, session.device, time_limit):
                if record is None:
                    observer.started(job)
                    continue
                if record.measurements:
                    record = replace(record, notes=(*record.notes, *notes), others=record.others or users)
                observer.ended(job, recording.add(record))
            todo = _added(recording, session, further(recording.measured)) if further else ()
            if not todo:
                break
            observer.extended(todo)


def _added(recording: Recording, session: Session, cases: Mapping[Case, Sequence[str]]) -> tuple[Job, ...]:
    """Add the jobs of further cases to the plan of a run, and return them; () where the plan has them all."""
    if not cases:
        return ()
    known = {(job.case, job.backend) for job in recording.run.plan}
    answers = session.survey(cases)
    jobs = planning.make_plan([*cases], answers, session.device, recording.run.policy, only=cases, devices=session.gpus)
    new = tuple(job for job in jobs if (job.case, job.backend) not in known)
    if new:
        recording.add_jobs(new)
    return new


_OPTIONS = {**DURATIONS, "caches": "--fresh-caches"}  # fields of a policy whose options have other names


def _not_with_resume(request: Request) -> list[str]:
    """Return the given options that a resumed run takes from its file."""
    fresh, settings = Request(), request.settings
    given = {
        "--suite": request.suite != fresh.suite,
        "the options that choose cases": settings.axes != Axes()
        or any(given is not None for given in (settings.tokens, settings.models, settings.tp, settings.phase)),
        **{_OPTIONS.get(name, f"--{name.replace('_', '-')}"): True for name in settings.policy},
        "--python": bool(request.pythons),
        "--peak": bool(request.peak),
        "--out": request.out is not None,
    }
    return [option for option, is_given in given.items() if is_given]


def parse_peak(words: Sequence[str]) -> Mapping[str, float]:
    """Return the peaks of --peak (bf16=989, or 989, in TFLOP/s) in FLOP/s by dtype ("" for any). Raises UserError."""
    found: dict[str, float] = {}
    for word in (w for text in words for w in text.split(",")):
        dtype, _, number = word.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = 0.0
        if not 0 < value < math.inf or dtype not in ("", *DTYPES):
            raise UserError(f"--peak: {word!r} is not TFLOP/s by dtype, as in bf16=989")
        if dtype in found:
            raise UserError(f"--peak: {dtype or 'the peak of any dtype'} is given twice; give one")
        found[dtype] = value * 1e12
    return found
