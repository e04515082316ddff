"""Faults of the machine: clocks, the cache, inputs, other processes, hidden memory.

They are tested on a CPU, with a simulated clock or the host's; test_wrong_kernels_gpu.py has faults that need a GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hidden_costs
import pytest
import right_attention
from measuring_device import CPU, QUICK, Clock, MeasuringDevice, case, measuring_device

from attnbench.core import stats
from attnbench.core.backend import Inputs
from attnbench.core.policy import Policy
from attnbench.core.record import Forecast, Job
from attnbench.judge import inputs
from attnbench.run.workers import WorkerPool
from attnbench.worker import instruments
from attnbench.worker.measure import l2_cache

MIB = 2**20


def device_and_clock() -> Iterator[tuple[MeasuringDevice, Clock]]:
    clock = Clock(1e-6)
    yield from ((made, clock) for made in measuring_device(CPU, clock))


simulated_cpu = pytest.fixture(device_and_clock, scope="module")  # kernels can move its clock
fresh_cpu = pytest.fixture(device_and_clock)  # the state of L2 has not been tested yet


# The clock

HUNDRED = Policy(l2="warm", warmup_s=0.0, min_samples=100, max_samples=100, min_seconds=0.0)


@pytest.mark.parametrize(
    ("rise", "expected"), [(0.1, "Getting slower while measured"), (-0.1, "Still getting faster while measured")]
)
def test_a_clock_that_moves(simulated_cpu: tuple[MeasuringDevice, Clock], rise: float, expected: str) -> None:
    """Fault: the clock falls by 10 % during sampling, so that the median mixes two speeds. Found: a caution about
    drift.
    """
    device, clock = simulated_cpu
    record = device.passes(hidden_costs.ChangesSpeed(rise, clock.spend), case(), HUNDRED)
    assert [text for text in device.cautions(record, HUNDRED) if text.startswith(expected)]


def test_a_steady_clock(simulated_cpu: tuple[MeasuringDevice, Clock]) -> None:
    """No fault: the same kernel on a steady clock is ok, and the report has no caution."""
    device, clock = simulated_cpu
    record = device.passes(hidden_costs.ChangesSpeed(0.0, clock.spend), case(), HUNDRED)
    assert device.cautions(record, HUNDRED) == device.objections(record, HUNDRED) == []
    assert device.value(record, "latency") == pytest.approx(1e-3, rel=0.01)


@pytest.mark.parametrize(("delay", "slow_calls"), [(0.01, 10), (0.1, 5)])
def test_slow_at_first(cpu: MeasuringDevice, delay: float, slow_calls: int) -> None:
    """Fault: the first calls are slow, and a cell of long calls has few others.

    Found: the latency of later calls, or the report doubts it.
    """
    policy = Policy(l2="warm", target=0.3)  # a wide target, so that only two speeds in one series count as noise
    kernel = hidden_costs.SlowAtFirst(delay, slow_calls=slow_calls)
    record = cpu.passes(kernel, case(), policy)
    latency, drift = (cpu.value(record, name) for name in ("latency", "drift"))
    assert latency is not None
    assert drift is not None
    noisy = [text for text in cpu.cautions(record, policy) if text.startswith("Noisy")]
    found = latency < delay / 2 or noisy or drift < -0.3 or cpu.objections(record, policy)
    plain = stats.median(kernel.later)
    if not found and plain > delay / 4:
        pytest.skip(f"its later calls took {plain * 1e3:.1f} ms: other work on this machine hid the fault")
    assert found, "it passed as right"


CLOCKS = """
import time
from right_attention import attention

for name in ("perf_counter", "perf_counter_ns"):
    clock = getattr(time, name)
    setattr(time, name, lambda clock=clock: type(clock())(clock() / 10))

def asleep(q, k, v, **options):
    time.sleep(0.02)
    return attention(q, k, v, **options)
"""


def test_replaced_clocks_of_python(cpu: MeasuringDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: on import it replaces Python's clocks by ones that run ten times slower. Found: attnbench's clock was
    imported earlier, or the record is marked.
    """
    (tmp_path / "own.py").write_text(CLOCKS)
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{Path(__file__).parents[2]}")
    pool = WorkerPool({"own": f"{tmp_path}/own.py:asleep"})
    try:
        pool.start_loading(import_ahead=True)
        assert pool.probe()["own"].usable
        record = pool.measure(Job(case(), "own", 0, Forecast(1.0, 0.1, 0)), cpu.policy, CPU)
    finally:
        pool.close()
    if not cpu.objections(record):
        latency = cpu.value(record, "latency")
        assert latency is not None
        assert latency >= 0.02


# The cache


