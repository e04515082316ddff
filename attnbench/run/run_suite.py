"""`attnbench run`, from what a person asked for to a finished run file: suite -> plan -> execute -> store."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from attnbench.core.case import DTYPES
from attnbench.core.errors import EXIT_INTERRUPTED, EXIT_NOTHING_MEASURED, EXIT_TERMINATED, Terminated, UserError
from attnbench.core.record import Job, Record, Run
from attnbench.core.sizes import parse_duration
from attnbench.results import run_file
from attnbench.run import plan as planning
from attnbench.run import venvs
from attnbench.run.axes import Axes
from attnbench.run.device_probe import DeviceProbe, probe_device
from attnbench.run.select import is_user_code, parse_device, select_backends, select_interpreters
from attnbench.run.suite import Resolved, Settings, Suite, load_suite, resolve
from attnbench.run.workers import TimeLimit, WorkerPool, closing_workers, has_nvidia_gpu, measure_jobs

MAX_ROUNDS = 1000
OTHER_UNIT = "measured on another unit of this GPU model than the run began on: units differ by some percent"


@dataclass(frozen=True)
class Request:
    """What the command line asked for."""

    suite: str = "default"
    settings: Settings = field(default_factory=Settings)
    device: str = "auto"
    rounds: int = 1
    out: Path | None = None
    resume: Path | None = None
    dry_run: bool = False
    pythons: tuple[str, ...] = ()
    peak: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How it ended. `path` is None for a dry run."""

    run: Run
    path: Path | None
    exit_code: int = 0


class RunObserver(Protocol):
    """Who is told while a run goes on; report/live.py shows it to a person."""

    def say(self, text: str) -> None:
        """What goes on now, of interest only for as long."""

    def planned(self, run: Run, todo: Sequence[Job], path: Path | None, notes: Sequence[str]) -> None: ...

    def started(self, job: Job) -> None: ...

    def ended(self, job: Job, record: Record) -> None: ...


def run_suite(request: Request, watcher: RunObserver) -> Outcome:
    """Measures. Raises UserError for what a person can mend; nothing measured is lost then."""
    device = parse_device(request.device)
    peak = parse_peak(request.peak)
    if request.resume:
        return _resume(request, device, watcher)
    wanted = _wanted(request, device, peak)
    pool = WorkerPool({})
    with closing_workers(pool), DeviceProbe(device) as device_probe:
        planned, chosen = _planned(request, wanted, pool, device_probe, watcher)
        if request.dry_run:
            watcher.planned(planned, planned.plan, None, chosen.notes)
            return Outcome(planned, None)
        path = request.out or default_run_path(planned)
        file = run_file.RunFile.create(path, planned)
        watcher.planned(planned, planned.plan, path, chosen.notes)
        return _measure(planned, planned.plan, pool, file, watcher, chosen.time_limit)


@dataclass(frozen=True)
class _Wanted:
    """A request whose mistakes were said, before the device is known: then one of the previews counts."""

    device: str
    suite: Suite
    previews: Sequence[Resolved]
    specs: Mapping[tuple[str, ...], dict[str, str]]  # of the backends that a preview names
    interpreters: Mapping[tuple[str, ...], dict[str, str]]
    peak: Mapping[str, float]


def _wanted(request: Request, device: str, peak: Mapping[str, float]) -> _Wanted:
    suite = load_suite(request.suite)
    found = resolve_suite_for(suite, device, request.settings)
    simulated = device == "fake" and not request.settings.backends
    specs = {p.backends: select_backends(["fake"] if simulated else p.backends) for p in found}
    pythons = {
        names: select_interpreters(request.pythons, list(own), suite.interpreters) for names, own in specs.items()
    }
    if not 1 <= request.rounds <= MAX_ROUNDS:
        raise UserError(f"--rounds: {request.rounds} is not from 1 to {MAX_ROUNDS}")
    if request.settings.axes.batch and request.settings.tokens:
        raise UserError("--batch and --tokens both set the batch size; give one of them")
    if not request.dry_run:
        check_output_path(request.out)
    return _Wanted(device, suite, found, specs, pythons, peak)


