"""A command in a process that is forked with attnbench's modules imported: a tenth of the time of a new interpreter.

The server that forks it is Python's own (multiprocessing's forkserver). It imports the modules below, with torch for
the workers, which are forks of the command (forked_worker.py), and starts once in each process of pytest. The command
finds what it would find in a new process: its arguments, working directory, environment, and streams, which are files.
"""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import signal
import socketserver
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "attnbench"
IMPORTED = (
    *("rich.console", "rich.table", "rich.live", "rich._emoji_codes", "typer.rich_utils", "typer._adapters"),
    *("pydantic", "scipy.special", "xml.etree.ElementTree", "torch.fx.experimental.symbolic_shapes"),
    *("attnbench.cli", "attnbench.run.run_suite", "attnbench.run.check", "attnbench.run.capacity"),
    *("attnbench.worker.serve", "attnbench.worker.measure_cell"),
    *(
        ".".join(("attnbench", *file.relative_to(PACKAGE).with_suffix("").parts))
        for folder in ("commands", "analysis", "render")
        for file in sorted((PACKAGE / folder).rglob("*.py"))
        if file.stem != "__init__"
    ),
)
SECONDS = 120
# Asks for a fork with its own arguments, folder, environment and streams
PYTHON = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({address!r})
    streams = [f"/proc/{{os.getpid()}}/fd/{{number}}" for number in (1, 2)]
    asked.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ), *streams]).encode() + b"\\n")
    sys.exit(int(asked.recv(9)))
"""


def run(args: Sequence[str], folder: Path, env: Mapping[str, str]) -> tuple[int, str, str]:
    """Run a command line to its end; return its exit code and what it wrote to stdout and stderr."""
    with tempfile.TemporaryDirectory() as temporary:
        out, err = Path(temporary, "out"), Path(temporary, "err")
        code = _run([*args], str(folder), dict(env), str(out), str(err))
        return code, out.read_text(errors="replace"), err.read_text(errors="replace")


def _run(args: list[str], folder: str, env: dict[str, str], out: str, err: str) -> int:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*IMPORTED])
    process = context.Process(target=_command, args=(args, folder, env, out, err))
    process.start()
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
        raise TimeoutError(f"{args} takes over {SECONDS} s")
    assert process.exitcode is not None
    return process.exitcode


@contextlib.contextmanager
def python() -> Iterator[str]:
    """Give the path of a program that scripts can call as an interpreter that has attnbench, and that runs it here.

    Whatever it is called with is a command line of attnbench after that name, or else a success.
    """
    with tempfile.TemporaryDirectory() as folder:
        program, address = Path(folder, "python"), str(Path(folder, "address"))
        program.write_text(PYTHON.format(python=sys.executable, address=address))
        program.chmod(0o755)
        with socketserver.UnixStreamServer(address, _Asked) as server:
            threading.Thread(target=server.serve_forever, args=(0.01,)).start()
            yield str(program)
            server.shutdown()


class _Asked(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        args, *where = json.loads(self.rfile.readline())
        code = _run(args[args.index("attnbench") + 1 :], *where) if "attnbench" in args else 0
        self.wfile.write(str(code).encode())


def _command(args: Sequence[str], folder: str, env: Mapping[str, str], out: str, err: str) -> None:
    gc.freeze()  # a collection that looked at the modules would copy their pages
    os.chdir(folder)
    os.getloadavg = lambda: (0.0, 0.0, 0.0)  # what is said first does not depend on the machine of the tests
    os.environ.clear()
    os.environ.update(env)
    for number, path, mode in ((0, os.devnull, os.O_RDONLY), (1, out, os.O_WRONLY), (2, err, os.O_WRONLY)):
        opened = os.open(path, mode | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  (they last as long as the process)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = ["attnbench", *args]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import forked_worker
    from attnbench.cli import main

    with forked_worker.workers():
        main()
