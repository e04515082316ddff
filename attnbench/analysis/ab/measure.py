"""An A/B, from what a person asked for to two finished run files and their judgement."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from attnbench.analysis.ab.schedule import START, unsettled
from attnbench.analysis.ab.sides import Side, is_code, sides
from attnbench.analysis.ab.turns import LABELS, Half, Turns, Watcher
from attnbench.analysis.gate import gate
from attnbench.analysis.gate.looks import LOOKS
from attnbench.analysis.gate.readings import CYCLES
from attnbench.core.errors import EXIT_INTERRUPTED, EXIT_TERMINATED, UserError
from attnbench.core.machine import Environment
from attnbench.core.record import Job, Run
from attnbench.core.sizes import duration
from attnbench.results import run_file
from attnbench.results.cells import Key
from attnbench.run import plan as planning
from attnbench.run.device_probe import probe_device
from attnbench.run.run_suite import check_output_path, default_run_path, resolve_suite_for
from attnbench.run.select import is_user_code, parse_device
from attnbench.run.suite import Resolved, Settings, load_suite, resolve
from attnbench.run.workers import WorkerPool, closing_workers


@dataclass(frozen=True)
class Request:
    """What the command line asked for."""

    a: str
    b: str
    gate: gate.Request
    suite: str = "default"
    settings: Settings = field(default_factory=Settings)
    device: str = "auto"
    time_limit: float = 600.0  # seconds
    pythons: tuple[str, ...] = ()
    out: Path | None = None  # folder
    argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How it ended. Without a judgement it ended before a pair of turns; without paths nothing was measured."""

    judgement: gate.Judgement | None
    paths: tuple[Path, ...] = ()
    exit_code: int = 0


def ab(request: Request, watcher: Watcher, clock: Callable[[], float] = time.monotonic) -> Outcome:
    """Measures in turns and judges. Raises UserError for what a person can mend; what was measured is in the files."""
    deadline = clock() + request.time_limit
    device = parse_device(request.device)
    suite = load_suite(request.suite)
    found = resolve_suite_for(suite, device, request.settings)
    code = is_code(request.a, request.b)
    if code and request.settings.backends:
        raise UserError("--backend: --a and --b name the code already; leave it out")
    simulated = device == "fake" and not request.settings.backends
    pairs_of = {
        p.backends: sides(
            request.a, request.b, ["fake"] if simulated else p.backends, request.pythons, suite.interpreters
        )
        for p in found
    }
    _check_files(request.out)
    pools = (WorkerPool({}), WorkerPool({}))
    with closing_workers(pools[0]), closing_workers(pools[1]):
        watcher.say("looking at the device")
        dtypes = sorted({c.dtype for p in found for c in p.cases})
        here = _environments(device, dtypes, next(iter(pairs_of.values())))
        resolved = resolve(suite, here[0].device.kind, request.settings)
        both = pairs_of[resolved.backends]
        if CYCLES in request.gate.metrics and here[0].device.kind != "cuda":
            raise UserError(f"--metric {CYCLES}: only a GPU tells the clock that was held; compare latency")
        runs, plans = _prepare(request, resolved, both, here, pools, watcher)
        if gate.differing(*runs, request.gate.expect)[1]:
            refused = gate.judge(*runs, request.gate)
            return Outcome(refused, exit_code=refused.exit_code)
        keys = _cells(runs)
        least = 2 * START[here[0].device.kind] + min(keys.values())
        if least > deadline - clock():
            raise UserError(f"--time-limit: {duration(request.time_limit)} is short of one pair of turns; give more")
        paths = _paths(request.out, runs[0])
        halves = []
        for run, plan, pool, path in zip(runs, plans, pools, paths, strict=True):
            rounds: dict[int, list[Job]] = {}
            for job in plan:
                rounds.setdefault(job.round, []).append(job)
            halves.append(Half(run, pool, rounds, run_file.RunFile.create(path, run)))
        watcher.begun(*runs, len(keys), paths, resolved.notes)
        turns = Turns(halves, request.gate, watcher, request.time_limit, deadline, clock)
        try:
            turns.measure(keys)
        finally:
            for half in halves:
                half.file.close()
    exit_code = {"interrupted": EXIT_INTERRUPTED, "terminated": EXIT_TERMINATED}.get(turns.ended, 0)
    try:
        judgement = turns.judged()
    except UserError:
        if exit_code:
            return Outcome(None, paths, exit_code)
        raise
    judgement = replace(judgement, notes=(*judgement.notes, *turns.notes(len(unsettled(judgement)))))
    return Outcome(judgement, paths, EXIT_TERMINATED if turns.ended == "terminated" else judgement.exit_code)


