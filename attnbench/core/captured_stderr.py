"""Captures what a process writes to its stderr, below Python: C++ libraries write there without sys.stderr."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def captured_stderr() -> Iterator[list[str]]:
    """Keep what is written to file descriptor 2 from being shown; the list has it at the end, as one text."""
    said: list[str] = []
    sys.stderr.flush()
    shown = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield said
        finally:
            sys.stderr.flush()
            os.dup2(shown, 2)
            os.close(shown)
            file.seek(0)
            said.append(file.read().decode(errors="replace"))
