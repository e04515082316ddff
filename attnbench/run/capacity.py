"""`attnbench capacity`: search, for each case and backend, the largest size that fits and is right.

Each step of a search tries one size: it is a job of a worker (worker/fit_cell.py) and a record of the run file, so that
a search is resumed from its records. A worker serves the steps of its backend until one fails, is wrong or hangs. The
step that ends a search is made by a process that has run nothing before, or on a CPU only a small case.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Literal, Protocol

from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.flops import flops
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import NO_ROOM_TO_CHECK, WRONG, Forecast, Job, Record, Run, Search
from attnbench.core.sizes import format_duration, format_size
from attnbench.results import run_file
from attnbench.run.capacity_search import UNIT, Outcome, bracket, grid, next_size
from attnbench.run.plan import CONTEXT, CaseSupport, forecast_job, skipped_record, too_few_devices
from attnbench.run.select import Chosen, choose, parse_devices
from attnbench.run.session import Recording, Session, check_output_path, create, named_again, reopen
from attnbench.run.suite import Settings, parse_suite, resolve, resolve_suite_for

SUITE = parse_suite(
    {
        "name": "capacity",
        "axes": {
            "seqlen": "4k",
            "batch": 1,
            "headdim": 128,
            "dtype": "bf16",
            "causal": True,
            "pass": ["fwd", "fwd_bwd"],
        },
        "on_cpu": {"axes": {"dtype": "fp32", "nheads": 2, "headdim": 64}},
    },
    "capacity",
)
HANG = 60.0  # seconds for a step beside its calls (inputs, the check, compilation), after which it is killed
BASE = 4096  # the length at the base size in a search for the length
Of = Literal["seqlen", "batch"]
Key = tuple[str, Case]  # the backend, and the case at the base size


@dataclass(frozen=True)
class Request:
    """The options of `attnbench capacity`."""

    settings: Settings = field(default_factory=Settings)
    search: Search = field(default_factory=lambda: Search("seqlen", 10.0))
    device: str = "auto"
    time_limit: float | None = None  # seconds after which no step begins
    pythons: tuple[str, ...] = ()
    out: Path | None = None
    dry_run: bool = False
    argv: tuple[str, ...] = ()
    allow_busy: bool = False  # also search on a GPU that other processes use
    trust: bool = False  # run code and interpreters that the resumed file names


NOT_TRIED = "not tried: one call is forecast to take"


class Say(Protocol):
    """Takes texts about the present activity."""

    def __call__(self, text: str, *, also_in_a_pipe: bool = False) -> None:
        """Show a text; in a pipe only with `also_in_a_pipe`."""


def at_size(case: Case, of: Of, size: int) -> Case:
    """Return a case with another sequence length or batch size; a single query stays single."""
    if of == "batch":
        return replace(case, shape=replace(case.shape, batch=size))
    queries = case.shape.seqlen_q if case.shape.seqlen_q != case.shape.seqlen_k else size
    return replace(case, shape=replace(case.shape, seqlen_q=queries, seqlen_k=size))


def sizes_for(case: Case, of: Of) -> tuple[int, ...]:
    """Return the sizes that a search may try: all of the grid that a case can have. A mask may bound its keys."""

    def can_be(size: int) -> bool:
        try:
            at_size(case, of, size)
        except ValueError:
            return False
        return True

    return tuple(filter(can_be, grid(UNIT[of])))


def size_of(case: Case, of: Of) -> int:
    """Return the searched size of a case."""
    return case.shape.batch if of == "batch" else case.shape.seqlen_k


def key_of(record: Record | Job, of: Of) -> Key:
    """Return the key of a record's search. A case without other sizes, such as a ragged batch, has its own search."""
    try:
        return record.backend, at_size(record.case, of, 1 if of == "batch" else BASE)
    except ValueError:
        return record.backend, record.case


def outcome(record: Record) -> Outcome:
    """Return the outcome of a step for the search."""
    if record.status in WRONG:
        return "wrong"
    return "fits" if record.status == "ok" else "refused" if record.status == "skipped" else "stops"


