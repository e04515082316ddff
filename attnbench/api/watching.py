"""Progress of a measurement that a script or notebook started, and Ctrl-C as its end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from attnbench.core.errors import Interrupted


class Unwatched:
    """An observer of a run that shows nothing."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_, **__: None


@contextlib.contextmanager
def watched(progress: bool) -> Iterator[Any]:
    """Give the observer that shows the progress of a run: in a notebook's cell, else on stderr."""
    if not progress:
        yield Unwatched()
        return
    from attnbench.render.console import Console
    from attnbench.render.progress.run_progress import RunProgress

    shown = RunProgress(Console(stderr=True, highlight=False))
    try:
        yield shown
    finally:
        shown.close()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C in the block end the measuring and keep its results; without results KeyboardInterrupt is raised.
    In a thread other than the first Python delivers no signals: nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, _: object) -> None:
        raise Interrupted(number)

    before: Any = signal.signal(signal.SIGINT, interrupt)
    children = getattr(signal, "SIGCHLD", signal.SIGINT)
    ignored = signal.getsignal(children) is signal.SIG_IGN  # with SIG_IGN each child would seem to have ended well
    if ignored:
        signal.signal(children, signal.SIG_DFL)
    try:
        yield
    except Interrupted:
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, before)
        if ignored:
            signal.signal(children, signal.SIG_IGN)
