"""The doctor without a GPU: what facts mean, how the A/A test goes, and what is read of NVML and of the host."""

from __future__ import annotations

import ast
import io
import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
from builders import CPU, H200, environment
from rich.console import Console

from attnbench import doctor, fitness
from attnbench.doctor import Diagnosis, diagnose
from attnbench.errors import UserError
from attnbench.measure.cache import Flush
from attnbench.measure.state import GpuState
from attnbench.measure.timing import CpuTimer, nothing
from attnbench.report.doctor import json_text, render
from attnbench.trial import MAX_TURNS, CaseTrial, Trial, label, trial_cases, try_out
from attnbench.types import Environment, Job, Measurement, Record
from attnbench.verdicts import Finding, judge, judge_trial

CASES = trial_cases("cuda")
HOST = {"load": 0.1, "cores": 64, "cpu_limit": None, "governors": ["performance"], "nvidia_driver": True}
WORKS = {"seconds": 3e-6, "l2_cold": "cold", "l2_warm": "warm"}


class Nvml:
    """NVML as pynvml gives it, of a healthy H200; `changes` are what it answers instead."""

    NVMLError = RuntimeError
    NVML_CLOCK_SM, NVML_CLOCK_GRAPHICS, NVML_TEMPERATURE_GPU, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = range(4)
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    HEALTHY: ClassVar[dict[str, Any]] = {
        "nvmlDeviceGetClockInfo": 1980,
        "nvmlDeviceGetMaxClockInfo": 1980,
        "nvmlDeviceGetApplicationsClock": 1980,
        "nvmlDeviceGetDefaultApplicationsClock": 1980,
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x1,
        "nvmlDeviceGetFieldValues": [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=120_000))],
        "nvmlDeviceGetEnforcedPowerLimit": 700_000,
        "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
        "nvmlDeviceGetTemperature": 35,
        "nvmlDeviceGetMarginTemperature": 52,
        "nvmlDeviceGetPersistenceMode": 1,
        "nvmlDeviceGetMigMode": [0, 0],
        "nvmlDeviceGetEccMode": [1, 1],
        "nvmlDeviceGetTotalEccErrors": 0,
        "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
        "nvmlSystemGetCudaDriverVersion_v2": 13000,
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0),
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=os.getpid())],
        "nvmlDeviceGetProcessUtilization": [SimpleNamespace(pid=1, smUtil=60)],
    }

    def __init__(self, **changes: Any) -> None:
        self.answers = {**self.HEALTHY, **changes}

    def __getattr__(self, name: str) -> Any:
        if name not in self.answers:
            raise AttributeError(name)
        if self.answers[name] is None:
            raise RuntimeError("not supported")
        return lambda *_: self.answers[name]


def state(**changes: Any) -> GpuState:
    found = GpuState("")
    found._nvml, found._handle = Nvml(**changes), 0
    return found


def facts(**changes: Any) -> dict[str, Any]:
    """Those of a healthy H200, with NVML's answers changed."""
    gpu = state(**changes)
    with mock.patch.object(fitness, "IDLE", 0.0):
        nvml = {**fitness._nvml(gpu), "clock_held": 1.98e9, "processes": fitness._processes(gpu)}
    return {
        "asked": "auto",
        "host": HOST,
        "nvml": nvml,
        "instruments": dict.fromkeys(("events", "graph", "cupti"), WORKS),
    }


def changed(part: str, **changes: Any) -> dict[str, Any]:
    healthy = facts()
    return {**healthy, part: {**healthy[part], **changes}}


def judged(found: dict[str, Any], **changes: Any) -> list[Finding]:
    packages = {"triton": "3.5.0"}
    return judge(environment(H200, **{"packages": packages, **changes}), found)


def complaints(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(f.check, f.level) for f in findings if f.level != "ok"]


