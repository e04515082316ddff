"""Signs in a run file that other processes used the device during the measurement.

No latency of such a run on a GPU can be believed: kernels shared the GPU with other processes by time slices, so a
latency may be any multiple of its value on a free GPU, and the fastest backend is the one that got more slices. Such
latencies have no uncertainty (Cell.uncertainty), so none of them is called fastest, and all output with them begins
with this caution (`doubt`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from attnbench.core import gpus, stats
from attnbench.core.formats import digits
from attnbench.core.machine import Device, Environment
from attnbench.core.other_work import BUSY, is_short_of_cores, is_too_busy, other_work
from attnbench.core.record import Record, Run
from attnbench.core.text import count, some

# On free H100s and H200s a large matmul reads at least 1.02 times the quick reading before the run, and 0.72 of the
# datasheet's peak; beside another process, 0.26 of the peak.
SLOWED, FAR_BELOW = 0.7, 0.4
AGAIN = "Measure again on a free GPU."
HELD = {"hardware slowdown", "thermal", "hardware thermal", "power brake"}  # throttling that explains a slow matmul


def doubt(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the first line of all output about these runs: why they cannot be believed; () where they can."""
    whole = [(run, why) for run in runs if (why := disturbance(run))]
    if whole:
        run, why = whole[0]
        what = "Nothing here" if len(whole) == len(runs) else f"Nothing of {count(len(whole), 'run')} of {len(runs)}"
        first = f" ({run.started[:16].replace('T', ' ')})" if len(runs) > 1 else ""
        return (f"{what} can be believed{first}: {why}. {AGAIN}",)
    beside = [record for run in runs for record in beside_others(run)]
    if beside:
        names = some(dict.fromkeys(name for record in beside for name in record.others))
        cells = sum(bool(record.measurements) for run in runs for record in run.records)
        return (
            f"{len(beside)} of {count(cells, 'figure')} cannot be believed: another process used the GPU meanwhile "
            f"({names}). {AGAIN}",
        )
    return next(filter(None, (doubt_at_start(run.environment) for run in runs)), ()) or _doubt_of_cores(runs)


def _doubt_of_cores(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the first line where other work on a CPU may have slowed calls by any factor; () elsewhere."""
    measured = [(run, record) for run in runs for record in run.records if record.measurements]
    figures = {(run.started, record.case, record.backend) for run, record in measured}  # one for all rounds
    slowed = {
        (run.started, record.case, record.backend)
        for run, record in measured
        if load(record, run.environment.device) == math.inf
    }
    if not slowed:
        return ()
    return (
        f"{len(slowed)} of {count(len(figures), 'figure')} {'is' if len(slowed) == 1 else 'are'} hardly known: other "
        "work took cores from the kernels while they were timed. Measure again on a quieter machine.",
    )


def load(record: Record, device: Device) -> float:
    """Return the logarithm of the factor by which other work on a CPU may have slowed calls; infinite for no bound."""
    read = record.measurements.get("cores_left")
    left = read.values[0] if read and read.values else None
    if left is None or not device.threads:
        return 0.0
    return math.inf if is_short_of_cores(device, left) else max(0.0, math.log(device.threads / left))


def doubt_at_start(environment: Environment) -> tuple[str, ...]:
    """Return the first line of output about a measurement that starts here and now; () where the devices are free."""
    if why := _used_at_start(environment):
        return (f"Nothing here can be believed: {why}. {AGAIN}",)
    device = environment.device
    if device.kind == "cpu" and is_too_busy(device):
        return (f"Figures here are doubtful: other work loaded the CPU when this began ({other_work(device)}).",)
    return ()


def doubt_of_check(device: Device) -> tuple[str, ...]:
    """Return the first line of a check of results, which times nothing; () where the device was free at its start."""
    if not is_too_busy(device):
        return ()
    return (
        f"Other work loaded {device.name} when this began ({other_work(device)}): it does not change which results "
        "are right, but it may cause a time-out or a lack of memory.",
    )


def disturbance(run: Run) -> str:
    """Return the sign that others used the GPU during all of a run, or for an unknown part of it; "" without a sign."""
    if run.environment.device.kind == "cpu":
        return ""
    if why := _used_at_start(run.environment):
        return why
    if (most := max(_looks(run), default=0.0)) > BUSY:
        names = [name for record in run.records if "busy" in record.measurements for name in record.others]
        who = f": {some(dict.fromkeys(names))}" if names else ""
        return f"another process used the GPU while this was measured ({most:.0%} of its time between cells{who})"
    beside = beside_others(run)
    if 2 * len(beside) > sum(bool(record.measurements) for record in run.records):
        names = [name for record in beside for name in record.others]
        return f"another process used the GPU meanwhile ({some(dict.fromkeys(names))})"
    return next(_slow_matmuls(run), "")


def _used_at_start(environment: Environment) -> str:
    """Return the use of a GPU by others at the start of a run; "" where the GPUs were free, and on a CPU."""
    for device in (environment.device, *environment.peers):
        if device.kind != "cpu" and is_too_busy(device):
            return f"another process used {device} when this began ({other_work(device)})"
    return ""


def beside_others(run: Run) -> list[Record]:
    """Return the measured records during which another process computed on the GPU.

    Where the driver does not say which processes computed, a record names all that hold memory. They do not count as
    load where each record names some, and the GPU was idle before the run and at every reading.
    """
    measured = [record for record in run.records if record.measurements]
    found, looks = [record for record in measured if record.others], _looks(run)
    was_idle = run.environment.device.busy == 0 and bool(looks) and not any(looks)
    return [] if was_idle and len(found) == len(measured) else found


def _looks(run: Run) -> list[float]:
    return [share for record in run.records if (m := record.measurements.get("busy")) for share in m.values]


def _slow_matmuls(run: Run) -> Iterator[str]:
    """Yield the readings of a large matmul that are far below the reading at the start, or the datasheet's peak.

    The peak is used only where it is unknown whether other processes were there at the start.
    """
    device = run.environment.device
    gpu = gpus.find(device.name, device.memory, device.multiprocessors) if device.kind == "cuda" else None
    for record in run.records:
        measured = record.measurements.get("ceiling_matmul")
        if measured is None or not measured.values or HELD & {*record.limits}:
            continue
        rate, dtype = stats.median(measured.values), record.case.dtype
        before, peak = device.matmul.get(dtype), gpus.peak(gpu, dtype) if gpu and device.busy is None else None
        told = f"a large matmul reached {digits(rate / 1e12)} TFLOP/s"
        if before and device.kind == "cuda" and rate < SLOWED * before:
            yield f"{told}, of {digits(before / 1e12)} when this began, as beside another process"
        elif peak and rate < FAR_BELOW * peak:
            yield f"{told}, of a peak of {digits(peak / 1e12)}, as beside another process"
