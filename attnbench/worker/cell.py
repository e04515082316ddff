"""The interface by which measure_cell.py drives a cell: the steps in their order, their findings, and the record.

CellSteps (cell_steps.py) has the steps for a case on one device, RankCell (ranks/rank_cell.py) for one of several
ranks, StepCell (step/step_cell.py) for a step of a whole model.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from attnbench.core import stats
from attnbench.core.backend import Backend, Unsupported
from attnbench.core.case import Case
from attnbench.core.laps import Laps
from attnbench.core.policy import Policy
from attnbench.core.record import Accuracy, Approximation, Bitwise, Measurement
from attnbench.worker import failures
from attnbench.worker.instruments import Instruments, TimedLaunch, Timing
from attnbench.worker.kernel_trace import TraceFindings

Fields = dict[str, Any]  # fields of a Record
NO_BITS = "bits are not compared for steps of models and for several devices"


class Cell:
    """The steps of one cell, and the values that they pass on, in the order in which they are taken.

    Each step returns None, or the fields of the record that ends the cell: status, reason, and known errors. It raises
    Unsupported where the library refuses the case, and all other errors of the library. Subclasses define the steps
    from `make_inputs` to `trace_launch`, and the later steps that they need.
    """

    accuracy: Accuracy  # accuracy of the launches before timing
    first_call: float  # seconds of `prepare` and the first launch, compilation and tuning included
    memory: dict[str, int]  # name of a measurement -> bytes
    traced: TraceFindings

    def __init__(
        self, instruments: Instruments, backend: Backend, case: Case, policy: Policy, *, timed: bool = True
    ) -> None:
        """Take a cell to measure; without `timed` the same checks are made, and nothing is timed."""
        self.timed = timed
        self.instruments = instruments
        self.backend = backend
        self.case = case
        self.policy = policy
        self.laps = Laps()
        self.timing: Timing | None = None
        self.bitwise: Bitwise | None = None
        self.others: tuple[str, ...] = ()
        self.unseen = False  # whether the backend allocates outside of torch, so that its peak is unknown
        self.leak = ""  # a sentence on memory that calls never free; "" if none
        self._notes: list[str] = []  # sentences; the notes of timing and trace are kept elsewhere
        self._began, self._ecc_errors = time.time(), instruments.state.ecc_errors()

    def make_inputs(self) -> Fields | None:
        """Make the inputs and the reference for them."""
        raise NotImplementedError

    def launch_first(self) -> Fields | None:
        """Prepare and launch once."""
        raise NotImplementedError

    def launch_to_check(self) -> Fields | None:
        """Launch, measure its memory, and check the results."""
        raise NotImplementedError

    def prepare_to_time(self) -> None:
        """Prepare the launch that is timed, if it is another one."""

    def be_alone(self) -> None:
        """Wait until no other worker uses the device; the next steps may then be timed."""
        if self.timed:
            self.instruments.alone_on_device()
            self.laps.begin()

    def time(self) -> Fields | None:
        """Time the launch, and check that the inputs are unchanged."""
        if self.timed:
            launch = self.timed_launch()
            self.timing = self.instruments.time(launch, self.policy)
            self.time_beside(launch, self.timing)
            self.laps.end("timing")
        if changed := self.first_changed():
            return {"status": "wrong", "reason": f"it wrote to its input {changed}", "accuracy": self.accuracy}
        return None

    def timed_launch(self) -> TimedLaunch:
        """Return the launch in the form that the instruments take."""
        raise NotImplementedError

    def time_beside(self, launch: TimedLaunch, timing: Timing) -> None:
        """Add further measurements to `timing`."""

    def first_changed(self) -> str | None:
        """Return the name of an input to which a launch has written; None where none is known."""
        return None

    def time_plan(self) -> Fields | None:
        """Time the plan of a backend that has one, and measure its memory."""
        return None

    def trace(self) -> Fields | None:
        """Trace one launch to see which kernels ran."""
        self.traced = self.trace_launch()
        self.others = self.instruments.state.other_processes(self._began)
        self.laps.end("trace")
        if not self.traced.problem:
            return None
        shared = f"; other processes used this GPU meanwhile, which can look the same: {', '.join(self.others)}"
        reason = self.traced.problem + (shared if self.others else "")
        found = {"kernels": self.traced.kernels, "accuracy": self.accuracy, "others": self.others}
        return {"status": "wrong-kernel", "reason": reason, **found}

    def trace_launch(self) -> TraceFindings:
        """Trace one launch and judge the kernels that ran."""
        raise NotImplementedError

    def be_together(self) -> None:
        """Let other workers use the device from here on."""
        if self.timed:
            self.instruments.together_on_device()
            self.laps.begin()

    def check_renewed_inputs(self) -> Fields | None:
        """Check the results of the traced launch, if its inputs were changed in place."""
        return None

    def check_restored_inputs(self) -> Fields | None:
        """Launch again on the original inputs, and check."""
        return None

    def check_repeated_calls(self) -> Fields | None:
        """Compare the results of successive calls without pauses."""
        return None

    def check_strides_of_dout(self) -> Fields | None:
        """Check that gradients are the same for a dense dout and for one with the same values and other strides."""
        return None

    def compare_bits(self) -> None:
        """Compare the results of more launches bit by bit, and of one sequence alone."""
        self._notes.append(NO_BITS)

    def record(self) -> Fields:
        """Return the record's fields for a right kernel; without measurements where it was not timed."""
        found: Fields = {"status": "ok", "accuracy": self.accuracy, "kernels": self.traced.kernels}
        found |= {"approximation": self.approximation, "notes": tuple(self.notes)}
        if self.timing is None:
            return found
        known = {name: nbytes for name, nbytes in self.memory.items() if name != "memory_peak" or not self.unseen}
        now, before = self.instruments.state.ecc_errors(), self._ecc_errors
        errors = max(0, (now or 0) - before) if before is not None else 0
        return {
            **found,
            "measurements": {
                **self.timing.measurements,
                "first_call": Measurement("s", (self.first_call,)),
                **{name: Measurement("B", (nbytes,)) for name, nbytes in known.items()},
                **self.counts(),
            },
            "bitwise": self.bitwise,
            "timer": self.timing.timer,
            "l2": self.timing.l2,
            "limits": self.timing.limits,
            "host_bound": self.timing.host_bound,
            "others": self.others,
            "ecc_errors": int(self.instruments.together.most(errors)),
            "phases": self.laps.seconds,
        }

    def counts(self) -> dict[str, Measurement]:
        """Return the numbers in the record of a timed cell that are counted, not measured."""
        return {}

    @property
    def approximation(self) -> Approximation | None:
        """The error of an approximate backend against exact attention; None for an exact one."""
        return None

    @property
    def notes(self) -> list[str]:
        """The notes of all steps so far, as sentences."""
        timing = self.timing.notes if self.timing else []
        return [*self._notes, *filter(None, [self.leak]), *timing, *self.traced.notes]

    @property
    def latency(self) -> float | None:
        """The median seconds of a launch; None where it was not timed."""
        return stats.median(self.timing.measurements["time"].values) if self.timing else None

    @contextlib.contextmanager
    def told_what_to_do(self) -> Iterator[None]:
        """Add a known remedy to an error raised in the block."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, Unsupported):
                todo = self.leak if failures.is_out_of_memory(error) else self.what_to_do()
                with contextlib.suppress(Exception):  # its class may refuse attributes
                    setattr(error, failures.TODO, todo)
            raise

    def what_to_do(self) -> str:
        """Return the remedy for a wrong result or a failure, where a trial shows one; else ""."""
        return ""

    def wrong(self, accuracy: Accuracy, when: str = "", why: str = "") -> Fields:
        """Return the record's fields for wrong results; `when` names the launch, `why` the cause where it is known."""
        reason = "; ".join(filter(None, (when + accuracy.problem(), why or self.what_to_do())))
        return {"status": "wrong", "reason": reason, "accuracy": accuracy}

    @property
    def later(self) -> str:
        """The first words of a reason that a check gives, which depend on whether the launch has been timed."""
        return "after timing, " if self.timing else ""


def notes_on_data(case: Case, is_hard_checked: bool) -> tuple[str, ...]:
    """Return notes on the limits of checks with the data of a case, as sentences."""
    if case.data != "zeros":
        return ()
    only = "only the launch on hard inputs" if is_hard_checked else "nothing"
    return (f"data zeros: every right result is 0, so that {only} can reveal a kernel that writes zeros",)
