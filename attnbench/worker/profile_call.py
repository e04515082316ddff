"""Profiles one call of a backend, in a worker: which kernels ran and when, memory over time, and the host's time.

The results and the kernels' names are checked as in a run; a call that fails a check is profiled all the same, and the
profile says what is wrong. The figures come from separate calls, since each way to look disturbs the others:

- latency without a profiler, as in a run;
- traced calls behind a spin with L2 cold. The one of median span is shown. Behind the spin, gaps between its kernels
  are the device's and not the host's;
- one more call under the profiler with allocations, which the Chrome trace shows;
- for a flame graph a second of further calls;
- on a GPU calls in a CUDA graph.

Torch's allocators report each block that they hand out or take back to the profiler, with the host's time. On a CPU
that is the call's time. On a GPU memory is reused in stream order, so a kernel runs with what was allocated when the
host launched it: that sum is matched, kernel by kernel, to the traced call.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnbench.core import stats
from attnbench.core.backend import Backend, Unsupported, operand_dtype
from attnbench.core.case import Case
from attnbench.core.json import to_json
from attnbench.core.policy import Policy
from attnbench.worker import flame_graph
from attnbench.worker.cell_steps import CellSteps
from attnbench.worker.host_work import host_work
from attnbench.worker.instruments import TimedLaunch
from attnbench.worker.measure.cupti import Untraceable
from attnbench.worker.measure_cell import CellMeasurer

RANGE = "attnbench.call"
MAX_TRACED_CALLS = 20
CPU_SESSIONS = 3
WRAPPER_SHARE = 0.8  # an operator that spends this share of its time in one other operator is a wrapper of it


def profile(measurer: CellMeasurer, backend: Backend, case: Case, keep: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of an analysis.profile Profile in seconds and bytes, or {"refused": reason}.

    `keep` has the paths of the files to write: a Chrome trace ("trace"), a flame graph of the host ("flame").
    """
    if getattr(backend, "simulated", False):
        return {"refused": "it is simulated: nothing runs, so there is nothing to profile"}
    try:
        found: dict[str, Any] = to_json(_profile(measurer, backend, case, keep))
        return found
    except Unsupported as refusal:
        return {"refused": " ".join(str(refusal).split()) or "refused without a reason"}
    finally:
        measurer.recover()  # frees the memory, which the next backend's worker needs


def _profile(measurer: CellMeasurer, backend: Backend, case: Case, keep: Mapping[str, str]) -> dict[str, Any]:
    cell = CellSteps(measurer, backend, case, Policy())
    measured = measurer.ceilings(operand_dtype(case))
    ceilings = {name.removeprefix("ceiling_"): max(m.values) for name, m in measured.items()}
    endings = [cell.make_inputs()]
    with measurer.memory.job_window():
        endings += [cell.launch_first(), cell.launch_to_check()]
        cell.prepare_to_time()
    endings += [cell.time(), cell.trace(), cell.check_renewed_inputs(), cell.check_restored_inputs()]
    wrong = next((ending["reason"] for ending in endings if ending), None)
    timing, launch = cell.timing, cell.prepared.launch
    assert timing is not None
    latency = stats.median(timing.measurements["time"].values)
    notes = cell.notes
    on_cuda = measurer.device.type == "cuda"
    trace = keep.get("trace")
    found = _on_gpu(measurer, launch, latency, trace, notes) if on_cuda else _on_cpu(launch, trace)
    if flame := keep.get("flame"):
        notes += filter(None, (flame_graph.write(launch, measurer.synchronize, flame),))
    if on_cuda:  # the last, since a failed capture leaves torch in a broken state
        found["in_graph"] = _in_graph(measurer, cell.timed_launch(), latency, notes)
    return {
        "wrong": wrong,
        "timer": timing.timer,
        "l2": timing.l2,
        "limits": timing.limits,
        "host_bound": timing.host_bound,
        "times": timing.measurements["time"].values,
        "enqueue": timing.measurements["enqueue"].values if "enqueue" in timing.measurements else (),
        "first_call": cell.first_call,
        "memory_peak": cell.memory["memory_peak"],
        "ceilings": ceilings,
        "notes": notes,
        **found,
    }


