"""Facts of a CUDA device that decide whether it is fit to measure, in JSON types and SI units.

The doctor (analysis/doctor) asks a worker for them and judges them. They are only read; nothing is set, and root is not
needed. A fact that cannot be read is None. Facts of the host are in run/host_facts.py. The order is:

1. which other processes compute on the GPU, while this process leaves it idle (GpuState.busy_with_others);
2. each instrument on a trivial operation, and whether it finds L2 cold or warm as expected (measure/l2_cache.py);
3. NVML, while the clock is still high. The exact clock comes from the clock gauge (measure/clock_gauge.py), since NVML
   does not tell whether clocks are locked.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from attnbench.core import stats
from attnbench.core.attributes import other_attributes
from attnbench.worker.measure import cuda_graph, l2_cache
from attnbench.worker.measure.nvml import LIMITS, GpuState, quantity, running_processes
from attnbench.worker.measure.sampling import do_nothing

if TYPE_CHECKING:
    from attnbench.worker.measure.clock_gauge import ClockGauge
    from attnbench.worker.measure_cell import CellMeasurer

SAMPLES = 20
SPINS, SPIN_SECONDS = 20, 0.05  # the work during which the gauge and NVML read the clock
REASONS = {**LIMITS, 0x2: "application clocks", 0x10: "sync boost", 0x100: "display clocks"}  # from nvml.h


def examine(measurer: CellMeasurer) -> dict[str, Any]:
    """Return the facts of a CUDA device: "instruments" and "nvml"; an empty dict for a CPU."""
    if measurer.device.type != "cuda":
        return {}
    state = measurer.state if measurer.state.available else None
    processes = _process_facts(state) if state else None
    found: dict[str, Any] = {"instruments": _instrument_facts(measurer)}
    found["nvml"] = None
    if state and measurer.events:
        clock = _clock_facts(measurer.events.gauge, state)
        found["nvml"] = {**_nvml_facts(state), **clock, "processes": processes}
    return found


def _clock_facts(gauge: ClockGauge, state: GpuState) -> dict[str, Any]:
    """Return the SM clock during a second of spinning, in Hz, by the gauge and by NVML, and the fault of the gauge.

    "clock_held" is by the gauge, "clock_told" by NVML over the second half, as it lags by up to 0.1 s. Each is None
    where it cannot be read.
    """
    gauge.wake()
    if gauge.fault:
        return {"clock_held": None, "clock_told": None, "gauge_fault": gauge.fault}
    gauge.held_hz()  # forget earlier counts
    gauge.begin()
    for _ in range(SPINS):
        gauge.spin(SPIN_SECONDS)
    gauge.end()
    readings, ends = [], time.monotonic() + 0.9 * SPINS * SPIN_SECONDS
    while time.monotonic() < ends:
        time.sleep(SPIN_SECONDS)
        readings.append(state.clock_hz())
    told = [clock for clock in readings[len(readings) // 2 :] if clock]
    return {
        "clock_held": gauge.held_hz(),
        "clock_told": math.fsum(told) / len(told) if told else None,
        "gauge_fault": "",
    }


def _process_facts(state: GpuState) -> dict[str, Any]:
    """Return the facts of other processes on the GPU, while this process leaves it idle.

    "busy" is its utilisation in this time (0 to 1), "computing" names the processes that caused it. "named" is whether
    process ids belong to this process's namespace; where they do not, as in some containers, no process can be named.
    """
    since = time.time()
    busy = state.busy_with_others()
    pids = state.ask(running_processes)
    return {
        "count": None if pids is None else len(pids),
        "named": os.getpid() in (pids or ()),
        "others": list(state.other_processes()),
        "busy": busy,
        "computing": list(state.other_processes(since)) if busy else [],
    }


def _instrument_facts(measurer: CellMeasurer) -> dict[str, Any]:
    """Return facts of each timer by name: the seconds of a trivial operation, and whether L2 was "cold" or "warm".

    "l2_cold" is the observation with the flush, "l2_warm" without it. A timer that fails has "error" instead.
    """
    import torch

    x = torch.zeros(2**18, device=measurer.device)
    touch = partial(x.add_, 1)
    device, l2_bytes, bandwidth = measurer.device, measurer.l2_bytes, measurer.bandwidth

    def by_events(timer: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"seconds": stats.median(timer.samples(touch, SAMPLES))}
        for promise, ahead in (("cold", measurer.flush), ("warm", do_nothing)):
            with other_attributes(timer, before=ahead):
                found[f"l2_{promise}"] = l2_cache.observed_state(timer, device, l2_bytes)
        return found

    def by_graph() -> dict[str, Any]:
        assert measurer.events is not None
        timer = cuda_graph.GraphTimer(measurer.events, lambda: [touch], 10e-6)
        try:
            seconds = stats.median(timer.samples(SAMPLES))
        finally:
            timer.close()
        return {"seconds": seconds, "l2_cold": cuda_graph.l2_state(measurer.events, device, l2_bytes, bandwidth)}

    def by_cupti() -> dict[str, Any]:
        if measurer.tracer is None:
            return {"error": "the profiler sees no kernel"}
        return by_events(measurer.tracer)

    # the graph comes last, since a failed capture leaves torch's allocator in a broken state
    return {
        "events": _facts_or_error(lambda: by_events(measurer.events)),
        "cupti": _facts_or_error(by_cupti),
        "graph": _facts_or_error(by_graph),
    }


def _facts_or_error(read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return read()
    except Exception as error:  # an instrument's failure is a fact to report
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}


def _nvml_facts(state: GpuState) -> dict[str, Any]:
    """Return NVML's readings of clocks, power, temperature, settings and memory errors."""
    ask = state.ask
    reasons = ask(lambda n, h: int(quantity(n.nvmlDeviceGetCurrentClocksThrottleReasons(h))))
    names = ("corrected", "uncorrected", "pending", "failed")
    cuda = ask(lambda n, _: int(n.nvmlSystemGetCudaDriverVersion_v2()))
    return {
        "clock": state.clock_hz(),
        "clock_max": state.clock_max_hz(),
        "clock_application": ask(
            lambda n, h: quantity(n.nvmlDeviceGetApplicationsClock(h, n.NVML_CLOCK_GRAPHICS)) * 1e6
        ),
        "clock_default": ask(
            lambda n, h: quantity(n.nvmlDeviceGetDefaultApplicationsClock(h, n.NVML_CLOCK_GRAPHICS)) * 1e6
        ),
        "reasons": None if reasons is None else [name for bit, name in REASONS.items() if reasons & bit],
        "power": state.power_w(),
        "power_limit": ask(lambda n, h: quantity(n.nvmlDeviceGetEnforcedPowerLimit(h)) / 1e3),
        "power_default": ask(lambda n, h: quantity(n.nvmlDeviceGetPowerManagementDefaultLimit(h)) / 1e3),
        "temperature": state.temperature_c(),
        "temperature_margin": _temperature_margin(state),
        "persistence": ask(lambda n, h: bool(int(n.nvmlDeviceGetPersistenceMode(h)))),
        "mig": ask(lambda n, h: bool(int(n.nvmlDeviceGetMigMode(h)[0]))),
        "ecc": ask(lambda n, h: bool(int(n.nvmlDeviceGetEccMode(h)[0]))),
        "ecc_pending": ask(lambda n, h: bool(int(n.nvmlDeviceGetEccMode(h)[1]))),
        "ecc_errors": state.ecc_errors(),
        "ecc_errors_ever": ask(
            lambda n, h: int(quantity(n.nvmlDeviceGetTotalEccErrors(h, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, 1)))
        ),
        "rows": ask(lambda n, h: dict(zip(names, map(int, n.nvmlDeviceGetRemappedRows(h)), strict=True))),
        "cuda": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
    }


def _temperature_margin(state: GpuState) -> float | None:
    """Return the degrees left until heat lowers the clock; None where unknown.

    From Hopper on the driver reports only this margin, before Hopper only the threshold.
    """
    margin = state.ask(lambda n, h: float(int(n.nvmlDeviceGetMarginTemperature(h))))
    if margin is not None:
        return margin
    slowdown = state.ask(
        lambda n, h: quantity(n.nvmlDeviceGetTemperatureThreshold(h, n.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN))
    )
    now = state.temperature_c()
    return slowdown - now if slowdown and now is not None else None
