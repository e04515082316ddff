"""Errors that a person can cause, and the exit codes of all commands.

| code     | meaning                                                                                      |
|----------|----------------------------------------------------------------------------------------------|
| 0        | done; passed (check: right; doctor: fit, with or without warnings)                           |
| 1        | a regression (gate, ab), BAD fails (bisect); nothing could be measured (run, step, profile),  |
|          | recommended (recommend, tune), tried (claims), used (env) or checked (check); a backend      |
|          | given up (run) or a case failed (check); nothing fits (capacity); a device lost, an outlier, |
|          | or a damaged file (cluster); worse by more than --fail-on (history)                          |
| 2        | bad input, or output that cannot be written                                                  |
| 3        | inconclusive (gate, ab); no commit found (bisect); unfit (doctor); too few units (cluster    |
|          | report)                                                                                      |
| 4        | not comparable (gate, ab, bisect)                                                            |
| 5        | a wrong result (run, check, profile, capacity, tune, claims, step, gate, ab, bisect,         |
|          | cluster), unless allowed                                                                     |
| 70       | a fault of attnbench's own: an exception that no command expects (BSD's EX_SOFTWARE)          |
| 128 + n  | ended by signal n: 130 by Ctrl-C, 143 by SIGTERM, 129 by SIGHUP (the terminal is gone), 138, |
|          | 140 and 152 by SIGUSR1, SIGUSR2 and SIGXCPU of batch systems, all of which keep what was     |
|          | measured and clean up; 141 by SIGPIPE (the reader of the output ended first, as `head` does) |
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would take longer than everything else here
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeVar

    W = TypeVar("W", bound=str)

EXIT_DONE = EXIT_PASS = 0
EXIT_REGRESSION = EXIT_NOTHING_MEASURED = 1
EXIT_BAD_INPUT = EXIT_CANNOT_WRITE = 2
EXIT_INCONCLUSIVE = EXIT_UNFIT = 3
EXIT_NOT_COMPARABLE = 4
EXIT_WRONG_RESULT = 5
EXIT_FAULT = 70
EXIT_BY_SIGNAL = range(129, 193)  # 128 + the signal's number
EXIT_INTERRUPTED = 130


_CLOSE, _AS_CLOSE = 0.65, 0.04  # difflib's ratio: the least, and the most below the closest word
_BEGINNING = 0.95  # the weight of a ratio to the beginning of a word
_LONG = 1000  # characters of an error that quotes a long input
_NO_DIGITS = dict.fromkeys(map(ord, "0123456789"))


class UserError(Exception):
    """An error with one line that says what is wrong, why, and what to do.

    The command line prints that line without a traceback and ends with exit code 2.
    """

    exit_code = EXIT_BAD_INPUT

    def __init__(self, *said: object) -> None:
        if said and (len(str(said[0])) > _LONG or not str(said[0]).isprintable()):  # it quotes a person's file
            from attnbench.core.text import printable, without_long_words

            said = (without_long_words(printable(str(said[0]))), *said[1:])
        super().__init__(*said)


class OtherStateError(UserError):
    """A person's function would behave differently in another process than in the person's own.

    name: the backend's name. differs: the name of the value that differs.
    """

    def __init__(self, name: str, differs: str) -> None:
        super().__init__(f"{name}: another process would run something else: {differs} would differ there")
        self.name, self.differs = name, differs


class UnfitError(UserError):
    """The machine cannot be measured now: there is no such device, or other processes use it."""


class Interrupted(BaseException):
    """Raised in place of KeyboardInterrupt when a signal of cli.SIGNALS arrives; what was measured is kept."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of an error line: '; did you mean "x"?' with known words that are close, else all known words."""
    known = list(known)
    said = " or ".join(f'"{of}"' for of in nearest(word, known))
    return f"; did you mean {said}?" if said else f"; known: {', '.join(known)}"


def one_of(option: str, word: str, known: Iterable[W]) -> W:
    """Return the word given to an option or an argument, if it is known. Raises UserError for any other value."""
    there = list(known)
    if not isinstance(word, str):
        raise UserError(f"{option}: {word!r} is not a text{did_you_mean('', there)}")
    for one in there:
        if one == word:
            return one
    raise UserError(f"{option}: unknown {word!r}{did_you_mean(str(word), there)}")


def nearest(word: str, known: Iterable[str]) -> list[str]:
    """Return up to three known words that are close to a word, the closest first; often none.

    Words about as close as the closest count too, but none with another number: fp64 is not fp16. A word may be the
    beginning of a known one, and have _ for -.
    """
    import difflib

    typed = _plain(word)

    def closeness(of: str) -> float:
        whole = difflib.SequenceMatcher(None, of, typed).ratio()
        if len(typed) < 3 or of[:1] != typed[0]:
            return whole
        return max(whole, _BEGINNING * difflib.SequenceMatcher(None, of[: len(typed) + 1], typed).ratio())

    ranked = sorted(((closeness(_plain(of)), of) for of in known), key=lambda one: -one[0])
    close = [of for ratio, of in ranked if ratio >= max(_CLOSE, ranked[0][0] - _AS_CLOSE)]
    return [of for of in close[:3] if not _is_other_number(of, word)]


def _plain(word: str) -> str:
    return word.lower().replace("_", "-")


def _is_other_number(one: str, other: str) -> bool:
    """Return whether two words differ in a number alone, by more than one digit or two swapped digits."""
    ours, theirs = ("".join(filter(str.isdigit, text)) for text in (one, other))
    differ = sum(a != b for a, b in zip(ours, theirs, strict=False)) + abs(len(ours) - len(theirs))
    slip = differ < 2 or sorted(ours) == sorted(theirs)
    return not slip and one.translate(_NO_DIGITS) == other.translate(_NO_DIGITS)