def known(records: Sequence[Record], key: Key, search: Search) -> dict[int, Record]:
    """Return the records of a search by size; the last record of a size counts.

    A size may be untried because a shorter call made it seem too slow. It is left out, and so tried again, where the
    forecast by a longer call is clearly below the limit: the time of short calls does not follow their FLOPs.
    """
    sizes, own = {*grid(UNIT[search.of])}, [r for r in records if r.backend == key[0] and key_of(r, search.of) == key]
    found = {size: record for record in own if (size := size_of(record.case, search.of)) in sizes}
    longest = _longest(found)
    return {size: record for size, record in found.items() if not (longest and _may_fit(record, longest, search))}


def _may_fit(untried: Record, longest: Record, search: Search) -> bool:
    """Return whether an untried size would, by the longest call, take at most nine tenths of the limit."""
    was_tried = not (untried.reason or "").startswith(NOT_TRIED)
    return not was_tried and _call_forecast(untried.case, longest) <= 0.9 * search.call_limit


def is_done(records: Sequence[Record], job: Job, search: Search) -> bool:
    """Return whether a search has found its size."""
    if job.skip:
        return True
    found = known(records, key_of(job, search.of), search)
    outcomes = {size: outcome(record) for size, record in found.items()}
    return bool(found) and next_size(outcomes, sizes_for(job.case, search.of), size_of(job.case, search.of)) is None


def search_capacity(request: Request, say: Say) -> Recording:
    """Search the largest size of each case on each backend. Raises UserError for mistakes in the request.

    A dry run, and a search that could try nothing, have no file.
    """
    device, *others = parse_devices(request.device)
    resolved = resolve_suite_for(SUITE, device, request.settings)[0]
    ranks = [case.ranks for case in resolved.cases]
    chosen = choose(resolved.backends, request.pythons, min(ranks))
    check_output_path(request.out)
    with Session(device, chosen, allow_busy=request.allow_busy or request.dry_run) as session:
        say(f"importing {', '.join(chosen.specs)}")
        session.pool.start_loading()
        cases = _cases(request, session.describe(max(ranks), others).device.kind)
        session.load()
        say("timing a matmul and a copy")
        session.measure_rates(case.dtype for case in cases)
        session.close_device_probe()
        for note in session.commit_notes():
            say(note, also_in_a_pipe=True)
        policy = Policy(timeout_s=HANG + 6 * request.search.call_limit)
        plan = _plan(cases, session, policy, request.search)
        planned = session.new_run(SUITE.name, policy, plan, argv=request.argv, search=request.search)
        if request.dry_run:
            return Recording(planned)
        if not request.out and all(job.skip for job in planned.plan):  # no empty file in results/
            return Recording(replace(planned, records=tuple(map(skipped_record, planned.plan))))
        return _measured(create(planned, request.out), session, request.time_limit, say)


def resume(path: Path, request: Request, say: Say) -> Recording:
    """Continue the unfinished searches of a run file. Raises UserError where this is impossible.

    Only the time limit and the permissions of the request are used.
    """
    old, _ = run_file.read(path)
    if old.search is None:
        raise UserError(f"{path} is not a file of attnbench capacity; attnbench run --resume {shlex.quote(str(path))}")
    if request.dry_run or all(is_done(old.records, job, old.search) for job in old.plan):
        return Recording(old, path=None if request.dry_run else path)
    named = named_again(request.settings.backends, path, old)
    recording = reopen(path, old, trust=request.trust, named=named)
    chosen = Chosen({**old.specs, **named}, old.interpreters)
    with Session(str(old.environment.device), chosen, allow_busy=request.allow_busy) as session:
        say(f"importing {', '.join(old.specs)}")
        session.describe_again(old, path, "start a new search")
        session.close_device_probe()
        session.load_again(old, path)
        return _measured(recording, session, request.time_limit, say)


def _cases(request: Request, kind: str) -> tuple[Case, ...]:
    """Return the cases at their base size. Training is forward and backward in one call."""
    of = request.search.of
    found = resolve(SUITE, kind, request.settings).cases
    if any(case.is_ragged or case.dropout_p for case in found):
        raise UserError("capacity takes neither ragged batches nor dropout")
    if request.settings.phase == "train":
        found = tuple(replace(case, direction="fwd_bwd") for case in found)
    if of == "seqlen":  # a delta rule's state does not grow; longer, its token would be a prompt
        found = tuple(case for case in found if not (case.is_delta and case.shape.seqlen_k == 1))
    return tuple(dict.fromkeys(at_size(case, of, 1 if of == "batch" else BASE) for case in found))


