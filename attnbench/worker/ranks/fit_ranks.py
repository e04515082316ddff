"""Whether one case fits on several devices and is right there, for `attnbench capacity --ranks`. Every rank runs this.

The steps of worker/fit_cell.py, on each rank's part of the inputs: the reference of some whole heads, which waits in
the host's memory of rank 0; a launch; a launch whose memory and seconds are measured, those of the rank that takes
most; those heads gathered to rank 0 and compared. A limit of memory is for the calls of each rank, not for the check.
"""

from __future__ import annotations

import gc
from functools import partial
from typing import TYPE_CHECKING, Any

from attnbench.core.backend import Backend
from attnbench.core.case import Case
from attnbench.core.policy import Policy
from attnbench.core.record import fit_measurements
from attnbench.core.split_sequence import part_of
from attnbench.judge import ResultCheck
from attnbench.worker import failures, fit_cell
from attnbench.worker.instruments import Instruments
from attnbench.worker.ranks import split_inputs
from attnbench.worker.ranks.measure_ranks import RankCell

if TYPE_CHECKING:
    from attnbench.worker.ranks.group import RankGroup


class LeanCell(RankCell):
    """One case on one rank, near the limit of its memory: one whole head at a time beside its part of the inputs."""

    def put_checked_heads(self) -> None:
        """Put the inputs of the heads that are compared into all ranks; their references wait in rank 0's host."""
        self.given = fit_cell.in_order_of(self.backend, self.case, self.given)
        for head in self.heads:
            if self.group.rank:
                self.put(head, None)
                continue
            check = ResultCheck(split_inputs.head_case(self.case), self._head(head), self.policy.seed, lean=True)
            self.put(head, check.inputs)
            check.move_reference("cpu")
            del check.inputs
            self.checks[head] = check

    def move_references(self) -> None:
        """Move the references back to the device."""
        for check in self.checks.values():
            check.move_reference(str(self.instruments.device))


def fit_ranks(
    instruments: Instruments, group: RankGroup, backend: Backend, case: Case, policy: Policy, memory: int | None
) -> dict[str, Any]:
    """Return the fields of the record of one case. Raises what the library raises, out of memory too.

    On GPUs torch's allocator gives out at most `memory` bytes of each for the calls; on a CPU the worker has set that
    limit.
    """
    with fit_cell.of_the_check():
        cell = LeanCell(instruments, group, backend, case, policy)
        if flaw := next((flaw for flaw in cell.flaws if flaw), None):
            return {"status": "failed", "reason": flaw}
        cell.put_checked_heads()
    before, nbytes, part = fit_cell.checksums(cell.given), cell.given.nbytes, part_of(case)
    call = [0.0]
    with fit_cell.at_most(instruments, memory, nbytes), instruments.memory.job_window():
        kept, prepared = instruments.memory.measure_held(cell.prepare)
        prepared.launch()  # compiles and tunes, which may take memory of its own
        instruments.synchronize()
        can_fill = all(group.all(_can_fill(instruments, part)))  # all or none: a launch is a collective
        launch = partial(fit_cell.timed, instruments, prepared.launch, call)
        used, _, raw = instruments.memory.measure_peak(launch, part, fill=can_fill)
    results = {name: value.detach() for name, value in prepared.canonical(raw).items()}
    changed = [name for name, total in fit_cell.checksums(cell.given).items() if total != before[name]]
    del prepared, launch, raw, cell.given
    gc.collect()
    instruments.memory.empty_cache()
    with fit_cell.of_the_check():
        cell.move_references()
        accuracy = cell.check_first(results)
    most = {name: int(group.most(kept + beside)) for name, beside in used.items()}
    notes = (f"checked: {len(cell.heads)} of {case.shape.nheads_k} key heads, as whole sequences",)
    return fit_cell.fields(
        accuracy,
        next((name for names in group.all(changed) for name in names), None),
        notes if can_fill else (*notes, fit_cell.NOT_FILLED),
        fit_measurements(group.most(call[0]), nbytes, most),
    )


def _can_fill(instruments: Instruments, part: Case) -> bool:
    """Whether there is room to fill the memory of the results with NaN before a launch."""
    try:
        instruments.memory.fill_with_nan(part)
    except Exception as error:
        if not failures.is_out_of_memory(error):
            raise
        return False
    finally:
        instruments.memory.empty_cache()
    return True
