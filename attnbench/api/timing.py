"""`attnbench.do_bench`: time one callable in this process, with the instruments of a run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, overload

from attnbench.api.arguments import NONE, NUMBER, TEXT, Kind, check_types, has_items
from attnbench.core import stats
from attnbench.core.captured_stderr import captured_stderr
from attnbench.core.errors import UserError, one_of
from attnbench.core.formats import duration, percent
from attnbench.core.policy import Policy
from attnbench.core.text import shortened

if TYPE_CHECKING:
    import torch

    from attnbench.worker.instruments import Instruments

Scalar = Literal["min", "max", "mean", "median"]
_KINDS: Mapping[str, Sequence[Kind]] = {
    "warmup": (NUMBER,),
    "rep": (NUMBER,),
    "grad_to_none": (("a list of tensors", (Iterable,)), NONE),
    "quantiles": (("a list of numbers", (Iterable,)), NONE),
    "return_mode": (TEXT,),
    "l2": (TEXT,),
    "device": (TEXT, NONE),
}
_LONGEST = 1e9  # milliseconds of warmup or sampling
MODES = ("min", "max", "mean", "median", "all", "timing")
# Half a 95 % interval that earlier work of the GPU adds to the uncertainty of a latency whose clock power holds down:
# the root mean square over 60 readings of an H200 against fresh processes (tests/gpu/api_agreement.py).
HELD_DOWN = 0.010


@dataclass(frozen=True)
class Timing:
    """The time of one call, and how it was measured.

    latency: the median, in seconds. samples: single calls, in seconds. uncertainty: half of the 95 % interval of the
    latency for other processes on this device, relative to it, and for other work before it where power holds the
    clock down; None for too few samples. clock: the median SM clock that was held, in Hz, counted on the GPU during the
    calls; None on a CPU. timer: "events" or "perf_counter". l2: "cold" or "warm" as a test of the instrument showed it,
    else "unproven". host_bound: whether the GPU waited for the host. notes: further facts on the figure.
    """

    latency: float
    samples: tuple[float, ...] = field(repr=False)
    uncertainty: float | None
    clock: float | None
    timer: str
    l2: str
    host_bound: bool = False
    notes: tuple[str, ...] = ()

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the latency for other processes on this device, in seconds."""
        half = self.uncertainty
        return None if half is None else (self.latency * math.exp(-half), self.latency * math.exp(half))

    def __str__(self) -> str:
        known = "" if self.uncertainty is None else f" ±{percent(self.uncertainty)}"
        clock = f", SM clock {self.clock / 1e6:.0f} MHz" if self.clock else ""
        bound = ", bound by the host" if self.host_bound else ""
        return f"{duration(self.latency)}{known} (median of {len(self.samples)}, L2 {self.l2}{clock}{bound})"


@overload
def do_bench(
    fn: Callable[[], Any],
    warmup: float = ...,
    rep: float = ...,
    grad_to_none: Sequence[torch.Tensor] | None = ...,
    quantiles: None = ...,
    return_mode: Scalar = ...,
    *,
    l2: Literal["cold", "warm"] = ...,
    device: str | None = ...,
) -> float: ...


@overload
def do_bench(
    fn: Callable[[], Any],
    warmup: float = ...,
    rep: float = ...,
    grad_to_none: Sequence[torch.Tensor] | None = ...,
    quantiles: None = ...,
    return_mode: Literal["timing"] = ...,
    *,
    l2: Literal["cold", "warm"] = ...,
    device: str | None = ...,
) -> Timing: ...