def test_a_healthy_machine_has_nothing_but_ok() -> None:
    found = judged(facts())
    assert complaints(found) == []
    of_gpu = (
        "NVML|persistence|SM clock|power limit|other processes|MIG|memory errors|temperature|throttling|instruments|L2"
    )
    assert [f.check for f in found] == ["software", *of_gpu.split("|"), "load", "CPU governor", "container limit"]
    assert not any(f.todo for f in found)
    text = " ".join(f.found for f in found)
    for word in (
        "580.82 (CUDA 13.0)",
        "torch 2.11.0+cu130",
        "triton 3.5.0",
        "1980 of 1980 MHz",
        "700 W",
        "35 C, 52 below",
    ):
        assert word in text


def test_a_driver_that_tells_nothing_is_no_reason_for_doubt() -> None:
    found = judged(facts(**dict.fromkeys(Nvml.HEALTHY)))
    assert complaints(found) == []
    untold = "persistence|SM clock|power limit|other processes|temperature|throttling"
    assert [f.check for f in found if f.found == "not told here"] == untold.split("|")


STRANGER = [SimpleNamespace(pid=os.getpid()), SimpleNamespace(pid=1)]
BUSY = SimpleNamespace(gpu=60)


@pytest.mark.parametrize(
    ("sick", "check", "level", "says", "todo"),
    [
        (facts(nvmlDeviceGetPersistenceMode=0), "persistence", "warning", "off", "sudo nvidia-smi -pm 1"),
        (facts(nvmlDeviceGetApplicationsClock=1200), "SM clock", "warning", "1200 MHz, 1980 by default", "-rac"),
        (changed("nvml", clock_held=1.5e9), "SM clock", "warning", "1500 of 1980 MHz", "-rgc"),
        (
            facts(nvmlDeviceGetEnforcedPowerLimit=450_000),
            "power limit",
            "warning",
            "450 W, lowered from 700",
            "-pl 700",
        ),
        (
            facts(nvmlDeviceGetComputeRunningProcesses=STRANGER),
            "other processes",
            "warning",
            "(pid 1); computing nothing now",
            "another GPU",
        ),
        (
            facts(nvmlDeviceGetComputeRunningProcesses=STRANGER, nvmlDeviceGetUtilizationRates=BUSY),
            "other processes",
            "unfit",
            "60% busy",
            "another GPU",
        ),
        (
            facts(nvmlDeviceGetComputeRunningProcesses=STRANGER, nvmlDeviceGetUtilizationRates=None),
            "other processes",
            "warning",
            "whether they compute is not told",
            "another GPU",
        ),
        (
            facts(nvmlDeviceGetComputeRunningProcesses=[SimpleNamespace(pid=2**30)] * 3),
            "other processes",
            "warning",
            "2 that cannot be named here",
            "another GPU",
        ),
        (
            facts(nvmlDeviceGetComputeRunningProcesses=[], nvmlDeviceGetUtilizationRates=BUSY),
            "other processes",
            "unfit",
            "not in NVML's list",
            "another GPU",
        ),
        (facts(nvmlDeviceGetMigMode=[1, 1]), "MIG", "warning", "slice", "administrator"),
        (facts(nvmlDeviceGetTotalEccErrors=2), "memory errors", "unfit", "2 uncorrected", "reset"),
        (facts(nvmlDeviceGetRemappedRows=(0, 1, 0, 1)), "memory errors", "unfit", "could not be remapped", "replaced"),
        (facts(nvmlDeviceGetRemappedRows=(0, 1, 1, 0)), "memory errors", "warning", "waits", "reset"),
        (facts(nvmlDeviceGetEccMode=[0, 0]), "memory errors", "warning", "ECC is off", "nvidia-smi -e 1"),
        (facts(nvmlDeviceGetEccMode=[1, 0]), "memory errors", "warning", "off after the next restart", "-e 1"),
        (facts(nvmlDeviceGetMarginTemperature=12), "temperature", "warning", "12 below", "cool"),
        (facts(nvmlDeviceGetMarginTemperature=3), "temperature", "unfit", "3 below", "cool"),
        (facts(nvmlDeviceGetCurrentClocksThrottleReasons=0x4), "throttling", "warning", "power cap", "nvidia-smi -q"),
        (facts(nvmlDeviceGetCurrentClocksThrottleReasons=0x48), "throttling", "unfit", "hardware thermal", "cooling"),
        (facts(nvmlSystemGetCudaDriverVersion_v2=12080), "software", "warning", "older than torch's CUDA", "driver"),
        ({**facts(), "nvml": None}, "NVML", "warning", "does not answer", "pip install nvidia-ml-py"),
        (
            {"asked": "auto", "host": HOST, "broken": "RuntimeError: launch failure"},
            "GPU",
            "unfit",
            "launch",
            "nvidia-smi",
        ),
        (
            changed("instruments", events={"error": "E: x"}),
            "instruments",
            "unfit",
            "events does not work: E: x",
            "timed",
        ),
        (changed("instruments", cupti={"error": "no kernel"}), "instruments", "warning", "cupti", "profilers"),
        (changed("instruments", graph={"error": "no"}), "instruments", "warning", "graph", "--timer graph"),
        (
            changed("instruments", events={**WORKS, "l2_cold": "warm"}),
            "L2",
            "warning",
            "warm instead of cold by events",
            "unproven",
        ),
        (changed("host", load=60.0), "load", "warning", "60.0 on 64 cores", "end what runs"),
        (changed("host", cpu_limit=1.0), "container limit", "warning", "1 CPUs for 2 threads", "2 CPUs"),
    ],
)
def test_each_sickness_is_one_line_that_says_what_to_do(
    sick: dict[str, Any], check: str, level: str, says: str, todo: str
) -> None:
    found = judged(sick)
    assert complaints(found) == [(check, level)]
    (line,) = [f for f in found if f.level != "ok"]
    assert says in line.found
    assert todo in line.todo


