"""`attnbench run`: from a request to a finished run file, in the steps suite -> plan -> measure -> store."""

from __future__ import annotations

import itertools
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Protocol

from attnbench.core import checkout
from attnbench.core.case import DTYPES
from attnbench.core.errors import (
    EXIT_DONE,
    EXIT_NOTHING_MEASURED,
    EXIT_WRONG_RESULT,
    Interrupted,
    UserError,
)
from attnbench.core.machine import Device
from attnbench.core.other_work import is_too_busy, other_work
from attnbench.core.policy import CHECK, METHOD
from attnbench.core.record import WRONG, Job, Record, Run
from attnbench.core.sizes import parse_duration
from attnbench.core.text import some
from attnbench.results import run_file
from attnbench.results.run_setup import differences
from attnbench.run import numpy_rates, venvs
from attnbench.run import plan as planning
from attnbench.run.axes import Axes
from attnbench.run.device_probe import DeviceProbe, probe_device
from attnbench.run.first_look import first_look
from attnbench.run.select import (
    check_trusted,
    is_user_code,
    parse_devices,
    possible_kinds,
    select_backends,
    select_interpreters,
)
from attnbench.run.suite import Resolved, Settings, Suite, load_suite, resolve
from attnbench.run.workers import (
    GIVEN_UP,
    TimeLimit,
    WorkerPool,
    closing_workers,
    has_nvidia_gpu,
    measure_jobs,
    ranks_ahead,
)

MAX_ROUNDS = 1000
NO_LIMIT = "the time limit of the run does not apply to what is left; --time-limit TIME sets one"
MAY_COMPILE = "may compile for minutes in a first call, which the forecast leaves out; with --time-limit they come last"
OTHER_UNIT = "measured on another unit of this GPU model than the run began on: units differ by some percent"


@dataclass(frozen=True)
class Request:
    """The options of `attnbench run`."""

    suite: str | Suite = "default"  # name of a shipped suite, a YAML file, or what it would hold
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
    allow_busy: bool = False  # measure also on a GPU that other processes use
    argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """A finished run, its file (None for a dry run, or where there was nothing to measure) and the exit code."""

    run: Run
    path: Path | None
    exit_code: int = EXIT_DONE


class RunObserver(Protocol):
    """Receives the events of a run while it goes on; report/progress shows them to a person."""

    def say(self, text: str, *, also_in_a_pipe: bool = False) -> None:
        """Take a text that says what goes on now. It is valid until the next event."""

    def planned(
        self, run: Run, todo: Sequence[Job], path: Path | None, notes: Sequence[str], limit: float | None = None
    ) -> None:
        """Take the run without records, the jobs to measure, the run file (None for a dry run), notes, and a limit.

        The limit is in seconds from now.
        """

    def started(self, job: Job) -> None:
        """Take a job whose measurement begins."""

    def ended(self, job: Job, record: Record) -> None:
        """Take a job and its record, which is in the run file."""


def run_suite(request: Request, observer: RunObserver) -> Outcome:
    """Measure a suite, or finish the run file that the request resumes, and return how it ended.

    Raises UserError for what a person can correct. Records that were written before stay in the run file.
    """
    device, *others = parse_devices(request.device)
    if request.again and not request.resume:
        raise UserError("--again measures rounds of a run file anew; name it with --resume FILE")
    if request.again and request.settings.time_limit:
        raise UserError(
            "--again measures whole rounds, since a skip would take the place of a figure; leave out --time-limit"
        )
    if request.resume:
        return _resume(request, device, observer)
    checked = _checked(request, device, others)
    probe = DeviceProbe(device, with_torch=not request.dry_run, allow_busy=request.allow_busy or request.dry_run)
    with closing_workers(*checked.pools.values()), probe as device_probe:
        planned, chosen, pool = _planned(request, checked, device_probe, observer)
        if request.dry_run:
            observer.planned(planned, planned.plan, None, chosen.notes)
            return Outcome(planned, None)
        if not request.out and all(job.skip and not job.resumable for job in planned.plan):
            observer.planned(planned, planned.plan, None, chosen.notes)  # an empty file in results/ would help nobody
            skipped = tuple(map(planning.skipped_record, planned.plan))
            return Outcome(replace(planned, records=skipped), None, EXIT_NOTHING_MEASURED)
        path = request.out or new_run_paths(planned)[0]
        file = run_file.RunFile.create(path, planned)
        observer.planned(planned, planned.plan, path, chosen.notes, chosen.time_limit)
        measured, interrupt = _measure(planned, planned.plan, pool, file, observer, chosen.time_limit)
    return Outcome(measured, path, interrupt or exit_code(measured, request.allow_wrong))


