"""The profile of one call of a backend, in a worker: kernels and their times, memory over time, the host's work.

The results and the kernels' names are checked as in a run; a call that fails a check is profiled too, and the profile
names the fault. The parts of a profile come from separate calls, since each instrument disturbs the others:

- latency without a profiler, as in a run;
- traced calls behind a spin with L2 cold, of which the call of median span is shown. Behind the spin, gaps between its
  kernels are the device's and not the host's;
- one more call under the profiler with allocations, which the Chrome trace shows;
- a second of further calls for a flame graph;
- on a GPU calls in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from attnbench.core import stats
from attnbench.core.backend import Backend, Unsupported, operand_dtype
from attnbench.core.case import Case
from attnbench.core.json import to_json
from attnbench.core.policy import Policy
from attnbench.worker import flame_graph, timeline
from attnbench.worker.cell_steps import CellSteps
from attnbench.worker.instruments import TimedLaunch
from attnbench.worker.measure.cupti import Untraceable
from attnbench.worker.measure_cell import CellMeasurer

MAX_TRACED_CALLS = 20
CPU_SESSIONS = 3


def profile(measurer: CellMeasurer, backend: Backend, case: Case, keep: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of an analysis.profile Profile in seconds and bytes, or {"refused": reason}.

    `keep` has the paths of the files to write: a Chrome trace ("trace"), a flame graph of the host ("flame").
    """
    if case.ranks > 1:
        from attnbench.worker.ranks.group import RankGroup
        from attnbench.worker.ranks.profile_ranks import profile_ranks

        assert isinstance(measurer.together, RankGroup)
        take = partial(profile_ranks, measurer, measurer.together)
    else:
        take = partial(_profile, measurer)
    try:
        found: dict[str, Any] = to_json(take(backend, case, keep))
        return found
    except Unsupported as refusal:
        return {"refused": " ".join(str(refusal).split()) or "refused without a reason"}
    finally:
        measurer.recover()  # free memory for the next backend's worker


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
    if on_cuda:  # last, as a failed capture leaves torch in a broken state
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

    The fields also have its length, and the spans and the events' readings of all traced calls. Missing fields and
    their causes are added to `notes`.
    """
    profiler, events = timeline.session(launch, on_cuda=True)
    if trace:
        profiler.export_chrome_trace(trace)
    host = {"host": timeline.host_of(events, "CUDA")}
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
    held = timeline.at_launch(events)
    if len(held) != len(call.kernels):
        notes.append(f"no memory over time: calls differ, with {len(held)} and {len(call.kernels)} kernels")
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
    """Return the seconds of calls in a CUDA graph; [], and a note, where the call cannot be captured."""
    try:
        return measurer.in_graph(timed, latency)
    except Unsupported as refusal:
        notes.append(f"not timed in a CUDA graph: {str(refusal).removeprefix('--timer graph: ')}")
        return ()


def _on_cpu(launch: Callable[[], Any], trace: str | None) -> dict[str, Any]:
    """Return the fields of a CPU's timeline: operators and allocations of the shortest of a few profiled calls."""
    found = []
    for _ in range(CPU_SESSIONS):
        profiler, events = timeline.session(launch, on_cuda=False)
        start, end = timeline.range_of(events)
        found.append((end - start, profiler, events))
    _, profiler, events = min(found, key=lambda session: session[0])
    if trace:
        profiler.export_chrome_trace(trace)
    return timeline.operators_of(events)