def test_a_gpu_without_triton() -> None:
    assert complaints(judged(facts(), packages={})) == [("software", "warning")]


def test_an_older_driver_tells_the_threshold_instead_of_the_margin() -> None:
    changes: dict[str, Any] = {"nvmlDeviceGetMarginTemperature": None, "nvmlDeviceGetTemperatureThreshold": 89}
    assert facts(**changes)["nvml"]["temperature_margin"] == 54


def test_a_gpu_without_ecc_and_mig_is_as_good() -> None:
    assert complaints(judged(facts(nvmlDeviceGetEccMode=None, nvmlDeviceGetMigMode=None))) == []


@pytest.mark.parametrize(
    ("host", "asked", "expected"),
    [
        ({}, "cpu", []),
        ({}, "auto", [("GPU", "warning")]),
        ({"nvidia_driver": False}, "auto", []),
        ({"load": 2.0}, "cpu", [("load", "warning")]),
        ({"load": 3.5}, "cpu", [("load", "unfit")]),
        ({"governors": ["performance", "powersave"]}, "cpu", [("CPU governor", "warning")]),
        ({"governors": []}, "cpu", []),
        ({"cpu_limit": 2.0}, "cpu", [("container limit", "warning")]),
        ({"cpu_limit": 4.0}, "cpu", []),
    ],
)
def test_a_machine_without_a_gpu(host: dict[str, Any], asked: str, expected: list[tuple[str, str]]) -> None:
    found = judge(environment(CPU), {"asked": asked, "host": {**HOST, "cores": 4, **host}})
    assert complaints(found) == expected
    assert [f.check for f in found] == ["software", "GPU", "load", "CPU governor", "container limit"]


def test_a_shallow_governor_does_not_matter_to_a_gpu() -> None:
    assert complaints(judged(changed("host", governors=["powersave"]))) == []


