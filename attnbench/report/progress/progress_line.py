"""One line that is drawn anew while something goes on."""

from __future__ import annotations

from rich.console import Console
from rich.live import Live
from rich.text import Text


class ProgressLine:
    """A line on a terminal that says what goes on now. Close it before printing anything else."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, transient=True, refresh_per_second=8) if console.is_terminal else None
        if self._live:
            self._live.start()

    def say(self, text: str) -> None:
        """Show what goes on now, until the next call. In a pipe it would only be noise, so nothing is printed."""
        if self._live:
            self._live.update(Text(text, style="dim"), refresh=True)

    def close(self) -> None:
        if self._live:
            self._live.stop()

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=not self._console.is_terminal, highlight=False)
