"""Functions that several commands share: they read run files, show progress, and write text."""

from __future__ import annotations

import gc
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from attnbench.core.errors import Interrupted, UserError
from attnbench.core.files import RUN_FILES, drop_rest, write_file
from attnbench.core.text import count, no_command, printable, some, without_long_words

if TYPE_CHECKING:
    from attnbench.core.record import Run
    from attnbench.render.progress.progress_line import ProgressLine
    from attnbench.run.run_suite import Outcome, Request

L = TypeVar("L", bound="ProgressLine")
W = TypeVar("W", bound=str)
MOST_PROBLEMS = 20  # most problems of a file that are printed, one on a line
CUT_OFF = "its last line is cut off"


def command_line(*, outputs: bool = False) -> tuple[str, ...]:
    """Return this command's words as a run file keeps them: without the options that name outputs, paths of a machine.

    With `outputs` only --out is left out, the run file.
    """
    kept, words = [], iter(sys.argv[1:])
    named = ("--out",) if outputs else ("--out", "--html", "--format", "-f")
    for word in words:
        option = word.partition("=")[0]
        if option not in named:
            kept.append(word)
            continue
        value = word.partition("=")[2] if "=" in word else next(words, "")
        if option in ("--format", "-f") and "=" not in value:  # printed
            kept += [word] if "=" in word else [word, value]
    return tuple(kept)


def words(given: Iterable[str] | None) -> list[str]:
    """Return the words of texts with commas."""
    return [word for text in given or () for part in text.split(",") if (word := part.strip())]


def tell(line: str) -> None:
    """Print a line on stderr, where it can be printed, even if names in it have odd characters.

    A message, which begins with "attnbench: " and may quote a file, is shortened; a command to copy is not.
    """
    if line.startswith("attnbench: "):
        line = without_long_words(line)
    try:
        print(no_command(printable(line)), file=sys.stderr, flush=True)
    except OSError:
        drop_rest(sys.stderr)


def results_line(path: Path | None) -> str:
    """Return a line that says where the results of a run are; without a file there was nothing to measure."""
    return f"Results: {path}" if path else "No run file was written: there was nothing to measure."


def jobs_left(run: Run) -> str:
    """Return the jobs that a run could still measure: "2 jobs left (forecast 3m05s)"; "" where none is left."""
    from attnbench.core.sizes import format_duration
    from attnbench.results.run_file import missing

    left = [job for job in missing(run) if job.skip is None or job.resumable]
    forecast = format_duration(sum(job.forecast.seconds for job in left))
    return f"{count(len(left), 'job')} left (forecast {forecast})" if left else ""


def measured(request: Request, command: str = "") -> Outcome:
    """Measure a suite; stderr shows the progress and names the run file.

    `command` is the command that shows such runs; stderr then says how to measure the jobs left, and to show them by
    it.
    """
    from attnbench.render.progress.run_progress import RunProgress
    from attnbench.run import run_suite as runs

    with live(RunProgress, "anything was measured") as progress:
        outcome = runs.run_suite(request, progress)
    if not request.dry_run:
        tell(results_line(outcome.path))
        if command and (left := jobs_left(outcome.run)):
            file = shlex.quote(str(outcome.path))
            tell(f"{left}; to measure what is left: attnbench run --resume {file}, then attnbench {command} {file}")
    return outcome


def read_with_damage(path: Path, *, cut: bool = False) -> tuple[Run, str]:
    """Return the run of a file, and what is lost of it: "2 lines of it cannot be read"; "" for a whole file.

    Faults of single lines go to stderr. A file whose last write was interrupted counts as whole, with a shorter run;
    with `cut` it counts as damaged. Raises UserError for a file that is no run file, and for one of which no record can
    be read.
    """
    from attnbench.results import run_file

    run, problems = run_file.read(path)
    for problem in problems[:MOST_PROBLEMS]:
        tell(f"attnbench: {problem}")
    if (more := len(problems) - MOST_PROBLEMS) > 0:
        tell(f"attnbench: {path}: {count(more, 'more problem')}")
    lost = [problem for problem in problems if not problem.endswith(run_file.INTERRUPTED)]
    if lost and not run.records:
        raise UserError(f"{path}: no record of it can be read; restore the file, or measure again")
    lines = sum(run_file.DAMAGED in problem for problem in lost)
    if lines:
        return run, f"{count(lines, 'line')} of it cannot be read"
    if cut and not lost and problems:
        return run, CUT_OFF
    return run, lost[0].removeprefix(f"{path}: ").partition(";")[0] if lost else ""


def undecided(path: Path, damage: str, lost: str) -> UserError:
    """Return the error of a judgement that may be another with what cannot be read of a file."""
    what = damage if str(path) in damage else f"{path}: {damage}"
    return UserError(f"{what}, and {lost} may be in what is lost; restore the file, or measure again")


