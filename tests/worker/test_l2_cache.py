"""The test of a cold or warm L2, with simulated timers; the flush and the read on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch

from attnbench.worker.measure import l2_cache
from attnbench.worker.measure.l2_cache import MIN_FLUSH, REPEATS, TURNS, L2Flush, make_reader, observed_state
from attnbench.worker.measure.sampling import do_nothing

CPU = torch.device("cpu")
L2 = 12 * 2**20


class Machine:
    """A timer on a machine with a cache: a read from memory takes `gain` seconds longer than a cached one.

    Samples have three values in turn, `noise` seconds apart.
    """

    def __init__(self, *, flushes: bool = True, gain: float = 2e-6, noise: float = 0.0, at_once: int = REPEATS) -> None:
        self.cached = False
        self.gain = gain
        self.noise = noise
        self.at_once = at_once
        self.flushes = flushes
        self.before: Callable[[], Any] = self.flush
        self.taken = 0

    def flush(self) -> None:
        self.cached = self.cached and not self.flushes

    def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
        values = []
        for i in range(min(n, self.at_once)):
            self.before()
            if isinstance(self.before, L2Flush):
                self.cached = False
            elif self.before not in (self.flush, do_nothing):
                self.cached = True  # `before` is the read
            values.append(20e-6 + (0.0 if self.cached else self.gain) + i % 3 * self.noise)
            launch()
            self.cached = True
        self.taken += len(values)
        return values


def found(machine: Machine) -> str:
    with patch.object(l2_cache, "MIN_FLUSH", 2**20):  # bytes that are read each time and change nothing
        return observed_state(machine, CPU, 2**20)


def test_a_flush_makes_it_cold() -> None:
    assert found(Machine()) == "cold"


def test_a_flush_that_does_nothing_leaves_it_warm() -> None:
    assert found(Machine(flushes=False)) == "warm"


def test_no_flush_leaves_it_warm() -> None:
    machine = Machine()
    machine.before = do_nothing
    assert found(machine) == "warm"


@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.parametrize(("gain", "is_clear"), [(1.9e-6, False), (2.1e-6, True), (9e-6, True)])
def test_reads_from_memory_must_stand_out(flushes: bool, gain: float, is_clear: bool) -> None:
    """Reads from memory must exceed the noise, by which samples are up to 2 us apart."""
    assert found(Machine(flushes=flushes, gain=gain, noise=1e-6)) == ("cold" if flushes and is_clear else "warm")


def test_a_timer_that_gives_few_samples_is_asked_again() -> None:
    machine = Machine(at_once=3)
    assert found(machine) == "cold"
    assert machine.taken == 3 * TURNS * REPEATS


def test_the_timer_gets_its_flush_back() -> None:
    machine = Machine()
    found(machine)
    assert machine.before == machine.flush

    class Breaks(Machine):
        def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
            if self.before != self.flush:
                raise RuntimeError("no")
            return super().samples(launch, n)

    broken = Breaks()
    with pytest.raises(RuntimeError):
        found(broken)
    assert broken.before == broken.flush


@pytest.mark.parametrize(
    ("l2_bytes", "nbytes"), [(L2, L2 // 3), (2**16, 2**20), (2**40, MIN_FLUSH // 3), (0, MIN_FLUSH // 3)]
)
def test_a_third_of_l2_is_read_within_limits(l2_bytes: int, nbytes: int) -> None:
    said, read = make_reader(CPU, l2_bytes)
    assert said == nbytes
    read()


def test_each_read_has_an_operand_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    operands = []
    real = torch.sum
    monkeypatch.setattr(torch, "sum", lambda x, **more: (operands.append(x.data_ptr()), real(x, **more))[1])
    first, second = make_reader(CPU, L2)[1], make_reader(CPU, L2)[1]
    for read in (first, second, first):
        read()
    assert operands[0] == operands[2] != operands[1]


@pytest.mark.parametrize(("l2_bytes", "size"), [(60 * 2**20, 120 * 2**20), (2**20, MIN_FLUSH), (0, MIN_FLUSH)])
def test_a_flush_reads_twice_l2(l2_bytes: int, size: int) -> None:
    flush = L2Flush(CPU, l2_bytes)
    assert flush.buffer.numel() * flush.buffer.element_size() == size


def test_a_flush_reads_all_of_its_buffer_and_writes_none_of_it() -> None:
    flush = L2Flush(CPU, 0)
    flush()
    assert flush.total == flush.buffer.numel()
    assert bool((flush.buffer == 1).all())


def test_the_state_follows_from_medians() -> None:
    """The state follows from medians, so that one disturbed sample does not decide."""

    class Disturbed(Machine):
        def samples(self, launch: Callable[[], Any], n: int) -> list[float]:
            values = super().samples(launch, n)
            return [1.0, *values[1:]]

    assert found(Disturbed()) == "cold"
    assert found(Disturbed(flushes=False)) == "warm"
    assert l2_cache.REPEATS >= 10
