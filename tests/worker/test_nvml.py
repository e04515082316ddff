"""NVML's view of a GPU, and the sampler that reads it, with a scripted NVML."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from attnbench.api.in_process import InProcess
from attnbench.worker import machine_facts
from attnbench.worker.measure import nvml as nvml_module
from attnbench.worker.measure.nvml import LIMITS, POWER_INSTANT, GpuState, StateSampler

UUID = "GPU-1234"
ME, SIBLING, STRANGER, SHELL, CHILD = os.getpid(), 10**7 + 1, 10**7 + 2, 10**7 + 3, 10**7 + 4


class Nvml(ModuleType):
    """A stand-in for pynvml, with the functions in use."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1, 2, 0, 1

    class NVMLError(Exception):
        pass

    class NVMLError_NotFound(NVMLError):  # noqa: N801
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.handles: list[str] = []
        self.reasons: Iterator[int] | int = 0
        self.pids: list[int] = []
        self.busy: dict[int, int] | None = {}  # pid -> percent of the SMs; None: no sample
        self.since: list[int] = []
        self.instant_works = True
        self.used: Iterator[int | None] = iter(())  # percent of the time with work

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        self.handles.append(uuid)
        if uuid != UUID:
            raise self.NVMLError("Not Found")
        return "handle"

    def nvmlDeviceGetClockInfo(self, handle: str, which: int) -> int:  # noqa: N802
        assert handle == "handle"
        return {1: 1980, 2: 3201}[which]

    def nvmlDeviceGetMaxClockInfo(self, _: str, which: int) -> int:  # noqa: N802
        return {1: 1990, 2: 3300}[which]

    def nvmlDeviceGetPowerManagementLimit(self, _: str) -> int:  # noqa: N802
        return 700_000

    def nvmlDeviceGetPowerUsage(self, _: str) -> int:  # noqa: N802
        return 321_000

    def nvmlDeviceGetFieldValues(self, _: str, fields: list[int]) -> list[Any]:  # noqa: N802
        assert fields == [POWER_INSTANT]
        return [SimpleNamespace(nvmlReturn=0 if self.instant_works else 3, value=SimpleNamespace(uiVal=456_000))]

    def nvmlDeviceGetTemperature(self, _: str, sensor: int) -> int:  # noqa: N802
        assert sensor == 0
        return 55

    def nvmlDeviceGetTotalEnergyConsumption(self, _: str) -> int:  # noqa: N802
        return 12_345

    def nvmlDeviceGetTotalEccErrors(self, _: str, kind: int, counter: int) -> int:  # noqa: N802
        assert (kind, counter) == (1, 0)  # uncorrected errors since the driver was loaded
        return 4

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.82"

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _: str) -> int:  # noqa: N802
        return self.reasons if isinstance(self.reasons, int) else next(self.reasons)

    def nvmlDeviceGetComputeRunningProcesses(self, _: str) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def nvmlDeviceGetProcessUtilization(self, _: str, since: int) -> list[Any]:  # noqa: N802
        self.since.append(since)
        if self.busy is None:
            raise self.NVMLError_NotFound("Not Found")
        return [SimpleNamespace(pid=pid, smUtil=share) for pid, share in self.busy.items()]

    def nvmlDeviceGetUtilizationRates(self, _: str) -> Any:  # noqa: N802
        if (share := next(self.used)) is None:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(gpu=share, memory=90)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    made = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    parents = {ME: SHELL, SIBLING: SHELL, STRANGER: 1}
    monkeypatch.setattr(nvml_module, "_parent_pid", parents.get)
    monkeypatch.setattr(os, "getppid", lambda: SHELL)
    monkeypatch.setattr(nvml_module, "session_pid", None)  # left by a test that measured in this process
    monkeypatch.setattr(nvml_module, "_process_name", lambda pid: "python" if pid == SIBLING else "train")
    return made


