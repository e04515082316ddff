"""What a person sees while a run goes on: a header, then one line that lives; in a pipe, a plain line for each job."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live as RichLive
from rich.text import Text

from attnbench.analysis.summary.tables import MEMORY
from attnbench.core.record import Job, Record, Run
from attnbench.core.sizes import format_duration
from attnbench.results import case_names, derive, metrics
from attnbench.run.plan import plan_summary


class Line:
    """One line that lives, of what goes on. Close it before printing anything else."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = RichLive(console=console, transient=True, refresh_per_second=8) if console.is_terminal else None
        if self._live:
            self._live.start()

    def say(self, text: str) -> None:
        """What goes on now; gone with the next word. In a pipe it would only be noise."""
        if self._live:
            self._live.update(Text(text, style="dim"), refresh=True)

    def close(self) -> None:
        if self._live:
            self._live.stop()

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=not self._console.is_terminal, highlight=False)


class Live(Line):
    """Watches a run; see run_suite.RunObserver."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._contexts: dict[str, derive.Context] = {}
        self._total = self._done = 0
        self._ahead: dict[str, float] = {}  # the jobs still to come -> seconds forecast; skips of the plan are no jobs
        self._forecast_done = self._actual_done = 0.0  # seconds
        self._running: Job | None = None
        self._began = 0.0
        self._last: Record | None = None

    def planned(self, run: Run, todo: Sequence[Job], path: Path | None, notes: Sequence[str]) -> None:
        device = run.environment.device
        facts = [device.name, metrics.size(device.memory)]
        if run.environment.power_limit_w:
            facts.append(f"{run.environment.power_limit_w:g} W")
        if device.threads:
            facts.append(f"{device.threads} threads")
        facts += [f"torch {run.environment.torch}"] if run.environment.torch else []
        self._print(Text().append("attnbench  ", style="bold").append(", ".join(facts)))
        self._print(Text(f"suite {run.suite}: {plan_summary(todo)}"))
        for note in notes:
            self._print(Text(note, style="yellow"))
        if path:
            self._print(Text(f"writing {path}", style="dim"))
        self._contexts = {dtype: derive.context(run, dtype) for dtype in {j.case.dtype for j in todo}}
        self._ahead = {j.id: j.forecast.seconds for j in todo if not j.skip}
        self._total = len(self._ahead)
        if self._live:
            self._live.update(Text("starting the workers", style="dim"))

    def started(self, job: Job) -> None:
        if job.id not in self._ahead:  # left out by the plan for want of time, and now there is time
            self._ahead[job.id] = job.forecast.seconds
            self._total += 1
        self._running = job
        self._began = time.monotonic()
        if self._live:
            self._live.update(self)

    def ended(self, job: Job, record: Record) -> None:
        forecast = self._ahead.pop(job.id, None)
        if forecast is None:  # skipped by the plan, as the header counts and the reasons below the tables say
            return
        self._done += 1
        self._running = None
        if record.seconds is not None and not job.skip:
            self._forecast_done += forecast
            self._actual_done += record.seconds
        self._last = record
        if not self._live:
            line = Text(f"[{self._done:>{len(str(self._total))}}/{self._total}] ").append_text(self._result(record))
            self._console.print(line, soft_wrap=True, highlight=False)
        elif record.status in ("wrong", "wrong-kernel", "failed", "timeout"):
            self._print(self._result(record))

    def __rich__(self) -> Text:
        """The living line, drawn anew several times a second."""
        line = Text().append(f"[{self._done}/{self._total}] ", style="bold")
        if self._running:
            line.append(self._name(self._running), style="cyan")
            if (waited := time.monotonic() - self._began) >= 2:
                line.append(f" {_seconds(waited)}", style="dim")
        line.append(f"  {_seconds(self._left())} left", style="dim")
        if self._last:
            line.append("  last: ", style="dim").append_text(self._outcome(self._last))
            line.append(f" {self._name(self._last)}", style="dim")
        line.truncate(self._console.width - 1, overflow="ellipsis")
        return line

    def _left(self) -> float:
        """The forecast of what is ahead, scaled by how the forecast has done so far."""
        scale = (self._actual_done + 5) / (self._forecast_done + 5)
        running = time.monotonic() - self._began if self._running else 0.0
        return max(0.0, sum(self._ahead.values()) * scale - running)

    def _result(self, record: Record) -> Text:
        text = Text(self._name(record) + "  ").append_text(self._outcome(record))
        return text.append(f" {record.reason}", style="dim") if record.status != "ok" else text

    def _name(self, which: Job | Record) -> str:
        """With its dtype where there are several."""
        return case_names.case(which.backend, which.case, len(self._contexts) > 1)

    def _outcome(self, record: Record) -> Text:
        """Its speed, or the word for why there is none."""
        text = Text()
        if record.status != "ok":
            return text.append(case_names.ENDINGS[record.status], style="red" if record.status != "skipped" else "dim")
        context = self._contexts.get(record.case.dtype, derive.Context())
        text.append(f"{metrics.digits(metrics.value('tflops', record, context) or 0)} TFLOP/s", style="green")
        memory = derive.bound(record.case, context) == "memory"
        used = metrics.value("roofline" if memory else "utilization", record, context)
        aside = f" {metrics.share(used)}{MEMORY if memory else ''}" if used is not None else ""
        return text.append(aside, style="dim")


def _seconds(seconds: float) -> str:
    """Without the tenths that would only flicker."""
    return f"{seconds:.0f}s" if seconds < 10 else format_duration(seconds)
