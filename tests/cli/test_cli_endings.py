"""The end of a command: signals at any time, and standard streams that are closed, full or of another encoding."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tool import COMMAND, FAKE, SMALL, Tool, alive

from attnbench import cli
from attnbench.commands import suites
from attnbench.core.errors import (
    EXIT_BAD_INPUT,
    EXIT_CANNOT_WRITE,
    EXIT_FAULT,
    EXIT_INTERRUPTED,
    Interrupted,
    UserError,
)

ONE = (*FAKE, "--seqlen", "1k", *SMALL, "--out", "run.jsonl")
posix = pytest.mark.skipif(sys.platform != "linux", reason="signals and /dev")


def in_shell(tool: Tool, line: str, **env: str) -> tuple[int, str, str]:
    """Run a line of bash in which $A is the command; return the exit code, stdout and stderr."""
    text = line.replace("$A", shlex.join(COMMAND))
    done = subprocess.run(
        ["bash", "-c", text], cwd=tool.folder, env={**tool.env(), **env}, capture_output=True, text=True, timeout=120
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


@posix
def test_ends_of_children_that_the_shell_ignores_are_told(tool: Tool) -> None:
    """Crashed children are reported even if the shell ignores SIGCHLD; Python then reports success for every child."""
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])"
    )
    line = f"{sys.executable} -c {shlex.quote(ignoring)} $A {shlex.join(ONE)}"
    in_shell(tool, line, ATTNBENCH_FAKE="crash@1k")
    assert tool.stored().at(1024)["reason"] == "the worker crashed (SIGABRT)"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Tool:
    tool = Tool(tmp_path_factory.mktemp("measured"))
    tool(*ONE)
    text = (tool.folder / "run.jsonl").read_text()
    tool.write("other.jsonl", text.replace('"started":"20', '"started":"19', 1))  # a copy would count as the same run
    return tool


CANNOT = {">&-": "Bad file descriptor", "> /dev/full": "No space left on device"}


@posix
@pytest.mark.parametrize("command", ["report run.jsonl", "report run.jsonl -f md", "run --help", "--version"])
def test_a_full_disk_behind_standard_output_is_exit_code_2(measured: Tool, command: str) -> None:
    done = measured(*command.split(), into="/dev/full", code=2)
    assert done.err.startswith("attnbench: cannot write")
    assert done.err.endswith(f": {CANNOT['> /dev/full']}\n")
    assert done.err.count("\n") == 1


@posix
@pytest.mark.parametrize("where", CANNOT)
def test_a_standard_output_that_takes_nothing_is_exit_code_2(measured: Tool, where: str) -> None:
    """A stdout that takes nothing is exit code 2 of the process; Python itself would end with 120."""
    code, _, err = in_shell(measured, f"$A report run.jsonl {where}")
    assert (code, err) == (2, f"attnbench: cannot write: {CANNOT[where]}\n")


@posix
@pytest.mark.parametrize("where", ["", "=/dev/fd/3 3>&1 >/dev/null"])
def test_an_output_that_does_not_block_is_waited_for(measured: Tool, where: str) -> None:
    """A non-blocking output is waited for; any process that shares a pipe or a terminal may have set the flag."""
    line = f"{shlex.join(COMMAND)} report run.jsonl -f html{where}"
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with subprocess.Popen(["bash", "-c", line], cwd=measured.folder, stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(writing)
        with open(reading) as page:
            shown = page.read()
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert len(shown) > 2**16, "what a pipe takes at once"
    assert shown.endswith("</html>\n")


@posix
def test_what_the_system_takes_a_part_of_is_exit_code_2_whatever_buffers(measured: Tool) -> None:
    """A partial write is exit code 2, also with PYTHONUNBUFFERED, with which Python ignores it."""
    code, _, err = in_shell(measured, "ulimit -f 1; $A report run.jsonl -f html > page.html", PYTHONUNBUFFERED="1")
    assert (code, err) == (EXIT_CANNOT_WRITE, "attnbench: cannot write: File too large\n")


@posix
def test_an_error_after_output_that_cannot_be_written_keeps_its_exit_code(
    command: Callable[[Callable[[], None]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def prints_and_fails() -> None:
        print("text")
        raise UserError("why")

    with open("/dev/full", "w") as full:  # closing it fails, and Python would end with 120
        monkeypatch.setattr(sys, "stdout", full)
        assert command(prints_and_fails) == EXIT_BAD_INPUT


@posix
def test_a_run_whose_output_cannot_be_written_is_kept(tool: Tool) -> None:
    done = tool(*ONE, into="/dev/full", code=2)
    assert f"attnbench: cannot write the output: {CANNOT['> /dev/full']}\n" in done.err
    assert tool.stored().statuses == {1024: "ok"}


@posix
@pytest.mark.parametrize("where", ["2>&-", "2> /dev/full"])
def test_a_standard_error_that_takes_nothing_is_no_other_exit_code(measured: Tool, where: str) -> None:
    assert in_shell(measured, f"$A report nope.jsonl {where}")[:2] == (2, "")


@posix
@pytest.mark.parametrize("where", ["2> /dev/full", "2>&1 | true"])
def test_progress_that_cannot_be_shown_ends_no_measurement(tool: Tool, where: str) -> None:
    words = (*FAKE, "--seqlen", "1k,2k", *SMALL, "--out", "run.jsonl")
    assert in_shell(tool, f"$A {shlex.join(words)} {where}")[0] == 0
    assert tool.stored().statuses == {1024: "ok", 2048: "ok"}


@posix
def test_all_streams_closed_harm_no_file(tool: Tool) -> None:
    assert in_shell(tool, f"$A {shlex.join(ONE)} <&- >&- 2>&-")[0] == 2
    assert tool.stored().statuses == {1024: "ok"}


@posix
@pytest.mark.parametrize("command", ["run --help", "gate run.jsonl other.jsonl"])
def test_a_reader_that_has_seen_enough_ends_a_command_by_sigpipe(measured: Tool, command: str) -> None:
    """A command ends by SIGPIPE when its reader has gone, here before the command begins."""
    closed = "exec 3> >(:); wait $!"
    code, _, err = in_shell(measured, f"{closed}; $A {command} >&3")
    assert code == 128 + signal.SIGPIPE, err
    assert err == ""


@pytest.mark.parametrize(("encoding", "form"), [("cp1252", "table"), ("ascii", "md")])
def test_characters_that_an_encoding_lacks_are_question_marks(
    measured: Tool, tmp_path: Path, encoding: str, form: str
) -> None:
    """Characters that an encoding lacks become question marks, such as the emoji of a gate's markdown."""
    same = str(shutil.copy(measured.folder / "run.jsonl", tmp_path / "same.jsonl"))
    shown, plain = (
        measured("gate", same, "run.jsonl", "-f", form, code=None, **of) for of in ({"PYTHONIOENCODING": encoding}, {})
    )
    assert (shown.code, shown.err) == (plain.code, plain.err)
    assert shown.out