def exit_code(run: Run, allow_wrong: bool) -> int:
    """Return the exit code of a run that was not interrupted."""
    if wrong_records(run) and not allow_wrong:
        return EXIT_WRONG_RESULT
    is_done = any(r.status == "ok" for r in run.records) and not given_up(run)
    return EXIT_DONE if is_done else EXIT_NOTHING_MEASURED


def given_up(run: Run) -> dict[str, int]:
    """Return the backends whose workers would not start again, with how many of their jobs were not tried."""
    return dict(Counter(record.backend for record in run.records if record.reason == GIVEN_UP))


def wrong_records(run: Run) -> list[Record]:
    """Return the records of wrong results and of wrong kernels. Of several records of a job the last counts."""
    last = {(r.case, r.backend, r.round): r for r in run.records}
    return [record for record in last.values() if record.status in WRONG]


@dataclass(frozen=True)
class _Checked:
    """A request without mistakes, before the device is known.

    It has a resolved suite for each kind of device that may be found, and a pool for the backends of each, without
    workers.
    """

    device: str
    others: Sequence[str]  # the devices of the ranks after the first, where a person named them
    suite: Suite
    resolved: Sequence[Resolved]
    pools: Mapping[tuple[str, ...], WorkerPool]  # by backends as the suite names them
    peak: Mapping[str, float]


def _checked(request: Request, device: str, others: Sequence[str]) -> _Checked:
    """Check what can be checked before anything slow starts. Raises UserError."""
    suite = request.suite if isinstance(request.suite, Suite) else load_suite(request.suite)
    found = resolve_suite_for(suite, device, request.settings)
    specs = {p.backends: select_backends(p.backends, min(case.ranks for case in p.cases)) for p in found}
    pools = {
        names: WorkerPool(own, select_interpreters(request.pythons, list(own), suite.interpreters))
        for names, own in specs.items()
    }
    _check_rounds(request.rounds)
    if request.settings.axes.batch and request.settings.tokens:
        raise UserError("--batch and --tokens both set the batch size; give one of them")
    if not request.dry_run:
        check_output_path(request.out)
    return _Checked(device, others, suite, found, pools, parse_peak(request.peak))


def _check_rounds(rounds: int) -> None:
    if not 1 <= rounds <= MAX_ROUNDS:
        raise UserError(f"--rounds: {rounds} is not from 1 to {MAX_ROUNDS}")


def _check_jobs(jobs: int) -> None:
    if jobs > run_file.MOST_JOBS:
        raise UserError(
            f"that is {jobs} jobs (cases x backends x rounds), more than the {run_file.MOST_JOBS} that a run may have; "
            "give fewer sizes, backends or --rounds"
        )


