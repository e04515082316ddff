"""Run a command line in this process, within limits, and tell what is wrong with how it ended.

It must end with an exit code that core/errors.py documents for the command, without a traceback or a warning, in
SECONDS of CPU time, and print nothing that acts on who shows it.
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
MEMORY = 2**31  # bytes that a command may take

# Exit codes of each command beside 0 and 2, by core/errors.py.
CODES: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("run", "profile", "env"), (1, 5)),
    **dict.fromkeys(("gate", "ab"), (1, 3, 4, 5)),
    "bisect": (1, 3, 4, 5),
    "doctor": (3,),
    **dict.fromkeys(("check", "claims", "capacity", "step"), (1, 5)),
    "recommend": (1,),
    "cluster": (1, 3, 5),
}


@dataclass(frozen=True)
class Ending:
    """How an attempt ended."""

    command: tuple[str, ...]
    code: Any
    out: str
    err: str
    seconds: float  # of CPU time
    problem: str = ""  # what must not be, or nothing


class TooLong(BaseException):
    """Raised in a command that takes more than SECONDS of CPU time."""


def call(args: Sequence[str], encoding: str = "utf-8") -> Ending:
    """Run the command line with these arguments in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding, write_through=True) for _ in range(2))
    err.reconfigure(errors="backslashreplace")  # as Python does
    code, trouble = None, ""
    began = time.process_time()
    streams = mock.patch.multiple(sys, argv=["attnbench", *args], stdout=out, stderr=err)
    with streams, mock.patch("os._exit", sys.exit), limits(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # of numbers that overflow
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
    """Return what is wrong with how a command ended; "" if nothing is."""
    command = next((word for word in args if word in CODES), "")
    if code not in (0, 2, *CODES.get(command, ())):
        return f"exit code {code!r} is not documented for {command or 'this command'}"
    if code == 2 and not (err.strip() or out.startswith("Usage:") or "Usage: attnbench" in out):
        return "exit code 2 without a word"
    if leaked := [word for word in LEAKS if word in err]:
        return f"stderr has {leaked[0]!r}, which is not for people"
    said = re.split("\n\nResults: |\nJudge again: ", err)[0]  # where its run files are, said after what went wrong
    if code == 2 and "\nattnbench: " in f"\n{said}" and not said.splitlines()[-1].startswith("attnbench: "):
        return "an error is not one line"
    found = live.in_log(err)
    if code != 2 and command not in ("", "suites"):  # which prints a file that a person names
        found += _live(args, out)
    return "; ".join(found[:3])


def _live(args: Sequence[str], out: str) -> list[str]:
    """Return what is live in the standard output of a command, by its format."""
    formats = [word for before, word in itertools.pairwise(args) if before == "-f" and "help" not in args]
    match next((name for name in formats if "=" not in name), "table"):
        case "md":
            return live.in_markdown(out) + live.in_log(out)
        case "html":
            return live.in_html(out)
        case "csv":  # it reads back whatever a name holds: tests/render/test_json_and_csv.py
            return live.in_log(out)
        case "junit":
            return live.in_xml(out) + live.in_log(out)
        case "github":
            return live.in_log(out, annotations=True)
        case _:
            return live.in_log(out) + [f"a control character: {c!r}" for c in set(live.CONTROLS.findall(out))]


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Raise TooLong after SECONDS of CPU time, which other processes do not change, and MemoryError beyond MEMORY."""

    def late(_: int, __: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS, 1.0)  # again each second, where code swallowed it
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
    """Return a failed attempt for a person: the command line, what is wrong, and what was printed."""
    line = shlex.join(["attnbench", *ending.command]).encode("utf-8", "backslashreplace").decode()
    return f"{line}\n  exit code {ending.code}, {ending.seconds:.1f} s: {ending.problem}\n{ending.err[-600:]}"