def _planned(
    request: Request, wanted: _Wanted, pool: WorkerPool, device_probe: DeviceProbe, watcher: RunObserver
) -> tuple[Run, Resolved]:
    """The run that is to be, and its suite; the pool has what it needs to measure it.

    On a machine with a GPU the workers load their libraries, and then open the device, while others do. Where a CPU may
    be meant, nothing runs beside the look at how fast it is.
    """
    watcher.say("looking at the device")
    together = len(wanted.specs) == 1 and wanted.device != "cpu" and has_nvidia_gpu()
    if together:
        (pool.specs,), (pool.interpreters,) = wanted.specs.values(), wanted.interpreters.values()
        pool.start_loading(import_ahead=not request.dry_run)
    environment = device_probe.describe()
    dtypes = sorted({c.dtype for preview in wanted.previews for c in preview.cases})
    if not together:
        environment = device_probe.measure_rates(environment, dtypes)
    chosen = resolve(wanted.suite, environment.device.kind, request.settings)
    specs = pool.specs = wanted.specs[chosen.backends]
    pool.interpreters = wanted.interpreters[chosen.backends]
    lost = venvs.lost(name for name in specs if name not in pool.interpreters)
    chosen = replace(chosen, notes=(*chosen.notes, *lost))
    watcher.say(f"importing {', '.join(specs)}")
    probes = pool.probe()
    for name, probe in probes.items():
        if is_user_code(specs[name]) and not probe.usable:
            raise UserError(f"--backend {name}: {probe.why_not}")
    answers = pool.survey(probes, chosen.cases, environment.device)
    opened: list[str] = []
    if together:
        if not request.dry_run and chosen.policy.caches == "kept":
            watcher.say("opening the device")
            opened = [name for name, said in answers.items() if any(a.reason is None for a in said)]
            pool.open_device(opened, environment.device)
        watcher.say("timing a matmul and a copy")
        environment = device_probe.measure_rates(environment, dtypes)
    jobs = planning.make_plan(
        chosen.cases,
        answers,
        environment.device,
        chosen.policy,
        time_limit=chosen.time_limit,
        rounds=request.rounds,
    )
    for name in {*opened} - {job.backend for job in jobs if not job.skip}:
        pool.close_worker(name)  # it need not hold the device
    planned = Run(
        environment=environment,
        suite=chosen.name,
        policy=chosen.policy,
        plan=jobs,
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        argv=request.argv,
        versions={name: p.version for name, p in probes.items() if p.version},
        specs=specs,
        interpreters=pool.interpreters,
        peak=wanted.peak,
    )
    return planned, chosen


def _resume(request: Request, device: str, watcher: RunObserver) -> Outcome:
    """Measures what a run file lacks, with the settings it was started with."""
    assert request.resume is not None
    old, problems = run_file.read(request.resume)
    if given := _not_with_resume(request):
        raise UserError(f"--resume goes on as {request.resume} was begun; leave out {', '.join(given)}")
    if old.turns:
        raise UserError(f"{request.resume} is one half of an A/B in turns, which goes on with both only; start it anew")
    if old.reduced:
        raise UserError(f"{request.resume} is a baseline, which has no plan; resume the run that it was saved from")
    file = None if request.dry_run else run_file.RunFile.reopen(request.resume)
    if file:  # ours alone from here on: what another process has added meanwhile counts
        old = run_file.read(request.resume)[0]
    todo = [replace(j, skip=None, resumable=False) if j.resumable else j for j in run_file.missing(old)]
    limit = request.settings.time_limit and parse_duration(request.settings.time_limit, "--time-limit")
    for name, python in old.interpreters.items():
        if not os.access(python, os.X_OK):
            raise UserError(
                f"cannot resume {request.resume}: {name} ran in {python}, which is gone; make it again there"
            )
    pool = WorkerPool(old.specs, old.interpreters)
    with closing_workers(pool):
        was = old.environment.device
        if device not in ("auto", str(was)):
            raise UserError(f"{request.resume} was measured on {was}, not on {device}; leave out --device")
        watcher.say(f"looking at the device, and importing {', '.join(old.specs)}")
        now = probe_device(str(was))
        if differences := old.environment.differences(now):
            raise UserError(
                f"cannot resume {request.resume} in another environment: {'; '.join(differences)}; "
                "start a new run, or go back to the old environment"
            )
        there = f"resuming: {len(old.plan) - len(todo)} of {len(old.plan)} jobs are there"
        elsewhere = (OTHER_UNIT,) if was.uuid not in (None, now.device.uuid) else ()
        notes = [*problems, there if todo else "nothing is missing", *elsewhere]
        if file is None or not todo:
            watcher.planned(old, todo, None, notes)
            return Outcome(replace(old, plan=tuple(todo)) if request.dry_run else old, request.resume)
        for name, probe in pool.probe().items():
            if old.versions.get(name) != probe.version:
                raise UserError(
                    f"cannot resume {request.resume}: {name} was {old.versions.get(name)} and is "
                    f"{probe.version or probe.reason}"
                )
        watcher.planned(old, todo, request.resume, notes)
        return _measure(old, todo, pool, file, watcher, limit or None, elsewhere)