def _planned(
    request: Request, checked: _Checked, device_probe: DeviceProbe, observer: RunObserver
) -> tuple[Run, Resolved, WorkerPool]:
    """Return the planned run without records, its resolved suite, and its pool, whose backends are loaded.

    On a machine with a GPU all workers load their libraries, and then open the device, at the same time. If a CPU may
    be measured, nothing else runs while its speed is probed.
    """
    observer.say("looking at the device")
    together = len(checked.pools) == 1 and checked.device != "cpu" and has_nvidia_gpu()
    if together:
        (pool,) = checked.pools.values()
        pool.start_loading(import_ahead=not request.dry_run)
    environment = device_probe.describe()
    environment = replace(environment, peers=_peers(checked, device_probe, environment.device))
    dtypes = sorted({c.dtype for resolved in checked.resolved for c in resolved.cases})
    chosen = resolve(checked.suite, environment.device.kind, request.settings)
    if request.dry_run and not together and numpy_rates.suffice(environment.device, chosen.cases):
        environment = replace(environment, device=numpy_rates.with_numpy_rates(environment.device))
        chosen = replace(chosen, notes=(*chosen.notes, numpy_rates.NOTE))
    elif not together:
        environment = device_probe.measure_rates(environment, dtypes)
    pool = checked.pools[chosen.backends]
    pool.peers = environment.peers
    _check_jobs(len(chosen.cases) * len(pool.specs) * request.rounds)
    gone = venvs.missing_venv_notes(name for name in pool.specs if name not in pool.interpreters)
    untold = "" if (environment.git or "").endswith(checkout.DIRTY) else checkout.what_is_not_known()
    chosen = replace(chosen, notes=(*chosen.notes, *gone, *filter(None, [untold])))
    if request.dry_run and not together:
        observer.say("asking each backend what it supports here")
        probes, answers = first_look(pool, chosen.cases, environment.device)
    else:
        observer.say(f"importing {', '.join(pool.specs)}")
        probes = pool.probe(partial(observer.say, also_in_a_pipe=True))
        answers = pool.survey(probes, chosen.cases, environment.device)
    for name, probe in probes.items():
        if is_user_code(pool.specs[name]) and not probe.usable:
            raise UserError(f"--backend {name}: {probe.why_not}")
    opened: set[str] = set()
    devices = 1 + len(environment.peers) if environment.device.kind == "cuda" else None
    if together:
        if not request.dry_run and chosen.policy.caches == "kept":
            observer.say("opening the device")
            supported = [
                (name, ranks_ahead(case, environment.device))
                for name, said in answers.items()
                for case, answer in zip(chosen.cases, said, strict=True)
                if answer.reason is None and planning.too_few_devices(case, devices) is None
            ]
            opened = {name for name, _ in supported}
            pool.open_device(dict.fromkeys(supported), environment.device)
        observer.say("timing a matmul and a copy")
        environment = device_probe.measure_rates(environment, dtypes)
    # compiling for minutes would leave no time for the other backends
    last = pool.compilers if request.settings.time_limit else ()
    jobs = planning.make_plan(
        chosen.cases,
        answers,
        environment.device,
        chosen.policy,
        rounds=request.rounds,
        only=chosen.only,
        devices=devices,
        last=last,
    )
    if chosen.time_limit:
        every, kind = jobs, environment.device.kind
        jobs = planning.within(every, chosen.time_limit, kind, last)
        if left_out := planning.left_out(every, jobs, chosen.time_limit, kind):
            chosen = replace(chosen, notes=(*chosen.notes, left_out))
    compiling = dict.fromkeys(job.backend for job in jobs if not job.skip and job.backend in pool.compilers)
    if compiling:
        chosen = replace(chosen, notes=(*chosen.notes, f"{some(compiling)} {MAY_COMPILE}"))
    for name in opened - {job.backend for job in jobs if not job.skip}:
        pool.close_worker(name)  # it need not hold the device
    planned = Run(
        environment=environment,
        suite=chosen.name,
        policy=chosen.policy,
        plan=jobs,
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        argv=request.argv,
        versions={name: p.version for name, p in probes.items() if p.version},
        specs=pool.specs,
        interpreters=pool.interpreters,
        peak=checked.peak,
        method=METHOD,
        check=CHECK,
    )
    return planned, chosen, pool


def _peers(checked: _Checked, device_probe: DeviceProbe, first: Device) -> tuple[Device, ...]:
    """Return the devices of the ranks after the first: those that were named, else the next ones, as many as needed."""
    ranks = max(case.ranks for resolved in checked.resolved for case in resolved.cases)
    return device_probe.peers(first, ranks, checked.others)


