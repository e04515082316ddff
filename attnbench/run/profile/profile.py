"""Profiles of one case on each requested backend; worker/profile_call.py takes the profile of one call.

The hardware counters come last, after the end of all workers, because they count the whole device, and ncu's child
needs the memory. The roofline's rates are the datasheet's, or else the rates of a matmul and a copy measured here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attnbench.core import gpus, stats
from attnbench.core.activity import Activity
from attnbench.core.axes import AXES
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.flops import Roofline
from attnbench.core.json import from_json, to_json
from attnbench.core.machine import Device, Environment
from attnbench.core.policy import Policy
from attnbench.run import plan
from attnbench.run.process import START_TIMEOUT
from attnbench.run.profile import counters as unit_counters
from attnbench.run.profile import ncu, nsight_reports
from attnbench.run.select import choose, parse_devices, possible_kinds
from attnbench.run.session import Session
from attnbench.run.suite import Settings, parse_suite, resolve
from attnbench.run.workers import WorkerPool

DEFAULTS = parse_suite(
    {
        "name": "profile",
        "axes": {"seqlen": "8k", "headdim": 128, "dtype": "bf16", "pass": "fwd"},
        "tokens": "16k",
        "hidden": "2k",
        "on_cpu": {"axes": {"seqlen": "1k", "dtype": "fp32"}, "tokens": "1k", "hidden": 256},
    },
    "profile",
)
CPU_NOTE = "launch overhead, gaps between kernels, HBM traffic and counters: on a GPU only; operators stand for kernels"
# the files of --keep by ending: a worker writes a Chrome trace and a flame graph, NVIDIA's tools their reports
KEPT = {"trace": "trace.json", "flame": "flame.html"} | {
    tool: report.suffix for tool, report in nsight_reports.REPORTS.items()
}
RANKS_NOTE = "of one rank only: HBM traffic, counters, a CUDA graph, the flame graph, the reports of NVIDIA's tools"
FORECASTS = 20  # the time limit of a profile, in forecasts of a measured cell


@dataclass(frozen=True)
class HostWork:
    """The host's work in one call (worker/timeline.py)."""

    operators: int = 0  # torch's operators, nested ones included
    launches: int = 0  # launches of kernels and graphs
    waits: Mapping[str, int] = field(default_factory=dict)  # operator or runtime call -> number of its waits
    allocations: int = 0  # allocations by torch's allocator
    allocated: int = 0  # bytes of these allocations
    from_driver: int = 0  # calls of the allocator to the driver


@dataclass(frozen=True)
class Profile:
    """The profile of one call of one backend, in seconds and bytes.

    worker/profile_call.py makes it; the parent adds backend, version, kept, traffic and counters.
    """

    backend: str
    timer: str
    l2: str
    times: tuple[float, ...]
    first_call: float
    memory_peak: int  # bytes that one call adds
    # rates measured just before: FLOP/s by "matmul", bytes/s by "copy", 1/s by "exp"
    ceilings: Mapping[str, float] = field(default_factory=dict)
    version: str | None = None
    wrong: str | None = None  # why its results or its kernels are wrong
    limits: tuple[str, ...] = ()
    host_bound: bool = False
    compute: tuple[float, ...] = ()  # seconds of calls without communication, with several ranks
    enqueue: tuple[float, ...] = ()  # seconds in which the host launches one call
    in_graph: tuple[float, ...] = ()  # seconds of calls in a CUDA graph
    host: HostWork = HostWork()
    what: str = "kernels"  # the kind of `activities`: "kernels" or "operators"
    activities: tuple[Activity, ...] = ()
    length: float = 0.0  # seconds of the call with these `activities`
    spans: tuple[float, ...] = ()  # seconds of each traced call, by CUPTI
    traced: tuple[float, ...] = ()  # seconds of the same calls, by CUDA events
    memory: tuple[tuple[float, float], ...] = ()  # (seconds since the call's start, bytes allocated from then on)
    kept: Mapping[str, str] = field(default_factory=dict)  # kind -> written file
    traffic: ncu.Traffic | None = None
    counters: tuple[unit_counters.KernelCounters, ...] = ()  # counters of the kernels of one call
    notes: tuple[str, ...] = ()

    @property
    def latency(self) -> float:
        return stats.median(self.times)

    @property
    def gaps(self) -> tuple[float, ...]:
        """Seconds without an activity before each activity."""
        found, until = [], 0.0
        for activity in self.activities:
            found.append(max(0.0, activity.start - until))
            until = max(until, activity.end)
        return tuple(found)