def _measure(
    planned: Run,
    todo: Sequence[Job],
    pool: WorkerPool,
    file: run_file.RunFile,
    watcher: RunObserver,
    limit: float | None,
    notes: tuple[str, ...] = (),
) -> Outcome:
    """`notes` go into every record that was measured."""
    records = list(planned.records)
    time_limit = TimeLimit(limit) if limit else None
    exit_code = 0
    try:
        for job, record in measure_jobs(todo, pool, planned.policy, planned.environment.device, time_limit):
            if record is None:
                watcher.started(job)
                continue
            record = replace(record, version=planned.versions.get(job.backend))
            if record.measurements:
                record = replace(record, notes=(*record.notes, *notes))
            file.append(record)
            records.append(record)
            watcher.ended(job, record)
    except KeyboardInterrupt:
        exit_code = EXIT_INTERRUPTED
    except Terminated:
        exit_code = EXIT_TERMINATED
    finally:
        file.close()
    if not exit_code and not any(r.status == "ok" for r in records):
        exit_code = EXIT_NOTHING_MEASURED
    return Outcome(replace(planned, records=tuple(records)), file.path, exit_code)


def resolve_suite_for(suite: Suite, device: str, settings: Settings) -> list[Resolved]:
    """What it may come to on the device, not looked at yet. Mistakes are said before anything starts."""
    found, errors = [], []
    for kind in {"auto": ("cuda", "cpu"), "cpu": ("cpu",)}.get(device, ("cuda",)):
        try:
            found.append(resolve(suite, kind, settings))
        except UserError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    return found


def _not_with_resume(request: Request) -> list[str]:
    """The options given that a resumed run takes from its file."""
    fresh, settings = Request(), request.settings
    given = {
        "--suite": request.suite != fresh.suite,
        "--backend": settings.backends is not None,
        "the options that choose cases": settings.axes != Axes() or settings.tokens is not None,
        "--seed, --timer, --l2 and the other options of how to measure": bool(settings.policy),
        "--rounds": request.rounds != fresh.rounds,
        "--python": bool(request.pythons),
        "--peak": bool(request.peak),
        "--out": request.out is not None,
    }
    return [option for option, is_given in given.items() if is_given]


def check_output_path(out: Path | None) -> None:
    """Says at once what would else be found when the run file is made, after the slow look at the device."""
    if out and os.path.isdir(out):
        raise UserError(f"--out: {out} is a folder; give a file in it, as in {out / 'run.jsonl'}")
    if out and os.path.exists(out):
        raise UserError(f"{out} is there already and is not overwritten; choose another --out, or --resume {out}")
    path = out or Path("results/new.jsonl")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise UserError(f"cannot write {path}: {above} is not a folder; choose another place with --out")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UserError(f"cannot write {path}: no permission to write in {above}; choose another place with --out")


def default_run_path(run: Run) -> Path:
    """results/DATE-TIME-SUITE-DEVICE.jsonl, a name that is not taken."""
    suite = re.sub(r"[^\w.]+", "-", run.suite).strip("-.")
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{suite}-{run.environment.device.slug}"
    path, n = Path("results") / f"{stem}.jsonl", 2
    while path.exists():
        path, n = Path("results") / f"{stem}-{n}.jsonl", n + 1
    return path


def parse_peak(words: Sequence[str]) -> Mapping[str, float]:
    """--peak bf16=989 or --peak 989, in TFLOP/s -> FLOP/s by dtype ("" for any)."""
    found = {}
    for word in (w for text in words for w in text.split(",")):
        dtype, _, number = word.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = 0.0
        if not 0 < value < math.inf or dtype not in ("", *DTYPES):
            raise UserError(f"--peak: {word!r} is not TFLOP/s by dtype, as in bf16=989")
        found[dtype] = value * 1e12
    return found
