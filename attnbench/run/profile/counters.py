"""The use of each unit of a GPU in each kernel of a call, by Nsight Compute's counters.

COUNTERS has for each counter its name here, the names of ncu (the first one that the GPU has counts, as names differ by
architecture), and its format. ncu's names are from the Nsight Compute documentation (Metrics Guide and Metrics
Structure) and from the sections shipped with ncu, for compute capability 7.0 to 10.0. On Hopper the tensor pipe's
cycles include wgmma. Counters that a GPU lacks are left out.

The counters take several passes: ncu runs each kernel again with its memory restored. They are read in a run of their
own, so that the traffic of ncu.py needs one pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnbench.core.formats import duration, percent, size
from attnbench.run.profile import ncu

SHARE_ACTIVE, SHARE_ELAPSED = ".avg.pct_of_peak_sustained_active", ".avg.pct_of_peak_sustained_elapsed"
STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio")
STALLED = "regex:smsp__average_warps_issue_stalled_[a-z_]+_per_issue_active.ratio"
NO_STALLS = ("selected", "not_selected")  # states of a warp that issues, or could have issued
MOST = 1.05  # the largest valid share; ncu gives meaningless larger ones for kernels of a few microseconds
NO_METRIC = re.compile(r"[Ff]ailed to find metric (\S+)")
UNITS = {"%": 0.01, "nsecond": 1e-9, "ns": 1e-9, "usecond": 1e-6, "us": 1e-6, "msecond": 1e-3, "ms": 1e-3}
UNITS |= {"second": 1.0, "s": 1.0, **ncu.UNITS}


@dataclass(frozen=True)
class Counter:
    """One counter of a kernel: its name here, ncu's names for it in order of preference, and its format."""

    label: str
    metrics: tuple[str, ...]
    format: Callable[[float], str]


def _number(value: float) -> str:
    return f"{value:.0f}"


def _few(value: float) -> str:
    return f"{value:.1f}"


COUNTERS: Mapping[str, Counter] = {
    "seconds": Counter("time", ("gpu__time_duration.sum",), duration),
    "tensor": Counter("tensor cores", (f"sm__pipe_tensor_cycles_active{SHARE_ACTIVE}",), percent),
    "exp": Counter("exp and conversions (XU)", (f"sm__inst_executed_pipe_xu{SHARE_ACTIVE}",), percent),
    "fma": Counter("FMA", (f"sm__pipe_fma_cycles_active{SHARE_ACTIVE}",), percent),
    "alu": Counter("ALU", (f"sm__pipe_alu_cycles_active{SHARE_ACTIVE}",), percent),
    "shared": Counter("shared memory and L1", (f"l1tex__throughput{SHARE_ACTIVE}",), percent),
    "l2": Counter("L2", (f"lts__throughput{SHARE_ELAPSED}",), percent),
    "hbm": Counter("HBM", (f"gpu__dram_throughput{SHARE_ELAPSED}", f"dram__throughput{SHARE_ELAPSED}"), percent),
    "occupancy": Counter("warps in flight", (f"sm__warps_active{SHARE_ACTIVE}",), percent),
    "possible": Counter("as many as fit", ("sm__maximum_warps_per_active_cycle_pct",), percent),
    "registers": Counter("registers of a thread", ("launch__registers_per_thread",), _number),
    "fit_registers": Counter("blocks fit by registers", ("launch__occupancy_limit_registers",), _number),
    "fit_shared": Counter("by shared memory", ("launch__occupancy_limit_shared_mem",), _number),
    "fit_warps": Counter("by warps", ("launch__occupancy_limit_warps",), _number),
    "blocks": Counter("blocks", ("launch__grid_size",), _number),
    "waves": Counter("waves", ("launch__waves_per_multiprocessor",), _few),
    "spilled": Counter("read back of spilled registers", ("l1tex__t_bytes_pipe_lsu_mem_local_op_ld.sum",), size),
}


@dataclass(frozen=True)
class KernelCounters:
    """The counters of one kernel.

    `values` has the COUNTERS that the GPU has: shares of the peak from 0 to 1, seconds, bytes and counts. `stalls` is
    reason -> number of warps that wait for it, per instruction issued.
    """

    name: str
    values: Mapping[str, float]
    stalls: Mapping[str, float] = field(default_factory=dict)

    def value(self, name: str) -> float:
        """Return the value of a counter; 0 where the GPU lacks it."""
        return self.values.get(name, 0.0)

    @property
    def top_stalls(self) -> tuple[tuple[str, float], ...]:
        """The three reasons for which most warps wait, each with its share of all waiting warps."""
        total = sum(self.stalls.values())
        most = sorted(self.stalls.items(), key=lambda one: -one[1])[:3]
        return tuple((name.replace("_", " "), warps / total) for name, warps in most if total)


def measure(tool: str, python: str | None, request: Mapping[str, Any]) -> tuple[KernelCounters, ...]:
    """Run worker/ncu_launch.py with `request` in the interpreter `python` under ncu. Raises ncu.NotCounted."""
    wanted = [name for counter in COUNTERS.values() for name in counter.metrics] + [STALLED]
    said = ncu.run(tool, python, request, wanted)
    if unknown := {name.rstrip(".,") for name in NO_METRIC.findall(said)} & {*wanted}:
        said = ncu.run(tool, python, request, [name for name in wanted if name not in unknown])
    return parse(said)


def parse(text: str) -> tuple[KernelCounters, ...]:
    """Return the counters of the call's kernels from ncu's output. Raises ncu.NotCounted."""
    kernels = ncu.kernels(text)
    found = [_counters(kernel) for kernel in kernels[ncu.call_between_marks(kernels)]]
    if not any(kernel.values for kernel in found):
        raise ncu.NotCounted("ncu gave none of the counters; this GPU may not have them")
    return tuple(found)


def _counters(kernel: ncu.Kernel) -> KernelCounters:
    known = {metric: number for metric, said in kernel.metrics.items() if (number := _value(*said)) is not None}
    found = {
        key: known[metric]
        for key, counter in COUNTERS.items()
        if (metric := next((name for name in counter.metrics if name in known), None))
    }
    values = {key: value for key, value in found.items() if COUNTERS[key].format is not percent or value <= MOST}
    stalls = {match[1]: known[metric] for metric in known if (match := STALL.fullmatch(metric))}
    return KernelCounters(kernel.name, values, {k: v for k, v in stalls.items() if k not in NO_STALLS})


def _value(value: str, unit: str) -> float | None:
    """Return a counter's value in seconds, bytes, a share or a count; None for n/a."""
    try:
        return float(value.replace(",", "")) * UNITS.get(unit.lower(), 1.0)
    except ValueError:
        return None


def longest(kernels: Sequence[KernelCounters], count: int) -> list[KernelCounters]:
    """Return the `count` longest kernels, in their order in the call."""
    most = sorted(range(len(kernels)), key=lambda i: -kernels[i].value("seconds"))[:count]
    return [kernels[i] for i in sorted(most)]
