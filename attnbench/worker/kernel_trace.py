"""Calls after timing that test the samples: a traced call, which shows the kernels and their times, and later calls.

The traced call gets inputs that no earlier call has read, so that a kernel with stored results must compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.core import stats
from attnbench.core.activity import busy_seconds
from attnbench.core.backend import Prepared, Signature
from attnbench.core.case import Case
from attnbench.core.record import Measurement
from attnbench.worker import kernel_rules
from attnbench.worker.instruments import Instruments, Timing
from attnbench.worker.measure.cpu_operators import operator_names
from attnbench.worker.measure.cupti import TracedCall, Untraceable
from attnbench.worker.measure.sampling import LONG_CALL, VERY_LONG_CALL

MAX_BUSY_OVER_LATENCY = 1.3  # traced kernel time over the samples' median; a falling clock explains as much
SLOWER_ON_NEW_INPUTS = 1.15  # a CPU's first call on new inputs over the next call, from which on results may be stored
PAIRS = 8  # pairs of a call on new inputs and the next call; all but one must differ by SLOWER_ON_NEW_INPUTS
FEW_SAMPLES = 10
TOO_LONG_TO_REPEAT = 0.15  # seconds; longer calls are not repeated for these tests
SLOW_AT_FIRST = "samples much slower than a later call: the kernel was not warm, or was disturbed; measure again"
UNWAITED = "part of it ran on another stream without a visible wait for its end, so its time may be too short"
# Operators that hand tensors over; a cast also runs aten::_to_copy.
HAND_OVER = ("aten::to", "aten::resolve_conj", "aten::resolve_neg", "aten::lift_fresh")
UNSEEN = "no operator of torch ran in a call, so it is unknown what computed its results"
MAX_OVER_LATER_CALL = 1.5  # samples whose median is more than this times a later call's are doubtful


@dataclass(frozen=True)
class TraceFindings:
    """The result of one traced call, its kernels, and the findings about them."""

    result: Any  # the launch's raw result
    kernels: Mapping[str, int]  # short name -> number of runs
    problem: str | None = None  # why the cell is wrong-kernel
    notes: tuple[str, ...] = ()  # sentences for a reader of the time


def trace_launch(
    instruments: Instruments,
    case: Case,
    signature: Signature,
    prepared: Prepared,
    timing: Timing | None,
    renew: Callable[[], Any],
) -> TraceFindings:
    """Trace one launch on new inputs, and judge its kernels; with `timing`, also whether the samples cover them.

    `renew` writes new values to the inputs; it is called before each try, as a trace may take several. Where nothing
    can be traced, the findings hold the launch's result and a note.
    """
    result: Any = None

    def launch() -> None:
        nonlocal result
        result = None
        result = prepared.launch()

    if instruments.device.type != "cuda":
        renew()
        names = operator_names(launch)
        problem = kernel_rules.find_broken_rule(case, signature, names) if names else None
        if late := kernel_rules.first_computing_operator(operator_names(lambda: prepared.canonical(result))):
            problem = problem or f"{late} ran after the launch, in `canonical`, which may only name its results"
        notes = (*kernel_rules.float32_notes(case, signature, names), *(() if _computes(names) else (UNSEEN,)))
        return TraceFindings(result, kernel_rules.count_by_name(names), problem, notes)
    try:
        if instruments.tracer is None:
            raise Untraceable("the profiler sees no kernels here (CUPTI)")
        launched, naming = instruments.tracer.calls([launch, lambda: prepared.canonical(result)], before_each_try=renew)
    except Untraceable as error:
        renew()
        return TraceFindings(prepared.launch(), {}, notes=(f"what ran is not known: {error}",))
    names = [k.name for k in launched.kernels]
    kernels = kernel_rules.count_by_name(names)
    problem = kernel_rules.find_broken_rule(case, signature, names) or kernel_rules.find_low_share(
        signature, launched.kernels
    )
    problem = problem or _work_outside_launch(launched, naming)
    notes = (*kernel_rules.float32_notes(case, signature, names), *((UNWAITED,) if launched.unwaited else ()))
    if timing is None:
        return TraceFindings(result, kernels, problem, notes)
    latency = stats.median(timing.measurements["time"].values)
    busy = busy_seconds(launched.kernels)
    if not problem and busy > MAX_BUSY_OVER_LATENCY * latency + 20e-6:
        problem = (
            f"kernels ran for {busy * 1e6:.0f} us in one call, but the samples have {latency * 1e6:.0f}: "
            "part of its work is not in its time"
        )
    if not timing.host_bound and launched.span * MAX_OVER_LATER_CALL + 20e-6 < latency:
        notes += (SLOW_AT_FIRST,)
    return TraceFindings(result, kernels, problem, notes)


def _computes(names: Sequence[str]) -> bool:
    """Return whether an operator computes something; operators that convert tensors to numpy and back do not."""
    return kernel_rules.first_computing_operator(name for name in names if name not in HAND_OVER) is not None


def slow_at_first(instruments: Instruments, launch: Callable[[], Any], timing: Timing) -> tuple[str, ...]:
    """Return a note where the samples are much slower than later calls, for a cell with few samples.

    Without this test a kernel that is slow in its first ten calls would not be noticed. `launch` is called some more
    times.
    """
    samples = timing.measurements["time"].values
    seconds = stats.median(samples)
    if len(samples) > FEW_SAMPLES or seconds >= TOO_LONG_TO_REPEAT:
        return ()
    count = 3 if seconds < LONG_CALL else 2 if seconds < VERY_LONG_CALL else 1
    later = [instruments.timer.samples(launch, 1)[0] for _ in range(count)]
    slack = 20e-6 if instruments.device.type == "cuda" else 1e-3
    return (SLOW_AT_FIRST,) if stats.median(later) * MAX_OVER_LATER_CALL + slack < seconds else ()


def slow_on_new_inputs(
    instruments: Instruments, prepared: Prepared, renew: Callable[[], None], renew_others: Callable[[], None]
) -> dict[str, Measurement]:
    """Return the seconds of calls on new inputs, and of the calls after them; nothing where two pairs hardly differ.

    Slower calls on new inputs are a sign of stored results. This is for CPUs; on a GPU the trace shows stored results.
    `renew` writes inputs that no call has read, `renew_others` does the same to tensors that no call reads.

    One pair may hardly differ, because other work on the CPU may have delayed its second call. `renew_others` is called
    before each call, because a short call is up to 1.5 times as slow after other operators as after itself, when its
    code has left the caches.
    """
    pairs: list[tuple[float, ...]] = []
    alike = 0
    while len(pairs) < PAIRS:
        renew()
        pair = []
        for _ in range(2):
            renew_others()
            pair += instruments.timer.samples(prepared.launch, 1)
        pairs.append(tuple(pair))
        alike += pairs[-1][0] <= SLOWER_ON_NEW_INPUTS * pairs[-1][1]
        if alike > 1:
            return {}
    new, same = zip(*pairs, strict=True)
    if stats.median(new) <= SLOWER_ON_NEW_INPUTS * stats.median(same):
        return {}
    return {"new_inputs": Measurement("s", new), "same_inputs": Measurement("s", same)}


def _work_outside_launch(launched: TracedCall, naming: TracedCall) -> str | None:
    """Return the work of a call that is not in the time of its launch, in one line; None where all is.

    `launched` is the traced launch, `naming` the traced call of `canonical` after it.
    """
    if launched.overrun:
        return (
            f"its work ran for {launched.overrun * 1e6:.0f} us after its stream had passed it: on another stream, "
            "without a wait for its end"
        )
    if launched.head_start:
        return (
            f"its work began {launched.head_start * 1e6:.0f} us before its stream had reached it: on another stream, "
            "without a wait for its beginning"
        )
    if naming.kernels:
        late = kernel_rules.short_name(naming.kernels[0].name)
        return f"{late} ran after the launch, in `canonical`, which may only name its results"
    return None
