"""What bounds a kernel, in a sentence, by its hardware counters: rules as data.

First what the grid and the registers cost (SHAPE, all that hold), then what the time went to (UNITS, the first that
holds). A unit that is busy 80 % of the time leaves little to gain by anything else; where none is busy 60 % of it, the
kernel waits. By these limits Nsight Compute's own "speed of light" advice tells high, balanced and low use apart.
Between them, and where the GPU lacks a counter, it is not told.

Units serve each other: what streams through HBM keeps L2 as busy, and wgmma reads its operands from shared memory. So
of several units at the limit the one that is named is the first of UNIT_COUNTERS. Of two units that are busy for a and
b of the time, a + b - 1 is the least in which both are; so a sum near 1 is what taking turns gives.

Tried on counters of an H200, of planted kernels and of attention (tests/analysis/test_profile_recorded.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnbench.core.formats import duration, percent, size
from attnbench.run.profile.counters import COUNTERS, KernelCounters

HIGH, LOW = 0.8, 0.6
FEW_BLOCKS = 0.9  # of the multiprocessors
TOO_SHORT = 10e-6  # seconds of a kernel; of one of 2 us a unit was counted as 240 % busy
TURNS, OVERLAP = 0.9, 1.05  # the busy shares of tensor cores and exp added: from there in turns, beyond that at once
IDLE_TAIL = 0.1  # of the time of the kernel, in its last wave
FEW_WAVES = 8  # beyond them the last one is under an eighth of the time
NOT_TOLD = "what bounds it is not told by these counters"

# of COUNTERS: shares of time that a unit is busy
LIMITS = ("tensor", "exp", "fma", "alu", "hbm")
ON_CHIP = ("shared", "l2")  # memory that serves those, and is busy while they are
UNIT_COUNTERS = (*LIMITS, *ON_CHIP)


@dataclass(frozen=True)
class Rule:
    """A finding: when it holds of a kernel on a GPU with so many multiprocessors, and what is said then."""

    name: str
    holds: Callable[[KernelCounters, int], bool]
    says: Callable[[KernelCounters, int], str]


def busiest(kernel: KernelCounters) -> str:
    """Return the counter of the unit that is busy longest."""
    return max(UNIT_COUNTERS, key=kernel.value)


def limiting_unit(kernel: KernelCounters, among: Sequence[str]) -> str:
    """Return the counter of the first of these units that is at its limit, "" where none is."""
    return next((name for name in among if kernel.value(name) >= HIGH), "")


def tensor_and_exp(kernel: KernelCounters) -> float:
    """Return the busy shares of tensor cores and exp added, 0 where one of them is hardly used."""
    shares = kernel.value("tensor"), kernel.value("exp")
    return sum(shares) if min(shares) >= LOW / 2 else 0.0


def idle_tail(kernel: KernelCounters) -> float:
    """Return the share of the kernel's time in which its last wave leaves multiprocessors idle, 0 without waves.

    It takes all blocks to last equally long, and no block to run over several tiles.
    """
    waves = kernel.value("waves")
    return (math.ceil(waves) - waves) / math.ceil(waves) if waves > 1 else 0.0


def _few_blocks(kernel: KernelCounters, multiprocessors: int) -> bool:
    return 0 < kernel.value("blocks") < FEW_BLOCKS * multiprocessors


def _waits(kernel: KernelCounters, _: int) -> bool:
    return kernel.value(busiest(kernel)) < LOW and bool(kernel.stalls)


SHAPE = (
    Rule(
        "few blocks",
        _few_blocks,
        lambda k, n: f"{k.values['blocks']:.0f} blocks for {n} multiprocessors: the others idle",
    ),
    Rule(
        "tail",
        lambda k, _: 1 < k.value("waves") <= FEW_WAVES and idle_tail(k) > IDLE_TAIL,
        lambda k, _: f"{k.values['waves']:.1f} waves: the last leaves {percent(idle_tail(k))} of the time idle",
    ),
    Rule(
        "spills",
        lambda k, _: k.value("spilled") > 0,
        lambda k, _: f"{size(k.values['spilled'])} of spilled registers are read back",
    ),
)
UNITS = (
    Rule(
        "too short",
        lambda k, _: 0 < k.value("seconds") < TOO_SHORT,
        lambda k, _: f"{duration(k.values['seconds'])} is too short to tell what bounds it",
    ),
    Rule(
        "bound by a unit",
        lambda k, _: bool(limiting_unit(k, LIMITS)),
        lambda k, _: f"bound by {COUNTERS[limiting_unit(k, LIMITS)].label}",
    ),
    Rule(
        "takes turns",
        lambda k, _: TURNS <= tensor_and_exp(k) <= OVERLAP,
        lambda k, _: "tensor cores and exp take turns: softmax is hardly overlapped with the products",
    ),
    Rule(
        "overlaps",
        lambda k, _: tensor_and_exp(k) > OVERLAP,
        lambda k, _: (
            f"tensor cores and exp work at once in at least {percent(tensor_and_exp(k) - 1)} of the time; "
            "more overlap of softmax and products would make it faster"
        ),
    ),
    Rule(
        "bound by on-chip memory",
        lambda k, _: bool(limiting_unit(k, ON_CHIP)),
        lambda k, _: f"bound by {COUNTERS[limiting_unit(k, ON_CHIP)].label}",
    ),
    Rule(
        "waits",
        _waits,
        lambda k, _: f"no unit is busy {percent(LOW)} of the time; warps wait for {_stalls(k)}",
    ),
)


def _stalls(kernel: KernelCounters) -> str:
    return ", ".join(f"{name} ({percent(share)})" for name, share in kernel.top_stalls)


def findings(kernel: KernelCounters, multiprocessors: int) -> tuple[str, ...]:
    """Return the names of the rules that hold of a kernel."""
    return tuple(rule.name for rule in _holding(kernel, multiprocessors))


def sentence(kernel: KernelCounters, multiprocessors: int) -> str:
    """Return what bounds a kernel: which units are busy, and what the rules say."""
    known = sorted((name for name in UNIT_COUNTERS if name in kernel.values), key=lambda name: -kernel.values[name])
    busy = ", ".join(f"{COUNTERS[name].label} {percent(kernel.values[name])}" for name in known[:3])
    rules = _holding(kernel, multiprocessors)
    said = [rule.says(kernel, multiprocessors) for rule in rules]
    if not any(rule in UNITS for rule in rules):
        said.append(NOT_TOLD)
    return f"{busy} busy: {'; '.join(said)}." if busy else f"{'; '.join(said)}."


def _holding(kernel: KernelCounters, multiprocessors: int) -> Sequence[Rule]:
    shape = [rule for rule in SHAPE if rule.holds(kernel, multiprocessors)]
    unit = next((rule for rule in UNITS if rule.holds(kernel, multiprocessors)), None)
    return [*shape, unit] if unit else shape