def _check_files(out: Path | None) -> None:
    if out and out.exists() and not out.is_dir():
        raise UserError(f"--out: {out} is a file; give a folder, for a.jsonl and b.jsonl")
    for name in ("a.jsonl", "b.jsonl"):
        if out and (out / name).exists():
            raise UserError(f"{out / name} is there already and is not overwritten; choose another --out")
        check_output_path(out / name if out else None)


def _paths(out: Path | None, run: Run) -> tuple[Path, Path]:
    if out:
        return out / "a.jsonl", out / "b.jsonl"
    stem, n = default_run_path(run).with_suffix(""), 1
    while True:
        a, b = (stem.with_name(f"{stem.name}-{label}{'' if n == 1 else n}.jsonl") for label in "ab")
        if not a.exists() and not b.exists():
            return a, b
        n += 1


def _environments(device: str, dtypes: Sequence[str], both: Sequence[Side]) -> list[Environment]:
    """One a side; read once where one interpreter is both."""
    known: dict[str | None, Environment] = {}
    for side in both:
        if side.python not in known:
            try:
                known[side.python] = probe_device(device, dtypes, side.python)
            except UserError as error:
                raise UserError(f"{side.label}: {error}") from None
    return [known[side.python] for side in both]


def _prepare(
    request: Request,
    resolved: Resolved,
    both: Sequence[Side],
    here: Sequence[Environment],
    pools: Sequence[WorkerPool],
    watcher: Watcher,
) -> tuple[tuple[Run, Run], list[tuple[Job, ...]]]:
    """The two runs without records, whose plan is the first round, and all jobs that there may be."""
    runs, plans = [], []
    started, shared = datetime.now(timezone.utc).isoformat(timespec="seconds"), uuid.uuid4().hex[:12]
    for side, environment, pool in zip(both, here, pools, strict=True):
        pool.specs, pool.interpreters = side.specs, side.interpreters
        watcher.say(f"importing {', '.join(side.specs)} ({side.label})")
        probes = pool.probe()
        for name, probe in probes.items():
            if not probe.usable and (is_code(request.a, request.b) or is_user_code(side.specs[name])):
                raise UserError(f"{side.label}: {probe.why_not}")
        answers = pool.survey(probes, resolved.cases, environment.device)
        pool.close()  # a turn begins with fresh processes, and without those of the other side
        policy = resolved.policy
        plan = planning.make_plan(resolved.cases, answers, environment.device, policy, rounds=LOOKS[-1])
        plans.append(plan)
        runs.append(
            Run(
                environment=environment,
                suite=resolved.name,
                policy=policy,
                plan=tuple(job for job in plan if not job.round),
                started=started,
                argv=request.argv,
                versions={name: p.version for name, p in probes.items() if p.version},
                specs=side.specs,
                interpreters=side.interpreters,
                turns=shared,
            )
        )
    return (runs[0], runs[1]), plans


def _cells(runs: Sequence[Run]) -> dict[Key, float]:
    """The cells that run on either side, with both sides' forecast in seconds. Raises UserError if none runs on both.

    What only one side can run is measured once, for the judgement to say that it is missing or new.
    """
    able = [{(j.case, j.backend): j.forecast.seconds for j in run.plan if not j.skip} for run in runs]
    if not able[0].keys() & able[1].keys():
        why = (next((j.skip for j in run.plan if j.skip), None) for run in runs)
        said = "; ".join(f"{label}: {reason}" for label, reason in zip(LABELS, why, strict=True) if reason)
        raise UserError(f"no cell can be measured in both builds ({re.sub(r'[.;]$', '', said)})")
    return {key: sum(side.get(key, 0.0) for side in able) for key in {**able[0], **able[1]}}
