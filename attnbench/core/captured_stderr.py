"""Capture of a process's stderr by its file descriptor, since C++ libraries do not write through sys.stderr."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def captured_stderr() -> Iterator[list[str]]:
    """Capture text written to file descriptor 2; after the block the list has it as one string."""
    said: list[str] = []
    _flush()
    shown = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield said
        finally:
            _flush()
            os.dup2(shown, 2)
            os.close(shown)
            file.seek(0)
            said.append(file.read().decode(errors="replace"))


def _flush() -> None:
    if sys.stderr is not None:  # a program without a console has none
        sys.stderr.flush()
