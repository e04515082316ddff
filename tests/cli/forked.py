"""An interpreter for scripts that starts at once: it runs attnbench in a fork of the tests' process."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socketserver
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import in_process

# Requests a fork with its own arguments, folder, environment and streams
PYTHON = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({address!r})
    streams = [f"/proc/{{os.getpid()}}/fd/{{number}}" for number in (1, 2)]
    asked.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ), *streams]).encode() + b"\\n")
    sys.exit(int(asked.recv(9)))
"""


@contextlib.contextmanager
def python() -> Iterator[str]:
    """Yield the path of a program that scripts call as an interpreter with attnbench, and that runs it here.

    A call with the name attnbench runs the command line after it; any other call succeeds.
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


def _run(args: Sequence[str], folder: str, env: Mapping[str, str], *streams: str) -> int:
    """Run a command line in a fork, with files as stdout and stderr; return its exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads
        pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        gc.freeze()  # a collection over the modules would copy their pages
        opened = [os.open(path, os.O_WRONLY | os.O_APPEND) for path in streams]
        code = in_process.run_with(args, Path(folder), env, [os.open(os.devnull, os.O_RDONLY), *opened])
    except BaseException:
        traceback.print_exc()
    os._exit(code)