@pytest.mark.parametrize("command", ["report run.jsonl", "run --help"])
def test_an_absurd_width_is_no_width(measured: Tool, command: str) -> None:
    usual = measured(*command.split(), COLUMNS="")
    assert usual.out
    for columns in ("0", "1", "-3", "wide", "100000", "9" * 5000):
        assert measured(*command.split(), COLUMNS=columns, LINES=columns) == usual


@pytest.mark.parametrize("epoch", ["", "9" * 17])
def test_a_time_of_the_build_that_is_none_is_no_fault(measured: Tool, epoch: str) -> None:
    """An invalid SOURCE_DATE_EPOCH is no error, in a new interpreter, which imports numpy.f2py."""
    with measured.start("gate", "run.jsonl", "run.jsonl", SOURCE_DATE_EPOCH=epoch) as process:
        out, err = process.communicate(timeout=120)
    usual = measured("gate", "run.jsonl", "run.jsonl", code=None)
    assert (process.returncode, out, err) == (usual.code, usual.out, usual.err)


@posix
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138)],
    ids=["INT", "TERM", "USR1"],
)
def test_a_signal_that_comes_while_modules_are_imported(tool: Tool, number: int, code: int) -> None:
    """A signal during imports ends a command; the test begins after Python's own start."""
    program = tool.write(
        "program.py",
        "import os, sys\n"
        "class Sent:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer':\n"
        f"            os.kill(os.getpid(), {int(number)})\n"
        "from attnbench.cli import main\n"
        "sys.meta_path.insert(0, Sent())\n"
        "main()\n",
    )
    done = subprocess.run([sys.executable, program, "suites"], capture_output=True, text=True, env=tool.env())
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "attnbench: interrupted\n")


