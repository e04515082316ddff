"""What starts the command line, and turns whatever ends a command into an exit code.

It imports next to nothing before it handles signals: the commands take a tenth of a second to import.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import time

from attnbench.core.errors import EXIT_BAD_INPUT, EXIT_CANNOT_WRITE, EXIT_DONE, EXIT_FAULT, Interrupted, UserError

TYPE_CHECKING = False  # the module typing takes a third of the time until signals are handled
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

COMPLETION = "_ATTNBENCH_COMPLETE"  # set by what --install-completion gives a shell
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
IMPATIENCE = 2.0  # seconds in which another Ctrl-C says nothing new
COLUMNS = range(20, 1001)  # what a table or a text can be fitted to


def main() -> None:
    """Run the command line and exit.

    An error that a person can cause is one line and exit code 2. So is output that cannot be written, where the command
    itself ended with 0. Any other exception is a fault of attnbench's own, and never ends with 1, as a regression.
    """
    _prepare_streams()
    _drop_what_is_no_time()
    code: Any = EXIT_DONE
    try:
        with _interruptible():
            from attnbench.commands.command_line import COMMANDS, command_line
            from attnbench.core.numpy_memory import refuse_without_memory

            refuse_without_memory()
            words = _words_to_complete() if os.environ.get(COMPLETION) else sys.argv[1:]
            asked = [name for name in words[:1] if name in COMMANDS]  # to build all commands takes 40 ms
            try:
                command_line(*asked)(complete_var=COMPLETION)
            except SystemExit as end:
                code = end.code
            sys.stdout.flush()
    except UserError as error:
        _say(str(error))
        code = EXIT_BAD_INPUT
    except Interrupted as end:
        _say("interrupted")
        code = end.exit_code
    except (MemoryError, ImportError, BlockingIOError, RuntimeError) as error:
        if lacks := _what_lacks(error):
            _say(f"the system gives this process no more {lacks}; raise the limit, or end other processes")
            code = code or EXIT_BAD_INPUT
        else:
            _say_fault(error)
            code = EXIT_FAULT
    except OSError as error:
        if not code:  # else the command has said what is wrong
            _say(_why_refused(error))
        code = code or EXIT_CANNOT_WRITE
        _drop_rest(sys.stdout)
    except Exception as error:
        _say_fault(error)
        code = EXIT_FAULT
    completing = os.environ.get(COMPLETION)
    if code and completing and completing != "complete_fish":  # to which a 1 says that there is nothing to offer
        code = EXIT_BAD_INPUT
    sys.exit(code)


def _say(error: str) -> None:
    """Print an error, if that can be."""
    from attnbench.core.text import printable, without_long_words

    try:
        print(f"attnbench: {printable(without_long_words(error))}", file=sys.stderr, flush=True)
    except OSError:
        _drop_rest(sys.stderr)


def _why_refused(error: OSError) -> str:
    """Return what the system refused, and why."""
    from attnbench.core.files import GONE, working_folder

    if not working_folder():
        return GONE
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "the system gives this process no more open files (ulimit -n); raise the limit"
    if str(error.strerror).startswith("No usable temporary directory"):  # what tempfile says
        return "no temporary directory can be written to; set TMPDIR to a folder that can, on a disk with space"
    return f"{error.filename or 'cannot write the output'}: {error.strerror}"


def _what_lacks(error: Exception) -> str:
    """Return what a limit of the system refused to this process; "" for any other error."""
    if isinstance(error, MemoryError) or "failed to map segment" in str(error):  # of a library that is loaded
        return "memory (ulimit -v and -d, or a container's limit; OPENBLAS_NUM_THREADS=1 takes less)"
    refused = isinstance(error, BlockingIOError) or str(error) == "can't start new thread"
    return "processes or threads (ulimit -u, or a container's limit)" if refused else ""


def _say_fault(error: Exception) -> None:
    """Print one line on an exception that no command expects, and keep its traceback in a file.

    A Tab prints nothing: it may be given odd variables, and a line would stand in a person's command.
    """
    if os.environ.get(COMPLETION):
        return
    import tempfile
    import traceback

    from attnbench.core.text import one_line

    report = "please report it"
    with contextlib.suppress(OSError):
        handle, name = tempfile.mkstemp(".txt", "attnbench-fault-")
        with open(handle, "w", errors="backslashreplace") as file:  # an argument need not be UTF-8
            print(*sys.argv, file=file)
            traceback.print_exception(type(error), error, error.__traceback__, file=file)
        report += f" with {name}"
    _say(f"a fault of attnbench's own: {type(error).__name__}: {one_line(str(error))}; {report}")


def _drop_rest(stream: Any) -> None:
    from attnbench.core.files import drop_rest  # it takes longer to import than all else here

    drop_rest(stream)


def _prepare_streams() -> None:
    """Let every text be printed, whatever the encoding, the width, and the streams that this process was given.

    A standard output that is closed (`>&-`) fails when it is written to, as a full disk does. Without it no file of
    ours may have its number, where a library would print into it.
    """
    while (number := os.open(os.devnull, os.O_RDONLY)) <= 2:
        pass
    os.close(number)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    sys.stdout.reconfigure(errors="replace")  # type: ignore[attr-defined, union-attr, unused-ignore]
    for name in ("COLUMNS", "LINES"):
        text = os.environ.get(name, "")
        if not (text.isascii() and text.isdigit() and len(text) < 5 and int(text) in COLUMNS):
            os.environ.pop(name, None)


def _drop_what_is_no_time() -> None:
    """Drop a SOURCE_DATE_EPOCH that is no time, as one left empty: numpy.f2py, which scipy imports, would raise."""
    try:
        time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
    except (ValueError, OverflowError, OSError):
        del os.environ["SOURCE_DATE_EPOCH"]


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """In the block let signals raise Interrupted, but those that are ignored (nohup).

    Those that follow at once are ignored, so that what the first has begun to tidy up and to show comes to its end; and
    all after the block, when nothing is left but the end of the process.
    """
    latest = -IMPATIENCE

    def interrupt(number: int, _: object) -> None:
        nonlocal latest
        now = time.monotonic()
        if now - latest >= IMPATIENCE:
            latest = now
            raise Interrupted(number)

    there = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in there}
    handled = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    try:
        for number in handled:
            signal.signal(number, interrupt)
        yield
    except Exception as error:
        if isinstance(error.__cause__, Interrupted):  # Python to 3.11 wraps what is raised while a class is made
            raise error.__cause__ from None
        raise
    finally:
        for number in handled:
            interrupted = latest >= 0
            signal.signal(number, signal.SIG_IGN if interrupted else before[number])


def _words_to_complete() -> list[str]:
    """Prepare for a Tab of a shell, and return the words of its command line after the program's name."""
    sys.modules["rich"] = None  # type: ignore[assignment]  # typer would import it for the texts beside options
    if "COMP_WORDS" in os.environ:  # bash splits --suite=quick into three words, which typer takes for values
        words, position = os.environ["COMP_WORDS"].split("\n"), int(os.environ["COMP_CWORD"])
        signs = [i for i, word in enumerate(words[:position]) if word == "="]
        os.environ["COMP_WORDS"] = "\n".join(word for i, word in enumerate(words) if i not in signs)
        os.environ["COMP_CWORD"] = str(position - len(signs))
    return os.environ.get("COMP_WORDS", os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()[1:]


if __name__ == "__main__":
    main()
