"""Names what bounds a kernel, in a sentence, from its hardware counters.

A unit that is busy 80 % of the time leaves little to gain by anything else; where none is busy 60 % of it, the
kernel waits. Nsight Compute's own "speed of light" advice tells high, balanced and low use apart by the same limits.
Between them, and where the GPU lacks a counter, no bound is named.

Units serve each other: data that stream through HBM keep L2 as busy, and wgmma reads its operands from shared memory.
So if several units are at the limit, the first in the order of UNIT_COUNTERS is named. Two units that are busy for
shares a and b of the time are both busy for at least a + b - 1 of it; units that take turns have a sum near 1.

tests/analysis/test_profile_recorded.py tries this on counters of an H200, of planted kernels and of attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from attnbench.core.formats import duration, percent, size
from attnbench.run.profile.counters import COUNTERS, KernelCounters

HIGH, LOW = 0.8, 0.6
FEW_BLOCKS = 0.9  # share of the multiprocessors
TOO_SHORT = 10e-6  # seconds of a kernel: counters of shorter kernels are off, up to 240 % busy at 2 us
TURNS, OVERLAP = 0.9, 1.05  # the busy shares of tensor cores and exp added: from there in turns, beyond that at once
IDLE_TAIL = 0.1  # share of the kernel's time that is idle in its last wave; more is reported
FEW_WAVES = 8  # waves; with more, the last one is under an eighth of the time
NOT_TOLD = "these counters do not tell what bounds it"

# of COUNTERS: shares of time that a unit is busy
LIMITS = ("tensor", "exp", "fma", "alu", "hbm")
ON_CHIP = ("shared", "l2")  # memory that serves the units above, and is busy while they are
UNIT_COUNTERS = (*LIMITS, *ON_CHIP)


def sentence(kernel: KernelCounters, multiprocessors: int) -> str:
    """Return what bounds a kernel on a GPU with so many multiprocessors: which units are busy, and what follows."""
    known = sorted((name for name in UNIT_COUNTERS if name in kernel.values), key=lambda name: -kernel.values[name])
    busy = ", ".join(f"{COUNTERS[name].label} {percent(kernel.values[name])}" for name in known[:3])
    said = "; ".join((*_costs_of_shape(kernel, multiprocessors), _where_the_time_goes(kernel)))
    return f"{busy} busy: {said}." if busy else f"{said}."


def _costs_of_shape(kernel: KernelCounters, multiprocessors: int) -> Iterator[str]:
    """Yield the findings on the grid and the registers: idle multiprocessors, a short last wave, spilled registers."""
    blocks, waves, spilled = (kernel.value(name) for name in ("blocks", "waves", "spilled"))
    if 0 < blocks < FEW_BLOCKS * multiprocessors:
        yield f"{blocks:.0f} blocks for {multiprocessors} multiprocessors: the other multiprocessors idle"
    # as if all blocks lasted equally long, and none ran over several tiles
    tail = (math.ceil(waves) - waves) / math.ceil(waves) if waves > 1 else 0.0
    if waves <= FEW_WAVES and tail > IDLE_TAIL:
        yield f"{waves:.1f} waves: the last leaves {percent(tail)} of the time idle"
    if spilled > 0:
        yield f"{size(spilled)} of spilled registers are read back"


def _where_the_time_goes(kernel: KernelCounters) -> str:
    """Return the first finding that holds: too short, bound by a unit, in turns, at once, waiting, or not told."""
    seconds, tensor, exp = (kernel.value(name) for name in ("seconds", "tensor", "exp"))
    both = tensor + exp if min(tensor, exp) >= LOW / 2 else 0.0
    if 0 < seconds < TOO_SHORT:
        return f"{duration(seconds)} is too short to tell what bounds it"
    if unit := _at_its_limit(kernel, LIMITS):
        return f"bound by {unit}"
    if TURNS <= both <= OVERLAP:
        return "tensor cores and exp take turns: softmax is hardly overlapped with the products"
    if both > OVERLAP:
        return (
            f"tensor cores and exp work at once in at least {percent(both - 1)} of the time; "
            "more overlap of softmax and products would make it faster"
        )
    if unit := _at_its_limit(kernel, ON_CHIP):
        return f"bound by {unit}"
    if kernel.stalls and max(map(kernel.value, UNIT_COUNTERS)) < LOW:
        stalls = ", ".join(f"{name} ({percent(share)})" for name, share in kernel.top_stalls)
        return f"no unit is busy {percent(LOW)} of the time; warps wait for {stalls}"
    return NOT_TOLD


def _at_its_limit(kernel: KernelCounters, among: Sequence[str]) -> str:
    """Return the label of the first of these units that is at its limit, "" where none is."""
    return next((COUNTERS[name].label for name in among if kernel.value(name) >= HIGH), "")
