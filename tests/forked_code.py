"""Code in a fork of the tests' process, which has torch: a new interpreter would take seconds to import it."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any, NoReturn

import forked_worker
import interpreted_triton  # noqa: F401  (before torch's compiler imports Triton)

importlib.import_module("torch._dynamo")  # otherwise each fork imports it

SECONDS = 100


def printed(code: str, folder: Path) -> str:
    """Return what some code prints that can import the modules of a folder and installed ones, but not attnbench."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            _run(code, folder, out, err)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        texts = [file.seek(0) or file.read().decode() for file in (out, err)]
    assert status == 0, texts[1]
    return "".join(texts)


def _run(code: str, folder: Path, out: Any, err: Any) -> NoReturn:
    """Run code in the child of a fork, and end it."""
    try:
        signal.alarm(SECONDS)  # whose usual effect is the end of the process
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.stdout, sys.stderr = open(1, "w", buffering=1), open(2, "w", buffering=1)  # noqa: SIM115
        forked_worker.forget_the_tests({"PYTHONPATH": str(folder)})
        for name in [name for name in sys.modules if name.partition(".")[0] == "attnbench"]:
            del sys.modules[name]
        sys.modules["attnbench"] = None  # type: ignore[assignment]
        warnings.resetwarnings()
        warnings.showwarning = lambda *given: sys.stderr.write(warnings.formatwarning(*given[:4]))  # type: ignore[assignment]
        for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", kind)
        exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    os._exit(1)
