"""Runs a check that needs launches of a worker meanwhile, such as the one that reads a dropout mask.

The check runs in a thread of its own. Where it asks for a launch, it waits until the worker has made one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class AbandonedError(Exception):
    """Raised in a check whose worker makes no launch any more."""


class LaunchesOfWorker:
    """How a check sets torch's random numbers (`restore`) and launches, in another process."""

    def __init__(self) -> None:
        self._restores = False
        self._dialog: Dialog | None = None

    def begin(self, check: Callable[[], Any]) -> Dialog:
        """Begin a check that launches by this object."""
        self._dialog = Dialog()
        self._dialog.start(check)
        return self._dialog

    def restore(self) -> None:
        """Have the next launch begin from the state of random numbers that the worker had at first."""
        self._restores = True

    def launch(self) -> None:
        """Launch once. The results are in the judge's memory then."""
        assert self._dialog is not None
        restores, self._restores = self._restores, False
        self._dialog.ask(restores)


class Dialog:
    """One check in its thread."""

    def __init__(self) -> None:
        self._said: SimpleQueue[tuple[str, Any]] = SimpleQueue()  # by the check: "launch", "done" or "failed"
        self._made: SimpleQueue[bool] = SimpleQueue()  # by the worker: a launch; False: it makes none any more

    def start(self, check: Callable[[], Any]) -> None:
        """Begin the check."""
        threading.Thread(target=self._run, args=(check,), daemon=True).start()

    def _run(self, check: Callable[[], Any]) -> None:
        try:
            self._said.put(("done", check()))
        except BaseException as error:
            self._said.put(("failed", error))

    def ask(self, restores: bool) -> None:
        """Wait for a launch. Called by the check."""
        self._said.put(("launch", restores))
        if not self._made.get():
            raise AbandonedError

    def made(self) -> None:
        """Say that the launch was made."""
        self._made.put(True)

    def abandon(self) -> None:
        """End the check."""
        self._made.put(False)

    def next(self) -> tuple[str, Any]:
        """Return "launch" and whether random numbers are restored for it, or "done" and what the check returned.

        Raises what the check raised.
        """
        kind, value = self._said.get()
        if kind == "failed":
            raise value
        return kind, value