def _plan(cases: Sequence[Case], session: Session, policy: Policy, search: Search) -> tuple[Job, ...]:
    """Return the first step of each search, at a power of two.

    It is the largest that, by the forecast, fits in memory and takes half of the call limit at most. All searches of a
    backend follow each other, so that one worker at a time has the device open.
    """
    powers = {2**i * UNIT[search.of] for i in range(20)}
    sizes = [[size for size in sizes_for(case, search.of) if size in powers] for case in cases]
    tried = [at_size(case, search.of, size) for case, own in zip(cases, sizes, strict=True) for size in own]
    jobs = []
    for name, answers in session.survey(tried).items():
        left = iter(answers)
        for case, own in zip(cases, sizes, strict=True):
            of_case = dict(zip(own, islice(left, len(own)), strict=True))
            job = _first_job(name, case, of_case, session.device, policy, search)
            jobs.append(replace(job, skip=job.skip or too_few_devices(case, session.gpus)))
    return tuple(jobs)


def _forecast(case: Case, answer: CaseSupport, device: Device, policy: Policy) -> Forecast:
    """Return the forecast of a step; its seconds are the time of two calls."""
    found = forecast_job(case, answer, device, policy, with_copies=False)
    return replace(found, seconds=2 * found.call)


def _first_job(
    name: str, case: Case, answers: Mapping[int, CaseSupport], device: Device, policy: Policy, search: Search
) -> Job:
    free = device.free // case.ranks if device.kind == "cpu" else device.free  # the ranks share a host's memory
    free = min(free - (CONTEXT if device.kind == "cuda" else 0), search.memory or free)
    best: Job | None = None
    for size, answer in answers.items():
        of_size = at_size(case, search.of, size)
        forecast = _forecast(of_size, answer, device, policy)
        if answer.reason is None and (
            best is None or (forecast.nbytes <= 0.9 * free and forecast.call <= search.call_limit / 2)
        ):
            best = Job(of_size, name, 0, forecast)
    if best is None:
        size, answer = next(iter(answers.items()))
        of_size = at_size(case, search.of, size)
        best = Job(of_size, name, 0, _forecast(of_size, answer, device, policy), answer.reason)
    return best


def _measured(recording: Recording, session: Session, time_limit: float | None, say: Say) -> Recording:
    """Make the unfinished searches, and append their records to the file."""
    planned = recording.run
    deadline = time.monotonic() + time_limit if time_limit else None
    with recording:
        for before, job in zip((None, *planned.plan), planned.plan, strict=False):
            if before and (before.backend, before.case.ranks) != (job.backend, job.case.ranks):
                session.pool.close_worker(before.backend)  # it would hold memory of the device
            for record in _steps(planned, job, recording.records, session, deadline, say):
                recording.add(record)
            say(_end(recording.records, job, planned.search), also_in_a_pipe=True)
    return recording


def _steps(
    planned: Run, first: Job, records: Sequence[Record], session: Session, deadline: float | None, say: Say
) -> Iterator[Record]:
    """Yield the records of one search, one per step; the caller adds each to `records` before the next."""
    search, pool, device = planned.search, session.pool, session.device
    assert search is not None
    key = key_of(first, search.of)
    if first.skip:
        if not known(records, key, search):
            yield skipped_record(first)
        return
    sizes = sizes_for(first.case, search.of)
    confirmed: set[int] = set()  # sizes measured by a process that had run nothing before
    is_fresh = not any((r.backend, r.case.ranks) == (first.backend, first.case.ranks) for r in records)
    while deadline is None or time.monotonic() < deadline:
        found = known(records, key, search)
        outcomes = {size: outcome(record) for size, record in found.items()}
        size = next_size(outcomes, sizes, size_of(first.case, search.of))
        if size is None:
            size = bracket(outcomes).stops
            if size is None or not _lacked_memory(found[size]):
                return
            if size in confirmed or sum(record.id == found[size].id for record in records) > 1:
                return
            pool.close_worker(first.backend)
            is_fresh = True
        else:
            size = _largest_in_time(size, sizes, found, search)
        case = at_size(first.case, search.of, size)
        [answer] = session.survey([case], first.backend)[first.backend]
        job = Job(case, first.backend, 0, _forecast(case, answer, device, planned.policy))
        say(f"{first.backend} {case.direction}{_on_ranks(case)}: {search.of} {format_size(size)}{_so_far(outcomes)}")
        if answer.reason:
            yield skipped_record(replace(job, skip=answer.reason))
            continue
        if too_slow := _too_slow(case, found, search):
            yield replace(skipped_record(replace(job, skip=too_slow)), status="timeout")
            continue
        if is_fresh:
            confirmed.add(size)
        record = pool.fit(job, planned.policy, device, search.memory)
        is_fresh = case.ranks > 1 and record.status == "oom"  # then all its processes have ended
        if record.status not in ("ok", "oom", "skipped"):
            pool.close_worker(first.backend)
            is_fresh = True
        yield _within_limit(record, search)


