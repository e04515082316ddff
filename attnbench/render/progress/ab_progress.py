"""The progress of an A/B, and of a bisection by A/Bs, on stderr: one line that is redrawn.

In a pipe it is a plain line for each turn (the jobs of one build), each judgement and each build.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from attnbench.core.record import Job, Record, Run
from attnbench.core.sizes import format_duration
from attnbench.core.text import count, one_line
from attnbench.render.console import Console
from attnbench.render.progress.progress_line import JobProgress
from attnbench.results import case_names


class AbProgress(JobProgress):
    """The progress of an A/B, which run/ab/turns.py reports."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._turn = ""
        self._cells = self._settled = self._open = 0
        self._deadline = 0.0

    def begun(self, a: Run, b: Run, cells: int, paths: Sequence[Path], notes: Sequence[str]) -> None:
        self._cells = cells
        self._several_dtypes = len({job.case.dtype for job in a.plan}) > 1
        torches = dict.fromkeys(f"torch {run.environment.torch}" for run in (a, b) if run.environment.torch)
        suite = f"{a.suite}: {count(cells, 'cell')} in turns A B, B A, B A, A B, ..."
        self._print_doubt(a, b)
        self._header("attnbench ab", [a.environment.device.name, *torches], suite, notes, *paths)

    def turn(self, number: int, side: str, jobs: int, open_cells: int, left: float) -> None:
        self._turn, self._total, self._done, self._running = f"turn {number} ({side})", jobs, 0, None
        self._open, self._deadline = open_cells, time.monotonic() + left
        if self._live:
            self._live.update(self)
        else:
            rest = format_duration(max(0.0, left))
            self._print(Text(f"{self._turn}: {count(jobs, 'job')}, {self._counts()}, {rest} left"))

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
            self._print(Text(f"after {pairs} pairs: {self._counts()}"))

    def _counts(self) -> str:
        """Return how many cells are settled, open, and left out because they failed or time was short."""
        left_out = self._cells - self._settled - self._open
        return f"{self._settled} settled, {self._open} open" + (f", {left_out} left out" if left_out else "")

    def __rich__(self) -> Text:
        """Return the present line; rich asks for it several times a second."""
        line = Text().append(f"{self._turn} ", style="bold").append(f"[{self._done}/{self._total}] ")
        if self._running:
            line.append(self._name(self._running), style="cyan")
        left = format_duration(round(max(0.0, self._deadline - time.monotonic())))
        return self._fitted(line.append(f"  {self._counts()}, {left} left", style="dim"))


class BisectProgress(AbProgress):
    """The progress of a bisection, which analysis/bisect/run_bisect.py reports."""

    def begun(self, a: Run, b: Run, cells: int, paths: Sequence[Path], notes: Sequence[str]) -> None:
        """Print the header of an A/B; the machine only at the first A/B."""
        if not self.files:
            super().begun(a, b, cells, paths, notes)
        self._cells, self._settled, self.files = cells, 0, paths

    def tell(self, text: str) -> None:
        """Print a line that is not redrawn."""
        self._print(Text(text))
