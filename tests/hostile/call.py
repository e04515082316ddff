"""Run a command line in this process, within limits, and return the flaws of its end.

It must end with an exit code that core/errors.py documents for the command, without a traceback or a warning, within
SECONDS of CPU time, and must not print anything that a terminal, browser or runner would execute.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import resource
import shlex
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

from attnbench import cli
from hostile import live

SECONDS = 5.0
MEMORY = 2**31  # most bytes of a command

# Exit codes of each command other than 0 and 2, by core/errors.py.
CODES: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("run", "profile", "env"), (1, 5)),
    **dict.fromkeys(("gate", "ab"), (1, 3, 4, 5)),
    "bisect": (1, 3, 4, 5),
    "doctor": (3,),
    **dict.fromkeys(("check", "claims", "capacity", "step", "tune"), (1, 5)),
    **dict.fromkeys(("recommend", "history"), (1,)),
    "cluster": (1, 3, 5),
}


@dataclass(frozen=True)
class Ending:
    """The end of an attempt."""

    command: tuple[str, ...]
    code: Any
    out: str
    err: str
    seconds: float  # CPU time
    problem: str = ""  # the flaw, or ""


class TooLong(BaseException):
    """Raised in a command that takes more than SECONDS of CPU time."""


def call(args: Sequence[str], encoding: str = "utf-8") -> Ending:
    """Run the command line with these arguments in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding, write_through=True) for _ in range(2))
    err.reconfigure(errors="backslashreplace")  # as in Python
    code, trouble = None, ""
    began = time.process_time()
    streams = mock.patch.multiple(sys, argv=["attnbench", *args], stdout=out, stderr=err)
    with streams, mock.patch("os._exit", sys.exit), limits(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # warnings of overflows
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        except TooLong:
            trouble = f"takes more than {SECONDS:.0f} s of CPU time: {traceback.format_exc(-4)}"
        except BaseException:
            trouble = traceback.format_exc(-4)
    seconds = time.process_time() - began
    texts = [stream.buffer.getvalue().decode(encoding, "replace") for stream in (out, err)]  # type: ignore[attr-defined]
    return Ending(tuple(args), code, *texts, seconds, trouble or problem(args, code, *texts))


LEAKS = ("Traceback (most", "Input should be", "validation error", "pydantic", "msgspec", " object at 0x", "<class '")


def problem(args: Sequence[str], code: Any, out: str, err: str) -> str:
    """Return the flaw in the end of a command; "" if there is none."""
    command = next((word for word in args if word in CODES), "")
    if code not in (0, 2, *CODES.get(command, ())):
        return f"exit code {code!r} is not documented for {command or 'this command'}"
    if code == 2 and not (err.strip() or out.startswith("Usage:") or "Usage: attnbench" in out):
        return "exit code 2 without a word"
    if leaked := [word for word in LEAKS if word in err]:
        return f"stderr has {leaked[0]!r}, which is not for people"
    said = re.split("\n\nResults: |\nJudge again: ", err)[0]  # without the paths of run files, which follow the error
    if code == 2 and "\nattnbench: " in f"\n{said}" and not said.splitlines()[-1].startswith("attnbench: "):
        return "an error is not one line"
    found = live.in_log(err)
    if code != 2 and command not in ("", "suites"):  # `suites` prints a file that a person names
        found += _live(args, out)
    return "; ".join(found[:3])


def _live(args: Sequence[str], out: str) -> list[str]:
    """Return the active parts of a command's standard output, by its format."""
    formats = [word for before, word in itertools.pairwise(args) if before == "-f" and "help" not in args]
    match next((name for name in formats if "=" not in name), "table"):
        case "md":
            return live.in_markdown(out) + live.in_log(out)
        case "html":
            return live.in_html(out)
        case "csv":  # tests/render/test_json_and_csv.py tests CSV
            return live.in_log(out)
        case "junit":
            return live.in_xml(out) + live.in_log(out)
        case "github":
            return live.in_log(out, annotations=True)
        case _:
            return live.in_log(out) + [f"a control character: {c!r}" for c in set(live.CONTROLS.findall(out))]


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Return a context that raises TooLong after SECONDS of CPU time, and MemoryError beyond MEMORY."""

    def late(_: int, __: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS, 1.0)  # again each second, in case code has swallowed it
    own, most = resource.getrlimit(resource.RLIMIT_DATA)
    in_use = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (in_use + MEMORY, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (own, most))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def told(ending: Ending) -> str:
    """Return a failed attempt as text: the command line, the flaw, and the output."""
    line = shlex.join(["attnbench", *ending.command]).encode("utf-8", "backslashreplace").decode()
    return f"{line}\n  exit code {ending.code}, {ending.seconds:.1f} s: {ending.problem}\n{ending.err[-600:]}"