def _lacked_memory(record: Record) -> bool:
    """Return whether the call or its check lacked memory, as in a process that keeps memory of earlier steps."""
    return record.status == "oom" or NO_ROOM_TO_CHECK in (record.reason or "")


def _end(records: Sequence[Record], job: Job, search: Search | None) -> str:
    """Return the result of a search as a line of a log."""
    assert search is not None
    found = known(records, key_of(job, search.of), search)
    at = _so_far({size: outcome(record) for size, record in found.items()})
    of = f"{job.backend} {job.case.dtype} {job.case.direction}{_on_ranks(job.case)}"
    return f"{of}, {search.of}{at or '; nothing tried'}"


def _on_ranks(case: Case) -> str:
    return f" on {case.ranks} ranks" if case.ranks > 1 else ""


def _so_far(outcomes: Mapping[int, Outcome]) -> str:
    found = bracket(outcomes)
    fits = f"; {format_size(found.fits)} fits" if found.fits else ""
    return fits + (f", {format_size(found.stops)} does not" if found.stops else "")


def call_seconds(record: Record) -> float | None:
    """Return the seconds of a step's call; None where it was not timed."""
    measured = record.measurements.get("call")
    return measured.values[0] if measured else None


def _too_slow(case: Case, found: Mapping[int, Record], search: Search) -> str | None:
    """Return why a call would be too slow, by the longest call so far and its FLOPs; None where it would not."""
    longest = _longest(found)
    if longest is None or flops(case) <= flops(longest.case):
        return None
    forecast = _call_forecast(case, longest)
    if forecast <= search.call_limit:
        return None
    limit = format_duration(search.call_limit)
    return f"{NOT_TRIED} {format_duration(forecast)}, over the {limit} of --call-limit"


def _largest_in_time(size: int, sizes: Sequence[int], found: Mapping[int, Record], search: Search) -> int:
    """Return the largest size within the limit by the forecast, where time ends the search; else `size`.

    It saves most steps of the bisection, each of which would take about as long as the limit.
    """
    ends = bracket({one: outcome(record) for one, record in found.items()})
    longest = _longest(found)
    if ends.fits is None or ends.stops is None or found[ends.stops].status != "timeout" or longest is None:
        return size
    between = sizes[sizes.index(ends.fits) + 1 : sizes.index(ends.stops)]
    in_time = [
        one for one in between if _call_forecast(at_size(longest.case, search.of, one), longest) <= search.call_limit
    ]
    return max(in_time, default=between[0])


def _longest(found: Mapping[int, Record]) -> Record | None:
    """Return the record of the timed call with the most FLOPs; None where no call was timed."""
    timed = [record for record in found.values() if call_seconds(record) is not None]
    return max(timed, key=lambda record: flops(record.case), default=None)


def _call_forecast(case: Case, longest: Record) -> float:
    """Return the forecast seconds of a call, by the time and FLOPs of another."""
    seconds = call_seconds(longest)
    assert seconds is not None
    return seconds * flops(case) / flops(longest.case)


def _within_limit(record: Record, search: Search) -> Record:
    """Return the record, with status `timeout` where its call was right but took longer than the limit."""
    seconds = call_seconds(record)
    if record.status != "ok" or seconds is None or seconds <= search.call_limit:
        return record
    reason = f"one call took {format_duration(seconds)}, over the {format_duration(search.call_limit)} of --call-limit"
    return replace(record, status="timeout", reason=reason)
