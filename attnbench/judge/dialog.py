"""Run a check that needs more launches of the worker's kernel, for example to read a dropout mask.

The check runs in its own thread. It asks for a launch, and waits until the worker has made it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class AbandonedError(Exception):
    """Raised in a check whose worker will make no more launches."""


class LaunchesOfWorker:
    """The interface by which a check restores torch's random numbers and launches the kernel, in another process."""

    def __init__(self) -> None:
        self._restores = False
        self._dialog: Dialog | None = None

    def begin(self, check: Callable[[], Any]) -> Dialog:
        """Begin a check that launches through this object."""
        self._dialog = Dialog()
        self._dialog.start(check)
        return self._dialog

    def restore(self) -> None:
        """Let the next launch begin from the first state of the worker's random numbers."""
        self._restores = True

    def launch(self) -> None:
        """Have the worker launch once; the shared memory then has the results."""
        assert self._dialog is not None
        restores, self._restores = self._restores, False
        self._dialog.ask(restores)


class Dialog:
    """A check in its own thread, and the messages between it and the judge."""

    def __init__(self) -> None:
        self._said: SimpleQueue[tuple[str, Any]] = SimpleQueue()  # messages of the check: "launch", "done" or "failed"
        self._made: SimpleQueue[bool] = SimpleQueue()  # messages of the worker: True after a launch, else False

    def start(self, check: Callable[[], Any]) -> None:
        """Begin the check."""
        threading.Thread(target=self._run, args=(check,), daemon=True).start()

    def _run(self, check: Callable[[], Any]) -> None:
        try:
            self._said.put(("done", check()))
        except BaseException as error:
            self._said.put(("failed", error))

    def ask(self, restores: bool) -> None:
        """Ask for a launch and wait for it; the check calls this."""
        self._said.put(("launch", restores))
        if not self._made.get():
            raise AbandonedError

    def made(self) -> None:
        """Tell the check that the launch was made."""
        self._made.put(True)

    def abandon(self) -> None:
        """End the check, in which AbandonedError is raised."""
        self._made.put(False)

    def next(self) -> tuple[str, Any]:
        """Return ("launch", whether to restore random numbers for it) or ("done", the result of the check).

        Raises the error that the check raised.
        """
        kind, value = self._said.get()
        if kind == "failed":
            raise value
        return kind, value
