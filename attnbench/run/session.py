"""A session: a device and the workers of some backends on it, from their first description to records in a run file.

Every command that measures has one, and only sessions make pools of workers and runs.
"""

from __future__ import annotations

import itertools
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from attnbench.core import checkout, masks
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
from attnbench.run.fences import device_files
from attnbench.run.first_look import first_look
from attnbench.run.judge import Judge
from attnbench.run.plan import CaseSupport
from attnbench.run.process import IN_WORKER, START_TIMEOUT, WorkerProcess
from attnbench.run.select import Chosen, check_trusted, is_executable, is_user_code, select_backends
from attnbench.run.workers import WorkerPool


class Session:
    """A device and the pool of workers on it, for a `with` block, after which no process is left.

    A command calls the methods in its own order and then gives jobs to the pool; a Recording keeps their records.
    """

    environment: Environment  # set by `describe`

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
        untrusted: bool = False,
    ) -> None:
        """Take a device, "auto", "cpu", "cuda:N" or "fake", and the backends, which may be chosen later.

        `variables` are in the environment of all workers. `here` maps a spec ("module:object") to a function that makes
        its worker in this process, and `live` maps a spec to the required state of its function (core/live_state.py).
        With `untrusted` workers are fenced; have the judge before the first worker.
        The other arguments are as for DeviceProbe. With None as the device, none is described. Raises UserError in a
        worker, where a file that is imported to be measured would measure itself without end.
        """
        if os.environ.get(IN_WORKER):
            raise UserError(
                "code that attnbench imports to measure it calls attnbench itself; put that call under "
                'if __name__ == "__main__":'
            )
        self.pool = WorkerPool({}, variables=variables or {}, here=here or {}, live=live or {})
        self._scratch = tempfile.TemporaryDirectory(prefix="attnbench-") if untrusted else None
        if untrusted:
            self.pool.fence = self._fence
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
            if self._scratch:
                self._scratch.cleanup()

    def _fence(self, name: str) -> dict[str, Any]:
        """Return the request by which a backend's worker goes behind its fences."""
        assert self._scratch
        scratch = Path(self._scratch.name, re.sub(r"\W", "-", name))
        scratch.mkdir(exist_ok=True)
        file = self.pool.specs[name].rpartition(":")[0]
        readable = [str(Path(file).resolve().parent)] if file.endswith(".py") else []
        devices = device_files(self.device)
        memory = None if devices else self.device.free
        rooms = self.pool.judge.ask({"do": "room"}, START_TIMEOUT)["rooms"] if self.pool.judge else []
        fence = {"scratch": str(scratch), "readable": readable, "devices": devices, "memory": memory}
        return {"op": "fence", "fence": fence, "rooms": rooms, "module": "" if readable else file}

    def choose(self, chosen: Chosen) -> None:
        """Take other backends, and end the workers of the earlier ones."""
        self.pool.close()
        others = WorkerPool(chosen.specs, chosen.interpreters, variables=self.pool.variables)
        self.pool = replace(WorkerPool(chosen.specs, chosen.interpreters, others=others), **self.pool.kept)

    @property
    def device(self) -> Device:
        """The measured device, the first one of several."""
        return self.environment.device

    @property
    def gpus(self) -> int | None:
        """The number of devices for the ranks of a case; None where ranks share one."""
        return 1 + len(self.environment.peers) if self.device.kind == "cuda" else None

    def describe(self, ranks: int = 1, others: Sequence[str] = ()) -> Environment:
        """Return the environment without the rates of its device, and keep it. Raises UserError.

        `ranks` is the largest number of ranks in any case; `others` are the named devices of the ranks after the first.
        """
        assert self._device_probe is not None
        found = self._device_probe.describe()
        peers = self._device_probe.peers(found.device, ranks, others)
        self.environment, self.pool.peers = replace(found, peers=peers), peers
        return self.environment

    def measure_rates(self, dtypes: Iterable[str]) -> None:
        """Measure the device's rates in some dtypes, while nothing else runs on it. Raises UserError."""
        assert self._device_probe is not None
        self.environment = self._device_probe.measure_rates(self.environment, sorted({*dtypes}))

    def open_judge(self) -> None:
        """Let the judge open the device while workers load; rates are measured afterwards."""
        assert self._device_probe is not None
        self._device_probe.open_judge(self.device)

    def have_judged(self) -> None:
        """Start the judge of the workers' results: the worker that described the device, or a new one.

        Call this before the first measuring worker is started. A simulated device has no judge.
        """
        if self.device.kind != "fake" and self.pool.judge is None:
            worker = self._device_probe.take_worker() if self._device_probe else None
            start = partial(WorkerProcess, variables=self.pool.variables)
            self.pool.judge = Judge(self.device, worker, start)
            self.pool.judge.open()

    def close_device_probe(self) -> None:
        """End the worker that describes the device, where its rates are not measured."""
        if self._device_probe:
            self._device_probe.close()

    def commit_notes(self) -> list[str]:
        """Return why the commit of the working directory, or whether files differ from it, is unknown; else []."""
        if (self.environment.git or "").endswith(checkout.DIRTY):
            return []
        return [*filter(None, [checkout.what_is_not_known()])]

    def load(self, option: str = "", tell: Callable[[str], None] | None = None) -> Mapping[str, Probe]:
        """Return the probe of each backend by its worker, and keep it.

        Raises UserError where a person's code cannot be used; `option` precedes its name in the message.
        """
        self.probes = self.pool.probe(tell)
        self.refuse_broken_code(option)
        return self.probes

    def refuse_broken_code(self, option: str = "") -> None:
        """Raise UserError where a person's code cannot be used; attnbench's own backends are skipped with a reason.

        Untrusted code is skipped too, where other untrusted code can be used.
        """
        own = [name for name in self.probes if is_user_code(self.pool.specs[name])]
        broken = [name for name in own if not self.probes[name].usable]
        if broken and not (self._scratch and len(broken) < len(own)):
            raise UserError(f"{option}{broken[0]}: {self.probes[broken[0]].why_not}")

    def first_look(self, cases: Sequence[Case]) -> Mapping[str, Sequence[CaseSupport]]:
        """Return the results of `load` and `survey` with as few imports as possible."""
        self.probes, answers = first_look(self.pool, cases, self.device)
        return answers

    def survey(self, cases: Iterable[Case], *names: str) -> Mapping[str, Sequence[CaseSupport]]:
        """Return each backend's answers for all cases; if `names` are given, only for these backends."""
        probes = {name: self.probes[name] for name in names or self.probes}
        return self.pool.survey(probes, cases, self.device)

    def new_run(self, suite: str, policy: Policy, plan: Sequence[Job], **fields: Any) -> Run:
        """Return a run of the session's backends that begins now, without records; `fields` are further ones of Run."""
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
        """Return the present device of a resumed run.

        Raises UserError where the environment has changed; `instead` says what to do.
        """
        assert self._device_probe is not None
        now = self._device_probe.describe()
        self.environment, self.pool.peers = old.environment, old.environment.peers
        if changed := differences(old, replace(old, environment=now, method=METHOD)):
            raise UserError(f"cannot resume {path} in another environment: {'; '.join(changed)}; {instead}")
        return now.device

    def load_again(self, old: Run, path: Path, tell: Callable[[str], None] | None = None) -> None:
        """Load the backends of a resumed run. Raises UserError where one has another version now."""
        self.probes = self.pool.probe(tell)
        for name, probe in self.probes.items():
            if (was := old.versions.get(name)) != probe.version:
                now = probe.version or probe.reason
                todo = "restore that version, or start a new run"
                if is_user_code(self.pool.specs[name]):
                    todo += "; if its file has moved, name it again: --backend FILE.py:FUNCTION"
                raise UserError(f"cannot resume {path}: {name} was {was} and is {now}; {todo}")


