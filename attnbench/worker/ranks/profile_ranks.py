"""The profile of one call of a case on several devices: rank 0's kernels, communication beside computation.

The case is measured as in a run, which checks its results; then one more call is traced in rank 0. The other ranks have
launched theirs before, so that rank 0 waits only for its own host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnbench.core.backend import operand_dtype
from attnbench.core.case import Case
from attnbench.core.policy import Policy
from attnbench.core.record import WRONG
from attnbench.worker import timeline
from attnbench.worker.measure_cell import CellMeasurer
from attnbench.worker.ranks import split_inputs

if TYPE_CHECKING:
    from attnbench.worker.ranks.group import RankGroup

WARMUPS = 3


def profile_ranks(
    measurer: CellMeasurer, group: RankGroup, backend: Any, case: Case, keep: Mapping[str, str]
) -> dict[str, Any]:
    """Return in rank 0 the fields of profile_call.profile; for wrong results, "refused" and "wrong".

    `keep` may have the path of a Chrome trace ("trace") of rank 0.
    """
    ceilings = measurer.ceilings(operand_dtype(case))
    record = measurer.measure(backend, case, Policy())
    if "measurements" not in record:
        return {"refused": f"{record['status']}: {record['reason']}", "wrong": record["status"] in WRONG}
    spans = backend.spans(case, group.rank)
    prepared = backend.prepare(case, split_inputs.make_part(case, spans, str(measurer.device), Policy().seed))
    for _ in range(WARMUPS):
        prepared.launch()
    measurer.synchronize()
    group.barrier()
    if group.rank:
        prepared.launch()
        measurer.synchronize()
        return {}
    on_cuda = measurer.device.type == "cuda"
    profiler, events = timeline.session(prepared.launch, on_cuda=on_cuda)
    if trace := keep.get("trace"):
        profiler.export_chrome_trace(trace)
    measured = {name: measurement.values for name, measurement in record["measurements"].items()}
    return {
        "timer": record["timer"],
        "l2": record["l2"],
        "limits": record["limits"],
        "host_bound": record["host_bound"],
        "times": measured["time"],
        "compute": measured.get("compute", ()),
        "enqueue": measured.get("enqueue", ()),
        "first_call": measured["first_call"][0],
        "memory_peak": measured["memory_peak"][0],
        "ceilings": {name.removeprefix("ceiling_"): max(m.values) for name, m in ceilings.items()},
        "notes": (*record["notes"], f"the timeline shows rank 0 of {group.ranks}"),
        **(timeline.kernels_of(events) if on_cuda else timeline.operators_of(events)),
    }
