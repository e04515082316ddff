"""The progress of an A/B on stderr: one line that is drawn anew; in a pipe, a plain line for each turn and look."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from attnbench.core.record import Job, Record, Run
from attnbench.core.sizes import format_duration
from attnbench.core.text import count, one_line
from attnbench.report.progress.progress_line import ProgressLine
from attnbench.results import case_names


class AbProgress(ProgressLine):
    """The Watcher of analysis/ab/turns.py that shows a person what goes on."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._turn = ""
        self._done = self._jobs = 0
        self._running: Job | None = None
        self._settled = self._open = 0
        self._deadline = 0.0
        self._several_dtypes = False

    def begun(self, a: Run, b: Run, cells: int, paths: Sequence[Path], notes: Sequence[str]) -> None:
        facts = ", ".join(filter(None, [a.environment.device.name, *_torches(a, b)]))
        self._print(Text().append("attnbench ab  ", style="bold").append(facts))
        self._several_dtypes = len({job.case.dtype for job in a.plan}) > 1
        self._print(Text(f"suite {a.suite}: {count(cells, 'cell')} in turns A B, B A, B A, A B, ..."))
        for note in notes:
            self._print(Text(note, style="yellow"))
        self._print(Text(f"writing {', '.join(map(str, paths))}", style="dim"))

    def turn(self, number: int, side: str, jobs: int, open_cells: int, left: float) -> None:
        self._turn, self._jobs, self._done, self._running = f"turn {number} ({side})", jobs, 0, None
        self._open, self._deadline = open_cells, time.monotonic() + left
        if self._live:
            self._live.update(self)
        else:
            rest = format_duration(max(0.0, left))
            self._print(Text(f"{self._turn}: {count(jobs, 'job')}, {open_cells} open, {rest} left"))

    def started(self, job: Job) -> None:
        self._running = job

    def ended(self, job: Job, record: Record) -> None:
        self._done += 1
        self._running = None
        if record.status in ("wrong", "wrong-kernel", "failed", "timeout", "oom"):
            ending = f"{self._turn}: {self._name(job)} {case_names.ENDINGS[record.status]}"
            self._print(Text(one_line(f"{ending}: {record.reason}"), style="red"))

    def looked(self, pairs: int, settled: int, open_cells: int) -> None:
        self._settled += settled
        self._open = open_cells
        if not self._live:
            self._print(Text(f"after {pairs} pairs: {self._settled} settled, {open_cells} open"))

    def __rich__(self) -> Text:
        """Return the line; rich asks for it several times a second."""
        line = Text().append(f"{self._turn} ", style="bold").append(f"[{self._done}/{self._jobs}] ")
        if self._running:
            line.append(self._name(self._running), style="cyan")
        left = max(0.0, self._deadline - time.monotonic())
        line.append(f"  {self._settled} settled, {self._open} open, {format_duration(round(left))} left", style="dim")
        line.truncate(self._console.width - 1, overflow="ellipsis")
        return line

    def _name(self, job: Job) -> str:
        return case_names.case_name(job.backend, job.case, self._several_dtypes)


def _torches(a: Run, b: Run) -> list[str]:
    return [f"torch {torch}" for torch in dict.fromkeys((a.environment.torch, b.environment.torch)) if torch]