QUESTIONS: dict[str, tuple[Callable[[GpuState], Any], Any]] = {
    "clock": (GpuState.clock_hz, 1.98e9),
    "memory clock": (GpuState.memory_clock_hz, 3.201e9),
    "highest clock": (GpuState.clock_max_hz, 1.99e9),
    "power limit": (GpuState.power_limit_w, 700.0),
    "power": (GpuState.power_w, 456.0),
    "power average": (GpuState.power_average_w, 321.0),
    "temperature": (GpuState.temperature_c, 55.0),
    "energy": (GpuState.energy_j, 12.345),
    "ecc errors": (GpuState.ecc_errors, 4),
    "driver": (GpuState.driver, "580.82"),
}


@pytest.mark.parametrize(("ask", "answer"), QUESTIONS.values(), ids=QUESTIONS)
def test_answers_are_in_si_units(nvml: Nvml, ask: Callable[[GpuState], Any], answer: Any) -> None:
    assert ask(GpuState(UUID)) == answer
    assert nvml.handles == [UUID]


def test_power_is_the_average_where_the_driver_has_no_instant_power(nvml: Nvml) -> None:
    nvml.instant_works = False
    assert GpuState(UUID).power_w() == 321.0


def test_the_device_is_found_by_torchs_uuid_with_or_without_its_prefix(nvml: Nvml) -> None:
    assert GpuState("1234").available
    assert nvml.handles == [UUID]
    assert not GpuState("5678").available


