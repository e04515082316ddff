"""The progress of a run on stderr: a header, then the fastest backends of each case and one line, all redrawn.

In a pipe it is a plain line for each job.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from attnbench.core.formats import share
from attnbench.core.record import Job, Record, Run
from attnbench.core.sizes import format_duration
from attnbench.core.text import count, merged, one_line, template
from attnbench.render.characters import MEMORY_BOUND
from attnbench.render.console import Console
from attnbench.render.progress.fastest_so_far import FastestSoFar
from attnbench.render.progress.progress_line import JobProgress
from attnbench.results import case_names, metrics
from attnbench.results.metrics import METRICS
from attnbench.results.rows import Row, Source
from attnbench.results.run_setup import setup_texts

BELOW = 8  # lines of a terminal that the header and the progress line need


class RunProgress(JobProgress):
    """The progress of a run: a run_suite.RunObserver."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._source: Source | None = None
        self._ahead: dict[str, float] = {}  # id of a job to come -> seconds forecast; the plan's skips are no jobs
        self._forecast_done = self._actual_done = 0.0  # seconds
        self._began = 0.0
        self._deadline = math.inf  # time of the monotonic clock from which on no job begins
        self._last: Record | None = None
        self._fastest = FastestSoFar({})
        self._late: list[Record] = []  # consecutive records that were skipped because time was short, not printed yet

    def planned(
        self, run: Run, todo: Sequence[Job], path: Path | None, notes: Sequence[str], limit: float | None = None
    ) -> None:
        self._deadline = time.monotonic() + limit if limit else math.inf
        texts = setup_texts(run)
        known = (texts[name] for name in ("device memory", "power_limit_w", "device threads", "torch"))
        facts = (run.environment.device.name, *known)
        self._print_doubt(run)
        self._header("attnbench", facts, f"{run.suite}: {plan_summary(todo)}", notes, *([path] if path else []))
        self._source = Source(run)
        self._several_dtypes = len({j.case.dtype for j in todo}) > 1
        self._ahead, self._total = {}, 0
        self._fastest = FastestSoFar({}, self._several_dtypes)
        self.extended(todo)
        self.say("starting the workers")

    def extended(self, jobs: Sequence[Job]) -> None:
        todo = [job for job in jobs if not job.skip]
        self._ahead |= {job.id: job.forecast.seconds for job in todo}
        self._total += len(todo)
        self._fastest.planned.update(Counter(case for case, _ in {(job.case, job.backend) for job in todo}))

    def started(self, job: Job) -> None:
        self._ahead.setdefault(job.id, job.forecast.seconds)  # new: left out by the plan for want of time
        super().started(job)
        self._began = time.monotonic()
        if self._live:
            self._live.update(self)

    def ended(self, job: Job, record: Record) -> None:
        forecast = self._ahead.pop(job.id, None)
        if forecast is None:  # a skip of the plan, which the header counts and a reason below the tables explains
            return
        self._done += 1
        self._running = None
        if record.seconds is not None and not job.skip:
            self._forecast_done += forecast
            self._actual_done += record.seconds
        self._last = record
        if self._source:
            self._fastest.add(Row(record, self._source))
        if record.status == "skipped" and record.resumable:
            self._late.append(record)
            return
        if not self._live:
            self._print_late(self._done - 1)
            self._print(Text(f"{self._count()} ").append_text(self._result(record)))
        elif record.status in ("wrong", "wrong-kernel", "failed", "timeout"):
            self._print(self._result(record))

    def close(self) -> None:
        self._print_late(self._done)
        super().close()

    def _print_late(self, done: int) -> None:
        """Print the jobs that were skipped because time was short as one line; nothing on a terminal.

        `done` is the number of jobs done before them.
        """
        if not self._live and self._late:
            why = [one_line(record.reason or "") for record in self._late]
            alike = [text for text in why if template(text) == template(why[0])]
            what = self._name(self._late[0]) if len(why) == 1 else f"{len(why)} jobs"
            self._print(Text(f"{self._count(done)} {what}  ").append(f"skip {merged(alike)}", style="dim"))
        self._late.clear()

    def __rich__(self) -> Text:
        """Return the present lines; rich asks for them several times a second."""
        room = self._console.height - BELOW
        return Text("\n").join([*self._fastest.lines(self._console.width - 1, room), self.line])

    @property
    def line(self) -> Text:
        """The progress line: how far the run is, the current job, and the latest result."""
        line = Text().append(f"{self._count()} ", style="bold")
        if self._running:
            line.append(self._name(self._running), style="cyan")
            if (waited := time.monotonic() - self._began) >= 2:
                line.append(f" {_seconds(waited)}", style="dim")
        if self._done < self._total:  # how many more jobs will fit is unknown
            line.append(f"  {_seconds(self._left())} left", style="dim")
        if self._last:
            line.append("  last: ", style="dim").append_text(self._outcome(self._last))
            line.append(f" {self._name(self._last)}", style="dim")
        return self._fitted(line)

    def _count(self, done: int | None = None) -> str:
        """Return how many of the planned jobs are done: "[ 7/60]"; then of those that still fit: "[60/60, 2 more]"."""
        done = self._done if done is None else done
        planned = min(done, self._total)
        more = f", {done - planned} more" if done > planned else ""
        return f"[{planned:>{len(str(self._total))}}/{self._total}{more}]"

    def _left(self) -> float:
        """Return the seconds forecast for the jobs ahead, scaled by the forecast's error so far.

        They are no more than the time limit leaves.
        """
        scale = (self._actual_done + 5) / (self._forecast_done + 5)
        running = time.monotonic() - self._began if self._running else 0.0
        ahead = sum(self._ahead.values()) * scale - running
        return max(0.0, min(ahead, self._deadline - time.monotonic()))

    def _result(self, record: Record) -> Text:
        text = Text(self._name(record) + "  ").append_text(self._outcome(record))
        return text.append(f" {one_line(record.reason or '')}", style="dim") if record.status != "ok" else text

    def _outcome(self, record: Record) -> Text:
        """Return a record's speed, or the word for why there is none."""
        if record.status != "ok" or self._source is None:
            style = "red" if record.status != "skipped" else "dim"
            return Text(case_names.ENDINGS.get(record.status, ""), style)
        row = Row(record, self._source)
        first, *others = metrics.usual(record.case, row.rates)
        text = Text("".join(f"{_written(name, row)}, " for name in others) + _written(first, row), "green")
        memory = first == "tflops" and metrics.bound(record.case, row.rates) == "memory"
        used = metrics.share_of_limit(first, lambda name: metrics.value(name, row), memory_bound=memory)
        return text.append(f" {share(used)}{MEMORY_BOUND if memory else ''}" if used is not None else "", style="dim")


def _written(name: str, row: Row) -> str:
    """Return a metric with its unit: "12.3 us", "3010 GB/s"."""
    metric, value = METRICS[name], metrics.value(name, row)
    text = metric.format(value or 0.0)
    return text if metric.unit in ("", "s") else f"{text} {metric.unit}"


def plan_summary(jobs: Sequence[Job]) -> str:
    """Return the amount of work in one line.

    "60 jobs to measure, forecast 1m40s; 14 skipped; 22 backends cannot run them"
    """
    todo = [job for job in jobs if not job.skip]
    at_work = {job.backend for job in todo}
    idle = len({job.backend for job in jobs} - at_work)
    skipped = sum(job.backend in at_work and job.skip is not None for job in jobs)
    parts = [
        f"{count(len(todo), 'job')} to measure, forecast {format_duration(sum(job.forecast.seconds for job in todo))}"
    ]
    parts += [f"{skipped} skipped"] if skipped else []
    parts += [f"{count(idle, 'backend')} cannot run {'them' if todo else 'any'}"] if idle else []
    return "; ".join(parts)


def _seconds(seconds: float) -> str:
    """Return a duration without the tenths that would only flicker."""
    return f"{seconds:.0f}s" if seconds < 10 else format_duration(seconds)
