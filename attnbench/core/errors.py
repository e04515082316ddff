"""Errors that a person can cause, and the exit codes of the command line.

0 done; 1 nothing could be measured, or fit with warnings; 2 bad input; 3 unfit; 130 interrupted; 143 terminated.
Those of `gate` are in gate/gate.py: 1 a regression, 3 inconclusive, 4 not comparable.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_NOTHING_MEASURED = 1
EXIT_BAD_INPUT = 2
EXIT_UNFIT = 3
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class UserError(Exception):
    """One line that says what is wrong, why, and what to do. Shown without a traceback; exit code 2."""

    exit_code = EXIT_BAD_INPUT


class Terminated(BaseException):
    """SIGTERM arrived; handled like Ctrl-C."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' (did you mean "x"?)' or the list of what is known, to end an error line with."""
    known = list(known)
    close = difflib.get_close_matches(word, known, 1) or difflib.get_close_matches(word.lower(), known, 1)
    return f'; did you mean "{close[0]}"?' if close else f"; known: {', '.join(known)}"
