"""A folder and a process in which any command line may run, without lasting effects and without libraries."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import worker_here
from attnbench.backends import BACKENDS
from attnbench.core.json import to_json
from attnbench.core.machine import Device, Environment
from attnbench.run import device_probe, venvs, workers

ENVIRONMENT = {"COLUMNS": "120", "TERM": "dumb"}  # the whole environment of an attempt
UNSET = ("NO_COLOR", "FORCE_COLOR", "CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "ATTNBENCH_FAKE", "LINES")
LIBRARIES = {spec for name, spec in BACKENDS.items() if name != "fake"}
CPU = Device("cpu", 0, "a CPU", memory=2**34, free=2**33, threads=4)


@contextlib.contextmanager
def sandbox(folder: Path) -> Iterator[None]:
    """Return a context in `folder` with workers of this process, which undoes all changes of a command at its end."""
    names = [name for name in ("SIGPIPE", "SIGTERM", "SIGHUP", "SIGINT") if hasattr(signal, name)]
    signals = {name: signal.getsignal(getattr(signal, name)) for name in names}
    cwd, path, modules = os.getcwd(), list(sys.path), set(sys.modules)
    kept = {name: value for name, value in os.environ.items() if name not in UNSET}
    environment = {**kept, **ENVIRONMENT, "XDG_DATA_HOME": str(folder / "data"), "HOME": str(folder)}
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, environment, clear=True))
        for module in (workers, device_probe):
            stack.enter_context(mock.patch.object(module, "WorkerProcess", NoTorch))
        stack.enter_context(mock.patch.object(venvs.venv.EnvBuilder, "create", side_effect=OSError(28, "No space")))
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(cwd)
            sys.path[:] = path
            for name in {*sys.modules} - modules:
                if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                    del sys.modules[name]
            for name, handler in signals.items():
                signal.signal(getattr(signal, name), handler)


class NoTorch(worker_here.Here):
    """A worker in this process, on a machine without a GPU and without usable libraries."""

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        op, device = request["op"], request.get("device")
        if op == "environment" and device != "fake":
            if str(device).startswith("cuda"):
                return {"refused": "torch sees no CUDA device here; use --device cpu"}
            return {"environment": to_json(Environment(CPU, "3.12.0", "Linux", "2.9.0", "a CPU"))}
        if op == "rates" and device != "fake" and device["kind"] == "cpu":  # type: ignore[index]
            return {"device": {**device, "matmul": {"fp32": 1e11, "bf16": 1e10}, "copy": 1e10}}  # type: ignore[dict-item]
        if op == "load" and request["spec"] in LIBRARIES:
            return {"probe": {"reason": "not in this test"}, "compiler": False, "files": {}}
        if op not in ("environment", "rates", "load", "import", "survey", "ready", "run"):
            raise RuntimeError("not in this test")
        return super().answer(request)