@dataclass
class Recording:
    """The records of a run during its measurement, and its file, if any, which the `with` block closes.

    An interrupt ends the block, and the records are kept. Without a file and without records the interrupt is raised
    again.
    """

    run: Run
    file: run_file.RunFile | None = None
    path: Path | None = None  # the run file
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
        """Keep a record with the version of its library, and return it."""
        record = replace(record, version=self.run.versions.get(record.backend))
        if self.file:
            self.file.append(record)
        self.records.append(record)
        return record

    def add_rounds(self, rounds: int) -> None:
        """Write the number of the run's rounds to the file."""
        assert self.file
        self.file.add_rounds(rounds)

    def add_jobs(self, jobs: Sequence[Job]) -> None:
        """Add further jobs to the plan of the run, and of its file."""
        if self.file:
            self.file.add_jobs(jobs)
        self.run = replace(self.run, plan=(*self.run.plan, *jobs))

    @property
    def measured(self) -> Run:
        """The run with its present records."""
        return run_file.with_records(self.run, self.records)


def create(planned: Run, out: Path | None, endings: Sequence[str] = ("",)) -> Recording:
    """Return the recording of a run in a new file, by default the first of `new_run_paths`.

    Raises UserError where the file cannot be written.
    """
    while True:
        path = out or new_run_paths(planned, endings)[0]
        try:
            return Recording(planned, run_file.RunFile.create(path, planned))
        except UserError:
            if out or not path.exists():  # else another process took the name of the same second
                raise


def reopen(path: Path, old: Run, *, trust: bool, named: Iterable[str] = (), lock: bool = True) -> Recording:
    """Return the recording of a resumed run, whose file is locked from here on, unless `lock` is false.

    The code of the backends `named` was given on the command line, and not by the file. Raises UserError where, without
    `trust`, the file names code or interpreters that nobody here has chosen; where interpreters are gone; and where own
    masks are gone or changed.
    """
    if not trust:
        check_trusted(path, old, named)
    file = run_file.RunFile.reopen(path) if lock else None
    try:
        if file:  # another process may have added records until now
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
    """Return backend -> present spec of a resumed run's own code, as --backend gives it; {} without --backend.

    The hash of its source must be the run's (Session.load_again). Raises UserError for code that the run does not have.
    """
    named = select_backends(given) if given else {}
    for name, spec in named.items():
        if not is_user_code(spec):
            raise UserError(f"--resume uses the settings of {path}; leave out --backend {name}")
        if name not in (own := [of for of, was in old.specs.items() if is_user_code(was)]):
            raise UserError(f"--backend: {name} is not own code of {path}, which has {some(own) or 'none'}")
    return named


def check_output_path(out: Path | None) -> None:
    """Raise UserError where the run file cannot be created; called before the slow probe of the device."""
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
    """Return results/DATE-TIME-SUITE-DEVICE.jsonl, numbered where it exists; one path for each ending."""
    suite = re.sub(r"[^\w.]+", "-", run.suite).strip("-.")
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{suite}-{run.environment.device.slug}"
    for number in itertools.count(1):
        own = stem if number == 1 else f"{stem}-{number}"
        paths = [Path("results") / f"{own}{ending}.jsonl" for ending in endings]
        if not any(path.exists() for path in paths):
            break
    return paths
