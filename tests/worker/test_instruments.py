"""The timing of a cell on this CPU, the choice of cross-checked cells, and the measurement of ceilings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from scripted_instruments import QUICK, timed_launch

from attnbench.core.machine import Device
from attnbench.core.record import Measurement
from attnbench.worker.cell_steps import _is_cross_checked
from attnbench.worker.instruments import Instruments
from attnbench.worker.measure import ceiling, l2_cache
from attnbench.worker.measure.cuda_graph import NotCapturable
from attnbench.worker.measure.cupti import Untraceable
from attnbench.worker.measure.sampling import CpuTimer, do_nothing
from builders import case

CPU = Device("cpu", 0, "CPU", 2**34, 2**34, l2=2**20, copy=2e10)


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> Instruments:
    monkeypatch.setattr(l2_cache, "MIN_FLUSH", 2**16)  # otherwise the tests write gigabytes
    return Instruments(CPU)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Set the state of L2 that each test of it observes."""
    answers: list[Any] = []

    def state(timer: Any, device: torch.device, l2_bytes: int) -> str:
        assert (type(timer), device.type, l2_bytes) == (CpuTimer, "cpu", CPU.l2)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    monkeypatch.setattr(l2_cache, "observed_state", state)
    return answers


@pytest.mark.usefixtures("cpu")  # for the small flush
def test_threads_that_a_file_sets_are_noted() -> None:
    before = torch.get_num_threads()
    device = replace(CPU, threads=before)
    torch.set_num_threads(before + 1)
    try:
        assert Instruments(device).time(timed_launch(), QUICK).notes == [
            f"computed with {before + 1} threads where this process has {before}"
        ]
    finally:
        torch.set_num_threads(before)
    assert Instruments(device).time(timed_launch(), QUICK).notes == []


def test_a_cpu_cell_is_timed_by_the_hosts_clock(cpu: Instruments, found: list[Any]) -> None:
    found.append("cold")
    launches: list[int] = []
    timing = cpu.time(timed_launch(lambda: launches.append(1)), QUICK)
    assert (timing.timer, timing.l2, timing.notes, timing.limits, timing.host_bound) == (
        "perf_counter",
        "cold",
        [],
        (),
        False,
    )
    assert set(timing.measurements) - {"cores_left"} == {"time"}
    assert timing.measurements["time"].unit == "s"
    assert 4 <= len(timing.measurements["time"].values) <= len(launches)
    assert all(0 < t < 1 for t in timing.measurements["time"].values)
    assert (cpu.events, cpu.tracer, cpu.state.available) == (None, None, False)
    assert cpu.cool_down()


def test_the_state_of_l2_is_tested_on_this_machine() -> None:
    """The state of L2 is tested, not assumed, on any machine."""
    timing = Instruments(replace(CPU, l2=2**22)).time(timed_launch(), QUICK)
    assert timing.l2 in ("cold", "unproven")


def test_the_flush_of_a_cpu_is_limited() -> None:
    """The flush of a CPU is limited; to flush all of the host's cache would take seconds a sample."""
    flush = Instruments(replace(CPU, l2=2**42)).flush
    assert flush.buffer.nbytes == 2**26


@pytest.mark.parametrize(
    ("expected", "answer", "said"),
    [
        ("cold", "cold", "cold"),
        ("cold", "warm", "unproven"),
        ("warm", "warm", "warm"),
        ("warm", "cold", "unproven"),
        ("cold", Untraceable("no"), "unproven"),
        ("cold", NotCapturable("no"), "unproven"),
    ],
)
def test_l2_is_as_set_or_unproven(cpu: Instruments, found: list[Any], expected: Any, answer: Any, said: str) -> None:
    found.append(answer)
    assert cpu.time(timed_launch(), replace(QUICK, l2=expected)).l2 == said


def test_l2_is_tested_once_for_each_state(cpu: Instruments, found: list[Any]) -> None:
    found += ["cold", "warm"]
    for _ in range(3):
        assert cpu.time(timed_launch(), QUICK).l2 == "cold"
        assert cpu.time(timed_launch(), replace(QUICK, l2="warm")).l2 == "warm"
    assert found == []


