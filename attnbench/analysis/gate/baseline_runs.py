"""Which cells of several runs of a baseline a gate compares with."""

from __future__ import annotations

from collections.abc import Sequence

from attnbench.analysis.gate import run_differences
from attnbench.core.record import Run
from attnbench.core.text import count
from attnbench.results.cells import Cell, Key, by_key, cells
from attnbench.results.run_setup import seconds_started


def choose(runs: Sequence[Run], current: Run) -> tuple[Run, tuple[Run, ...], list[str]]:
    """Return the latest run, the others, and a note on those that do not count.

    Those of the current run's unit count, or of all units where there are none.
    """
    unit = current.environment.device.uuid
    own = [run for run in runs if unit and run.environment.device.uuid == unit]
    latest, *others = sorted(own or runs, key=lambda run: seconds_started(run) or 0.0, reverse=True)
    elsewhere = len(runs) - len(own or runs)
    left = f"{count(elsewhere, 'run')} of the baseline, of other units of this GPU, left out."
    return latest, tuple(others), [left] if elsewhere else []


def comparable_cells(run: Run, latest: Run) -> dict[Key, Cell]:
    """Return the cells of an earlier run that no difference from the latest run can have changed."""
    changed = run_differences.concerned(run, latest)
    return {key: cell for key, cell in by_key(cells([run])).items() if cell.backend not in changed}
