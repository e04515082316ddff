"""What several commands do: read run files, tell what goes on, check a word, write a text."""

from __future__ import annotations

import atexit
import gc
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from attnbench.core.errors import EXIT_INTERRUPTED, EXIT_TERMINATED, Terminated, UserError, did_you_mean

if TYPE_CHECKING:
    from attnbench.core.record import Run
    from attnbench.report.progress.run_progress import Line

L = TypeVar("L", bound="Line")


def read(path: Path, ahead: Sequence[str] = (), then: Sequence[str] = ()) -> Run:
    """A run file; what is wrong with it goes to stderr. `ahead`: as store.read has it.

    `then`: modules that are needed next. To import them takes as long as to read thousands of records, so that is done
    while other processes read.
    """
    from attnbench.results import run_file

    new = [module for module in then if module not in sys.modules]
    run, problems = run_file.read(path, ahead, (lambda: [*map(import_module, new)]) if new else None)
    for problem in problems:
        print(f"attnbench: {problem}", file=sys.stderr)
    return run


def collect_no_garbage() -> None:
    """For a short process that holds nearly all it makes: looking for garbage takes a third of its time.

    Nor at its end, where Python looks even so.
    """
    gc.disable()
    atexit.register(gc.freeze)


def ends_with_its_reader() -> None:
    """For a process that only prints from here on: `... | head` ends it as it ends others, by the signal. Else it would
    end with 1, which is a regression to whoever reads a gate's exit code."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


@contextmanager
def live(kind: type[L], goal: str) -> Iterator[L]:
    """A line on stderr of what goes on. Interrupted before `goal`, attnbench says so and ends with its exit code."""
    from rich.console import Console

    line = kind(Console(stderr=True, highlight=False))
    try:
        yield line
    except (KeyboardInterrupt, Terminated) as end:
        line.close()
        print(f"attnbench: interrupted before {goal}", file=sys.stderr)
        sys.exit(EXIT_TERMINATED if isinstance(end, Terminated) else EXIT_INTERRUPTED)
    finally:
        line.close()


def one_of(option: str, word: str, known: Sequence[str]) -> None:
    if word not in known:
        raise UserError(f"{option}: unknown {word!r}{did_you_mean(word, known)}")


def put(text: str, file: Path | None = None) -> None:
    """To a file, or to stdout."""
    if not file:
        print(text, end="")
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from None