def test_an_unsupported_question_gives_none_and_others_are_answered(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any) -> Any:
        raise nvml.NVMLError("Not Supported")

    monkeypatch.setattr(nvml, "nvmlDeviceGetTotalEccErrors", refuses)
    monkeypatch.setattr(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", refuses)
    monkeypatch.delattr(Nvml, "nvmlDeviceGetTotalEnergyConsumption")  # an older pynvml
    state = GpuState(UUID)
    assert state.ecc_errors() is None
    assert state.energy_j() is None
    assert state.limits() == ()
    assert state.clock_hz() == 1.98e9


@pytest.mark.parametrize("answer", [-1, 2**32 - 1, 2**64 - 1, float("inf"), float("nan"), "N/A", None, SystemExit(1)])
def test_an_answer_that_is_no_quantity_is_none(nvml: Nvml, monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    """An answer that is no quantity is None, such as NVML's unknown value with all bits set."""

    def says(*_: Any) -> Any:
        if isinstance(answer, SystemExit):
            raise answer
        return answer

    for name in [name for name in vars(Nvml) if name.startswith("nvmlDeviceGet") and not name.endswith("ByUUID")]:
        monkeypatch.setattr(nvml, name, says)
    monkeypatch.setattr(nvml, "nvmlDeviceGetFieldValues", lambda *_: [SimpleNamespace(nvmlReturn=3)])
    monkeypatch.setattr(nvml, "nvmlDeviceGetUtilizationRates", lambda *_: SimpleNamespace(gpu=says()))
    state = GpuState(UUID)
    assert [ask(state) for name, (ask, _) in QUESTIONS.items() if name != "driver"] == [None] * (len(QUESTIONS) - 1)
    assert (state.limits(), state.busy_with_others()) == ((), None)
    facts = machine_facts._nvml_facts(state)
    assert [facts[name] for name in ("clock_application", "power_limit")] == [None, None]


def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)


def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Nvml()

    def fails() -> None:
        raise made.NVMLError("Driver Not Loaded")

    monkeypatch.setattr(made, "nvmlInit", fails)
    monkeypatch.setitem(sys.modules, "pynvml", made)


@pytest.mark.parametrize("without", [missing, broken])
def test_without_nvml_there_are_no_readings_and_no_thread(
    monkeypatch: pytest.MonkeyPatch, without: Callable[[pytest.MonkeyPatch], None]
) -> None:
    without(monkeypatch)
    state = GpuState(UUID)
    assert not state.available
    assert [ask(state) for ask, _ in QUESTIONS.values()] == [None] * len(QUESTIONS)
    assert (state.limits(), state.other_processes(), state.other_processes(0.0)) == ((), (), ())
    before = threading.active_count()
    with StateSampler(state) as sampler:
        assert threading.active_count() == before
    assert (sampler.readings, sampler.limits) == ({}, ())


@pytest.mark.parametrize(("mask", "names"), [(0, ()), (0x1 | 0x2 | 0x10, ()), (0x4 | 0x20, ("power cap", "thermal"))])
def test_settings_of_the_owner_are_no_limits(nvml: Nvml, mask: int, names: tuple[str, ...]) -> None:
    """Settings of the owner (idle, application clocks, sync boost) are no limits."""
    nvml.reasons = mask
    assert GpuState(UUID).limits() == names


def test_the_sampler_reads_at_least_once(nvml: Nvml) -> None:
    nvml.reasons = 0x4
    with StateSampler(GpuState(UUID), period=60.0) as sampler:
        assert sampler.readings == {}
    assert sampler.readings == {"clock_sm": [1.98e9], "clock_mem": [3.201e9], "power": [456.0], "temperature": [55.0]}
    assert sampler.limits == ("power cap",)


def test_the_sampler_reads_while_its_block_runs_and_keeps_every_limit_it_saw(nvml: Nvml) -> None:
    """The sampler reads during its block and keeps every limit, each once and in NVML's order."""
    enough = threading.Event()

    def reasons() -> Iterator[int]:
        yield from (0, 0x20, 0, 0x4, 0x4)
        enough.set()
        while True:
            yield 0

    nvml.reasons = reasons()
    with StateSampler(GpuState(UUID), period=0.0005) as sampler:
        assert enough.wait(10)
    count = len(sampler.readings["power"])
    assert count >= 6
    assert {name: len(values) for name, values in sampler.readings.items()} == dict.fromkeys(
        ("clock_sm", "clock_mem", "power", "temperature"), count
    )
    assert sampler.limits == ("power cap", "thermal")
    assert set(sampler.limits) < set(LIMITS.values())
    assert len(sampler.readings["power"]) == count  # it has stopped


@pytest.mark.usefixtures("nvml")
def test_the_sampler_stops_when_its_block_fails() -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), StateSampler(GpuState(UUID), period=0.0005):
        raise ZeroDivisionError
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("pids", "others"),
    [
        ([], ()),
        ([ME], ()),
        ([ME, SIBLING], ()),
        ([ME, SHELL], ()),
        ([ME, SIBLING, STRANGER], (f"train (pid {STRANGER})",)),
        ([STRANGER, SIBLING], ()),  # without this process: its number is in another namespace
    ],
)
def test_other_processes_with_a_context(nvml: Nvml, pids: list[int], others: tuple[str, ...]) -> None:
    """Other processes with a context are found; workers of the same parent, which are idle, do not count."""
    nvml.pids = pids
    assert GpuState(UUID).other_processes() == others
    assert nvml.since == []  # only contexts are requested


