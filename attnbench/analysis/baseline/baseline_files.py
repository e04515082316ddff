"""The files of baselines, and which ones belong to a run.

FOLDER/NAME/GPU.jsonl or the same gzipped is one run; further runs of the baseline are beside it, GPU+STARTED.jsonl.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from attnbench.analysis.baseline import FOLDER, MAIN
from attnbench.analysis.baseline.reduce_run import reduced
from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.files import RUN_FILES, write_whole
from attnbench.core.record import Run
from attnbench.results import run_file
from attnbench.results.given_again import without_copies

MOST = 12  # runs of a baseline: enough to know the spread between runs to 20 %


@dataclass(frozen=True)
class Baseline:
    """A baseline's file, of which only the first line was read."""

    name: str
    path: Path
    head: Run  # without its records

    @property
    def gpu(self) -> str:
        """The name of the device on which the baseline was measured."""
        return self.head.environment.device.name


def save(run: Run, name: str, folder: Path, add: bool = False) -> tuple[Path, list[Run]]:
    """Write a run as a baseline, whole or not at all. Return its path, and the heads of the runs that it replaces.

    With `add` the run joins the runs of the baseline that is there, and replaces the oldest of them where there are
    MOST.

    Raises UserError for a name that cannot be a folder's, for a search, for a run without a measured cell, for a file
    that belongs to another device, is a link or no baseline, and where the file cannot be written.
    """
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(f"--name: {name!r} is no name for a folder; use letters, digits, dots and dashes, as in main")
    if run.search:
        raise UserError(
            "that is a file of attnbench capacity, which has no cells to judge; save a run file of attnbench run"
        )
    if not any(r.status == "ok" for r in run.records):
        raise UserError("nothing was measured in that run, so there is nothing to compare with; choose another")
    with _alone(folder / name):
        return _save(run, folder / name / f"{run.environment.device.slug or 'device'}.jsonl", add)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let other processes that save in the folder wait, where the system has locks. Raises UserError."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        number = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}; choose another place with --dir") from None
    try:
        with contextlib.suppress(OSError):  # a network's file system need not have locks
            fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def _save(run: Run, path: Path, add: bool) -> tuple[Path, list[Run]]:
    _refuse_link(path)
    old = {file: _head(file, run) for file in _runs_of(path)}
    if add and old:
        began = (run_file.read(file)[0] for file, head in old.items() if head.started == run.started)
        if any(len(without_copies([(0, one), (1, reduced(run))])) == 1 for one in began):
            raise UserError("the baseline has this run already; measure again, and add that run")
        names = (f"{path.stem}+{re.sub(r'[^0-9T]', '', run.started)[:15]}{end}.jsonl" for end in ("", *range(MOST)))
        path = next(free for free in map(path.with_name, names) if not free.exists())
        kept = sorted(old, key=lambda file: old[file].started, reverse=True)[: MOST - 1]
        old = {file: head for file, head in old.items() if file not in kept}
        _refuse_link(path)
    try:
        write_whole(path, run_file.encoded(reduced(run)))
        for file in old:
            if file != path:
                file.unlink()
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another place with --dir") from None
    return path, [*old.values()]


def _refuse_link(path: Path) -> None:
    """Raise UserError where a baseline's file, its folder, or the default folder of all baselines is a link."""
    links = (path, path.parent, *([path.parent.parent] if path.parent.parent == FOLDER else []))
    if link := next((one for one in links if one.is_symlink()), None):
        todo = "choose --name" if link != path.parent.parent else f"name {os.path.realpath(link)} with --dir"
        raise UserError(f"{link} is a link, and what it leads to would be overwritten; delete it, or {todo}")


def _runs_of(path: Path) -> list[Path]:
    """Return the files of the baseline whose first file has this path."""
    later = (path.parent.glob(f"{glob.escape(path.stem)}+*{ending}") for ending in RUN_FILES)
    return [file for file in (path, path.with_name(f"{path.name}.gz"), *sorted(chain(*later))) if file.is_file()]


def _head(file: Path, run: Run) -> Run:
    """Return the head of a file that a run may replace.

    Raises UserError for a file that is no baseline of the run's device.
    """
    try:
        before = run_file.head(file)
    except UserError as error:
        raise UserError(
            f"the baseline to replace, {file}, cannot be read; delete it, or choose another --name: {error}"
        ) from None
    if not before.reduced:
        raise UserError(f"{file} is a run file with all samples and not a baseline; move it, or choose another --name")
    if _device(before) != _device(run):
        raise UserError(f"{file} belongs to another device, {before.environment.device.name}; choose another --name")
    return before


def found(folder: Path) -> list[Baseline]:
    """Return all baselines in a folder of names, or in the folder of one name, sorted by name and GPU.

    Raises UserError for a path that is no folder, and for a folder that may not be read.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is no folder of baselines")
    files = [file for file in _two_levels(folder) if file.name.endswith(RUN_FILES) and file.is_file()]
    some = [Baseline(path.parent.name, path, run_file.head(path)) for path in sorted(files)]
    return [b for b in some if b.head.reduced]


def _two_levels(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of the folders in it. Raises UserError for a folder that may not be read."""
    try:
        for path in folder.iterdir() if folder.exists() else ():
            yield from path.iterdir() if path.is_dir() else (path,)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from None


def named(name: str, folder: Path) -> list[Baseline]:
    """Return the baselines of one name, one for each GPU model. Raises UserError where no baseline has it."""
    some = found(folder)
    if own := [b for b in some if b.name == name]:
        return own
    if not some:
        raise UserError(f"no baselines in {folder}; make one with attnbench baseline save RUN")
    raise UserError(f"no baseline {name!r} in {folder}{did_you_mean(name, sorted({b.name for b in some}))}")


def pick(given: Path, current: Run) -> list[Path]:
    """Return the run files of the baseline that `given` names, for a gate of the run `current`.

    A file stands for itself; a folder, or a baseline's name, for the files of the GPU of `current`. In a folder of
    several names, the baseline called main is taken. Raises UserError where no baseline fits.
    """
    folder = given
    if len(given.parts) == 1 and not given.suffix and not given.exists() and not FOLDER.is_dir():
        raise UserError(
            f"{given} is neither a file nor a folder, and there is no folder {FOLDER} with baselines by name; "
            "attnbench baseline save RUN makes one"
        )
    if len(given.parts) == 1 and not given.exists() and FOLDER.is_dir():
        folder = FOLDER / given
        if not folder.is_dir() and not given.suffix:
            named(str(given), FOLDER)  # its message names the baselines that are there
    if not folder.is_dir():
        return [given]
    there = found(folder)
    ours = [b for b in there if _device(b.head) == _device(current)]
    several = len({b.path.parent for b in ours}) > 1
    if chosen := [b.path for b in ours if b.name == MAIN or not several]:
        return chosen
    gpu = current.environment.device.name
    if ours:
        raise UserError(f"{folder} has several baselines for {gpu}; name one: {', '.join(str(b.path) for b in ours)}")
    others = f"; there are some for {', '.join(sorted({b.gpu for b in there}))}" if there else ""
    raise UserError(
        f"no baseline for {gpu} in {folder}{others}; measure a good build on that GPU, then attnbench baseline save RUN"
    )


def _device(run: Run) -> tuple[str, str]:
    return run.environment.device.kind, run.environment.device.name