def _on_gpu(
    measurer: CellMeasurer, launch: Callable[[], Any], latency: float, trace: str | None, notes: list[str]
) -> dict[str, Any]:
    """Return the fields of a GPU's timeline: the kernels of the traced call of median span, and memory at each.

    Also its length, and the spans and the events' readings of all traced calls. Adds to `notes` what is missing, and
    why.
    """
    profiler, events = _session(launch, on_cuda=True)
    if trace:
        profiler.export_chrome_trace(trace)
    host = {"host": host_work(events, *_range(events), "CUDA")}
    if measurer.tracer is None:
        return host
    try:
        n = max(1, min(MAX_TRACED_CALLS, int(Policy().burst_s / latency)))
        calls = [call for call in measurer.tracer.calls([launch] * n) if call.kernels]
        if not calls:
            raise Untraceable("the profiler saw no kernel in the call")
    except Untraceable as error:
        notes.append(f"no timeline: {error}")
        return host
    call = sorted(calls, key=lambda c: c.span)[len(calls) // 2]
    held = at_launch(events)
    if len(held) != len(call.kernels):
        notes.append(f"no memory over time: {len(held)} kernels in one call and {len(call.kernels)} in another")
        held = []
    return {
        **host,
        "what": "kernels",
        "activities": [vars(k) for k in call.kernels],
        "length": call.span,
        "spans": [c.span for c in calls],
        "traced": [c.events for c in calls],
        "memory": [(k.start, nbytes) for k, nbytes in zip(call.kernels, held, strict=False)],
    }


def _in_graph(measurer: CellMeasurer, timed: TimedLaunch, latency: float, notes: list[str]) -> Sequence[float]:
    """Return the seconds of calls in a CUDA graph; none, and a note, where the call cannot be captured."""
    try:
        return measurer.in_graph(timed, latency)
    except Unsupported as refusal:
        notes.append(f"not timed in a CUDA graph: {str(refusal).removeprefix('--timer graph: ')}")
        return ()


def _on_cpu(launch: Callable[[], Any], trace: str | None) -> dict[str, Any]:
    """Return the fields of a CPU's timeline: operators and allocations of the shortest of a few profiled calls."""
    found = []
    for _ in range(CPU_SESSIONS):
        profiler, events = _session(launch, on_cuda=False)
        start, end = _range(events)
        found.append((end - start, start, profiler, events))
    length, since, profiler, events = min(found, key=lambda session: session[0])
    if trace:
        profiler.export_chrome_trace(trace)
    inside = [e for e in events if since <= e.start_ns() <= since + length]
    return {
        "host": host_work(events, since, since + length, "CPU"),
        "what": "operators",
        "activities": [
            {"name": name, "start": (a - since) / 1e9, "end": (b - since) / 1e9} for name, a, b in operators(inside)
        ],
        "length": length / 1e9,
        "memory": [((at - since) / 1e9, nbytes) for at, nbytes in zip(*_running(inside, "CPU"), strict=True)],
    }


def _range(events: Sequence[Any]) -> tuple[int, int]:
    """Return when the host began and ended the profiled call, in ns; an empty time where the profiler lost that."""
    whole = next((e for e in events if e.name() == RANGE and _is_on(e, "CPU")), None)
    return (whole.start_ns(), whole.end_ns()) if whole else (0, -1)


def _session(launch: Callable[[], Any], *, on_cuda: bool) -> tuple[Any, list[Any]]:
    """Profile one call with its allocations. Return the profiler and its events."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    if on_cuda:
        torch.cuda.synchronize()  # the session before is torn down at the next CUDA call: let that happen now
    with profile(activities=activities, profile_memory=True, acc_events=True) as profiler:
        with record_function("attnbench.start"):  # the first range of a session costs a millisecond
            pass
        with record_function(RANGE):
            result = launch()
        if on_cuda:
            torch.cuda.synchronize()
    del result  # freed here, so that the free is not part of the call
    return profiler, list(profiler.profiler.kineto_results.events()) if profiler.profiler else []


def at_launch(events: Sequence[Any]) -> list[int]:
    """Return the bytes that were allocated when the host launched each kernel, in the order in which they ran."""
    times, sums = _running(events, "CUDA")
    on_host = {
        e.correlation_id(): e.start_ns()
        for e in events
        if not _is_on(e, "CUDA") and e.correlation_id() > 0 and e.name().startswith("cu")
    }
    held, launched = [], 0
    for event in sorted((e for e in events if _ran_on_device(e)), key=lambda e: int(e.start_ns())):
        # a kernel without a host call of its own counts as launched with the kernel before it
        launched = on_host.get(event.correlation_id(), launched)
        before = bisect.bisect_right(times, launched)
        held.append(sums[before - 1] if before else 0)
    return held


def _running(events: Sequence[Any], device: str) -> tuple[list[int], list[int]]:
    """Return the host times in ns at which a device's allocator was used, and the bytes allocated after each."""
    used = sorted((e for e in events if e.name() == "[memory]" and _is_on(e, device)), key=lambda e: int(e.start_ns()))
    return [e.start_ns() for e in used], list(itertools.accumulate(e.nbytes() for e in used))


def _ran_on_device(event: Any) -> bool:
    return _is_on(event, "CUDA") and not event.is_user_annotation() and event.duration_ns() > 0


def _is_on(event: Any, device: str) -> bool:
    return str(event.device_type()) == f"DeviceType.{device}"


@dataclass
class _Node:
    """One operator with its start and end in ns, and the operators that it called."""

    name: str
    start: int
    end: int
    children: list[_Node] = field(default_factory=list)


def operators(events: Sequence[Any]) -> list[tuple[str, int, int]]:
    """Return (name, start, end) in ns of the operators that no other operator called.

    A wrapper gets the name of the operator that it wraps.
    """
    roots: list[_Node] = []
    open_: dict[int, list[_Node]] = {}  # by thread, outermost first
    own = (e for e in events if "::" in e.name() and not e.name().startswith("autograd::"))
    for event in sorted(own, key=lambda e: (e.start_ns(), -e.end_ns())):
        node = _Node(event.name(), event.start_ns(), event.end_ns())
        stack = open_.setdefault(event.start_thread_id(), [])
        while stack and stack[-1].end <= node.start:
            stack.pop()
        (stack[-1].children if stack else roots).append(node)
        stack.append(node)
    return [(_wrapped(root), root.start, root.end) for root in roots]


def _wrapped(node: _Node) -> str:
    """Return the name of the innermost operator in which `node` spends most of its time."""
    longest = max(node.children, key=lambda child: child.end - child.start, default=None)
    if longest is not None and longest.end - longest.start >= WRAPPER_SHARE * (node.end - node.start):
        return _wrapped(longest)
    return node.name