def _resume(request: Request, device: str, observer: RunObserver) -> Outcome:
    """Measure the jobs that a run file lacks, with the settings that it was started with."""
    assert request.resume is not None
    old, problems = run_file.read(request.resume)
    if given := _not_with_resume(request):
        raise UserError(f"--resume uses the settings of {request.resume}; leave out {', '.join(given)}")
    if old.turns:
        raise UserError(f"{request.resume} is one half of an A/B in turns, which goes on with both only; start it anew")
    if old.search:
        again = f"attnbench capacity --resume {shlex.quote(str(request.resume))}"
        raise UserError(f"{request.resume} is a search; {again} goes on with it")
    if old.reduced:
        raise UserError(f"{request.resume} is a baseline, which has no plan; resume the run that it was saved from")
    if unknown_code := {job.backend for job in old.plan} - old.specs.keys():
        raise UserError(f"{request.resume} names no code for {min(unknown_code)}, which it plans; start a new run")
    if not request.trust:
        check_trusted(request.resume, old)
    _check_rounds(request.rounds)
    _check_jobs(run_file.jobs_with(old, request.rounds))
    if 1 < request.rounds < (had := old.planned_rounds):
        raise UserError(
            f"--rounds: {request.resume} has {had} rounds; with --resume give how many it is to have in all"
        )
    file = None if request.dry_run else run_file.RunFile.reopen(request.resume)
    if file:  # it is locked from here on; read again what another process may have added
        try:
            old, _ = run_file.read(request.resume)
            if not request.trust:
                check_trusted(request.resume, old)
        except UserError:
            file.close()
            raise
    had = old.planned_rounds
    old = run_file.with_rounds(old, request.rounds)
    todo = [replace(j, skip=None, resumable=False) if j.resumable else j for j in run_file.missing(old)]
    rounds = {job.round for job in old.plan}
    if unknown := {*request.again} - rounds:
        raise UserError(f"--again: {request.resume} has no round {min(unknown)}, but 0 to {max(rounds)}")
    left = {(job.case, job.backend, job.round) for job in todo}
    todo += [
        job
        for job in old.plan
        if job.round in request.again and not job.skip and (job.case, job.backend, job.round) not in left
    ]
    limit = request.settings.time_limit and parse_duration(request.settings.time_limit, "--time-limit")
    for name, python in old.interpreters.items():
        if "\0" in python or not os.access(python, os.X_OK):
            raise UserError(
                f"cannot resume {request.resume}: {name} ran in {python}, which is gone; make it again there"
            )
    pool = WorkerPool(old.specs, old.interpreters, peers=old.environment.peers)
    with closing_workers(pool):
        was = old.environment.device
        if device not in ("auto", str(was)):
            raise UserError(f"{request.resume} was measured on {was}, not on {device}; leave out --device")
        observer.say(f"looking at the device, and importing {', '.join(old.specs)}")
        now = probe_device(str(was), allow_busy=request.allow_busy or request.dry_run or not todo)
        if found := differences(old, replace(old, environment=now, method=METHOD)):
            raise UserError(
                f"cannot resume {request.resume} in another environment: {'; '.join(found)}; "
                "start a new run, or go back to the old environment"
            )
        there = f"resuming: {len(old.plan) - len(todo)} of {len(old.plan)} jobs are there"
        elsewhere = (OTHER_UNIT,) if was.uuid not in (None, now.device.uuid) else ()
        users = (other_work(now.device),) if was.kind != "cpu" and is_too_busy(now.device) else ()
        unlimited = any(job.resumable for job in run_file.missing(old)) and not limit
        notes = [*problems, there if todo else "nothing is missing", *([NO_LIMIT] if unlimited else []), *elsewhere]
        if file is None or not todo:
            observer.planned(old, todo, None, notes)
            if request.dry_run:
                return Outcome(replace(old, plan=tuple(todo)), request.resume)
            return Outcome(old, request.resume, exit_code(old, request.allow_wrong))
        for name, probe in pool.probe(partial(observer.say, also_in_a_pipe=True)).items():
            if old.versions.get(name) != probe.version:
                raise UserError(
                    f"cannot resume {request.resume}: {name} was {old.versions.get(name)} and is "
                    f"{probe.version or probe.reason}"
                )
        if request.rounds > had:
            file.add_rounds(request.rounds)
        observer.planned(old, todo, request.resume, notes, limit or None)
        measured, interrupt = _measure(old, todo, pool, file, observer, limit or None, elsewhere, users)
    return Outcome(measured, request.resume, interrupt or exit_code(measured, request.allow_wrong))


