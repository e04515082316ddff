"""The progress of a cluster on stderr: a line per device, redrawn; in a pipe, a plain line for each change."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rich.table import Table
from rich.text import Text

from attnbench.core.text import count, one_line
from attnbench.render.progress.progress_line import ProgressLine

SHOWN = 30  # most devices: a terminal has no more lines
_STYLES = {"measuring": "cyan", "died": "yellow", "lost": "red", "done": "green"}


class Device(Protocol):
    """A device of a cluster, as run/cluster.py reports it."""

    @property
    def name(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def jobs(self) -> int: ...
    @property
    def done(self) -> int: ...


class ClusterProgress(ProgressLine):
    """The progress of a cluster's run: a cluster.ClusterObserver."""

    _devices: Sequence[Device] = ()
    _began = 0.0

    def planned(self, units: Sequence[Device], out: Path, notes: Sequence[str]) -> None:
        self._devices, self._began = units, time.monotonic()
        self.files = (out,)
        self._print(Text().append("attnbench cluster  ", style="bold").append(count(len(units), "device")))
        for note in notes:
            self._print(Text(note, style="yellow"))
        self._print(Text(f"writing {out}", style="dim"))
        if self._live:
            self._live.update(self)

    def changed(self, unit: Device, what: str) -> None:
        if what:
            self._print(Text(f"{unit.name}: {one_line(what)}", style=_STYLES.get(unit.state, "")))

    def __rich__(self) -> Table:
        """Return the present lines, devices that are at work first; rich asks for them several times a second."""
        order = ("measuring", "died", "waiting", "lost", "done")
        devices = sorted(self._devices, key=lambda device: order.index(device.state))
        table = Table.grid(padding=(0, 2))
        for device in devices[:SHOWN]:
            jobs = f"[{device.done}/{device.jobs}]" if device.jobs else ""
            table.add_row(Text(device.name), Text(device.state, _STYLES.get(device.state, "dim")), jobs)
        ended = sum(device.state in ("done", "lost") for device in devices)
        more = f"{len(devices) - SHOWN} more devices, " if len(devices) > SHOWN else ""
        seconds = time.monotonic() - self._began
        table.add_row(Text(f"{more}{ended} of {len(devices)} ended, {seconds:.0f} s", style="dim"))
        return table