@dataclass
class Cache:
    """A simulated cache: a read takes 0.4 ms where its operand is in the cache, and 1.7 ms otherwise."""

    clock: Clock
    cached: bool = False
    flushes: bool = True

    def flush(self) -> None:
        self.cached = self.cached and not self.flushes

    def reader(self, *_: Any) -> tuple[int, Callable[[], None]]:
        def read() -> None:
            self.clock.spend(0.4e-3 if self.cached else 1.7e-3)
            self.cached = True

        return 2**24, read

    def evict(self) -> None:
        self.cached = False

    def use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the test of L2 read from this cache and flush it."""
        monkeypatch.setattr(l2_cache, "make_reader", self.reader)
        monkeypatch.setattr(l2_cache, "L2Flush", lambda *_: self.evict)


@pytest.mark.parametrize("flushes", [False, True], ids=["fault", "no fault"])
def test_a_flush_that_does_nothing(
    fresh_cpu: tuple[MeasuringDevice, Clock], monkeypatch: pytest.MonkeyPatch, flushes: bool
) -> None:
    """Fault: the flush before each sample does nothing. Found: l2 is "unproven", and the report says so."""
    device, clock = fresh_cpu
    memory = Cache(clock, flushes=flushes)
    memory.use(monkeypatch)
    device.measurer.flush = memory.flush
    policy = dataclasses.replace(device.policy, l2="cold")
    record = device.passes(hidden_costs.ChangesSpeed(0.0, clock.spend), case(), policy)
    if flushes:
        assert record.l2 == "cold"
        assert device.cautions(record, policy) == []
    else:
        assert record.l2 == "unproven"
        assert [text[:20] for text in device.cautions(record, policy)] == ["L2 not proven cold i"]


def test_a_warm_cache_that_is_cold(fresh_cpu: tuple[MeasuringDevice, Clock], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: something evicts the operands before each sample. Found: l2 is "unproven", and the report says so."""
    device, clock = fresh_cpu
    memory = Cache(clock)
    memory.use(monkeypatch)
    monkeypatch.setattr(instruments, "do_nothing", memory.flush)
    record = device.measure(hidden_costs.ChangesSpeed(0.0, clock.spend), case())
    assert record.l2 == "unproven"
    assert [text[:20] for text in device.cautions(record)] == ["L2 not proven warm i"]


# Inputs


def test_inputs_with_one_nan(steady_cpu: MeasuringDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: one NaN among the inputs, at a place that the test of the inputs skips. Found: failed or wrong."""
    real = inputs.make

    def make(*args: Any) -> Inputs:
        given = real(*args)
        given.v.view(-1)[12346] = float("nan")
        return given

    monkeypatch.setattr(inputs, "make", make)
    which = case(seqlen=1024)
    assert inputs.find_flaw(make(which, "cpu", 0)) is None, "the sample sees this one; choose another"
    assert steady_cpu.measure(right_attention.attention, which).status in ("failed", "wrong")


# Other processes and faults of the machine


@dataclass
class State:
    """A scripted NVML: the processes that compute on the GPU, and the count of memory errors at each request."""

    others: tuple[str, ...] = ()
    errors: list[int] = field(default_factory=lambda: [3])

    def other_processes(self, since: float) -> tuple[str, ...]:
        assert since > 0
        return self.others

    def ecc_errors(self) -> int:
        return self.errors.pop(0) if len(self.errors) > 1 else self.errors[0]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (State(others=("python (pid 123)",)), ["Shared GPU: other processes"]),
        (State(errors=[3, 5]), ["The GPU counted 2 uncorrect"]),
        (State(), []),
    ],
    ids=["another process", "memory errors", "no fault"],
)
def test_a_machine_that_is_shared_or_fails(
    simulated_cpu: tuple[MeasuringDevice, Clock], monkeypatch: pytest.MonkeyPatch, state: State, expected: list[str]
) -> None:
    """Fault: another process computes meanwhile, or memory has errors. Found: the record and the report say so."""
    device, _ = simulated_cpu
    monkeypatch.setattr(device.measurer, "state", state)
    record = device.measure(right_attention.attention, case())
    assert record.others == state.others
    assert record.ecc_errors == (2 if expected and not state.others else 0)
    assert [text[:27] for text in device.cautions(record)] == expected


# Memory


def test_memory_outside_torch(cpu: MeasuringDevice) -> None:
    """Fault: it takes 128 MiB outside torch's allocator. Found: they are in memory_driver; memory_peak is unknown."""
    right_record, wrong_record = (
        cpu.measure(kernel, case(), QUICK).measurements
        for kernel in (right_attention.attention, hidden_costs.OutsideTorch(128 * MIB))
    )
    if "memory_driver" not in right_record:
        pytest.skip("this kernel does not let the high-water mark be reset")
    assert right_record["memory_driver"].values[0] < 64 * MIB
    assert wrong_record["memory_driver"].values[0] >= 96 * MIB
    assert "memory_peak" in right_record
    assert "memory_peak" not in wrong_record


@pytest.mark.parametrize("direction", ["fwd", "fwd_bwd"])
def test_a_workspace_kept_from_the_first_call(steady_cpu: MeasuringDevice, direction: str) -> None:
    """Fault: it allocates 16 MiB in its first call and keeps them, so that no later call does. Found: memory_peak
    contains them.
    """
    right_record = steady_cpu.measure(right_attention.attention, case(direction), QUICK)
    record = steady_cpu.measure(hidden_costs.KeepsWorkspace(16 * MIB), case(direction), QUICK)
    peak, found = (r.measurements["memory_peak"].values[0] for r in (right_record, record))
    assert peak < MIB
    assert 16 * MIB <= found < 18 * MIB