def test_of_a_process_that_measures_itself_the_children_are_of_the_run(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    InProcess()
    monkeypatch.setattr(nvml_module, "_parent_pid", {CHILD: ME, SIBLING: SHELL}.get)
    nvml.pids = [ME, CHILD, SIBLING]
    assert GpuState(UUID).other_processes() == (f"python (pid {SIBLING})",), "another program of its shell"


@pytest.mark.parametrize(
    ("busy", "said"),
    [
        ({ME: 90, STRANGER: 3}, True),
        ({ME: 90, STRANGER: 0}, False),
        ({ME: 90}, False),
        ({ME: 90, SIBLING: 5}, False),
        ({}, False),
    ],
)
def test_other_processes_that_computed(nvml: Nvml, busy: dict[int, int], said: bool) -> None:
    nvml.pids, nvml.busy = [ME, SIBLING, STRANGER], busy
    assert GpuState(UUID).other_processes(since=1_700_000_000.25) == ((f"train (pid {STRANGER})",) if said else ())
    assert nvml.since == [1_700_000_000_250_000]  # microseconds


def test_no_utilisation_sample_means_that_nobody_computed(nvml: Nvml) -> None:
    """No utilisation sample means that nobody computed: NVML raises NotFound, with a sample about every 0.2 s."""
    nvml.pids, nvml.busy = [ME, STRANGER], None
    assert GpuState(UUID).other_processes(since=1.0) == ()


def test_all_processes_are_named_where_the_driver_does_not_tell_who_computed(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any) -> Any:
        raise nvml.NVMLError("Insufficient Permissions")

    monkeypatch.setattr(nvml, "nvmlDeviceGetProcessUtilization", refuses)
    nvml.pids = [ME, STRANGER]
    assert GpuState(UUID).other_processes(since=1.0) == (f"train (pid {STRANGER})",)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_parents_and_names_come_from_proc() -> None:
    assert nvml_module._parent_pid(os.getpid()) == os.getppid()
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            assert nvml_module._parent_pid(child.pid) == os.getpid()
            assert nvml_module._process_name(child.pid) in ("sleep", "coreutils")
        finally:
            child.kill()
    assert nvml_module._parent_pid(child.pid) is None
    assert nvml_module._process_name(child.pid) == "a process"


@pytest.mark.parametrize(
    ("readings", "share", "seconds"),
    [
        ([0] * 5, 0.0, 0.4),  # idle, although memory is held
        ([97, 80, 60, 30, 10] + [0] * 5, 0.0, 0.9),  # a process, or this one's own work, has just ended
        ([98] * 20, 0.98, 2.0),
        ([0, 0, 60] * 10, 0.18, 2.0),  # work with pauses
        ([1] * 20, 0.01, 2.0),  # a desktop
        ([None], None, 0.0),  # a MIG slice
    ],
)
def test_how_much_others_use_the_gpu(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch, readings: list[int | None], share: float | None, seconds: float
) -> None:
    """The share for which others use the GPU is found without names of processes, which a container hides."""
    slept: list[float] = []
    monkeypatch.setattr(nvml_module, "time", SimpleNamespace(sleep=slept.append))
    nvml.used, nvml.pids = iter(readings), []
    found = GpuState(UUID).busy_with_others()
    assert found == (share if share is None else pytest.approx(share))
    assert sum(slept) == pytest.approx(seconds)


UNDECODABLE = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")
ANSWERS: list[Any] = [None, b"580.1\xff", "N/A", UNDECODABLE, TypeError("argument")]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_answers_of_another_kind_are_no_answers(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of another kind, as from an unknown driver, are no answers, for every question."""

    class Odd(Nvml):
        def __getattribute__(self, name: str) -> Any:
            if not name.startswith("nvmlDeviceGet") and not name.startswith("nvmlSystem"):
                return super().__getattribute__(name)
            if name == "nvmlDeviceGetHandleByUUID":
                return lambda _: "handle"
            return odd

    def odd(*_: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setitem(sys.modules, "pynvml", Odd())
    state = GpuState(UUID)
    assert state.available
    names = [name for name, of in vars(GpuState).items() if callable(of) and name not in ("__init__", "ask")]
    found = {name: getattr(state, name)() for name in names}
    driver = "580.1\ufffd" if isinstance(answer, bytes) else answer if isinstance(answer, str) else None
    assert found.pop("driver") == driver
    assert set(found.values()) == {None, ()}
    facts = machine_facts._nvml_facts(state)
    assert {name for name, fact in facts.items() if fact is not None} <= {"mig", "ecc", "ecc_pending"}  # pairs
    with StateSampler(state) as sampler:
        pass
    assert sampler.readings == {}
