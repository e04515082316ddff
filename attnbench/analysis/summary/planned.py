"""A plan before it is run: what each backend would do, for how long, and why the rest is skipped."""

from __future__ import annotations

import json
from dataclasses import replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnbench.analysis.summary import no_figure
from attnbench.core.json import to_json
from attnbench.core.record import Record, Run
from attnbench.core.sizes import format_bytes, format_duration
from attnbench.results.cells import cells
from attnbench.run.plan import skipped_record


def render(console: Console, run: Run) -> None:
    """A line a backend, then the reasons of the skips."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("backend")
    for heading in ("to measure", "skipped", "forecast", "longest call", "peak memory"):
        table.add_column(heading, justify="right")
    for name in dict.fromkeys(job.backend for job in run.plan):
        jobs = [j for j in run.plan if j.backend == name]
        todo = [j for j in jobs if not j.skip]
        figures = ["-"] * 3
        if todo:
            figures = [
                format_duration(sum(j.forecast.seconds for j in todo)),
                _call(max(j.forecast.call for j in todo)),
                format_bytes(max(j.forecast.nbytes for j in todo)),
            ]
        table.add_row(name, str(len(todo)), str(len(jobs) - len(todo)), *figures)
    console.print(table)
    reasons = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    records = tuple(skipped_record(j) if j.skip else Record(j.case, j.backend, j.round, "ok") for j in run.plan)
    for note in no_figure.notes(cells([replace(run, records=records)])):
        reasons.add_row(Text(note.word, "dim"), Text(f"{note.who}: {note.reason}"))
    if reasons.rows:
        console.print()
        console.print(reasons)
    console.print("Nothing was measured or written. Job by job: --dry-run --json", style="dim", soft_wrap=True)


def _call(seconds: float) -> str:
    return format_duration(seconds) if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def json_text(run: Run) -> str:
    """The planned jobs with their forecasts."""
    return json.dumps([to_json(job) for job in run.plan], indent=1)
