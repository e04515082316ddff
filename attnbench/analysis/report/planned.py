"""The document of a plan before it is run: what each backend would do, for how long, and why the rest is skipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnbench.analysis.report.reasons import reasons
from attnbench.core.groups import grouped
from attnbench.core.json import to_json
from attnbench.core.record import Job, Record, Run
from attnbench.core.sizes import format_bytes, format_duration, format_seconds
from attnbench.render.document import Column, Document, Span, Table
from attnbench.results.case_names import backend_rank
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
