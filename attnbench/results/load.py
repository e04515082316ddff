"""`attnbench.load`: run files for a notebook or a script."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.core.errors import UserError
from attnbench.core.files import GONE, can_name_a_file, working_folder
from attnbench.core.flops import Convention
from attnbench.core.record import Run
from attnbench.core.text import count
from attnbench.results import export_rows, run_file
from attnbench.results.cells import Cell
from attnbench.results.cells import cells as cells_of
from attnbench.results.given_again import without_copies

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Results:
    """What some run files hold.

    runs: each once, with its records and their raw samples, in seconds, bytes and hertz.
    cells: each case on each backend and device, with all its rounds; `cell.value("tflops")` is a metric's median over
        the rounds, `cell.rows[0].samples` are seconds of single calls.
    problems: what is wrong with single lines of the files, which were left out.
    """

    runs: tuple[Run, ...]
    cells: tuple[Cell, ...]
    problems: tuple[str, ...] = ()

    def __repr__(self) -> str:
        damaged = f", {count(len(self.problems), 'problem')}" if self.problems else ""
        return f"<Results: {count(len(self.cells), 'cell')} of {count(len(self.runs), 'run')}{damaged}>"

    def table(self) -> pandas.DataFrame:
        """Return one row for each cell and round: the case's fields, how it ended, and every metric in its unit.

        `table().attrs["units"]` maps each metric to its unit, "" for a ratio. `attnbench report -m help` explains them.
        """
        return export_rows.dataframe(self.cells)


def load(paths: str | Path | Iterable[str | Path], *, convention: Convention = "exact") -> Results:
    """Read run files: a path, a pattern such as "results/*.jsonl" ("**" reaches into all folders), or several of these.

    A run that is given several times, as through links, as a copy, as a part or as its own baseline, counts once.
    `convention` says how FLOPs are counted: "exact" (unmasked pairs) or "fa" (as papers print: half for causal).
    Raises UserError for a pattern that fits no file, and for a file that is no run file.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not working_folder() and not all(os.path.isabs(os.path.expanduser(one)) for one in given):
        raise UserError(GONE)
    files: dict[str, Path] = {}
    for path in (path for one in given for path in _files(str(one))):
        files.setdefault(os.path.realpath(path), path)
    with run_file.without_collector():
        read = [run_file.read(path) for path in files.values()]
    runs = tuple(run for _, run in without_copies(enumerate(run for run, _ in read)))
    problems = tuple(problem for _, problems in read for problem in problems)
    return Results(runs, tuple(cells_of(runs, convention)), problems)


def _files(pattern: str) -> list[Path]:
    if not can_name_a_file(pattern):
        raise UserError(f"no file can have the name {pattern!r}")
    path = Path(os.path.expanduser(pattern))
    if not glob.has_magic(pattern) or os.path.exists(path):
        return [path]
    there = next(folder for folder in path.parents if os.path.exists(folder))  # whose name may have brackets
    below = re.sub(r"(?<![^/])(\*\*/)+", "**/", os.path.relpath(path, there))  # each ** looks through all folders again
    fits = glob.glob(os.path.join(glob.escape(str(there)), below), recursive=True)
    found = sorted(Path(file) for file in fits if os.path.isfile(file))
    if not found:
        raise UserError(f"no file fits {pattern!r}; give run files, as attnbench run writes them to results/")
    return found
