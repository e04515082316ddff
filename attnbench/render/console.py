"""The console of all that is printed by rich."""

from __future__ import annotations

import errno
import os

import rich.console


class Console(rich.console.Console):
    """A console that raises BrokenPipeError where its reader is gone.

    Rich ends the process with 1, which is the exit code of a regression.
    """

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
