"""What calls after the samples show of them: the kernels that ran, how long they took, and whether the samples hold.

A call is traced on inputs that no earlier one has seen, so that what answers from memory has to compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from attnbench.core import stats
from attnbench.core.backend import Prepared, Signature
from attnbench.core.case import Case
from attnbench.worker import kernel_rules
from attnbench.worker.instruments import Instruments, Timing
from attnbench.worker.measure.cpu_operators import Operator, operator_names, trace_operators
from attnbench.worker.measure.cupti import TracedCall, Untraceable
from attnbench.worker.measure.sampling import LONG_CALL

UNSEEN = 1.3  # times the samples' median that the traced work may last; the clock can explain as much
AGAIN = 3.0  # times the samples' 90th percentile that a call on new inputs may last on a CPU
SUSPICIOUS = 4  # calls more where the first on a CPU shows little of what is declared
CLEAR = 0.1  # of the time: enough not to be a decoy, whatever else runs on the CPU
FEW_SAMPLES, TOO_LONG_TO_REPEAT = 10, 0.15  # samples; seconds of a call that is not made again for this
SLOW_AT_FIRST = "samples much slower than a later call: it was not warm yet, or something disturbed it"
UNWAITED = "part of it ran on another stream, and no wait for its end was seen: its time may end before its work"
LATER = 1.5  # times faster that a later call may be before the samples are doubted


@dataclass(frozen=True)
class TraceFindings:
    """What one traced call returned and showed."""

    result: Any
    kernels: Mapping[str, int]
    problem: str | None = None
    note: str | None = None


def trace_launch(
    instruments: Instruments,
    case: Case,
    signature: Signature,
    prepared: Prepared,
    timing: Timing,
    renew: Callable[[], Any],
) -> TraceFindings:
    """Traces one call after `renew`, and judges what ran. Where tracing takes several tries each is renewed."""
    result: Any = None

    def launch() -> None:
        nonlocal result
        result = None
        result = prepared.launch()

    if instruments.device.type != "cuda":
        renew()
        ran = trace_operators(launch)
        names = [operator.name for operator in ran]
        problem = (
            (kernel_rules.find_broken_rule(case, signature, names) or _low_share_on_cpu(signature, ran, launch))
            if ran
            else None
        )
        if late := kernel_rules.first_computing_operator(operator_names(lambda: prepared.canonical(result))):
            problem = problem or f"{late} ran after the launch, while its results were only to be named"
        return TraceFindings(result, kernel_rules.count_by_name(names), problem)
    try:
        if instruments.tracer is None:
            raise Untraceable("the profiler sees no kernels here (CUPTI)")
        launched, named = instruments.tracer.calls([launch, lambda: prepared.canonical(result)], before_each_try=renew)
    except Untraceable as error:
        renew()
        return TraceFindings(prepared.launch(), {}, note=f"what ran is not known: {error}")
    names = [k.name for k in launched.kernels]
    kernels = kernel_rules.count_by_name(names)
    problem = kernel_rules.find_broken_rule(case, signature, names) or kernel_rules.find_low_share(
        signature, launched.kernels
    )
    problem = problem or _outside(launched, named)
    latency = stats.median(timing.measurements["time"].values)
    if not problem and launched.busy > UNSEEN * latency + 20e-6:
        problem = (
            f"kernels ran for {launched.busy * 1e6:.0f} us in one call, and the samples say {latency * 1e6:.0f}: "
            "part of its work is not in its time"
        )
    note = UNWAITED if launched.unwaited else None
    if not timing.host_bound and launched.span * LATER + 20e-6 < latency:
        note = SLOW_AT_FIRST
    return TraceFindings(result, kernels, problem, note)


def check_later_calls(instruments: Instruments, prepared: Prepared, timing: Timing) -> list[str]:
    """What calls after the samples say of them, on inputs not seen before; looked at where it costs little.

    On a GPU the trace shows a call that computes more than the samples did. Calls of more than a burst are so few
    that a kernel which is slow in its first ten gets through: more show it, one where calls are long.
    """
    times = timing.measurements["time"].values
    notes = []
    if instruments.device.type != "cuda":
        took = instruments.timer.samples(prepared.launch, 1)[0]
        if took > AGAIN * stats.percentile(times, 90) + 1e-3:
            notes.append("its first call on new inputs is much slower than its samples: it may remember inputs")
    if len(times) <= FEW_SAMPLES and stats.median(times) < TOO_LONG_TO_REPEAT:
        more = 3 if stats.median(times) < LONG_CALL else 1
        few_more = [instruments.timer.samples(prepared.launch, 1)[0] for _ in range(more)]
        slack = 20e-6 if instruments.device.type == "cuda" else 1e-3
        if stats.median(few_more) * LATER + slack < stats.median(times):
            notes.append(SLOW_AT_FIRST)
    return notes


def _low_share_on_cpu(signature: Signature, ran: Sequence[Operator], launch: Callable[[], Any]) -> str | None:
    """proof.decoy on a CPU, whose other work is in the times of operators: of several calls where one could mislead."""
    calls = [ran]
    if kernel_rules.declared_share(signature, ran) < CLEAR and kernel_rules.busy_seconds(ran) < TOO_LONG_TO_REPEAT:
        calls += [trace_operators(launch) for _ in range(SUSPICIOUS)]
    return kernel_rules.find_low_share(
        signature, sorted(calls, key=partial(kernel_rules.declared_share, signature))[len(calls) // 2]
    )


def _outside(launched: TracedCall, named: TracedCall) -> str | None:
    """Work that the time of the launch does not hold."""
    if launched.overrun:
        return (
            f"its work went on for {launched.overrun * 1e6:.0f} us after its stream had gone on: on another stream, "
            "and nothing waits for it"
        )
    if launched.head_start:
        return (
            f"its work began {launched.head_start * 1e6:.0f} us before its stream had come to it: on another stream, "
            "which waits for nothing"
        )
    if named.kernels:
        return f"{kernel_rules.short_name(named.kernels[0].name)} ran after the launch, while its results were only to be named"
    return None
