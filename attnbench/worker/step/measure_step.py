"""Measures one step of a whole model with one implementation of its attention.

Build -> exact answer -> first launch, in which each layer's attention is checked -> the step's own results -> memory ->
timed bursts -> traced step -> results once more. The exact answer is computed anew for each implementation, by its own
worker; it is the same for all.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any

from attnbench.backends.pytorch.sdpa import REFUSAL_MESSAGES, SWITCHES
from attnbench.core import flops
from attnbench.core.backend import Unsupported
from attnbench.core.case import Case
from attnbench.core.policy import Policy
from attnbench.core.record import Accuracy, Measurement
from attnbench.worker import kernel_rules
from attnbench.worker.instruments import Instruments, TimedLaunch
from attnbench.worker.laps import Laps
from attnbench.worker.step import attention_share, exact_model
from attnbench.worker.step.attention_calls import replaced
from attnbench.worker.step.attention_share import StepTrace
from attnbench.worker.step.exact_model import Answer
from attnbench.worker.step.layer_errors import ROWS, LayerErrors
from attnbench.worker.step.model import StepModel

if TYPE_CHECKING:
    pass

Fields = dict[str, Any]  # of a Record


def measure_step(instruments: Instruments, backend: Any, case: Case, policy: Policy, *, timed: bool = True) -> Fields:
    """Measure one step and return the fields of its Record; without `timed` make the same checks and time nothing.

    Raises Unsupported where transformers or torch refuses the implementation.
    """
    import torch

    laps, began, before = Laps(), time.time(), instruments.state.ecc_errors()
    for name in SWITCHES if backend.switch else ():
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(name == backend.switch)
    model = StepModel(case, instruments.device, policy.seed)
    laps.end("inputs")
    exact, eager = exact_model.exact_answers(model)
    gc.collect()
    instruments.memory.empty_cache()
    laps.end("reference")
    try:
        used = model.use(backend.implementation)
    except (ImportError, ValueError, KeyError, OSError) as error:
        raise Unsupported(f"transformers refuses it: {' '.join(str(error).split())[:300]}") from None
    if used != backend.implementation:
        return {
            "status": "wrong-kernel",
            "reason": f"transformers took {used} in the place of {backend.implementation}",
        }

    with instruments.memory.job_window():
        first_call = _first_launch(instruments, model)
        laps.end("first call")
        found, layers = _checked_launch(model, backend.implementation)
        accuracy = _accuracy(case, found, exact, eager, layers)
        laps.end("check")
        if not accuracy.ok:
            return {"status": "wrong", "reason": accuracy.problem(), "accuracy": accuracy}
        del found
        for p in model.model.parameters():
            p.grad = None
        memory = instruments.memory.measure_peak(model.launch, case)[0]
        laps.end("memory")
    record: Fields = {"status": "ok", "accuracy": accuracy, "notes": (_how_checked(case),)}
    timing = None
    if timed:
        footprint = flops.input_bytes(case)
        timing = instruments.time(
            TimedLaunch(model.launch, _no_copies, flops.ideal_bytes(case), footprint + memory["memory_peak"]), policy
        )
        laps.end("timing")
    trace = _traced(model, backend.implementation)
    others = instruments.state.other_processes(began)
    laps.end("trace")
    if isinstance(trace, str):
        record["notes"] += (f"what ran is not known: {trace}",)
    else:
        record["kernels"] = kernel_rules.count_by_name(a.name for a in trace.activities)
        if problem := attention_share.wrong_kernels(trace, backend, case, instruments.device_info):
            found_here = {"kernels": record["kernels"], "accuracy": accuracy, "others": others}
            return {"status": "wrong-kernel", "reason": problem, **found_here}
    again = _accuracy(case, Answer.of(model), exact, eager, layers)
    if not again.ok:
        return {"status": "wrong", "reason": f"after timing, {again.problem()}", "accuracy": again}
    laps.end("check")
    record["others"] = others
    if timing is None:
        return record
    measurements = {
        **timing.measurements,
        "first_call": Measurement("s", (first_call,)),
        **({} if isinstance(trace, str) else trace.measurements),
        **{name: Measurement("B", (value,)) for name, value in memory.items()},
    }
    errors = (instruments.state.ecc_errors() or 0) - before if before is not None else 0
    return record | {
        "measurements": measurements,
        "timer": timing.timer,
        "l2": timing.l2,
        "limits": timing.limits,
        "host_bound": timing.host_bound,
        "ecc_errors": max(0, errors),
        "notes": (*record["notes"], *timing.notes),
        "phases": laps.seconds,
    }


def _traced(model: StepModel, implementation: str) -> StepTrace | str:
    """Return the trace of a step, or why there is none: CUPTI may be in use by another tool, or not permitted."""
    try:
        trace = attention_share.trace_step(model.tokens.device, model.launch, implementation)
    except ValueError as error:
        return str(error)
    return trace if trace.activities else "the profiler saw no kernel"


def _first_launch(instruments: Instruments, model: StepModel) -> float:
    """Launch once, and return the seconds that it took. Raises Unsupported where torch refuses a kernel."""
    began = time.perf_counter()
    try:
        model.launch()
    except RuntimeError as error:
        if any(message in str(error) for message in REFUSAL_MESSAGES):
            raise Unsupported(f"torch refuses: {error}") from None
        raise
    instruments.synchronize()
    return time.perf_counter() - began


def _checked_launch(model: StepModel, implementation: str) -> tuple[Answer, LayerErrors]:
    """Launch once. Return the results, and the errors of the attention of each layer."""
    layers = LayerErrors(model.case)
    with replaced(implementation, layers.check):
        return Answer.of(model), layers


def _accuracy(case: Case, found: Answer, exact: Answer, eager: Answer, layers: LayerErrors) -> Accuracy:
    """Return the errors of a step: of its attention in the worst layer ("out", "dq", ...), "logits", "gradients"."""
    compared = {**layers.worst(), **exact_model.errors(case, found, exact, eager)}
    unwritten = tuple(
        name
        for name, tensors in (("logits", [found.logits]), ("gradients", found.gradients.values()))
        if not all(bool(t.isfinite().all()) for t in tensors)
    )
    s = case.shape
    return Accuracy(compared, min(ROWS, s.seqlen_q), s.batch * s.nheads, unwritten, layers.flaws())


def _how_checked(case: Case) -> str:
    step = case.model_step
    assert step
    cut = f"; {step.cut} of {step.model} were built" if step.layers < step.depth else ""
    return f"checked: attention of each layer at {min(ROWS, case.shape.seqlen_q)} queries, and the step's results{cut}"


def _no_copies(_: int) -> Any:
    raise Unsupported("a step of a model is not captured in a CUDA graph; use --timer events")
