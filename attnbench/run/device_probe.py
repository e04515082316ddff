"""The parent's look at the device: what it is, then how fast. In a worker, as the parent never touches the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from attnbench.core.errors import UserError
from attnbench.core.json import from_json, to_json
from attnbench.core.machine import Device, Environment
from attnbench.run.process import START_TIMEOUT, WorkerDied, WorkerHung, WorkerProcess


class DeviceProbe:
    """A worker that looks, from now on; to be closed.

    It stays between its two looks: where persistence is off, the driver goes with the last process that uses the GPU.
    """

    def __init__(self, device: str, python: str | None = None) -> None:
        """At `device`: "auto", "cpu", "cuda:N" or "fake". `python`: whose software counts, else this one's."""
        self._worker: WorkerProcess | None = WorkerProcess(python)
        self._worker.send({"op": "environment", "device": device})

    def __enter__(self) -> DeviceProbe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def describe(self) -> Environment:
        """The device without its rates, and its software; once. Raises UserError."""
        answer = self._answer()
        if "refused" in answer:
            raise UserError(answer["refused"])
        return from_json(Environment, answer["environment"])

    def measure_rates(self, known: Environment, dtypes: Iterable[str]) -> Environment:
        """With what a matmul in each of `dtypes` and a copy reach; the last look, to be taken while nothing else runs.

        Raises UserError.
        """
        assert self._worker is not None
        self._worker.send({"op": "rates", "device": to_json(known.device), "dtypes": list(dtypes)})
        answer = self._answer()
        self.close()
        return replace(known, device=from_json(Device, answer["device"]))

    def close(self) -> None:
        if self._worker:
            self._worker.kill()
            self._worker = None

    def _answer(self) -> dict[str, Any]:
        assert self._worker is not None
        try:
            answer = self._worker.receive(START_TIMEOUT)
        except (WorkerDied, WorkerHung) as error:
            said = (self._worker.stderr_tail() or "").splitlines()
            raise UserError(": ".join(["cannot look at the device", str(error) or "no answer", *said[-1:]])) from None
        if "error" in answer:
            raise UserError(f"cannot look at the device: {answer['error']}")
        return answer


def probe_device(device: str, dtypes: Iterable[str] = (), python: str | None = None) -> Environment:
    """The device, with its rates where `dtypes` are asked for, and its software. Raises UserError."""
    with DeviceProbe(device, python) as probe:
        known, dtypes = probe.describe(), list(dtypes)
        return probe.measure_rates(known, dtypes) if dtypes else known
