"""The GPU's state from NVML: clocks, power, temperature, limits of the clock, and other processes on the GPU.

`StateSampler` reads it in a thread of the worker while samples are taken: a reading costs some microseconds of a core
and nothing of the device. Nothing is set, and root is not needed. Where NVML is missing or refuses a question, there
are no readings. NVML's clock lags by up to 0.1 s; the clock gauge (clock_gauge.py) has the exact one.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

# nvml.h, nvmlClocksEventReason*, without idle and without the owner's settings
LIMITS = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "thermal", 0x40: "hardware thermal", 0x80: "power brake"}
# Seconds. NVML's utilisation is an average over 1/6 to 1 s, so that it still contains the work of a process that has
# just ended, of this process, and, without persistence mode, of the driver's start.
SETTLE, WATCH, EVERY = 1.0, 1.0, 0.1
QUIET = 5  # successive readings of 0 that end the watch
session_pid: int | None = None  # the process that has the run, if not the parent (api/in_process.py)
POWER_INSTANT = 186  # nvml.h, NVML_FI_DEV_POWER_INSTANT: present mW; nvmlDeviceGetPowerUsage averages over a second


class GpuState:
    """NVML's view of one device, found by torch's UUID. Any answer may be None: unknown here."""

    def __init__(self, uuid: str | None) -> None:
        self._nvml: Any = None
        if uuid is None:  # a CPU
            return
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
            self._nvml = pynvml
        except (Exception, SystemExit):  # NVML is optional: a failure never fails a job
            pass

    @property
    def available(self) -> bool:
        """Whether NVML knows the device."""
        return self._nvml is not None

    def clock_hz(self) -> float | None:
        """Return the present SM clock, with NVML's lag."""
        return self.ask(lambda n, h: quantity(n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM)) * 1e6)

    def memory_clock_hz(self) -> float | None:
        """Return the present memory clock."""
        return self.ask(lambda n, h: quantity(n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM)) * 1e6)

    def clock_max_hz(self) -> float | None:
        """Return the highest SM clock of this device."""
        return self.ask(lambda n, h: quantity(n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM)) * 1e6)

    def power_limit_w(self) -> float | None:
        """Return the set power cap in watts."""
        return self.ask(lambda n, h: quantity(n.nvmlDeviceGetPowerManagementLimit(h)) / 1e3)

    def power_w(self) -> float | None:
        """Return the present power, if the driver tells it, else the average of the last second."""

        def instant(n: Any, h: Any) -> float:
            answer = n.nvmlDeviceGetFieldValues(h, [POWER_INSTANT])[0]
            return quantity(answer.value.uiVal if answer.nvmlReturn == 0 else n.nvmlDeviceGetPowerUsage(h)) / 1e3

        return self.ask(instant)

    def power_average_w(self) -> float | None:
        """Return the average power of about the last second."""
        return self.ask(lambda n, h: quantity(n.nvmlDeviceGetPowerUsage(h)) / 1e3)

    def temperature_c(self) -> float | None:
        """Return the temperature of the GPU in degrees Celsius."""
        return self.ask(lambda n, h: quantity(n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU)))

    def energy_j(self) -> float | None:
        """Return the energy in joules since the driver was loaded.

        The counter moves every 20 to 100 ms, and reading it takes milliseconds.
        """
        return self.ask(lambda n, h: quantity(n.nvmlDeviceGetTotalEnergyConsumption(h)) / 1e3)

    def ecc_errors(self) -> int | None:
        """Return the number of uncorrected memory errors since the driver was loaded."""
        return self.ask(
            lambda n, h: int(quantity(n.nvmlDeviceGetTotalEccErrors(h, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, 0)))
        )

    def driver(self) -> str | None:
        """Return the driver's version."""
        return self.ask(lambda n, _: _text(n.nvmlSystemGetDriverVersion()))

    def limits(self) -> tuple[str, ...]:
        """Return NVML's present reasons for a lowered clock."""
        mask = self.ask(lambda n, h: int(quantity(n.nvmlDeviceGetCurrentClocksThrottleReasons(h)))) or 0
        return tuple(name for bit, name in LIMITS.items() if mask & bit)

    def busy_with_others(self) -> float | None:
        """Return the share of time, 0 to 1, in which other work ran on the GPU while this process left it idle.

        It takes half a second on an idle GPU, else 2 s, of which the last second counts. It needs no names of
        processes, which some containers hide; memory of an idle process does not count. None where NVML does not tell,
        as for a MIG slice.
        """
        zeros = 0
        counted: list[float] = []
        for number in range(round((SETTLE + WATCH) / EVERY)):
            reading = self.ask(lambda n, h: quantity(n.nvmlDeviceGetUtilizationRates(h).gpu) / 100)
            if reading is None:
                return None
            zeros = 0 if reading else zeros + 1
            if zeros == QUIET:
                return 0.0
            if number * EVERY >= SETTLE:
                counted.append(reading)
            time.sleep(EVERY)
        return sum(counted) / len(counted)

    def other_processes(self, since: float | None = None) -> tuple[str, ...]:
        """Return other processes with a context on the GPU, as "name (pid 123)".

        With `since` (time.time() seconds) only processes that computed after it, if the driver tells. This run's other
        workers and the process that has the run do not count, as they are idle. Empty where process ids belong to
        another namespace, as in some containers.
        """
        found = self.ask(running_processes) or []
        if os.getpid() not in found:
            return ()
        session = session_pid or os.getppid()
        own = {os.getpid(), session}  # a notebook with a context waits for this worker
        strangers = [pid for pid in found if pid not in own and _parent_pid(pid) != session]
        if strangers and since is not None:
            active = self.ask(lambda n, h: {p.pid for p in _utilization(n, h, int(since * 1e6)) if p.smUtil > 0})
            if active is not None:
                strangers = [pid for pid in strangers if pid in active]
        return tuple(f"{_process_name(pid)} (pid {pid})" for pid in strangers)

    def ask(self, question: Callable[[Any, Any], T]) -> T | None:
        """Return question(pynvml, handle), or None where NVML has no answer."""
        if self._nvml is None:
            return None
        try:
            return question(self._nvml, self._handle)
        except (Exception, SystemExit):  # NVML's errors, functions that an older pynvml lacks, unknown quantities
            return None


