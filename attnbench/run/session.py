"""A session: a device and the workers of some backends on it, from the first look at both to records in a run file.

Every command that measures has one, and only a session makes pools of workers and runs.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from attnbench.core import masks
from attnbench.core.backend import Probe
from attnbench.core.case import Case
from attnbench.core.errors import EXIT_DONE, Interrupted, UserError
from attnbench.core.files import GONE, working_folder
from attnbench.core.machine import Device, Environment
from attnbench.core.policy import CHECK, METHOD, Policy
from attnbench.core.record import Job, Record, Run
from attnbench.core.text import some
from attnbench.results import run_file
from attnbench.results.run_setup import differences
from attnbench.run.device_probe import DeviceProbe
from attnbench.run.first_look import first_look
from attnbench.run.judge import Judge
from attnbench.run.plan import CaseSupport
from attnbench.run.process import WorkerProcess
from attnbench.run.select import Chosen, check_trusted, is_executable, is_user_code, select_backends
from attnbench.run.workers import WorkerPool


class Session:
    """A device and the pool of workers on it, for a `with` block, after which no process is left.

    A command calls the methods in its own order, then gives jobs to the pool, and a Recording keeps their records.
    """

    environment: Environment  # from `describe` on

    def __init__(
        self,
        device: str | None,
        chosen: Chosen | None = None,
        *,
        with_torch: bool = True,
        allow_busy: bool = False,
        variables: Mapping[str, str] | None = None,
        here: Mapping[str, Callable[[], Any]] | None = None,
        live: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """Take a device, "auto", "cpu", "cuda:N" or "fake", and the backends, which may be chosen later.

        `variables` are in the environment of all workers, `here` makes those of this process, by their specs, and
        `live` is the state that functions are to have, by their specs; the other arguments are those of DeviceProbe. A
        device that is None is not looked at.
        """
        self.pool = WorkerPool({}, variables=variables or {}, here=here or {}, live=live or {})
        self.probes: Mapping[str, Probe] = {}
        self._device = device
        self._look = partial(DeviceProbe, with_torch=with_torch, allow_busy=allow_busy, variables=variables)
        self._device_probe: DeviceProbe | None = None
        if chosen:
            self.choose(chosen)

    def __enter__(self) -> Session:
        if self._device is not None:
            self._device_probe = self._look(self._device)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.close_device_probe()
            if self.pool.judge:
                self.pool.judge.close()
        finally:
            self.pool.close()

    def choose(self, chosen: Chosen) -> None:
        """Take other backends; the workers of those before are ended."""
        self.pool.close()
        self.pool = replace(WorkerPool(chosen.specs, chosen.interpreters), **self.pool.kept)

    @property
    def device(self) -> Device:
        """The device that is measured, the first of several."""
        return self.environment.device

    @property
    def gpus(self) -> int | None:
        """How many devices are there for the ranks of a case, None where ranks share one."""
        return 1 + len(self.environment.peers) if self.device.kind == "cuda" else None

    def describe(self, ranks: int = 1, others: Sequence[str] = ()) -> Environment:
        """Return the environment without the rates of its device, and keep it. Raises UserError.

        `ranks`: the most of any case; `others`: the devices named for those after the first.
        """
        assert self._device_probe is not None
        found = self._device_probe.describe()
        peers = self._device_probe.peers(found.device, ranks, others)
        self.environment, self.pool.peers = replace(found, peers=peers), peers
        return self.environment

    def measure_rates(self, dtypes: Iterable[str]) -> None:
        """Measure how fast the device is in some dtypes, while nothing else runs on it. Raises UserError."""
        assert self._device_probe is not None
        self.environment = self._device_probe.measure_rates(self.environment, sorted({*dtypes}))

    def open_judge(self) -> None:
        """Let the judge open the device while workers load. Rates are measured afterwards."""
        assert self._device_probe is not None
        self._device_probe.open_judge(self.device)

    def have_judged(self) -> None:
        """Let the worker that has looked at the device, as far as that is wanted, be the judge of others' results.

        Call it before the first worker is started that measures.
        """
        if self.device.kind != "fake":
            worker = self._device_probe.take_worker() if self._device_probe else None
            start = partial(WorkerProcess, variables=self.pool.variables)
            self.pool.judge = Judge(self.device, worker, start)
            self.pool.judge.open()

    def close_device_probe(self) -> None:
        """End the worker that looks at the device, where its rates are not measured."""
        if self._device_probe:
            self._device_probe.close()

    def load(self, option: str = "", tell: Callable[[str], None] | None = None) -> Mapping[str, Probe]:
        """Return what each backend's worker says of its library, and keep it.

        Raises UserError where a person's code cannot be used; `option` stands before its name.
        """
        self.probes = self.pool.probe(tell)
        self.refuse_broken_code(option)
        return self.probes

    def refuse_broken_code(self, option: str = "") -> None:
        """Raise UserError where a person's code cannot be used; attnbench's own backends are skipped with a reason."""
        for name, probe in self.probes.items():
            if is_user_code(self.pool.specs[name]) and not probe.usable:
                raise UserError(f"{option}{name}: {probe.why_not}")

    def first_look(self, cases: Sequence[Case]) -> Mapping[str, Sequence[CaseSupport]]:
        """Return what `load` and `survey` say, importing no more than is needed to know it."""
        self.probes, answers = first_look(self.pool, cases, self.device)
        return answers

    def survey(self, cases: Iterable[Case], *names: str) -> Mapping[str, Sequence[CaseSupport]]:
        """Return what each backend says of each case; only those with these names, if any are given."""
        probes = {name: self.probes[name] for name in names or self.probes}
        return self.pool.survey(probes, cases, self.device)

    def new_run(self, suite: str, policy: Policy, plan: Sequence[Job], **fields: Any) -> Run:
        """Return a run without records, that begins now, of the session's backends; `fields` are more of a Run's."""
        return Run(
            environment=self.environment,
            suite=suite,
            policy=policy,
            plan=tuple(plan),
            started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            versions={name: probe.version for name, probe in self.probes.items() if probe.version},
            specs=self.pool.specs,
            interpreters=self.pool.interpreters,
            method=METHOD,
            check=CHECK,
            **fields,
        )

    def describe_again(self, old: Run, path: Path, instead: str) -> Device:
        """Return the device of a run that is gone on with, as it is now.

        Raises UserError where the environment has changed; `instead` says what to do.
        """
        assert self._device_probe is not None
        now = self._device_probe.describe()
        self.environment, self.pool.peers = old.environment, old.environment.peers
        if changed := differences(old, replace(old, environment=now, method=METHOD)):
            raise UserError(f"cannot resume {path} in another environment: {'; '.join(changed)}; {instead}")
        return now.device

    def load_again(self, old: Run, path: Path, tell: Callable[[str], None] | None = None) -> None:
        """Load the backends of a run that is gone on with. Raises UserError where one has another version now."""
        self.probes = self.pool.probe(tell)
        for name, probe in self.probes.items():
            if (was := old.versions.get(name)) != probe.version:
                now = probe.version or probe.reason
                todo = "bring that version back, or start a new run"
                if is_user_code(self.pool.specs[name]):
                    todo += "; where its file lies elsewhere now, name it again: --backend FILE.py:FUNCTION"
                raise UserError(f"cannot resume {path}: {name} was {was} and is {now}; {todo}")


@dataclass
class Recording:
    """The records of a run while it is measured, in its file if it has one, which the `with` block closes.

    An interrupt ends the block, and what was measured stands. Without a file and records there is nothing to keep, and
    the interrupt goes on.
    """

    run: Run
    file: run_file.RunFile | None = None
    path: Path | None = None  # of the file
    interrupt: int = EXIT_DONE  # the exit code of an interrupt
    records: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.records = [*self.run.records]
        self.path = self.file.path if self.file else self.path

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> bool:
        self.close()
        if not isinstance(error, Interrupted) or not (self.file or self.records):
            return False
        self.interrupt = error.exit_code
        return True

    def close(self) -> None:
        """Close the file, if there is one."""
        if self.file:
            self.file.close()

    def add(self, record: Record) -> Record:
        """Keep a record, with the version of its library, and return it so."""
        record = replace(record, version=self.run.versions.get(record.backend))
        if self.file:
            self.file.append(record)
        self.records.append(record)
        return record

    def add_rounds(self, rounds: int) -> None:
        """Note in the file that the run has so many rounds."""
        assert self.file
        self.file.add_rounds(rounds)

    @property
    def measured(self) -> Run:
        """The run with the records that there are now."""
        return run_file.with_records(self.run, self.records)


def create(planned: Run, out: Path | None) -> Recording:
    """Return the recording of a run in a new file. Raises UserError where that cannot be written."""
    return Recording(planned, run_file.RunFile.create(out or new_run_paths(planned)[0], planned))


def reopen(path: Path, old: Run, *, trust: bool, named: Iterable[str] = (), lock: bool = True) -> Recording:
    """Return the recording of a run that is gone on with; its file, unless `lock` is false, is locked from here on.

    The code of the backends `named` was given here, and is not that of the file. Raises UserError where it names code
    or interpreters that nobody here has chosen, without `trust`; where interpreters are gone; and where own masks are
    gone, or changed.
    """
    if not trust:
        check_trusted(path, old, named)
    file = run_file.RunFile.reopen(path) if lock else None
    try:
        if file:  # another process may have added to it until now
            old, _ = run_file.read(path)
            if not trust:
                check_trusted(path, old, named)
        for name, python in old.interpreters.items():
            if not is_executable(python):
                raise UserError(f"cannot resume {path}: {name} ran in {python}, which is gone; make it again there")
        for own in masks.own_of(job.case.mask for job in old.plan):
            try:
                own.check()
            except UserError as error:
                raise UserError(f"cannot resume {path}: {error}") from None
    except UserError:
        if file:
            file.close()
        raise
    return Recording(old, file)


def named_again(given: Sequence[str] | None, path: Path, old: Run) -> dict[str, str]:
    """Return where own code of a resumed run lies now, by backend, as --backend says: {} without it.

    A hash of its source must be that of the run (Session.load_again). Raises UserError for what is no code of the run.
    """
    named = select_backends(given) if given else {}
    for name, spec in named.items():
        if not is_user_code(spec):
            raise UserError(f"--resume uses the settings of {path}; leave out --backend {name}")
        if name not in (own := [of for of, was in old.specs.items() if is_user_code(was)]):
            raise UserError(f"--backend: {name} is no own code of {path}, which has {some(own) or 'none'}")
    return named


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
    if not path.is_absolute() and not working_folder():
        raise UserError(GONE)
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
