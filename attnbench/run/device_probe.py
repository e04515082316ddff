"""The probe of the device: its facts, its use by other processes, and then its rates.

It runs in a worker, because the parent never loads torch or opens the device.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from attnbench.core.errors import UnfitError, UserError
from attnbench.core.files import GONE, working_folder
from attnbench.core.json import from_json, to_json
from attnbench.core.machine import Device, Environment
from attnbench.core.other_work import refusal
from attnbench.run.host_facts import cpu_load
from attnbench.run.process import START_TIMEOUT, WorkerDied, WorkerHung, WorkerProcess

T = TypeVar("T")


class DeviceProbe:
    """A worker that describes the device and measures its rates. It starts at once; close it, or use `with`.

    It lives until both are done, because without persistence mode the driver unloads after the GPU's last process.
    """

    def __init__(
        self,
        device: str,
        python: str | None = None,
        *,
        with_torch: bool = True,
        allow_busy: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Start describing `device`: "auto", "cpu", "cuda:N" or "fake".

        `python` is the interpreter whose software is described (default: this one). Without torch a CPU is described
        without its threads, in a tenth of the time. With `allow_busy` a GPU that other processes use is described too.
        `variables` are set in the worker's environment.

        Raises UserError where the working directory was removed, as torch or its libraries then fail to load.
        """
        if device != "fake" and not working_folder():
            raise UserError(GONE)
        self._allow_busy = allow_busy
        load = cpu_load() if device in ("auto", "cpu") else None
        self._cpu_load = None if load is None else load / (os.cpu_count() or 1)
        self._worker: WorkerProcess | None = WorkerProcess(python, variables)
        self._worker.send({"op": "environment", "device": device, "with_torch": with_torch})
        self._opening = False

    def __enter__(self) -> DeviceProbe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def describe(self) -> Environment:
        """Return the device without its rates, its use by others, and the software. Can be called once.

        Raises UserError, also for a GPU that other processes use, unless `allow_busy` was given.
        """
        answer = self._answer()
        if "refused" in answer:
            raise UnfitError(answer["refused"])
        found = _read(Environment, answer, "environment")
        if found.device.kind == "cpu":
            return replace(found, device=replace(found.device, busy=self._cpu_load))
        self._check_free(found.device)
        return found

    def open_judge(self, device: Device) -> None:
        """Let the worker open the device as a judge does, while others load; `measure_rates` waits for it."""
        assert self._worker is not None
        self._worker.send({"op": "judge", "do": "open", "device": to_json(device)})
        self._opening = True

    def _check_free(self, device: Device) -> None:
        if not self._allow_busy and (why := refusal(device)):
            raise UnfitError(why)

    def describe_others(self, devices: Iterable[str]) -> tuple[Device, ...]:
        """Return the devices that exist among `devices`, without their rates. Raises UserError as `describe` does."""
        assert self._worker is not None
        found = []
        for device in devices:
            self._worker.send({"op": "environment", "device": device})
            answer = self._answer()
            if "refused" not in answer:
                found.append(_read(Environment, answer, "environment").device)
                self._check_free(found[-1])
        return tuple(found)

    def peers(self, first: Device, ranks: int, named: Sequence[str] = ()) -> tuple[Device, ...]:
        """Return the devices of the ranks after the first: the named ones, else the next existing ones.

        Raises UserError where devices are named for one rank.
        """
        if ranks == 1 and named:
            raise UserError("--device: several devices are for --ranks; name one, or give --ranks 1,2")
        if ranks == 1 or first.kind != "cuda":
            return ()
        return self.describe_others(named or [f"cuda:{first.index + i}" for i in range(1, ranks)])[: ranks - 1]

    def measure_rates(self, known: Environment, dtypes: Iterable[str]) -> Environment:
        """Measure the rates of a matmul in each dtype and of a copy; return the environment with them.

        Nothing else may run on the machine meanwhile. Raises UserError.
        """
        assert self._worker is not None
        if self._opening:
            self._opening = False
            self._answer()
        self._worker.send({"op": "rates", "device": to_json(known.device), "dtypes": list(dtypes)})
        answer = self._answer()
        return replace(known, device=_read(Device, answer, "device"))

    def take_worker(self) -> WorkerProcess | None:
        """Return the worker, which the caller must then end."""
        worker, self._worker = self._worker, None
        return worker

    def close(self) -> None:
        """Kill the worker, if it runs."""
        if self._worker:
            self._worker.kill()
            self._worker = None

    def _answer(self) -> dict[str, Any]:
        assert self._worker is not None
        try:
            answer = self._worker.receive(START_TIMEOUT)
        except (WorkerDied, WorkerHung) as error:
            lines = (self._worker.stderr_tail() or "").splitlines()
            raise UserError(": ".join(["cannot look at the device", str(error) or "no answer", *lines[-1:]])) from None
        if "error" in answer:
            raise UserError(f"cannot look at the device: {answer['error']}")
        return answer


def _read(cls: type[T], answer: Mapping[str, Any], name: str) -> T:
    """Return a field of an answer. Raises UserError where it cannot be read, as of an interpreter that is none."""
    try:
        return from_json(cls, answer.get(name, {}))
    except ValueError as error:
        raise UserError(f"cannot look at the device: its worker's answer is not one: {error}") from None


def probe_device(
    device: str, dtypes: Iterable[str] = (), python: str | None = None, *, allow_busy: bool = False
) -> Environment:
    """Return the device and its software, with the rates of `dtypes` if any are given. Raises UserError."""
    with DeviceProbe(device, python, allow_busy=allow_busy) as probe:
        known, dtypes = probe.describe(), list(dtypes)
        return probe.measure_rates(known, dtypes) if dtypes else known
