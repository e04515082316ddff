"""The measurement of one cell, a case on a backend, inside a worker."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from typing import Any

from attnbench import judge
from attnbench.core.backend import Backend, operand_dtype
from attnbench.core.case import Case
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Measurement
from attnbench.worker import fit_cell
from attnbench.worker.cell import Cell
from attnbench.worker.cell_steps import CellSteps
from attnbench.worker.instruments import Instruments

MANY_MODULES = 100  # new modules, for example of torch._dynamo; a garbage collection that visits them takes 0.1 s


class CellMeasurer(Instruments):
    """The measurer of cells on one device, with its instruments."""

    def __init__(self, device: Device) -> None:
        import torch

        torch.set_float32_matmul_precision("highest")  # no TF32 in fp32 cases, unless a backend chooses it
        super().__init__(device)
        judge.warm_up(self.device)
        self._load_autograd()
        if self.events:
            self.events.gauge.open()  # compiled here, where all workers compile at the same time
        self._freeze()

    def _load_autograd(self) -> None:
        """Load autograd on the device before the first job; it takes a second if sympy is not yet imported."""
        import torch

        x = torch.ones(16, 16, device=self.device, requires_grad=True)
        out = torch.softmax(x @ x, -1)
        torch.autograd.grad(out, x, torch.ones_like(out))

    def _freeze(self) -> None:
        """Have later collections skip the present objects, mostly of modules, so that timed jobs are not slowed."""
        gc.freeze()
        self._frozen = len(sys.modules)

    def measure(
        self, backend: Backend, case: Case, policy: Policy, *, timed: bool = True, ceilings: bool = False
    ) -> dict[str, Any]:
        """Measure one cell and return the fields of its Record; without `timed` make the same checks and time nothing.

        With `ceilings` the device's ceilings are measured first, and are in the record. All ranks call this, and the
        record is rank 0's.

        Raises Unsupported where the library refuses the case, and all other errors of the library.
        """
        cell = _kind_of(case)(self, backend, case, policy, timed=timed)
        limits = self.ceilings(operand_dtype(case)) if ceilings else {}
        cell.laps.end("ceilings")
        if flawed := cell.make_inputs():
            return flawed
        with cell.told_what_to_do():
            with self.memory.job_window():
                if wrong := cell.launch_first() or cell.launch_to_check():
                    return wrong
                cell.prepare_to_time()
            cell.be_alone()
            ending = cell.time() or cell.time_plan() or cell.trace()
            cell.be_together()
            ending = (
                ending
                or cell.check_renewed_inputs()
                or cell.check_restored_inputs()
                or cell.check_repeated_calls()
                or (None if timed else cell.check_strides_of_dout())
            )
            if timed and policy.bitwise and ending is None:
                cell.compare_bits()
        return ending or _rounded(cell.record(), limits)

    def recover(self) -> bool:
        """Free memory after a job, failed or not. Return False where the CUDA context or torch's state is broken."""
        gc.collect()
        if len(sys.modules) >= self._frozen + MANY_MODULES:
            self._freeze()
        try:
            self.synchronize()
            self.memory.empty_cache()
        except Exception:
            return False
        return not self.broken

    def fit(self, backend: Backend, case: Case, policy: Policy, memory: int | None) -> dict[str, Any]:
        """Test whether a cell fits in memory (in `memory` bytes, if given) and is right; return its record's fields."""
        if case.ranks == 1:
            return fit_cell.fit(self, backend, case, policy, memory)
        from attnbench.worker.ranks.lean_ranks import LeanRankCell

        return fit_cell.fit(self, backend, case, policy, memory, LeanRankCell)


def _kind_of(case: Case) -> type[Cell]:
    """Return the class with the steps for a case."""
    if case.ranks > 1:
        from attnbench.worker.ranks.rank_cell import RankCell

        return RankCell
    if case.step:
        from attnbench.worker.step.step_cell import StepCell

        return StepCell
    return CellSteps


def _rounded(record: dict[str, Any], limits: Mapping[str, Measurement]) -> dict[str, Any]:
    """Return the fields of a record with rounded measurements, and with the device's ceilings if they were measured."""
    if "measurements" not in record:
        return record
    measurements = {**record["measurements"], **limits}
    return {**record, "measurements": {name: _round_to_7_digits(m) for name, m in measurements.items()}}


def _round_to_7_digits(measurement: Measurement) -> Measurement:
    """Round samples to seven digits, which is finer than all instruments and halves the size of run files.

    Bytes are counted, not measured, and stay exact.
    """
    if measurement.unit == "B":
        return measurement
    return Measurement(measurement.unit, tuple(float(f"{v:.7g}") for v in measurement.values))