def test_nothing_that_takes_long_is_imported_before_signals_are_handled() -> None:
    code = "import sys; import attnbench.cli; print(*sorted({'typing', 're', 'typer', 'difflib'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-S", "-E", "-c", code], capture_output=True, text=True, cwd=cli_folder())
    assert (done.stdout, done.stderr) == ("\n", "")


def cli_folder() -> str:
    return os.path.dirname(os.path.dirname(os.path.abspath(cli.__file__)))


@posix
def test_an_impatient_second_signal_changes_nothing(tool: Tool) -> None:
    with tool.start(*FAKE, "--seqlen", "512-16k", *SMALL, "--out", "run.jsonl", fake="hang@1k") as process:
        workers = tool.wait_until_stuck(process)
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "before anything was measured" not in err
    assert "Interrupted; what was measured is kept." in out
    assert "  attnbench run --resume run.jsonl\n" in out
    assert not alive(workers)
    assert tool.stored().records


@posix
def test_nohup_is_respected(tool: Tool) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with tool.start(*FAKE, "--seqlen", "512-16k", *SMALL, "--out", "run.jsonl", preexec_fn=ignore) as p:
        p.send_signal(signal.SIGHUP)
        p.communicate(timeout=60)
    assert p.returncode == 0


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], int]:
    """Return a function that runs main() with a function as its only command and returns the exit code."""

    def run(what: Callable[[], None]) -> int:
        monkeypatch.setattr(sys, "argv", ["attnbench", "suites"])

        def only() -> None:
            what()

        only.__name__ = "suites"
        monkeypatch.setattr(suites, "suites", only)
        with pytest.raises(SystemExit) as end:
            cli.main()
        return int(end.value.code or 0)

    return run


