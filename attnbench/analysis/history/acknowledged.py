"""Changes that are acknowledged: a small YAML file, kept in git beside the code.

- cells: "triton * bwd *"   # a cell's name as history prints it, or a glob
  at: 3f2a1b9c              # the commit, or the date, of a run that may be the first after the change
  metric: latency           # all metrics, where it is left out
  reason: deterministic backward, see #123
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench.analysis.gate.margins import gated
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.record import Run
from attnbench.core.text import fits

LEAST_DIGITS = 4  # fewest digits of a commit
_KEYS = ("cells", "at", "metric", "reason")


@dataclass(frozen=True)
class Acknowledgement:
    """A change that is meant or accepted: later runs are judged against the level after it."""

    cells: str
    at: str
    reason: str
    metric: str | None = None

    def __str__(self) -> str:
        return f"{self.cells} at {self.at}" + (f", {self.metric}" if self.metric else "")

    def covers(self, cell: str, metric: str) -> bool:
        """Return whether the acknowledgement is of a cell with this name."""
        return fits(cell, self.cells) and self.metric in (None, metric)


def is_named(run: Run, text: str) -> bool:
    """Return whether a run is of the commit, or was started at the date, that `text` begins."""
    commit = (run.environment.git or "").removesuffix("+dirty")
    of_commit = len(commit) >= LEAST_DIGITS and (commit.startswith(text) or text.startswith(commit))
    return len(text) >= LEAST_DIGITS and (of_commit or run.started.startswith(text.replace(" ", "T")))


def acknowledged(file: Path) -> list[Acknowledgement]:
    """Return the acknowledgements of a file. Raises UserError where it, or an entry in it, cannot be read."""
    from attnbench.run import yaml_file

    entries = yaml_file.read_yaml(file) or []
    if not isinstance(entries, list):
        raise UserError(
            f'{file}: a list of entries is expected, as in - {{cells: "triton *", at: COMMIT, reason: why}}'
        )
    return [_entry(entry, f"{file}: entry {number}") for number, entry in enumerate(entries, start=1)]


def _entry(entry: Any, what: str) -> Acknowledgement:
    if not isinstance(entry, Mapping):
        raise UserError(f'{what}: not an entry; write {{cells: "triton *", at: COMMIT, reason: why}}')
    for key in entry:
        if key not in _KEYS:
            raise UserError(f"{what}: unknown key {key}{did_you_mean(str(key), _KEYS)}")
    for key in ("cells", "at", "reason"):
        if entry.get(key) in (None, ""):
            raise UserError(f"{what}: {key} is missing")
    if isinstance(entry["at"], float):  # as 1234e567 is read
        raise UserError(f'{what}: at: {entry["at"]} is a number; write the commit in quotes, "..."')
    at = re.sub(r"(?<=\d)Z$", "+00:00", str(entry["at"]))  # as runs write it
    if not isinstance(entry["cells"], str):
        raise UserError(f"{what}: cells: {entry['cells']} is no name of cells; write one entry for each pattern")
    if len(at) < LEAST_DIGITS:
        raise UserError(f"{what}: at: {at} is too short; write {LEAST_DIGITS} digits of a commit or more, or a date")
    metric = entry.get("metric")
    if metric is not None:
        gated(str(metric), f"{what}: metric")
    return Acknowledgement(str(entry["cells"]), at, str(entry["reason"]), metric and str(metric))
