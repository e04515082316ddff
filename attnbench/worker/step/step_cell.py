"""The measurement of a step of a whole model with one implementation of its attention, by the steps of worker/cell.py.

Each implementation's own worker computes the exact answer, which is the same for all. The first launch is not checked.
In the second, the attention of each layer and the step's own results are checked; the latter are checked again after
timing.
"""

from __future__ import annotations

import gc
from time import perf_counter
from typing import Any

from attnbench.backends.pytorch.sdpa import REFUSAL_MESSAGES, force
from attnbench.core import flops
from attnbench.core.backend import Unsupported
from attnbench.core.record import Accuracy
from attnbench.worker import kernel_rules
from attnbench.worker.cell import Cell, Fields
from attnbench.worker.instruments import TimedLaunch
from attnbench.worker.kernel_trace import TraceFindings
from attnbench.worker.step import attention_share, exact_model
from attnbench.worker.step.attention_calls import replaced
from attnbench.worker.step.attention_share import StepTrace
from attnbench.worker.step.exact_model import Answer
from attnbench.worker.step.layer_errors import ROWS, LayerErrors
from attnbench.worker.step.model import StepModel


class StepCell(Cell):
    """One step of a model: the model, its exact answer, and the answer of eager attention."""

    backend: Any  # from backends/transformers/step.py
    model: StepModel

    def make_inputs(self) -> Fields | None:
        """Build the model and compute its answers; then let it use the implementation."""
        force(self.backend.switch)
        self.model = StepModel(self.case, self.instruments.device, self.policy.seed)
        self.laps.end("inputs")
        self._exact, self._eager = exact_model.exact_answers(self.model)
        gc.collect()
        self.instruments.memory.empty_cache()
        self.laps.end("reference")
        asked = self.backend.implementation
        try:
            used = self.model.use(asked)
        except (ImportError, ValueError, KeyError, OSError) as error:
            raise Unsupported(f"transformers refuses it: {' '.join(str(error).split())[:300]}") from None
        if used != asked:
            return {"status": "wrong-kernel", "reason": f"transformers took {used} in place of {asked}"}
        return None

    def launch_first(self) -> Fields | None:
        """Launch once, timed. Raises Unsupported where torch refuses a kernel."""
        began = perf_counter()
        try:
            self.model.launch()
        except RuntimeError as error:
            if any(message in str(error) for message in REFUSAL_MESSAGES):
                raise Unsupported(f"torch refuses: {error}") from None
            raise
        self.instruments.synchronize()
        self.first_call = perf_counter() - began
        self.laps.end("first call")
        return None

    def launch_to_check(self) -> Fields | None:
        self._layers = LayerErrors(self.case)
        with replaced(self.backend.implementation, self._layers.check):
            found = Answer.of(self.model)
        self.accuracy = self._accuracy_of(found)
        del found
        self.laps.end("check")
        if not self.accuracy.ok:
            return self.wrong(self.accuracy)
        for p in self.model.model.parameters():
            p.grad = None
        self.memory = self.instruments.memory.measure_peak(self.model.launch, self.case)[0]
        self._notes.append(self._how_checked)
        self.laps.end("memory")
        return None

    def timed_launch(self) -> TimedLaunch:
        footprint = flops.input_bytes(self.case) + self.memory["memory_peak"]
        return TimedLaunch(self.model.launch, _no_copies, flops.ideal_bytes(self.case), footprint)

    def trace_launch(self) -> TraceFindings:
        """Trace one step; its attention is judged, and timed if the step is timed."""
        trace = self._traced()
        if isinstance(trace, str):
            return TraceFindings(None, {}, notes=(f"what ran is not known: {trace}",))
        if self.timing:
            self.timing.measurements.update(trace.measurements)
        problem = attention_share.wrong_kernels(trace, self.backend, self.case, self.instruments.device_info)
        return TraceFindings(None, kernel_rules.count_by_name(a.name for a in trace.activities), problem)

    def check_restored_inputs(self) -> Fields | None:
        accuracy = self._accuracy_of(Answer.of(self.model))
        self.laps.end("check")
        return None if accuracy.ok else self.wrong(accuracy, self.later)

    def _traced(self) -> StepTrace | str:
        """Return the trace of a step, or why there is none: another tool may use CUPTI, or it is not permitted."""
        try:
            trace = attention_share.trace_step(self.instruments.device, self.model.launch, self.backend.implementation)
        except ValueError as error:
            return str(error)
        return trace if trace.activities else "the profiler saw no kernel"

    def _accuracy_of(self, found: Answer) -> Accuracy:
        """Return the errors of a step: of its attention in the worst layer ("out", "dq", ...), "logits", "gradients".

        The errors of attention are taken from the checked launch.
        """
        compared = {**self._layers.worst(), **exact_model.errors(self.case, found, self._exact, self._eager)}
        unwritten = tuple(
            name
            for name, tensors in (("logits", [found.logits]), ("gradients", found.gradients.values()))
            if not all(bool(t.isfinite().all()) for t in tensors)
        )
        s = self.case.shape
        return Accuracy(compared, min(ROWS, s.seqlen_q), s.batch * s.nheads, unwritten, self._layers.flaws())

    @property
    def _how_checked(self) -> str:
        step, rows = self.case.model_step, min(ROWS, self.case.shape.seqlen_q)
        assert step
        cut = f"; {step.cut} of {step.model} were built" if step.layers < step.depth else ""
        return f"checked: attention of each layer at {rows} queries, and the step's results{cut}"


def _no_copies(_: int) -> Any:
    raise Unsupported("a step of a model is not captured in a CUDA graph; use --timer events")