@posix
def test_main_leaves_the_handlers_of_signals_as_they_were_unless_it_was_interrupted(
    command: Callable[[Callable[[], None]], int],
) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert command(lambda: None) == 0
    assert signal.getsignal(signal.SIGINT) is before
    assert command(lambda: os.kill(os.getpid(), signal.SIGINT)) == 130
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@posix
def test_a_signal_while_a_class_is_made(
    command: Callable[[Callable[[], None]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    class Field:
        def __set_name__(self, *_: object) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    assert command(lambda: print(type("Made", (), {"field": Field()}))) == 143
    assert capsys.readouterr().err == "attnbench: interrupted\n"


@posix
def test_a_later_signal_ends_what_the_first_began_to_tidy_up(
    command: Callable[[Callable[[], None]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "IMPATIENCE", 0.2)
    ended = []

    def tidies_up() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except Interrupted:
            os.kill(os.getpid(), signal.SIGINT)
            ended.append("the second")
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGTERM)
            ended.append("the third")

    assert command(tidies_up) == 143
    assert ended == ["the second"]


@posix
def test_a_signal_in_a_finaliser_interrupts(
    command: Callable[[Callable[[], None]], int], capfd: pytest.CaptureFixture[str]
) -> None:
    """A signal during a finaliser ends the command, though Python drops the exception that its handler raises."""

    class Finalised:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    def drops() -> None:
        Finalised()
        time.sleep(10)

    assert command(drops) == 143
    assert capfd.readouterr().err == "attnbench: interrupted\n"


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        (MemoryError(), "memory (ulimit -v"),
        (SystemError("error return without exception set"), "memory (ulimit -v"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory (ulimit -v"),
        (ImportError("libfoo.so: failed to map segment from shared object"), "memory (ulimit -v"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "processes or threads (ulimit -u"),
        (OSError(errno.EMFILE, "Too many open files"), "open files (ulimit -n"),
        (RuntimeError("can't start new thread"), "processes or threads (ulimit -u"),
    ],
)
def test_a_limit_of_the_system_is_named_and_no_fault_of_our_own(
    error: Exception, lacks: str, command: Callable[[Callable[[], None]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    def meets_the_limit() -> None:
        raise error

    assert command(meets_the_limit) == EXIT_BAD_INPUT
    said = capsys.readouterr().err
    assert said.startswith(f"attnbench: the system gives this process no more {lacks}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        ("MemoryError()", EXIT_BAD_INPUT, "the system gives this process no more memory"),
        ("ValueError('odd')", EXIT_FAULT, "a fault of attnbench's own: ValueError('odd')"),
        ("KeyboardInterrupt()", EXIT_INTERRUPTED, ""),
    ],
)
def test_an_error_while_an_error_is_handled_is_no_regression_and_no_traceback(
    tool: Tool, error: str, code: int, said: str
) -> None:
    program = tool.write(
        "program.py",
        "import sys\n"
        "class Fails:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.endswith(('command_line', 'core.text')):\n"
        f"            raise {error} if name.endswith('text') else MemoryError\n"
        "from attnbench.cli import main\n"
        "sys.meta_path.insert(0, Fails())\n"
        "main()\n",
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, env=tool.env())
    assert done.returncode == code
    assert done.stderr.startswith(f"attnbench: {said}" if said else "")
    assert done.stderr.count("\n") == bool(said)


@posix
@pytest.mark.parametrize(("option", "kib"), [("-v", 120_000), ("-d", 60_000)])
def test_a_limit_that_numpy_does_not_fit_is_no_regression_and_no_wait(measured: Tool, option: str, kib: int) -> None:
    """A limit that numpy does not fit is an error, not OpenBLAS's exit code 1 or endless wait; the rest works."""
    attnbench = f"ulimit {option} {kib}; $A"
    code, _, err = in_shell(measured, f"{attnbench} gate run.jsonl run.jsonl")
    assert (code, err.count("\n")) == (EXIT_BAD_INPUT, 1)
    assert "the system gives this process no more memory" in err
    assert in_shell(measured, f"{attnbench} suites")[0] == 0


@posix
@pytest.mark.parametrize("kib", [7_000, 12_500])
def test_a_limit_that_no_command_fits_is_one_line(measured: Tool, kib: int) -> None:
    code, _, err = in_shell(measured, f"ulimit -d {kib}; $A suites")
    assert (code, err.count("\n")) == (EXIT_BAD_INPUT, 1)
    assert err.startswith("attnbench: the system gives this process no more memory")


@posix
def test_an_interpreter_that_would_go_on_afterwards_keeps_the_exit_code(measured: Tool) -> None:
    assert in_shell(measured, "PYTHONINSPECT=1 $A report none.jsonl < /dev/null")[0] == EXIT_BAD_INPUT
    assert in_shell(measured, "PYTHONINSPECT=1 $A suites quick < /dev/null")[0] == 0


def test_an_output_that_fails_is_named_by_its_own_reason(
    command: Callable[[Callable[[], None]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    def fails_to_write() -> None:
        raise BlockingIOError(errno.EAGAIN, "write could not complete", 0)

    assert command(fails_to_write) == EXIT_CANNOT_WRITE
    assert capsys.readouterr().err == "attnbench: cannot write the output: write could not complete\n"


def test_without_a_temporary_directory_the_variable_is_named(
    command: Callable[[Callable[[], None]], int], capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/none"])
    assert command(lambda: tempfile.TemporaryFile().close()) == EXIT_CANNOT_WRITE
    assert "set TMPDIR to a folder" in capsys.readouterr().err


def test_a_fault_of_our_own_is_one_line_and_never_the_code_of_a_regression(
    command: Callable[[Callable[[], None]], int], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def fail(error: BaseException) -> Callable[[], None]:
        def raise_it() -> None:
            sys.argv.append("an argument that is not UTF-8: \udcff")
            raise error

        return raise_it

    for error in (ValueError("two\nlines"), RecursionError("deep"), AssertionError()):
        assert command(fail(error)) == EXIT_FAULT
        said = capsys.readouterr().err
        assert said.startswith(f"attnbench: a fault of attnbench's own: {type(error).__name__}: ")
        assert said.count("\n") == 1
        assert "in raise_it" in Path(said.split()[-1]).read_text()
    assert command(fail(EOFError("cut"))) == EXIT_FAULT, "of which typer makes a 1"
    capsys.readouterr()
    assert command(fail(ImportError("no core", name="attnbench.core.none"))) == EXIT_FAULT
    assert "fault of attnbench's own" in capsys.readouterr().err
    for lacks in (ModuleNotFoundError("No module named 'rich'", name="rich"), ImportError("libfoo.so: no such file")):
        assert command(fail(lacks)) == EXIT_BAD_INPUT
        assert f"cannot be imported ({lacks}); " in capsys.readouterr().err
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    assert command(fail(KeyError("key"))) == EXIT_FAULT, "where no file can be written"
