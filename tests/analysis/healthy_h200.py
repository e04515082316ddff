"""The facts of a healthy H200, which tests can change, and the findings of the doctor's checks on them."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

from attnbench.analysis.doctor.checks import Finding, findings_of_aa_test, findings_of_machine
from attnbench.run.aa_test import AATest, CaseReadings, aa_test_cases
from attnbench.worker import machine_facts
from attnbench.worker.measure import nvml as nvml_module
from attnbench.worker.measure.nvml import GpuState
from builders import H200, environment

CASES = aa_test_cases("cuda")
HOST = {"load": 0.1, "cores": 64, "cpu_limit": None, "governors": ["performance"], "nvidia_driver": True}
FENCES = {"files": "", "network": "", "processes": "root's processes are not limited"}
WORKS = {"seconds": 3e-6, "l2_cold": "cold", "l2_warm": "warm"}


class Nvml:
    """A stand-in for pynvml on a healthy H200; `changes` replace answers, and None raises an error."""

    NVMLError = RuntimeError
    NVML_CLOCK_SM, NVML_CLOCK_GRAPHICS, NVML_TEMPERATURE_GPU, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = range(4)
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    HEALTHY: ClassVar[dict[str, Any]] = {
        "nvmlDeviceGetClockInfo": 1980,
        "nvmlDeviceGetMaxClockInfo": 1980,
        "nvmlDeviceGetApplicationsClock": 1980,
        "nvmlDeviceGetDefaultApplicationsClock": 1980,
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x1,
        "nvmlDeviceGetFieldValues": [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=120_000))],
        "nvmlDeviceGetEnforcedPowerLimit": 700_000,
        "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
        "nvmlDeviceGetTemperature": 35,
        "nvmlDeviceGetMarginTemperature": 52,
        "nvmlDeviceGetPersistenceMode": 1,
        "nvmlDeviceGetMigMode": [0, 0],
        "nvmlDeviceGetEccMode": [1, 1],
        "nvmlDeviceGetTotalEccErrors": 0,
        "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
        "nvmlSystemGetCudaDriverVersion_v2": 13000,
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0),
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=os.getpid())],
        "nvmlDeviceGetProcessUtilization": [SimpleNamespace(pid=1, smUtil=60)],
    }

    def __init__(self, **changes: Any) -> None:
        self.answers = {**self.HEALTHY, **changes}

    def __getattr__(self, name: str) -> Any:
        if name not in self.answers:
            raise AttributeError(name)
        if self.answers[name] is None:
            raise RuntimeError("not supported")
        return lambda *_: self.answers[name]


def state(**changes: Any) -> GpuState:
    found = GpuState("")
    found._nvml, found._handle = Nvml(**changes), 0
    return found


def facts(**changes: Any) -> dict[str, Any]:
    """Return the facts of a healthy H200, with some of NVML's answers changed."""
    gpu = state(**changes)
    with mock.patch.object(nvml_module.time, "sleep"):
        clock = {"clock_held": 1.98e9, "clock_told": 1.98e9, "gauge_fault": ""}
        nvml = {**machine_facts._nvml_facts(gpu), **clock, "processes": machine_facts._process_facts(gpu)}
    return {
        "asked": "auto",
        "host": HOST,
        "fences": FENCES,
        "nvml": nvml,
        "instruments": dict.fromkeys(("events", "graph", "cupti"), WORKS),
    }


def changed(part: str, **changes: Any) -> dict[str, Any]:
    healthy = facts()
    return {**healthy, part: {**healthy[part], **changes}}


def judged(found: dict[str, Any], **changes: Any) -> list[Finding]:
    packages = {"triton": "3.5.0"}
    return [*findings_of_machine(environment(H200, **{"packages": packages, **changes}), found)]


def complaints(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(f.check, f.level) for f in findings if f.level != "ok"]


def aa_test(*differences: float, **changes: Any) -> AATest:
    """Return an A/A test of one case, with these differences ln(b / a) between its readings."""
    a = tuple(1e-3 for _ in differences)
    measured = CaseReadings(CASES[0], a, tuple(x * math.exp(d) for x, d in zip(a, differences, strict=True)))
    return replace(AATest("sdpa-flash", 60.0, (measured,)), **changes)


def judged_test(test: AATest) -> list[Finding]:
    """Return the findings of the checks in an A/A test."""
    return [*findings_of_aa_test(test)]


QUIET = (0.001, -0.001, 0.002, -0.002, 0.0005, -0.0005, 0.001, -0.001)