def read_runs(paths: Sequence[Path]) -> tuple[list[tuple[Path, Run]], dict[Path, str]]:
    """Return the runs of files, and of all run files below folders, each once (results/given_again.py).

    The second value has, for each damaged file, what cannot be read of it; it includes files and folders below a given
    folder that were left out because they cannot be read. stderr names everything left out. Raises UserError for a
    folder without run files.
    """
    from attnbench.results.given_again import went_on_apart, without_copies
    from attnbench.results.run_file import without_collector

    given: list[tuple[Path, Run]] = []
    damage: dict[Path, str] = {}
    with without_collector():
        for path in paths:
            if path.is_dir():
                given += _of_folder(path, damage)
            else:
                run, damage[path] = read_with_damage(path)
                given.append((path, run))
        gc.freeze()  # the cyclic garbage collector need not visit records
        gc.set_threshold(100_000)  # reports make many objects, few of them in cycles
    found = without_copies(given)
    if again := len(given) - len(found):
        tell(f"attnbench: left out: {count(again, 'file')} of a run that was given already")
    for line in went_on_apart(found):
        tell(f"attnbench: {line}")
    copies = {path for path, _ in given} - {path for path, _ in found}
    return found, {path: what for path, what in damage.items() if what and path not in copies}


def _of_folder(folder: Path, damage: dict[Path, str]) -> list[tuple[Path, Run]]:
    """Return the runs of a folder, and add to `damage` what cannot be read. Raises UserError where there is none.

    A file of another program is left out, and is no damage.
    """
    from attnbench.results import run_file

    denied: list[OSError] = []
    there = (Path(at, name) for at, _, names in os.walk(folder, onerror=denied.append) for name in names)
    named = sorted(path for path in there if RUN_FILES[0] in path.name.lower())
    # A link to a missing file is left out, and stderr names it.
    named = [path for path in named if path.is_file() or not path.exists()]
    files = [path for path in named if path.name.lower().endswith(RUN_FILES)]
    found, others = [], {Path(error.filename): f"{error.filename}: {error.strerror}" for error in denied}
    foreign = set()
    for path in files:
        try:
            run, damage[path] = read_with_damage(path)
            found.append((path, run))
        except UserError as error:
            others[path] = without_long_words(str(error))
            foreign |= {path} if isinstance(error, run_file.ForeignFileError) else set()
    if strange := sorted({*named} - {*files}):
        tell(f"attnbench: not read, as their names end in neither {' nor '.join(RUN_FILES)}: {some(map(str, strange))}")
    more = f", and {len(others) - 1} more" if len(others) > 1 else ""
    left_out = f"left out: {next(iter(others.values()))}{more}" if others else ""
    if denied and not found:
        raise UserError(next(iter(others.values())))
    if not found:
        what = f" ({left_out})" if left_out else ""
        raise UserError(f"{folder} has no run file; attnbench run --out {folder}/NAME.jsonl writes one{what}")
    if left_out:
        tell(f"attnbench: {left_out}")
    damage.update({path: what for path, what in others.items() if path not in foreign})
    return found


@contextmanager
def live(kind: type[L], goal: str) -> Iterator[L]:
    """Show a progress line on stderr. At an interrupt, print where the results are, and end with its exit code."""
    from attnbench.render.console import Console

    line = kind(Console(stderr=True, highlight=False))
    try:
        yield line
    except Interrupted as end:
        line.close()
        kept = ", ".join(map(str, line.files))
        where = f"; what was measured is in {kept}" if kept else f" before {goal}"
        tell(f"attnbench: interrupted{where}")
        sys.exit(end.exit_code)
    finally:
        line.close()


def put(content: bytes | Iterable[str], file: Path | None = None) -> None:
    """Write text (as a whole or in pieces) or bytes to stdout, or to a file, which is written completely or not at all.

    Raises UserError for a file that cannot be written, and for bytes on a terminal.
    """
    pieces = [content] if isinstance(content, str) else content
    if file:
        write_file(file, content)
    elif not isinstance(pieces, bytes):
        sys.stdout.writelines(pieces)
    elif sys.stdout.isatty():
        raise UserError("this format is not text; write it to a file: -f FORMAT=FILE")
    else:
        sys.stdout.buffer.write(pieces)


def with_latencies(runs: Sequence[Run]) -> Sequence[Run]:
    """Return the runs of measured cases, without searches and steps of models. Raises UserError where none is left."""
    found = [run for run in runs if run.search is None]
    found = [run for run in found if not run.records or not all(record.case.step for record in run.records)]
    if runs and not found:
        raise UserError(
            "there is nothing to choose from: attnbench capacity ranks searches, attnbench step ranks steps of models"
        )
    return found