def test_a_cold_sample_is_flushed_and_a_warm_one_is_not(cpu: Instruments, found: list[Any]) -> None:
    found += ["cold", "warm"]
    order: list[str] = []
    cpu.flush = lambda: order.append("flush")  # type: ignore[assignment]
    one = timed_launch(lambda: order.append("launch"))
    cpu.time(one, QUICK)
    assert order == ["flush", "launch"] * (len(order) // 2)
    order.clear()
    cpu.time(one, replace(QUICK, l2="warm"))
    assert set(order) == {"launch"}


CASES = [case(n, batch=b, causal=c) for n in range(64, 2064, 4) for b in (1, 2) for c in (False, True)]


@pytest.mark.parametrize("share", [0.01, 0.05, 0.3, 0.9])
def test_the_cells_of_a_cross_check_are_near_its_share(share: float) -> None:
    """The number of cross-checked cells of 2000 is within four standard deviations of the share."""
    chosen = sum(_is_cross_checked(which, "eager", share) for which in CASES)
    assert abs(chosen - share * len(CASES)) < 4 * (len(CASES) * share * (1 - share)) ** 0.5
    assert chosen > 0


def test_the_cells_of_a_cross_check_are_the_same_in_every_run() -> None:
    """Cross-checked cells are the same in every run, unlike by Python's hash, which differs between processes."""
    chosen = [i for i, which in enumerate(CASES) if _is_cross_checked(which, "eager", 0.01)]
    assert chosen[:5] == FIRST_OF_1_PERCENT
    larger = {i for i, which in enumerate(CASES) if _is_cross_checked(which, "eager", 0.3)}
    assert set(chosen) < larger  # a larger share adds cells
    assert larger != {i for i, which in enumerate(CASES) if _is_cross_checked(which, "triton", 0.3)}


FIRST_OF_1_PERCENT = [9, 17, 100, 166, 251]


@pytest.fixture
def rates(cpu: Instruments, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Script the ceilings, and record their measurements in order."""
    seen: list[str] = []

    def matmul(collect: Any, device: torch.device, dtype: torch.dtype) -> list[float]:
        assert device.type == "cpu"
        assert all(seconds > 0 for seconds in collect(lambda: None))
        assert cpu.timer.before is do_nothing
        seen.append(str(dtype))
        if dtype == torch.float64:
            raise torch.OutOfMemoryError("no room")
        return [1e12, 2e12]

    def copy(*_: Any) -> list[float]:
        seen.append("copy")
        return [3e10]

    monkeypatch.setattr(ceiling, "matmul", matmul)
    monkeypatch.setattr(ceiling, "copy", copy)
    return seen


@pytest.mark.parametrize(("dtype", "seconds"), [(torch.float16, 0.02), (torch.bfloat16, 0.01), (torch.float32, 0.02)])
def test_the_ceiling_of_16_bits_on_a_cpu_is_that_of_float32_where_this_is_faster(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, seconds: float
) -> None:
    """A CPU's ceiling of 16 bits is float32's where this is faster, as where float16 is a plain loop in torch."""
    monkeypatch.setitem(ceiling.MATMUL_SIZE, "cpu", 8)
    took = {torch.float16: 2.0, torch.bfloat16: 0.01, torch.float32: 0.02}
    found = ceiling.matmul(lambda launch: [took[launch().dtype]], torch.device("cpu"), dtype)
    assert found == [2 * 8**3 / seconds]


def test_a_ceiling_that_does_not_fit_is_left_out(cpu: Instruments, rates: list[str]) -> None:
    expected = {"ceiling_matmul": Measurement("FLOP/s", (1e12, 2e12)), "ceiling_copy": Measurement("B/s", (3e10,))}
    assert cpu.ceilings(torch.float32) == expected
    assert cpu.ceilings(torch.float64) == {"ceiling_copy": Measurement("B/s", (3e10,))}
    assert rates == ["torch.float32", "copy", "torch.float64", "copy"]


def test_ceilings_are_work_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ceiling.MATMUL_SIZE, "cpu", 8)
    monkeypatch.setitem(ceiling.COPY_BYTES, "cpu", 1000)
    launched: list[torch.Tensor] = []

    def collect(launch: Callable[[], Any]) -> list[float]:
        launched.append(launch())
        return [0.5, 0.25]

    where = torch.device("cpu")
    assert ceiling.matmul(collect, where, torch.float64) == [2 * 8**3 / 0.5, 2 * 8**3 / 0.25]
    assert (launched[0].shape, launched[0].dtype) == ((8, 8), torch.float64)
    assert ceiling.copy(collect, where) == [2 * 1000 / 0.5, 2 * 1000 / 0.25]  # bytes read and written
    assert launched[-1].numel() * launched[-1].element_size() == 1000