@pytest.mark.parametrize(
    ("files", "cgroup", "expected"),
    [
        ({}, "0::/", None),
        ({"cpu.max": "max 100000"}, "0::/", None),
        ({"cpu.max": "150000 100000"}, "0::/", 1.5),
        ({"a/b/cpu.max": "400000 100000", "a/cpu.max": "200000 100000"}, "0::/a/b", 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/\n0::/", None),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, "4:cpuacct,cpu:/docker/12", 3.0),
        ({"cpu.max": "garbage"}, "0::/\n9:name=systemd:/", None),
    ],
)
def test_the_container_s_limit(tmp_path: Path, files: dict[str, str], cgroup: str, expected: float | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert fitness.cpu_limit(cgroup, tmp_path) == expected


def test_the_host_s_facts_can_be_read_here() -> None:
    found = fitness.host()
    assert found["load"] >= 0
    assert found["cores"] == os.cpu_count()
    assert json.loads(json.dumps(found)) == found


def test_a_cpu_has_no_facts_of_its_own() -> None:
    assert fitness.examine(SimpleNamespace(device=SimpleNamespace(type="cpu"))) == {}  # type: ignore[arg-type]


def test_an_instrument_that_fails_is_a_fact() -> None:
    def fails() -> dict[str, Any]:
        raise RuntimeError("no\n\nCUPTI")

    assert fitness._tried(fails) == {"error": "RuntimeError: no CUPTI"}


def test_the_instruments_are_tried_and_left_as_they_were() -> None:
    """On a CPU, whose timer stands for the events: what lacks here is an error, and nothing else."""
    timer, flush = CpuTimer(), Flush(torch.device("cpu"), 2**20)
    bench: Any = SimpleNamespace(device=flush.buffer.device, events=timer, tracer=None, flush=flush)
    bench.l2_bytes, bench.bandwidth = 2**20, 1e10
    found = fitness._instruments(bench)
    assert set(found["events"]) == {"seconds", "l2_cold", "l2_warm"}
    assert found["events"]["seconds"] > 0
    assert {found["events"]["l2_cold"], found["events"]["l2_warm"]} <= {"cold", "warm"}
    assert timer.before is nothing
    assert [set(found[name]) for name in ("graph", "cupti")] == [{"error"}, {"error"}]


def test_nothing_is_ever_set() -> None:
    names = [n.attr for n in ast.walk(ast.parse(Path(fitness.__file__).read_text())) if isinstance(n, ast.Attribute)]
    asked = [name for name in names if name.startswith("nvml")]
    assert len(asked) > 10
    assert all(name.startswith(("nvmlDeviceGet", "nvmlSystemGet")) for name in asked)


def trial(*differences: float, **changes: Any) -> Trial:
    """One case whose readings differ so."""
    a = tuple(1e-3 for _ in differences)
    measured = CaseTrial(CASES[0], a, tuple(x * math.exp(d) for x, d in zip(a, differences, strict=True)))
    return replace(Trial("sdpa-flash", 60.0, (measured,)), **changes)


QUIET = (0.001, -0.001, 0.002, -0.002, 0.0005, -0.0005, 0.001, -0.001)


@pytest.mark.parametrize(
    ("tried", "expected"),
    [
        (trial(*QUIET), []),
        (trial(*(d + 0.01 for d in QUIET)), [("A/A test", "warning")]),
        (trial(*(30 * d for d in QUIET)), [("resolution", "warning")]),
        (trial(*(200 * d for d in QUIET)), [("resolution", "unfit")]),
        (trial(*QUIET[:3]), [("resolution", "warning")]),
        (trial(*[0.0] * 8), []),
        (trial(*QUIET, others=("python (pid 1)",)), [("other processes", "unfit")]),
        (trial(*QUIET, ecc_errors=1), [("memory errors", "unfit")]),
        (trial(*QUIET, limits=("power cap",)), []),
        (trial(*QUIET, limits=("power cap", "thermal")), [("throttling", "warning")]),
        (trial(*QUIET, host_bound=True), [("host", "warning")]),
    ],
)
def test_what_the_trial_says(tried: Trial, expected: list[tuple[str, str]]) -> None:
    found = judge_trial(tried)
    assert complaints(found) == expected
    assert all(bool(f.todo) == (f.level != "ok") for f in found)


def test_a_job_that_failed_is_all_that_is_said() -> None:
    record = Record(CASES[1], "b", 0, "oom", "CUDA out of memory")
    (line,) = judge_trial(trial(*QUIET, failed=record))
    assert line.level == "unfit"
    assert line.found == "sdpa-flash against itself: 16k b1 ended as oom: CUDA out of memory"


def test_the_noisiest_case_gives_the_figure() -> None:
    quiet, noisy = trial(*QUIET).cases[0], trial(*(3 * d for d in QUIET)).cases[0]
    both = Trial("eager", 1.0, (quiet, replace(noisy, case=CASES[1])))
    worst = both.worst()
    assert worst is not None
    assert worst[0] == CASES[1]
    assert worst[1].one > 2 * both.resolutions()[0][1].one


class Fleet:
    """Jobs take `seconds` each of its own clock; what `script` says of one, else a reading of 1 ms."""

    def __init__(self, seconds: float, script: Callable[[Job], Record | None] = lambda _: None) -> None:
        self.seconds, self.script, self.now = seconds, script, 0.0
        self.jobs: list[Job] = []

    def run(self, job: Job, *_: object) -> Record:
        self.now += self.seconds
        self.jobs.append(job)
        time = {"time": Measurement("s", (1e-3, 2e-3, 9e-3))}
        return self.script(job) or Record(job.case, job.backend, job.round, "ok", measurements=time)

    def try_out(self, seconds: float) -> Trial:
        return try_out(self, "fake", CASES, H200, seconds, lambda _: None, lambda: self.now)  # type: ignore[arg-type]


def test_turns_swap_their_order_and_keep_the_time() -> None:
    fleet = Fleet(1.0)
    found = fleet.try_out(120.0)
    assert found.seconds == 120.0
    assert [len(c.a) for c in found.cases] == [20] * 3
    assert {x for c in found.cases for x in (*c.a, *c.b)} == {2e-3}
    turns = [fleet.jobs[i : i + 6] for i in range(0, len(fleet.jobs), 6)]
    for i, turn in enumerate(turns):
        assert [j.case for j in turn[::2]] == [j.case for j in turn[1::2]] == CASES
        assert [j.backend for j in turn] == (["a", "b"] * 3 if i % 2 == 0 else ["b", "a"] * 3)
        assert {j.round for j in turn} == {i}


def test_there_is_an_end_to_the_turns() -> None:
    assert [len(c.a) for c in Fleet(1e-3).try_out(120.0).cases] == [MAX_TURNS] * 3


def test_a_slow_machine_goes_on_with_one_case() -> None:
    found = Fleet(1.0).try_out(20.0)
    assert [len(c.a) for c in found.cases] == [6, 2, 2]
    assert found.seconds == 20.0
    assert [case for case, _ in found.resolutions()] == CASES[:1]


def test_a_very_slow_machine_has_no_figure() -> None:
    found = Fleet(60.0).try_out(120.0)
    assert [len(c.a) for c in found.cases] == [2, 2, 2]
    assert found.worst() is None


def test_the_first_job_that_is_not_ok_ends_it() -> None:
    def script(job: Job) -> Record | None:
        bad = job.round == 1 and job.case == CASES[1]
        return Record(job.case, job.backend, job.round, "failed", "x") if bad else None

    fleet = Fleet(1.0, script)
    found = fleet.try_out(120.0)
    assert found.failed is not None
    assert (found.failed.backend, found.failed.round, label(found.failed.case)) == ("b", 1, "16k b1")
    assert len(fleet.jobs) == 9


def test_what_happened_meanwhile_is_kept() -> None:
    def script(job: Job) -> Record | None:
        more: dict[str, Any] = {"limits": ("power cap",), "others": (f"p{job.round % 2}",), "ecc_errors": 1}
        return Record(job.case, job.backend, job.round, "ok", measurements={"time": Measurement("s", (1.0,))}, **more)

    found = Fleet(1.0, script).try_out(24.0)
    assert (found.limits, found.others, found.ecc_errors, found.host_bound) == (("power cap",), ("p0", "p1"), 24, False)


class Examined(doctor.Fleet):
    """The workers of an H200, simulated; the examiner answers with `facts`, or crashes."""

    facts: ClassVar[dict[str, Any] | None] = None

    def environment(self, *_: object) -> Environment:
        return environment(H200, packages={"triton": "3.5.0"})

    def ask(self, name: str, *_: object) -> dict[str, Any]:
        assert name == doctor.EXAMINER
        if self.facts is None:
            raise UserError(f"{name}: the worker crashed (SIGSEGV)")
        return {"facts": self.facts}


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "Fleet", Examined)
    monkeypatch.setattr(doctor, "IMPLEMENTATIONS", {"cuda": ("fake",)})
    monkeypatch.setattr(fitness, "host", lambda: HOST)


@pytest.mark.usefixtures("examined")
def test_a_whole_diagnosis(monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = facts()
    monkeypatch.setattr(Examined, "facts", {name: healthy[name] for name in ("nvml", "instruments")})
    said: list[str] = []
    found = diagnose("auto", said.append, quick=True)
    assert (found.level, found.exit_code) == ("ok", 0)
    assert found.trial is not None
    assert [label(c.case) for c in found.trial.cases] == ["1k b16", "16k b1"]
    assert said[:2] == ["looking at the device", "examining the GPU"]
    assert said[3].startswith("A/A test: turn 1, ")


@pytest.mark.usefixtures("examined")
def test_a_gpu_that_cannot_be_examined_is_unfit_and_not_tried() -> None:
    found = diagnose("auto", lambda _: None)
    assert (found.level, found.exit_code, found.trial) == ("unfit", 3, None)
    assert ("GPU", "unfit", "the worker crashed (SIGSEGV)") in [(f.check, f.level, f.found) for f in found.findings]


def diagnosis(*sick: Finding, tried: Trial | None = None) -> Diagnosis:
    tried = tried or trial(*QUIET)
    return Diagnosis(environment(H200), facts(), (*judged(facts()), *sick, *judge_trial(tried)), tried)


def rendered(found: Diagnosis, width: int = 100) -> str:
    out = io.StringIO()
    render(Console(file=out, width=width), found)
    return out.getvalue()


def test_every_finding_is_shown_with_what_to_do() -> None:
    sick = Finding("MIG", "unfit", "a finding that is long " * 8 + "END", "do this")
    found = diagnosis(sick)
    text = rendered(found)
    flat = " ".join(text.split())
    for line in found.findings:
        assert f"{line.check} {line.found}" in flat
    assert "END; to do: do this" in flat
    assert "NVIDIA H200: unfit to measure." in flat
    assert max(map(len, text.splitlines())) <= 100


def test_the_last_line_is_the_figure() -> None:
    found = diagnosis()
    assert found.trial is not None
    worst = found.trial.worst()
    assert worst is not None
    figure = f"{100 * worst[1].one:.2g}%"
    assert (
        rendered(found).splitlines()[-1].startswith(f"Smallest difference that can be told apart here: {figure} by one")
    )
    assert "1k b16" in rendered(found).splitlines()[-4]


def test_json_holds_the_verdict_the_findings_and_every_reading() -> None:
    found = diagnosis(Finding("MIG", "warning", "on", "turn it off"))
    read = json.loads(json_text(found))
    assert (read["verdict"], read["exit_code"]) == ("warning", 1)
    assert read["smallest_difference"]["one_reading"] > read["smallest_difference"]["rounds"] > 0
    assert [f["check"] for f in read["findings"]] == [f.check for f in found.findings]
    assert read["facts"]["nvml"]["clock_max"] == 1.98e9
    (case,) = read["trial"]["cases"]
    assert case["differences"] == pytest.approx(QUIET)
    assert case["resolution"]["differs"] is False


def test_json_of_a_machine_that_was_not_tried() -> None:
    read = json.loads(json_text(Diagnosis(environment(CPU), {}, (Finding("GPU", "unfit", "x", "y"),))))
    assert (read["verdict"], read["trial"], read["smallest_difference"]) == ("unfit", None, None)
