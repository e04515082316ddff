"""The console through which rich prints all output."""

from __future__ import annotations

import errno
import os
from typing import Any

import rich.console


class Console(rich.console.Console):
    """A console that raises BrokenPipeError where its reader is gone, and writes text in a notebook too.

    Rich itself would end the process with 1, the exit code of a regression, and make an output of each line in a
    notebook.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(force_jupyter=False, **options)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
