"""The GPU's state as NVML tells it: clocks, power, temperature, what limits them, who else is there.

`Sampler` reads it in the background while samples are taken, from a thread of the worker: a reading costs some
microseconds of a core and nothing of the device. NVML needs no root and nothing is set. Where NVML is missing or
refuses, there are simply no readings. NVML's clock lags by up to 0.1 s; the exact one is timing.EventTimer's gauge.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any

# nvml.h, nvmlClocksEventReason*; idle and settings that the owner chose are not limits
LIMITS = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "thermal", 0x40: "hardware thermal", 0x80: "power brake"}
POWER_INSTANT = 186  # nvml.h, NVML_FI_DEV_POWER_INSTANT: mW now, where nvmlDeviceGetPowerUsage averages over a second


class GpuState:
    """NVML's view of one device, found by the UUID that torch reports. Every answer may be None: not known here."""

    def __init__(self, uuid: str) -> None:
        self._nvml: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
            self._nvml = pynvml
        except Exception:  # NVML is an extra: any failure of it means no readings, never a failed job
            pass

    @property
    def available(self) -> bool:
        return self._nvml is not None

    def clock_hz(self) -> float | None:
        """The SM clock now."""
        return self.ask_number(lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM) * 1e6)

    def memory_clock_hz(self) -> float | None:
        return self.ask_number(lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM) * 1e6)

    def clock_max_hz(self) -> float | None:
        return self.ask_number(lambda n, h: n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM) * 1e6)

    def power_limit_w(self) -> float | None:
        return self.ask_number(lambda n, h: n.nvmlDeviceGetPowerManagementLimit(h) / 1e3)

    def power_w(self) -> float | None:
        """Now, where the driver can say; else the average of the last second."""

        def instant(n: Any, h: Any) -> float:
            answer = n.nvmlDeviceGetFieldValues(h, [POWER_INSTANT])[0]
            return float(answer.value.uiVal if answer.nvmlReturn == 0 else n.nvmlDeviceGetPowerUsage(h)) / 1e3

        return self.ask_number(instant)

    def power_average_w(self) -> float | None:
        """Over about the last second."""
        return self.ask_number(lambda n, h: n.nvmlDeviceGetPowerUsage(h) / 1e3)

    def temperature_c(self) -> float | None:
        return self.ask_number(lambda n, h: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU))

    def energy_j(self) -> float | None:
        """Since the driver was loaded. The counter moves every 20 to 100 ms, and reading it takes milliseconds."""
        return self.ask_number(lambda n, h: n.nvmlDeviceGetTotalEnergyConsumption(h) / 1e3)

    def ecc_errors(self) -> int | None:
        """Uncorrected memory errors since the driver was loaded."""
        found = self.ask(lambda n, h: n.nvmlDeviceGetTotalEccErrors(h, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, 0))
        return None if found is None else int(found)

    def driver(self) -> str | None:
        version = self.ask(lambda n, _: n.nvmlSystemGetDriverVersion())
        return None if version is None else str(version)

    def limits(self) -> tuple[str, ...]:
        """What holds the clock down now, in NVML's reasons."""
        mask = self.ask(lambda n, h: n.nvmlDeviceGetCurrentClocksThrottleReasons(h)) or 0
        return tuple(name for bit, name in LIMITS.items() if mask & bit)

    def other_processes(self, since: float | None = None) -> tuple[str, ...]:
        """Other processes with a context on the GPU, as "name (pid 123)"; this run's workers, who idle, are none.

        With `since` (time.time() seconds) only those that computed after it, where the driver tells. Empty where
        process numbers cannot be told apart, as in some containers.
        """
        found = self.ask(lambda n, h: [p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h)]) or []
        if os.getpid() not in found:
            return ()
        strangers = [pid for pid in found if pid != os.getpid() and _parent_pid(pid) != os.getppid()]
        if strangers and since is not None:
            busy = self.ask(lambda n, h: _utilization(n, h, int(since * 1e6)))
            if busy is not None:
                active = {p.pid for p in busy if p.smUtil > 0}
                strangers = [pid for pid in strangers if pid in active]
        return tuple(f"{_process_name(pid)} (pid {pid})" for pid in strangers)

    def ask_number(self, question: Any) -> float | None:
        found = self.ask(question)
        return None if found is None else float(found)

    def ask(self, question: Any) -> Any:
        """question(pynvml, handle), or None where NVML has no answer."""
        if self._nvml is None:
            return None
        try:
            return question(self._nvml, self._handle)
        except (self._nvml.NVMLError, AttributeError):  # an older pynvml lacks a function
            return None


class StateSampler:
    """Reads clocks, power, temperature and limits every `period` seconds while its block runs.

        with Sampler(state) as seen:
            ...
        seen.readings["clock_sm"]   # Hz; also "clock_mem" (Hz), "power" (W), "temperature" (C)

    At least one reading is taken, at the end of the block. `times` are time.monotonic() seconds of the readings.
    """

    def __init__(self, state: GpuState, period: float = 0.005) -> None:
        self.readings: dict[str, list[float]] = {}
        self.times: list[float] = []
        self._limits: set[str] = set()
        self._state = state
        self._period = period
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def limits(self) -> tuple[str, ...]:
        """All that held the clock down at any reading."""
        return tuple(name for name in LIMITS.values() if name in self._limits)

    def __enter__(self) -> StateSampler:
        if self._state.available:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()
            self._read()

    def _run(self) -> None:
        while not self._done.wait(self._period):
            self._read()

    def _read(self) -> None:
        state = self._state
        self.times.append(time.monotonic())
        self._limits.update(state.limits())
        readings = {
            "clock_sm": state.clock_hz(),
            "clock_mem": state.memory_clock_hz(),
            "power": state.power_w(),
            "temperature": state.temperature_c(),
        }
        for name, reading in readings.items():
            if reading is not None:
                self.readings.setdefault(name, []).append(reading)


def _utilization(nvml: Any, handle: Any, since: int) -> Any:
    """Who computed after `since`, in us; NVML says "not found" where nobody did."""
    try:
        return nvml.nvmlDeviceGetProcessUtilization(handle, since)
    except nvml.NVMLError_NotFound:
        return []


def _parent_pid(pid: int) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def _process_name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return "a process"