class StateSampler:
    """A thread that reads clocks, power, temperature and limits every `period` seconds while its block runs.

        with StateSampler(state) as sampler:
            ...
        sampler.readings["clock_sm"]   # Hz; also "clock_mem" (Hz), "power" (W), "temperature" (C)

    At least one reading is taken, at the end of the block.
    """

    def __init__(self, state: GpuState, period: float = 0.005) -> None:
        self.readings: dict[str, list[float]] = {}
        self._limits: set[str] = set()
        self._state = state
        self._period = period
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def limits(self) -> tuple[str, ...]:
        """All reasons for a lowered clock at any reading."""
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


def quantity(answer: Any) -> float:
    """Return an answer that is a quantity. Raises ValueError for others, such as NVML's "unknown", all bits set."""
    if not isinstance(answer, int | float) or not 0 <= answer < 2**63 or answer == 2**32 - 1:
        raise ValueError(f"{answer!r} is not a quantity")
    return float(answer)


def running_processes(nvml: Any, handle: Any) -> list[int]:
    """Return the ids of the processes with a context on a GPU."""
    return [int(p.pid) for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]


def _text(answer: str | bytes) -> str | None:
    """Return an answer of pynvml as text, from bytes in older releases; None for another answer."""
    text = answer.decode(errors="replace") if isinstance(answer, bytes) else answer
    return text if isinstance(text, str) else None


def _utilization(nvml: Any, handle: Any, since: int) -> Any:
    """Return NVML's utilisation samples of processes after `since`, in us; [] where NVML says "not found"."""
    try:
        return nvml.nvmlDeviceGetProcessUtilization(handle, since)
    except nvml.NVMLError_NotFound:
        return []


def _parent_pid(pid: int) -> int | None:
    """Return the id of a process's parent (Linux); None where unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(text.rpartition(")")[2].split()[1])
    return None


def _process_name(pid: int) -> str:
    """Return the name of a process (Linux); "a process" where unknown."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    return "a process"
