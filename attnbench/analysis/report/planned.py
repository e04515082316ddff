"""The document of a plan: the jobs of each backend, their time, why jobs are skipped, and the forecast's error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnbench.analysis.report.reasons import reasons
from attnbench.core import stats
from attnbench.core.formats import digits
from attnbench.core.groups import grouped
from attnbench.core.json import to_json
from attnbench.core.record import Job, Record, Run
from attnbench.core.sizes import format_bytes, format_duration, format_seconds
from attnbench.core.text import count
from attnbench.render.document import Column, Document, Span, Table
from attnbench.results.case_names import backend_rank, case_name
from attnbench.results.cells import cells
from attnbench.run.plan import skipped_record

COLUMNS = ("to measure", "skipped", "forecast", "longest call", "peak memory")


def document(run: Run) -> Document:
    """Return a line per backend that has something to measure, and the reasons of the skips.

    For programs: the planned jobs with their forecasts.
    """
    by_backend = grouped(sorted(run.plan, key=lambda job: backend_rank(job.backend)), lambda job: job.backend)
    busy = {name: jobs for name, jobs in by_backend.items() if any(not job.skip for job in jobs)}
    records = tuple(skipped_record(j) if j.skip else Record(j.case, j.backend, j.round, "ok") for j in run.plan)
    columns = (Column("backend"), *(Column(heading, "right", wrap=False) for heading in COLUMNS))
    return Document(
        command="run",
        title="The plan",
        blocks=(Table("plan", columns, tuple((name, *_figures(jobs)) for name, jobs in busy.items())),),
        reasons=tuple(reasons(cells([replace(run, records=records)]))),
        notes=((Span("Nothing was measured or written. Job by job: --dry-run --json", "quiet"),),),
        data=[to_json(job) for job in run.plan],
    )


def _figures(jobs: Sequence[Job]) -> tuple[str, ...]:
    todo = [job for job in jobs if not job.skip]
    return (
        str(len(todo)),
        str(len(jobs) - len(todo)),
        format_duration(sum(job.forecast.seconds for job in todo)),
        format_seconds(max(job.forecast.call for job in todo)),
        format_bytes(max(job.forecast.nbytes for job in todo)),
    )


def forecast_line(run: Run) -> str | None:
    """Return one line that compares forecast and actual seconds of the planned jobs that ran; None if none ran.

    Jobs that the plan had left out for want of time do not count: the forecast at the start leaves them out.
    """
    if run.environment.device.kind == "fake":  # simulated seconds take no time
        return None
    planned = {job.id for job in run.plan if not job.skip}
    jobs = [
        (r.forecast.seconds, r.seconds, r)
        for r in run.records
        if r.id in planned and r.status != "skipped" and r.forecast and r.forecast.seconds > 0 and r.seconds
    ]
    if not jobs:
        return None
    expected, actual = sum(e for e, _, _ in jobs), sum(a for _, a, _ in jobs)
    ratios = [(a / e, r) for e, a, r in jobs]
    furthest, record = max(ratios, key=lambda pair: max(pair[0], 1 / pair[0]))
    middle = stats.median([ratio for ratio, _ in ratios])
    several = len({r.case.dtype for r in run.records}) > 1
    return (
        f"Time of {count(len(jobs), 'job')}: forecast {format_duration(expected)}, took {format_duration(actual)}; "
        f"took over forecast by job: median {digits(middle)}, furthest {digits(furthest)} "
        f"({case_name(record.backend, record.case, several)})."
    )
