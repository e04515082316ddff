"""Progress in a notebook: an output of the cell that is redrawn, in place of a line of a terminal."""

from __future__ import annotations

import sys
import threading
from typing import Any

from rich.console import RenderableType

from attnbench.render.console import Console

EVERY = 0.5  # seconds between two drawings
WIDTH = 110  # characters


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, whose cells can show a changing output."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython and hasattr(ipython, "get_ipython") else None
    return type(shell).__name__ == "ZMQInteractiveShell"


class NotebookLive:
    """A replacement for rich.live.Live that draws plain text, with the methods that a ProgressLine needs."""

    def __init__(self) -> None:
        self._shown: RenderableType = ""
        self._handle: Any = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Make an output below the cell."""
        from IPython.display import display

        self._handle = display({"text/plain": ""}, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        threading.Thread(target=self._draw_again, daemon=True).start()

    def update(self, renderable: RenderableType, *, refresh: bool = False) -> None:
        """Take the text to show from now on."""
        self._shown = renderable

    def stop(self) -> None:
        """Empty the output, as the cell's own result follows."""
        self._stopped.set()
        self._handle.update({"text/plain": ""}, raw=True)

    def _draw_again(self) -> None:
        before = ""
        while not self._stopped.wait(EVERY):
            console = Console(width=WIDTH, force_terminal=False)
            with console.capture() as captured:
                console.print(self._shown)
            if (text := captured.get().rstrip()) != before and not self._stopped.is_set():
                self._handle.update({"text/plain": text}, raw=True)
                before = text
