"""Access of several workers to one device, in turns: all together, or one alone.

Workers of a group prepare and check their cells at the same time, and each times its own while no other uses the
device. Workers that wait for a turn alone go before workers that wait for a turn together.
"""

from __future__ import annotations

import threading

REQUESTS = ("alone", "together")  # the turns that a worker may ask for


class DeviceTurns:
    """The turns of a group of workers, which begin together. A thread for each worker calls the methods."""

    def __init__(self, workers: int) -> None:
        self._changed = threading.Condition()
        self._together = workers  # workers that use the device together
        self._waiting = 0  # workers that wait to be alone
        self._alone: int | None = None  # the worker that uses it alone

    def take(self, turn: str, worker: int) -> None:
        """Wait for a turn of REQUESTS. Nothing changes for a worker that already has it."""
        if (turn == "alone") == (self._alone == worker):
            return
        with self._changed:
            if turn == "alone":
                self._together -= 1
                self._waiting += 1
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._together == 0 and self._alone is None)
                self._waiting -= 1
                self._alone = worker
            else:
                self._alone = None
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting == 0 and self._alone is None)
                self._together += 1

    def leave(self, worker: int) -> None:
        """End the turn of a worker that is done, or that died."""
        with self._changed:
            if self._alone == worker:
                self._alone = None
            else:
                self._together -= 1
            self._changed.notify_all()
