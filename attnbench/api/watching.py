"""What a person sees of a measurement that a script or a notebook has started, and how Ctrl-C ends it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from attnbench.core.errors import Interrupted


class Unwatched:
    """Hears of a run, and shows nothing."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_, **__: None


@contextlib.contextmanager
def watched(progress: bool) -> Iterator[Any]:
    """Give what shows a person how far a run is: in a notebook in its cell, else on stderr."""
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
    """In the block let Ctrl-C end the measuring, so that what was measured stands; KeyboardInterrupt where nothing was.

    In a thread other than the first Python delivers no signals: nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, _: object) -> None:
        raise Interrupted(number)

    before: Any = signal.signal(signal.SIGINT, interrupt)
    children = getattr(signal, "SIGCHLD", signal.SIGINT)
    ignored = signal.getsignal(children) is signal.SIG_IGN  # then each child would seem to have ended well
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
