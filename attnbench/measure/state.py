"""The GPU's clock and what limits it, read from NVML right after the samples, while the device is still warm.

One reading per cell: enough to see a clock that is held down, not yet a history of it. NVML needs no root and nothing
is set. Where NVML is missing or refuses, there are simply no readings.
"""

from __future__ import annotations

from typing import Any

# nvml.h, nvmlClocksEventReason*; idle and settings that the owner chose are not limits
LIMITS = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "thermal", 0x40: "hardware thermal", 0x80: "power brake"}


class GpuState:
    """NVML's view of one device, found by the UUID that torch reports."""

    def __init__(self, uuid: str) -> None:
        self._nvml: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
            self._nvml = pynvml
        except Exception:  # NVML is an extra: any failure of it means no readings, never a failed job
            pass

    def clock_hz(self) -> float | None:
        """The SM clock now."""
        return self._number(lambda n: n.nvmlDeviceGetClockInfo(self._handle, n.NVML_CLOCK_SM) * 1e6)

    def clock_max_hz(self) -> float | None:
        return self._number(lambda n: n.nvmlDeviceGetMaxClockInfo(self._handle, n.NVML_CLOCK_SM) * 1e6)

    def power_limit_w(self) -> float | None:
        return self._number(lambda n: n.nvmlDeviceGetPowerManagementLimit(self._handle) / 1e3)

    def driver(self) -> str | None:
        version = self._ask(lambda n: n.nvmlSystemGetDriverVersion())
        return None if version is None else str(version)

    def limits(self) -> tuple[str, ...]:
        """What holds the clock down now, in NVML's reasons."""
        mask = self._ask(lambda n: n.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)) or 0
        return tuple(name for bit, name in LIMITS.items() if mask & bit)

    def _number(self, question: Any) -> float | None:
        found = self._ask(question)
        return None if found is None else float(found)

    def _ask(self, question: Any) -> Any:
        if self._nvml is None:
            return None
        try:
            return question(self._nvml)
        except self._nvml.NVMLError:
            return None
