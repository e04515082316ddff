"""Errors that a person can cause, and the exit codes of the command line.

0: done; 1: nothing could be measured, or `doctor` found warnings; 2: bad input; 3: `doctor` found the machine unfit;
130: interrupted; 143: terminated. The codes of `gate` and `ab` are in analysis/gate: 1 a regression, 3 inconclusive,
4 not comparable.
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
    """An error with one line that says what is wrong, why, and what to do.

    The command line prints that line without a traceback and ends with exit code 2.
    """

    exit_code = EXIT_BAD_INPUT


class Terminated(BaseException):
    """Raised when SIGTERM arrives; handled like KeyboardInterrupt."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of an error line: '; did you mean "x"?' if a known word is close, else the list of known words."""
    known = list(known)
    close = difflib.get_close_matches(word, known, 1) or difflib.get_close_matches(word.lower(), known, 1)
    return f'; did you mean "{close[0]}"?' if close else f"; known: {', '.join(known)}"
