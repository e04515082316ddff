"""Check of backends on a few small shapes, with the reference, tolerance and tests of a run, without timing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from attnbench.core import masks
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.policy import Policy
from attnbench.core.record import Forecast, Job, Run
from attnbench.results import run_file
from attnbench.results.exit_codes import wrong_records
from attnbench.run import sanitize as sanitizing
from attnbench.run.axes import Axes, matching, parsed
from attnbench.run.plan import CaseSupport, skipped_record
from attnbench.run.select import choose, parse_device, refuse_code
from attnbench.run.session import Recording, Session
from attnbench.run.suite import Settings, parse_suite, resolve, resolve_suite_for
from attnbench.run.untrusted import judged as untrusted_verdict

SUITE = parse_suite(
    {
        "name": "check",
        "axes": {
            "seqlen": 256,
            "headdim": [64, 128],
            "dtype": ["bf16", "fp16"],
            "causal": [False, True],
            "pass": ["fwd", "bwd"],
            "batch": 2,
            "nheads": 4,
        },
        "cases": [
            {"seqlen": 203, "headdim": 64},  # not a multiple of any block: memory beyond the end must not count
            {"seqlen_q": 80, "headdim": 64, "causal": True},  # bottom-right alignment
            {"seqlen": 80, "seqlen_q": 256, "headdim": 64},  # q and k mixed up; causal: the first queries see no key
            {"nheads": 6, "nheads_k": 2, "headdim": 64, "causal": True},  # groups of 3 heads, 2 key heads: no mix-up
            {"nheads": 8, "nheads_k": 4, "headdim": 64, "causal": True},  # groups of 2
            {"nheads": 5, "nheads_k": 1, "headdim": 64, "causal": True},  # one key head for all
            {"seqlen_q": 1, "headdim": 64, "causal": True},  # decoding
            {"seqlen_q": 48, "seqlen": 4096, "headdim": 64, "batch": 1},  # many keys
            {"headdim": 64, "causal": False, "softmax_scale": 0.3},  # a scale other than 1 / sqrt(headdim)
            {"headdim": 64, "causal": True, "layout": "bhsd"},  # strides of q, k, v and dout, for order = "bshd"
            {"headdim": 64, "causal": True, "layout": "packed"},  # strides, for order = "bhsd"
            # Grouped heads in cases that their kernels treat apart: rows packed in a tile, decoding at any length,
            # strides of k.
            {"seqlen_q": 80, "seqlen": 203, "nheads": 6, "nheads_k": 2, "headdim": 64, "causal": True},
            {"seqlen_q": 1, "seqlen": 203, "nheads": 6, "nheads_k": 2, "headdim": 64, "causal": True},
            {"nheads": 6, "nheads_k": 2, "headdim": 64, "causal": True, "layout": "bhsd"},
        ],
        "on_cpu": {"axes": {"dtype": ["fp32", "bf16"]}},
    },
    "check",
)
WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}  # so that threads of the judge and of a worker do not spin at the same time
MAX_LOST = 3  # crashed or hung workers of a backend after which its other cases are not tried
NO_FORECAST = Forecast(0.0, 0.0, 0)


def check(
    patterns: Sequence[str],
    settings: Settings,
    say: Callable[[str], object],
    *,
    wrong: Path | None = None,
    trust: bool = False,
    device: str = "auto",
    timeout: float = Policy.timeout_s,
    pythons: Sequence[str] = (),
    allow_busy: bool = False,
    sanitize: bool = False,
    untrusted: bool = False,
    here: Mapping[str, Callable[[], Any]] | None = None,
    live: Mapping[str, Mapping[str, str]] | None = None,
) -> tuple[Run, int]:
    """Return a run whose records have the checks of each case on each backend and no measurements, and an exit code.

    The exit code is 0, or an interrupt's, which ends the records. `settings` narrow the cases; with a run file `wrong`
    the cases are its wrong results, whose own masks are run only with `trust`. `timeout` is the limit of one case in
    seconds, `say` receives progress, with `allow_busy` other processes may use the GPU, `here` and `live` are as in
    Session. With `sanitize` a few cases then run under compute-sanitizer, whose findings make a right result wrong.
    Raises UserError for mistakes in the request.
    """
    device = parse_device(device)
    if not patterns:
        raise UserError("nothing to check; give a function or backends, as in attnbench check ./mine.py:attention")
    if other := [kind for kind in parsed(settings.axes).get("kind", ()) if kind != "softmax"]:
        raise UserError(
            f"kind: the cases of check are of softmax; attnbench run --kind {other[0]} checks each result and times it"
        )
    untrusted |= wrong is not None and run_file.head(wrong).policy.untrusted
    if untrusted and sanitize:
        raise UserError("--sanitize runs kernels without fences; give it or --untrusted")
    chosen = choose(patterns, pythons)
    resolve_suite_for(SUITE, device, settings)
    again = _wrong_cases(wrong, settings.axes, trust) if wrong else ()
    start = partial(Session, device, chosen, with_torch=False, allow_busy=allow_busy, variables=WAITING)
    with start(here=here, live=live, untrusted=untrusted) as session:
        say(f"importing {', '.join(chosen.specs)}")
        if not untrusted:  # fenced processes need the judge's memory before
            session.pool.start_loading(import_ahead=True)
        kind = session.describe().device.kind
        sanitizer = _sanitizer(kind) if sanitize else None
        session.have_judged()
        cases = again or resolve(SUITE, kind, settings).cases
        session.pool.work_ahead(cases)
        session.load()
        jobs = _jobs(cases, session.survey(cases))
        if untrusted:  # candidates are judged one after the other
            jobs = tuple(sorted(jobs, key=lambda job: [*chosen.specs].index(job.backend)))
        recording = Recording(session.new_run(SUITE.name, Policy(timeout_s=timeout, untrusted=untrusted), jobs))
        lost = dict.fromkeys(chosen.specs, 0)
        with recording:
            for number, job in enumerate(jobs, start=1):
                say(f"checking {job.backend}, {number} of {len(jobs)}")
                if job.skip is None and lost[job.backend] >= MAX_LOST:
                    job = replace(job, skip=f"not tried: {MAX_LOST} earlier cases ended its process")
                if job.skip:
                    recording.add(skipped_record(job))
                    continue
                session.pool.work_ahead(dict.fromkeys(of.case for of in jobs[number - 1 :] if not of.skip))
                record = session.pool.check(job, recording.run.policy, session.device)
                if untrusted:
                    record = untrusted_verdict(session.pool, record, recording.run.policy, session.device, timed=False)
                recording.add(record)
                lost[job.backend] += session.pool.lost(job.backend)
            if sanitizer:
                session.pool.close()
                about = session.device, session.pool.specs, session.pool.interpreters, timeout
                for number, record in sanitizing.results(sanitizer, tuple(recording.records), *about, say):
                    recording.records[number] = record
    return recording.measured, recording.interrupt


def _sanitizer(kind: str) -> str:
    """Return the path of compute-sanitizer. Raises UserError where there is none, and on a CPU."""
    if kind == "cpu":
        raise UserError(sanitizing.NO_GPU)
    if (found := sanitizing.find()) is None:
        raise UserError(sanitizing.MISSING)
    return found


def _wrong_cases(file: Path, axes: Axes, trust: bool) -> tuple[Case, ...]:
    """Return the cases of the wrong results in a run file that are on these axes.

    Raises UserError where there are none, where a line of the file, which may be a wrong result, cannot be read, and,
    without `trust`, where masks are code that the file names.
    """
    run, problems = run_file.read(file)
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise UserError(
            f"--wrong: {problems[0]}{more}; a wrong result may be lost there; restore the file, or delete what cannot "
            f"be read and measure it again: {run_file.resume_command(run, file)}"
        )
    found = dict.fromkeys(record.case for record in wrong_records(run))
    asked = matching(axes)
    cases = tuple(case for case in found if case.ranks == 1 and asked(case))
    if not cases:
        raise UserError(f"--wrong: {file} has no wrong result" + (" of these cases on one device" if found else ""))
    if not trust:
        refuse_code(file, [own.spec for own in masks.own_of(case.mask for case in cases)])
    return cases


def _jobs(cases: Sequence[Case], answers: Mapping[str, Sequence[CaseSupport]]) -> tuple[Job, ...]:
    """Return a job for each case and backend. The backends of a case follow each other, to share one reference."""
    return tuple(
        Job(case, name, 0, NO_FORECAST, own[number].reason)
        for number, case in enumerate(cases)
        for name, own in answers.items()
    )