@overload
def do_bench(
    fn: Callable[[], Any],
    warmup: float = ...,
    rep: float = ...,
    grad_to_none: Sequence[torch.Tensor] | None = ...,
    quantiles: Sequence[float] | None = ...,
    return_mode: str = ...,
    *,
    l2: Literal["cold", "warm"] = ...,
    device: str | None = ...,
) -> Any: ...


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Sequence[torch.Tensor] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
    *,
    l2: Literal["cold", "warm"] = "cold",
    device: str | None = None,
) -> Any:
    """Return the time of `fn()` in milliseconds: a drop-in for triton.testing.do_bench, on a GPU or a CPU.

    Args:
        fn: the function to time, without arguments. Its results are not checked: `attnbench.check` does that.
        warmup: least time of calls before the first sample, in milliseconds; longer while they still get faster.
        rep: most time of sampling, in milliseconds; less where the median is known to 0.5 % before.
        grad_to_none: tensors whose `grad` is set to None before each call.
        quantiles: return these quantiles of the samples in place of `return_mode`; one value where one is given.
        return_mode: "mean", "median", "min" or "max" (a number), "all" (a list of samples), or "timing" (a Timing, in
            seconds, with its uncertainty, clock and L2).
        l2: the cache before each call: "cold" (flushed by reads) or "warm".
        device: "cuda:N" or "cpu"; by default the current GPU of torch, or the CPU where there is none.

    The launch is hidden behind work on the GPU, the SM clock is counted during the calls, and pauses let it recover
    where it fell. Raises UserError for unknown words, and whatever `fn` raises. docs/python.md has the differences from
    Triton's figures.

    >>> import attnbench
    >>> ms = attnbench.do_bench(lambda: sum(range(10_000)), device="cpu")
    >>> 0 < ms < 1000
    True
    >>> timing = attnbench.do_bench(lambda: sum(range(10_000)), device="cpu", return_mode="timing")
    >>> timing.timer, timing.clock
    ('perf_counter', None)
    """
    check_types(locals(), _KINDS)
    one_of("return_mode", return_mode, MODES)
    one_of("l2", l2, ("cold", "warm"))
    if not callable(fn):
        raise UserError(f"fn: {shortened(repr(fn))} is not a function")
    shares: list[Any] = [*quantiles] if has_items(quantiles) else []
    if quantiles is not None and not (
        shares and all(isinstance(share, Real) and 0 <= float(share) <= 1 for share in shares)
    ):
        raise UserError(f"quantiles: {shortened(repr(quantiles))} is not a list of numbers from 0 to 1, as [0.5, 0.9]")
    for name, value in (("warmup", warmup), ("rep", rep)):
        if not 0 <= value <= _LONGEST:
            raise UserError(f"{name}: {value!r} is not a number of milliseconds")
    tensors = [*grad_to_none] if has_items(grad_to_none) else []
    if not (grad_to_none is None or has_items(grad_to_none)) or not all(hasattr(one, "grad") for one in tensors):
        raise UserError(f"grad_to_none: {shortened(repr(grad_to_none))} is not a list of tensors")
    instruments = _instruments(_device(device))
    timing = _timed(instruments, fn, warmup / 1e3, rep / 1e3, tensors, l2)
    times = [1e3 * seconds for seconds in timing.samples]
    if quantiles is not None:
        found = [stats.percentile(times, 100 * share) for share in shares]
        return found if len(found) > 1 else found[0]
    modes: dict[str, Callable[[], Any]] = {
        "min": lambda: min(times),
        "max": lambda: max(times),
        "mean": lambda: statistics.fmean(times),
        "median": lambda: 1e3 * timing.latency,
        "all": lambda: times,
        "timing": lambda: timing,
    }
    return modes[return_mode]()


def _device(given: str | None) -> str:
    """Return "cuda:N" or "cpu". Raises UserError for another."""
    from attnbench.worker.environment import NoDevice, resolve_device

    if given is None:
        import torch

        return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
    if given == "cpu" or given.partition(":")[0] == "cuda":
        try:
            return resolve_device(given)
        except NoDevice as error:
            raise UserError(str(error)) from None
    raise UserError(f"device: {given!r} is neither cuda:N nor cpu")


@cache
def _instruments(device: str) -> Instruments:
    """Return the instruments of a device, which are opened once."""
    from attnbench.worker import environment
    from attnbench.worker.instruments import Instruments

    with captured_stderr():  # torch's profiler writes there that it starts
        return Instruments(environment.describe(device).device)


def _timed(
    instruments: Instruments,
    fn: Callable[[], Any],
    warmup: float,
    rep: float,
    grads: Sequence[torch.Tensor],
    l2: Literal["cold", "warm"],
) -> Timing:
    """Time a function; `warmup` and `rep` are in seconds."""
    from attnbench.results import uncertainty
    from attnbench.results.cells import CLOCK_HELD
    from attnbench.worker.instruments import TimedLaunch

    policy = Policy(warmup_s=warmup, min_seconds=min(rep, Policy.min_seconds), max_seconds=rep, l2=l2)

    def launch() -> Any:
        for tensor in grads:
            tensor.grad = None
        return fn()

    launch()  # the first call may compile
    found = instruments.time(TimedLaunch(launch, lambda _: (), 0, 0), policy)
    samples = found.measurements["time"].values
    known = uncertainty.uncertainty([samples], uncertainty.spread(instruments.device_info))
    clocks, top = found.measurements.get("clock_held"), instruments.state.clock_max_hz()
    clock = stats.median(clocks.values) if clocks else None
    held_down = clock is not None and top is not None and clock < CLOCK_HELD * top
    return Timing(
        stats.median(samples),
        tuple(samples),
        math.hypot(known.total, HELD_DOWN if held_down else 0.0) if known else None,
        clock,
        found.timer,
        found.l2,
        found.host_bound,
        tuple(found.notes),
    )
