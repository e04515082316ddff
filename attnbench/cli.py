"""Starts the command line, and turns every end of a command into an exit code.

It imports next to nothing before it handles signals: the commands take a tenth of a second to import.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
import time

from attnbench.core.errors import (
    EXIT_BAD_INPUT,
    EXIT_CANNOT_WRITE,
    EXIT_DONE,
    EXIT_FAULT,
    EXIT_INTERRUPTED,
    Interrupted,
    UserError,
)

TYPE_CHECKING = False  # the module typing takes a third of the time until signals are handled
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

COMPLETION = "_ATTNBENCH_COMPLETE"  # set by the script that --install-completion gives a shell
SIGNALS = (  # of a person, a terminal, and batch systems (Slurm, SGE, LSF) before they kill
    *("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU"),
)
IMPATIENCE = 2.0  # seconds after a signal in which further ones are ignored
AGAIN = 0.001  # seconds after which a signal whose exception Python dropped is raised again
COLUMNS = range(20, 1001)  # widths to which a table or a text can be fitted


def main() -> None:
    """Run the command line and exit, never with a traceback, and with 1 only where a command returns it.

    To handle an error takes memory too. Where that fails, the process ends at once.
    """
    try:
        code = _run()
    except KeyboardInterrupt:  # of a signal that came while an error was handled
        code = EXIT_INTERRUPTED
    except BaseException as error:
        code = EXIT_BAD_INPUT
        try:
            if not (said := _what_lacks(error)):
                code = EXIT_FAULT
                said = f"a fault of attnbench's own: {error!r}; please report it"
            os.write(2, f"attnbench: {said}\n".encode("utf-8", "replace"))
        finally:
            os._exit(code)
    if os.environ.get("PYTHONINSPECT"):  # Python would then end with 1 itself
        os._exit(code)
    sys.exit(code)


def _run() -> Any:
    """Run the command line and return its exit code.

    An error that a person can cause is one line and exit code 2. So is output that cannot be written, where the command
    itself ended with 0. A pipe whose reader is gone ends the process without a word. Any other exception is a fault of
    attnbench's own.
    """
    _prepare_streams()
    _hear_of_children()
    _drop_odd_source_date()
    code: Any = EXIT_DONE
    try:
        with _interruptible():
            from attnbench.core.numpy_memory import refuse_without_memory

            refuse_without_memory()
            from attnbench.commands.command_line import COMMANDS, command_line

            words = _words_to_complete() if os.environ.get(COMPLETION) else sys.argv[1:]
            asked = [name for name in words[:1] if name in COMMANDS]  # to build all commands takes 40 ms
            try:
                command_line(*asked)(complete_var=COMPLETION)
            except SystemExit as end:
                hidden = end.__context__ and (end.__context__.__cause__ or end.__context__)
                if isinstance(hidden, (EOFError, BrokenPipeError)):  # typer ends with 1
                    raise hidden from None
                code = end.code
            sys.stdout.flush()
    except UserError as error:
        _say(str(error))
        code = EXIT_BAD_INPUT
    except Interrupted as end:
        _say("interrupted")
        code = end.exit_code
    except BrokenPipeError:
        code = _end_by_sigpipe()
    except Exception as error:
        if lacks := _what_lacks(error) or _what_is_not_installed(error):
            _say(lacks)
            code = code or EXIT_BAD_INPUT
        elif isinstance(error, OSError):
            if not code:  # else the command has said what is wrong
                _say(_why_refused(error))
            code = code or EXIT_CANNOT_WRITE
        else:
            _say_fault(error)
            code = EXIT_FAULT
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _end_by_sigpipe()
    except (OSError, ValueError):  # at the end of Python it would be exit code 120; ValueError: closed
        code = code or EXIT_CANNOT_WRITE
        _drop_rest(sys.stdout)
    completing = os.environ.get(COMPLETION)
    if code and completing and completing != "complete_fish":  # to which a 1 says that there is nothing to offer
        code = EXIT_BAD_INPUT
    return code


def _end_by_sigpipe() -> int:
    """End this process by the signal that ends other tools where the reader of a pipe has seen enough, as `head`.

    Where there is no such signal, or it is blocked, drop the output and return the exit code for it.
    """
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.raise_signal(signal.SIGPIPE)
    _drop_rest(sys.stdout)
    return EXIT_CANNOT_WRITE


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
    if str(error.strerror).startswith("No usable temporary directory"):  # what tempfile says
        return "no temporary directory can be written to; set TMPDIR to a folder that can, on a disk with space"
    return f"{error.filename or 'cannot write the output'}: {error.strerror}"


def _what_lacks(error: BaseException) -> str:
    """Return what a limit of the system refused to this process, and what to do; "" for any other error.

    CPython raises SystemError where it overlooks that it got no memory. An output that does not block is out of room
    with the EAGAIN of a system without room for a process, but tells how much was written.
    """
    number, said, what = getattr(error, "errno", None), str(error), ""
    if isinstance(error, (MemoryError, SystemError)) or number == errno.ENOMEM or "failed to map segment" in said:
        what = "memory (ulimit -v and -d, or a container's limit; OPENBLAS_NUM_THREADS=1 takes less)"
    elif number in (errno.EMFILE, errno.ENFILE):
        what = "open files (ulimit -n)"
    elif said == "can't start new thread" or (number == errno.EAGAIN and not hasattr(error, "characters_written")):
        what = "processes or threads (ulimit -u, also -v and -d for threads, or a container's limit)"
    return what and f"the system gives this process no more {what}; raise the limit, or end other processes"


def _what_is_not_installed(error: BaseException) -> str:
    """Return which library attnbench needs and does not find, or cannot load, and what to do; "" for other errors."""
    if not isinstance(error, ImportError) or str(error.name).partition(".")[0] == "attnbench":
        return ""
    return (
        f"a library that attnbench needs cannot be imported ({error}); install attnbench again for {sys.executable} "
        "(in a clone: pip install -e .), which brings all of them"
    )


def _say_fault(error: Exception) -> None:
    """Print one line on an exception that no command expects, and keep its traceback in a file.

    While a Tab completes words nothing is printed, as a line would stand in the person's command.
    """
    if os.environ.get(COMPLETION):
        return
    import tempfile
    import traceback

    from attnbench.core.text import one_line

    report = "please report it"
    with contextlib.suppress(OSError):
        handle, name = tempfile.mkstemp(".txt", "attnbench-fault-")
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:  # an argument need not be UTF-8
            print(*sys.argv, file=file)
            traceback.print_exception(type(error), error, error.__traceback__, file=file)
        report += f" with {name}"
    _say(f"a fault of attnbench's own: {type(error).__name__}: {one_line(str(error))[:200]}; {report}")


def _drop_rest(stream: Any) -> None:
    from attnbench.core.files import drop_rest  # it takes longer to import than all else here

    drop_rest(stream)


def _hear_of_children() -> None:
    """Undo a shell's ignoring of ended child processes, under which each would seem to have ended well."""
    if hasattr(signal, "SIGCHLD") and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _prepare_streams() -> None:
    """Let every text be printed, whatever the encoding, the width, and the streams that this process was given.

    A standard output that is closed (`>&-`) fails when it is written to, as a full disk does. Without it no file of
    ours may have its number, where a library would print into it.
    """
    anything = os.devnull if os.path.exists(os.devnull) else os.sep  # which a sandbox may lack
    while (number := os.open(anything, os.O_RDONLY)) <= 2:
        pass
    os.close(number)
    for output in (1, 2):  # O_NONBLOCK belongs to the open file, which other processes share; some leave it set
        with contextlib.suppress(OSError, AttributeError):  # closed; Windows
            os.set_blocking(output, True)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout.buffer, io.RawIOBase):  # PYTHONUNBUFFERED: what the system does not take at once is lost
        sys.stdout = open(1, "w", buffering=1, encoding=sys.stdout.encoding, closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stdout.reconfigure(errors="replace")  # type: ignore[attr-defined, union-attr, unused-ignore]
    for name in ("COLUMNS", "LINES"):
        text = os.environ.get(name, "")
        if not (text.isascii() and text.isdigit() and len(text) < 5 and int(text) in COLUMNS):
            os.environ.pop(name, None)


def _drop_odd_source_date() -> None:
    """Drop a SOURCE_DATE_EPOCH that is no time, as one left empty: numpy.f2py, which scipy imports, would raise."""
    try:
        time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
    except (ValueError, OverflowError, OSError):
        del os.environ["SOURCE_DATE_EPOCH"]


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let signals in the block raise Interrupted, except those that are ignored (nohup).

    Signals that follow at once are ignored, so that tidying up and output after the first one finish; so are all
    signals after the block, when only the end of the process is left. Python drops exceptions that are raised in a
    finaliser or in the callback of a weak reference, which each import has; Interrupted is then raised again.
    """
    latest = -IMPATIENCE

    def interrupt(number: int, _: object) -> None:
        nonlocal latest
        now = time.monotonic()
        if now - latest >= IMPATIENCE:
            latest = now
            raise Interrupted(number)

    def dropped(found: Any) -> None:
        nonlocal latest
        error = found.exc_value
        if isinstance(error, Interrupted) and hasattr(signal, "setitimer"):  # Windows has no timer
            latest = -IMPATIENCE
            signal.signal(signal.SIGALRM, lambda *_: interrupt(error.args[0], None))
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
        else:
            hook(found)

    hook, sys.unraisablehook = sys.unraisablehook, dropped
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
        sys.unraisablehook = hook
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
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
