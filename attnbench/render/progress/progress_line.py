"""A line of progress that is redrawn while a command works."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.live import Live
from rich.text import Text

from attnbench.core.files import drop_rest
from attnbench.core.record import Job, Record, Run
from attnbench.core.text import no_command, printable, without_long_words
from attnbench.render.console import Console
from attnbench.render.progress.notebook import NotebookLive, in_notebook
from attnbench.results import case_names, disturbed

IN_A_PIPE_EVERY = 10.0  # seconds between lines of progress


class ProgressLine:
    """A line on a terminal that names the current work. Close it before printing anything else."""

    files: Sequence[Path] = ()  # the run files of the measurement

    def __init__(self, console: Console) -> None:
        self._console = console
        self._now = ""  # the current work, until it is printed
        self._closed = threading.Event()
        self._live: Live | NotebookLive | None = None
        if in_notebook():
            self._live = NotebookLive()
        elif console.is_terminal:
            self._live = Live(console=console, transient=True, refresh_per_second=8)
        if self._live:
            self._live.start()
        else:
            threading.Thread(target=self._say_from_time_to_time, daemon=True).start()

    def say(self, text: str, *, also_in_a_pipe: bool = False) -> None:
        """Show the current work until the next call; in a pipe only from time to time, to print few lines."""
        if self._live:
            self._live.update(Text(printable(text), style="dim"), refresh=True)
        elif also_in_a_pipe:
            self._print(Text(text))
        else:
            self._now = text

    def _say_from_time_to_time(self) -> None:
        while not self._closed.wait(IN_A_PIPE_EVERY):
            if self._now:
                self._print(Text(self._now))

    def close(self) -> None:
        self._closed.set()
        if self._live:
            self._live.stop()

    def _print(self, text: Text) -> None:
        """Print a line, without the escape sequences that a name or a message may quote."""
        self._now = ""
        if (shown := no_command(printable(text.plain))) != text.plain:
            text = Text(shown, style=text.style)
        try:
            self._console.print(text, soft_wrap=not self._console.is_terminal, highlight=False)
        except OSError:  # the disk is full, or the reader is gone: measuring goes on
            drop_rest(self._console.file)


class JobProgress(ProgressLine):
    """A header, then a line that counts jobs and names the one that is measured."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._several_dtypes = False  # whether names of cases contain the dtype
        self._running: Job | None = None
        self._done = self._total = 0  # jobs

    def started(self, job: Job) -> None:
        self._running = job

    def _header(self, command: str, facts: Iterable[str], suite: str, notes: Sequence[str], *paths: Path) -> None:
        """Print the machine, what is measured, notes, and which files are written."""
        self.files = paths
        self._print(Text().append(f"{command}  ", style="bold").append(", ".join(filter(None, facts))))
        self._print(Text(f"suite {suite}"))
        for note in notes:
            self._print(Text(without_long_words(note), style="yellow"))
        if paths:
            self._print(Text(f"writing {', '.join(map(str, paths))}", style="dim"))

    def _print_doubt(self, *runs: Run) -> None:
        """Print, before all else, why the results cannot be believed, if there is a reason."""
        for line in disturbed.doubt(runs):
            self._print(Text(line, style="bold red"))

    def _name(self, which: Job | Record) -> str:
        return case_names.case_name(which.backend, which.case, self._several_dtypes)

    def _fitted(self, line: Text) -> Text:
        """Return the line cut to the width of the terminal."""
        line.truncate(self._console.width - 1, overflow="ellipsis")
        return line
