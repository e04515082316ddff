"""Small pieces of English that many messages share: counts, lists, quoted reasons."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

_SECONDS_OR_BYTES = {"h": 3600.0, "m": 60.0, "s": 1.0, "B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
_ESCAPE_SEQUENCE = re.compile(  # colours and cursor, then titles and links, then sequences of two characters
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c\x9d\n]*(?:\x07|\x1b\\|\x9c)|\x1b[ -/]*[0-~]"
)
_OLD_COMMAND = re.compile(r"#(?=#\w*\[)")  # GitHub's and Azure's runners act on ##[error] and ##vso[...] anywhere
_COMMAND = re.compile(r"^([^\S\n]*)::", re.MULTILINE)
LONGEST = 4000  # the most characters of a message
_LONG_WORD = re.compile(r"\S{400,}")
_QUANTITY = re.compile(
    r"(?<![\w.])(?:\d+h\d+m|\d+m\d+s|\d+(?:\.\d+)?s|"  # durations as core/sizes.py writes them
    r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?: (?:[KMG]i)?B)?)(?!\w|\.\d)"
)


def count(n: int, what: str) -> str:
    """Return a number with its noun: "1 cell", "2 cells"."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def listed(names: Iterable[str]) -> str:
    """Return all names in the form for a sentence: "", "a", "a and b", "a, b and c"."""
    names = list(names)
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def capitalized(text: str, names: Iterable[str] = ()) -> str:
    """Return text with a capital letter at its beginning, unless it begins with one of the names."""
    return text if text.startswith(tuple(f"{name} " for name in names)) else text[:1].upper() + text[1:]


def fits(name: str, pattern: str) -> bool:
    """Return whether a name equals a pattern, brackets included, or matches it as a glob."""
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def some(names: Iterable[str], limit: int = 3) -> str:
    """Return the first names and how many more there are: "a, b, c and 4 more"."""
    names = list(names)
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


def shortened(text: str) -> str:
    """Return text of at most 43 characters, for an error line."""
    return text if len(text) <= 40 else f"{text[:40]}..."


def printable(text: str) -> str:
    """Return text that a terminal and a CI's log show unchanged: without escape sequences and commands.

    A space replaces each other character that cannot be printed, such as a line break or a change of direction.
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in _ESCAPE_SEQUENCE.sub("", text))
    return _OLD_COMMAND.sub("# ", text)


def without_long_words(text: str) -> str:
    """Return a message with words no longer than a path, a few hundred characters, and 4,000 characters in all.

    A message quotes a person's input, which may be a whole file.
    """
    text = _LONG_WORD.sub(lambda word: f"{word[0][:200]}...{word[0][-80:]}", text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 503]}...{text[-500:]}"


def no_command(text: str) -> str:
    """Return text without lines that GitHub's runner, which reads a step's output, takes for commands."""
    return _OLD_COMMAND.sub("# ", _COMMAND.sub(r"\1: :", text))


@lru_cache(maxsize=10_000)  # cached, as many records have the same reason
def one_line(text: str) -> str:
    """Return text without line breaks and escape sequences, which reasons quoted from libraries have."""
    return " ".join(printable(text).split())


@lru_cache(maxsize=10_000)
def template(reason: str) -> str:
    """Return a reason without its quantities: equal for reasons that differ in quantities only."""
    return _QUANTITY.sub("\0", reason)


def merged(reasons: Sequence[str]) -> str:
    """Return reasons of one template as one line, with ranges: "needs 512 MiB to 137 GiB of scores"."""
    texts = []
    for quantities in zip(*(_QUANTITY.findall(r) for r in reasons), strict=True):
        low, high = min(quantities, key=_amount), max(quantities, key=_amount)
        texts.append(low if _amount(low) == _amount(high) else f"{low} to {high}")
    parts = template(reasons[0]).split("\0")
    return "".join(part + text for part, text in zip(parts, [*texts, ""], strict=True))


def _amount(quantity: str) -> float:
    """Return seconds, bytes or the plain number of "3m05s", "1.5 GiB" or "0.0041"."""
    pairs = re.findall(r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?) ?([a-zA-Z]*)", quantity)
    return sum(float(number) * _SECONDS_OR_BYTES.get(unit, 1.0) for number, unit in pairs)