@dataclass(frozen=True)
class Outcome:
    """The profiles of one case, and the reasons of the backends that have none."""

    environment: Environment
    case: Case
    roofline: Roofline | None
    profiles: tuple[Profile, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()  # backends whose results are wrong, with a profile or without


def profile(
    settings: Settings,
    say: Callable[[str], Any],
    *,
    device: str = "auto",
    keep: Path | None = None,
    traffic: bool = True,
    counters: bool = False,
    pythons: Sequence[str] = (),
    allow_busy: bool = False,
) -> Outcome:
    """Profile the requested case on each backend; `say` receives progress.

    `keep` is the folder for a Chrome trace, a flame graph and an nsys-rep of each. `traffic` also counts HBM traffic by
    ncu, if it is installed; `counters` also reads the other counters, and with `keep` writes an ncu-rep. `pythons` are
    the interpreters of backends, NAME=PATH. With `allow_busy` other processes may use the GPU. Raises UserError, before
    anything starts where possible, for mistakes in the request.
    """
    first, *others = parse_devices(device)
    if not settings.backends:
        raise UserError("--backend is missing, as in attnbench profile -b triton --seqlen 8k, or -b eager,triton")
    cases = {kind: one_case(settings, kind) for kind in possible_kinds(first)}
    ranks = max(case.ranks for case, _ in cases.values())
    chosen = choose(settings.backends, pythons, ranks)
    if others and ranks == 1:
        raise UserError("--device: several devices are for --ranks; name one, or give --ranks 2")
    if first == "fake":
        raise UserError("--device fake: nothing runs on a simulated device, so there is nothing to profile; use cpu")
    files = kept_files(keep, list(chosen.specs))
    with Session(first, chosen, allow_busy=allow_busy) as session:
        say("looking at the device")
        session.describe(ranks, others)
        session.measure_rates(case.dtype for case, _ in cases.values())
        session.have_judged()
        pool, here = session.pool, session.device
        case, notes = cases[here.kind]
        profiles, refused, wrong = profile_backends(pool, case, here, files, say)
        pool.close()
        lost = [files[p.backend]["trace"] for p in profiles if p.backend in files and "trace" not in p.kept]
        notes += tuple(f"--keep: {path} could not be written; choose another place" for path in lost)
        if case.ranks > 1:
            notes += (RANKS_NOTE,)
        if here.kind == "cpu":
            notes += (CPU_NOTE,)
        elif case.ranks == 1 and profiles:
            additions = [addition for addition, is_wanted in ((TRAFFIC, traffic), (COUNTERS, counters)) if is_wanted]
            tools = [tool for tool in nsight_reports.REPORTS if files and (counters or tool != "ncu")]
            additions += [report(tool, files) for tool in tools]
            for addition in additions:
                profiles, problems = add(addition, profiles, pool, case, here, say)
                notes += problems
    return Outcome(
        session.environment, case, roofline(case, here, profiles), tuple(profiles), refused, notes, tuple(wrong)
    )


def one_case(settings: Settings, kind: str) -> tuple[Case, tuple[str, ...]]:
    """Return the only case of the options on a kind of device, and notes on sizes that were reduced for it.

    Raises UserError, which names an option with several values.
    """
    resolved = resolve(DEFAULTS, kind, settings)
    for name, axis in AXES.items():
        values = dict.fromkeys(axis.text(axis.of(case)) for case in resolved.cases)
        if getattr(settings.axes, name) and len(values) > 1:
            raise UserError(f"--{axis.option} has {len(values)} values ({', '.join(values)}); a profile is of one case")
    return resolved.cases[0], resolved.notes


def kept_files(folder: Path | None, names: Sequence[str]) -> dict[str, dict[str, Path]]:
    """Return backend -> kind -> the absolute path of its file in `folder`, which is made.

    Raises UserError where no file can be written there, and where one of them is there already.
    """
    if folder is None:
        return {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "it is a file" if folder.is_file() else error.strerror
        raise UserError(f"--keep: no folder {folder} can be made: {why}; choose another place") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"--keep: no permission to write in {folder}; choose another place")
    stems = {name: folder.absolute() / name.replace(os.sep, "-") for name in names}
    files = {name: {kind: Path(f"{stem}.{end}") for kind, end in KEPT.items()} for name, stem in stems.items()}
    for path in (path for of in files.values() for path in of.values() if os.path.lexists(path)):
        raise UserError(f"--keep: {folder / path.name} is there already and is not overwritten; choose another folder")
    return files


def roofline(case: Case, device: Device, profiles: Sequence[Profile]) -> Roofline | None:
    """Return the roofline by the datasheet, else by rates measured here; None where neither is known.

    With several ranks it is for the work and memory of one rank.
    """
    found = _roofline(case, device, profiles)
    if found is None or case.ranks == 1:
        return found
    n = case.ranks
    return replace(found, flops=found.flops / n, nbytes=found.nbytes / n, exps=found.exps // n)


def _roofline(case: Case, device: Device, profiles: Sequence[Profile]) -> Roofline | None:
    gpu = gpus.find(device.name, device.memory, device.multiprocessors) if device.kind == "cuda" else None
    peak = gpus.peak(gpu, case.dtype) if gpu else None
    rates = {
        name: max((p.ceilings.get(name, 0.0) for p in profiles), default=0.0) for name in ("matmul", "copy", "exp")
    }
    if gpu and peak:
        source = f"the datasheet of the {gpu.name}"
        return Roofline.of(case, peak, gpu.bandwidth, source, datasheet=True, exp_rate=rates["exp"])
    if not (rates["matmul"] and rates["copy"]):
        return None
    return Roofline.of(
        case, rates["matmul"], rates["copy"], "what a matmul and a copy reach here", exp_rate=rates["exp"]
    )


def profile_backends(
    pool: WorkerPool, case: Case, device: Device, files: Mapping[str, Mapping[str, Path]], say: Callable[[str], Any]
) -> tuple[list[Profile], dict[str, str], list[str]]:
    """Return the profiles by the pool's backends, backend -> why there is none, and the wrong backends.

    `files` has the paths that each backend writes.
    """
    say(f"importing {', '.join(pool.specs)}")
    probes = pool.probe()
    devices = 1 + len(pool.peers) if device.kind == "cuda" else None
    jobs = plan.make_plan([case], pool.survey(probes, [case], device), device, Policy(), devices=devices)
    profiles: list[Profile] = []
    refused: dict[str, str] = {}
    wrong: list[str] = []
    for job in sorted(jobs, key=lambda j: list(pool.specs).index(j.backend)):
        name = job.backend
        if job.skip:
            refused[name] = job.skip
            continue
        say(f"profiling {name}")
        by_worker = {kind: path for kind, path in files.get(name, {}).items() if kind not in nsight_reports.REPORTS}
        keep = {kind: str(path) for kind, path in by_worker.items()}
        request = {"op": "profile", "device": to_json(device), "case": to_json(case)}
        timeout = START_TIMEOUT + FORECASTS * job.forecast.seconds
        try:
            answer = pool.ask(name, {**request, "keep": keep}, timeout, ranks=case.ranks, device=device)
            found = answer.get("profile")
            if not isinstance(found, dict):
                raise UserError("its worker's answer is no profile")
        except UserError as error:
            refused[name] = str(error).removeprefix(f"{name}: ")
            continue
        if found.get("wrong"):
            wrong.append(name)
        if "refused" in found:
            refused[name] = found["refused"]
        else:
            # torch does not report a failed write
            written = {kind: path for kind, path in keep.items() if os.path.isfile(path)}
            own = {"backend": name, "version": probes[name].version, "kept": written}
            try:
                profiles.append(from_json(Profile, {**found, **own}))
            except ValueError as error:
                refused[name] = f"its worker's answer is no profile: {error}"
    return profiles, refused, wrong


@dataclass(frozen=True)
class Addition:
    """A tool of NVIDIA's that adds data to each profile, after the workers have ended."""

    what: str  # its name in notes
    says: str  # the message while it runs; {} is the backend
    take: Callable[[Profile, str | None, Mapping[str, Any]], Profile]  # (profile, its Python, request for ncu_launch)


def _ncu() -> str:
    if (tool := ncu.find()) is None:
        raise ncu.NotCounted(ncu.MISSING)
    return tool


TRAFFIC = Addition(
    "HBM traffic",
    "counting the bytes that {} moves (ncu)",
    lambda one, python, request: replace(one, traffic=ncu.measure(_ncu(), python, request)),
)
COUNTERS = Addition(
    "counters",
    "reading the counters of the kernels of {} (ncu)",
    lambda one, python, request: replace(one, counters=unit_counters.measure(_ncu(), python, request)),
)


def report(tool: str, files: Mapping[str, Mapping[str, Path]]) -> Addition:
    """Return the addition of a report that a tool of NVIDIA's writes for each backend."""

    def write(one: Profile, python: str | None, request: Mapping[str, Any]) -> Profile:
        path = files[one.backend][tool]
        nsight_reports.write(tool, path, python, request)
        return replace(one, kept={**one.kept, tool: str(path)})

    suffix = nsight_reports.REPORTS[tool].suffix
    return Addition(suffix, f"writing the {suffix} of {{}}", write)


def add(
    addition: Addition,
    profiles: Sequence[Profile],
    pool: WorkerPool,
    case: Case,
    device: Device,
    say: Callable[[str], Any],
) -> tuple[list[Profile], tuple[str, ...]]:
    """Return the profiles with an addition, and notes on why it failed.

    A reason that holds for several backends, as most do, is given once.
    """
    found: list[Profile] = []
    problems: dict[str, str] = {}  # reason -> the first backend with it
    for one in profiles:
        name = one.backend
        request = {"name": name, "spec": pool.specs[name], "case": to_json(case), "device": to_json(device)}
        say(addition.says.format(name))
        try:
            found.append(addition.take(one, pool.interpreters.get(name), request))
        except ncu.NotCounted as error:
            problems.setdefault(str(error), name)
            found.append(one)
    who = "" if len(problems) == 1 and all(a is b for a, b in zip(found, profiles, strict=True)) else " of {}"
    return found, tuple(f"{addition.what}{who.format(name)}: {reason}" for reason, name in problems.items())
