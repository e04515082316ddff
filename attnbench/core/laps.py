"""The wall time of the phases of a job."""

from __future__ import annotations

from time import monotonic  # bound here, so that no kernel can replace it


class Laps:
    """The wall time of the phases of a job, in `seconds` by phase; a phase may come more than once."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.begin()

    def begin(self) -> None:
        """Begin a phase here: the time since the last end belongs to no phase."""
        self._since = monotonic()

    def end(self, phase: str) -> None:
        """Add the time since the last end to a phase."""
        now = monotonic()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
        self._since = now