def _measure(
    planned: Run,
    todo: Sequence[Job],
    pool: WorkerPool,
    file: run_file.RunFile,
    observer: RunObserver,
    limit: float | None,
    notes: tuple[str, ...] = (),
    users: tuple[str, ...] = (),
) -> tuple[Run, int]:
    """Measure jobs, write their records to the run file, and close it.

    `notes` are added to each measured record, `users` of the GPU where the worker has named none.

    Returns the run with its records, and the exit code of an interrupt, else 0.
    """
    records = list(planned.records)
    time_limit = TimeLimit(limit) if limit else None
    code = EXIT_DONE
    try:
        for job, record in measure_jobs(todo, pool, planned.policy, planned.environment.device, time_limit):
            if record is None:
                observer.started(job)
                continue
            record = replace(record, version=planned.versions.get(job.backend))
            if record.measurements:
                record = replace(record, notes=(*record.notes, *notes), others=record.others or users)
            file.append(record)
            records.append(record)
            observer.ended(job, record)
    except Interrupted as end:
        code = end.exit_code
    finally:
        file.close()
    return run_file.with_records(planned, records), code


def resolve_suite_for(suite: Suite, device: str, settings: Settings) -> list[Resolved]:
    """Return the suite resolved for each kind of device that `device` ("auto", "cpu", ...) may turn out to be.

    Raises UserError where it cannot be resolved for any.
    """
    found, errors = [], []
    for kind in possible_kinds(device):
        try:
            found.append(resolve(suite, kind, settings))
        except UserError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    return found


def _not_with_resume(request: Request) -> list[str]:
    """Return the options that were given although a resumed run takes them from its file."""
    fresh, settings = Request(), request.settings
    given = {
        "--suite": request.suite != fresh.suite,
        "--backend": settings.backends is not None,
        "the options that choose cases": settings.axes != Axes()
        or any(given is not None for given in (settings.tokens, settings.models, settings.tp, settings.phase)),
        "--seed, --timer, --l2 and the other options of how to measure": bool(settings.policy),
        "--python": bool(request.pythons),
        "--peak": bool(request.peak),
        "--out": request.out is not None,
    }
    return [option for option, is_given in given.items() if is_given]


def check_output_path(out: Path | None) -> None:
    """Raise UserError where the run file could not be created, before the device is probed, which is slow."""
    if out and os.path.isdir(out):
        raise UserError(f"--out: {out} is a folder; give a file in it, as in {out / 'run.jsonl'}")
    if out and os.path.exists(out):
        raise run_file.there_already(out)
    path = out or Path("results/new.jsonl")
    if path.suffix == ".gz":
        raise UserError(
            f"--out: {path}: a run is written plain; name it {path.with_suffix('')}, and gzip it when it is done"
        )
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise UserError(f"cannot write {path}: {above} is not a folder; choose another place with --out")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UserError(f"cannot write {path}: no permission to write in {above}; choose another place with --out")


def new_run_paths(run: Run, endings: Sequence[str] = ("",)) -> list[Path]:
    """Return results/DATE-TIME-SUITE-DEVICE.jsonl, with a number where that is there; one path for each ending."""
    suite = re.sub(r"[^\w.]+", "-", run.suite).strip("-.")
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{suite}-{run.environment.device.slug}"
    for number in itertools.count(1):
        own = stem if number == 1 else f"{stem}-{number}"
        paths = [Path("results") / f"{own}{ending}.jsonl" for ending in endings]
        if not any(path.exists() for path in paths):
            break
    return paths


def parse_peak(words: Sequence[str]) -> Mapping[str, float]:
    """Return the peaks of --peak, as in bf16=989 or 989 in TFLOP/s, as FLOP/s by dtype ("" for any dtype)."""
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
            raise UserError(f"--peak: {dtype or 'that of any dtype'} is given twice; give one")
        found[dtype] = value * 1e12
    return found
