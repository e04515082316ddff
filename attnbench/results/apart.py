"""Work on parts of something large, on Linux each part in a process of its own. For the parent only."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def processes() -> int:
    """How many can work at a time, this one included."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


@contextmanager
def apart(work: Callable[[T], R], parts: Sequence[T]) -> Iterator[Iterator[R]]:
    """What `work` makes of each part, in their order: of the first here, when it is asked for, and of the others in
    processes that begin when this is entered.

    A process is a fork, so it has all that this one has and starts at once; what it makes must be picklable. What one
    does not give back, because it could not start, was killed for its memory or failed, is made here.
    """
    begun: list[tuple[BaseProcess, Connection] | None] = [None]
    try:
        begun.extend(_begin(work, part) for part in parts[1:])
        yield (_made(work, part, process) for part, process in zip(parts, begun, strict=True))
    finally:
        for process, receiver in filter(None, begun):
            receiver.close()
            process.kill()
            process.join()


def _begin(work: Callable[[T], R], part: T) -> tuple[BaseProcess, Connection] | None:
    if sys.platform != "linux":  # elsewhere a fork may hang, and a fresh process takes as long as it would save
        return None
    context = multiprocessing.get_context("fork")
    try:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_give, args=(work, part, sender), daemon=True)
        with sender, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: they are numpy's and scipy's, and sleep
            process.start()
    except (OSError, AssertionError):  # no process or pipe to be had, or this one may have none
        return None
    return process, receiver


def _give(work: Callable[[T], R], part: T, sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever began this process ends it
    with suppress(Exception):  # it shows again where the work is done anew
        sender.send(work(part))


def _made(work: Callable[[T], R], part: T, begun: tuple[BaseProcess, Connection] | None) -> R:
    if begun:
        with suppress(EOFError, OSError):
            made: R = begun[1].recv()
            return made
    return work(part)
