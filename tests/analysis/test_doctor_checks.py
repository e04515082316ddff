"""Findings of the doctor's checks in the facts of a machine and in an A/A test, with remedies; and refusals."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from healthy_h200 import CASES, HOST, QUIET, WORKS, Nvml, aa_test, changed, complaints, facts, judged, judged_test

from attnbench.analysis.doctor.checks import difference_in_words, findings_of_machine
from attnbench.core.other_work import is_too_busy, refusal
from attnbench.core.record import Record
from attnbench.run.aa_test import AATest
from builders import CPU, H200, environment


def test_a_healthy_machine_has_nothing_but_ok() -> None:
    found = judged(facts())
    assert complaints(found) == []
    of_gpu = "NVML|persistence|SM clock|clock gauge|power limit|other processes|MIG|memory errors|temperature"
    of_gpu += "|throttling|instruments|L2"
    of_host = "load|CPU governor|container limit|fences"
    assert [f.check for f in found] == ["software", *of_gpu.split("|"), *of_host.split("|")]
    assert not any(f.todo for f in found)
    text = " ".join(f.found for f in found)
    assert all(word in text for word in ("580.82 (CUDA 13.0)", "triton 3.5.0", "1980 of 1980 MHz", "35 C, 52 below"))
    assert complaints(judged(facts(), packages={})) == [("software", "warning")], "a GPU without Triton"
    assert complaints(judged(changed("host", governors=["powersave"]))) == [], "which matters to a CPU only"


def test_a_driver_that_tells_nothing_is_no_reason_for_doubt() -> None:
    found = judged(facts(**dict.fromkeys(Nvml.HEALTHY)))
    assert complaints(found) == []
    older: dict[str, Any] = {"nvmlDeviceGetMarginTemperature": None, "nvmlDeviceGetTemperatureThreshold": 89}
    assert facts(**older)["nvml"]["temperature_margin"] == 54
    untold = "persistence|SM clock|power limit|other processes|temperature|throttling"
    assert [f.check for f in found if f.found == "not told here"] == untold.split("|")


STRANGER = [SimpleNamespace(pid=os.getpid()), SimpleNamespace(pid=1)]
UNNAMED = [SimpleNamespace(pid=2**30)] * 3
BUSY = SimpleNamespace(gpu=60)
BROKEN = {"asked": "auto", "host": HOST, "broken": "RuntimeError: launch failure"}


def beside(processes: list[SimpleNamespace], utilization: SimpleNamespace | None) -> dict[str, Any]:
    return facts(nvmlDeviceGetComputeRunningProcesses=processes, nvmlDeviceGetUtilizationRates=utilization)


def timed(instrument: str, **found: str) -> dict[str, Any]:
    return changed("instruments", **{instrument: found})


@pytest.mark.parametrize(
    ("fault", "found", "says", "todo"),
    [
        (facts(nvmlDeviceGetPersistenceMode=0), "persistence: warning", "off", "sudo nvidia-smi -pm 1"),
        (facts(nvmlDeviceGetApplicationsClock=1200), "SM clock: warning", "1200 MHz, 1980 by default", "-rac"),
        (changed("nvml", clock_held=1.5e9, clock_told=1.5e9), "SM clock: warning", "1500 of 1980 MHz", "-rgc"),
        (changed("nvml", clock_held=2.078e9), "clock gauge: warning", "counts 2078 MHz over a second", "wrong"),
        (changed("nvml", clock_held=None, gauge_fault="torch 2.5 cannot"), "clock gauge: warning", "2.5", "2.9"),
        (facts(nvmlDeviceGetEnforcedPowerLimit=450_000), "power limit: warning", "450 W, lowered from 700", "-pl 700"),
        (beside(STRANGER, SimpleNamespace(gpu=0)), "other processes: warning", "(pid 1); computing nothing", "another"),
        (beside(STRANGER, BUSY), "other processes: unfit", "60% busy", "another GPU"),
        (beside(STRANGER, None), "other processes: warning", "whether they compute is not known", "another GPU"),
        (beside(UNNAMED, SimpleNamespace(gpu=0)), "other processes: warning", "2 that cannot be named", "another GPU"),
        (beside([], BUSY), "other processes: unfit", "not in NVML's list", "another GPU"),
        (facts(nvmlDeviceGetMigMode=[1, 1]), "MIG: warning", "slice", "administrator"),
        (facts(nvmlDeviceGetTotalEccErrors=2), "memory errors: unfit", "2 uncorrected", "reset"),
        (facts(nvmlDeviceGetRemappedRows=(0, 1, 0, 1)), "memory errors: unfit", "could not be remapped", "replaced"),
        (facts(nvmlDeviceGetRemappedRows=(0, 1, 1, 0)), "memory errors: warning", "waits", "reset"),
        (facts(nvmlDeviceGetEccMode=[0, 0]), "memory errors: warning", "ECC is off", "nvidia-smi -e 1"),
        (facts(nvmlDeviceGetEccMode=[1, 0]), "memory errors: warning", "off after the next restart", "-e 1"),
        (facts(nvmlDeviceGetMarginTemperature=12), "temperature: warning", "12 below", "cool"),
        (facts(nvmlDeviceGetMarginTemperature=3), "temperature: unfit", "3 below", "cool"),
        (facts(nvmlDeviceGetCurrentClocksThrottleReasons=0x4), "throttling: warning", "power cap", "nvidia-smi -q"),
        (facts(nvmlDeviceGetCurrentClocksThrottleReasons=0x48), "throttling: unfit", "hardware thermal", "cooling"),
        (facts(nvmlSystemGetCudaDriverVersion_v2=12080), "software: warning", "older than torch's CUDA", "driver"),
        ({**facts(), "nvml": None}, "NVML: warning", "does not answer", "pip install nvidia-ml-py"),
        (BROKEN, "GPU: unfit", "launch", "nvidia-smi"),
        (timed("events", error="E: x"), "instruments: unfit", "events does not work: E: x", "timed"),
        (timed("cupti", error="no kernel"), "instruments: warning", "cupti", "profilers"),
        (timed("graph", error="no"), "instruments: warning", "graph", "--timer graph"),
        (timed("events", **{**WORKS, "l2_cold": "warm"}), "L2: warning", "warm instead of cold by events", "unproven"),
        (changed("host", load=60.0), "load: warning", "60.0 on 64 cores", "end the processes that top shows"),
        (changed("host", cpu_limit=1.0), "container limit: warning", "1 CPUs for 2 threads", "2 CPUs"),
    ],
)
def test_each_fault_is_one_finding_that_says_what_to_do(
    fault: dict[str, Any], found: str, says: str, todo: str
) -> None:
    (line,) = [f for f in judged(fault) if f.level != "ok"]
    assert f"{line.check}: {line.level}" == found
    assert says in line.found
    assert todo in line.todo


@pytest.mark.parametrize(
    ("host", "asked", "expected"),
    [
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
    found = [*findings_of_machine(environment(CPU), {"asked": asked, "host": {**HOST, "cores": 4, **host}})]
    assert complaints(found) == expected


@pytest.mark.parametrize(
    ("tried", "expected"),
    [
        (aa_test(*QUIET), []),
        (aa_test(*(d + 0.01 for d in QUIET)), [("A/A test", "warning")]),
        (aa_test(*(30 * d for d in QUIET)), [("resolution", "warning")]),
        (aa_test(*(200 * d for d in QUIET)), [("resolution", "unfit")]),
        (aa_test(*QUIET[:3]), [("resolution", "warning")]),
        (aa_test(*[0.0] * 8), []),
        (aa_test(*QUIET, others=("python (pid 1)",)), [("other processes", "unfit")]),
        (aa_test(*QUIET, ecc_errors=1), [("memory errors", "unfit")]),
        (aa_test(*QUIET, limits=("power cap",)), []),
        (aa_test(*QUIET, limits=("power cap", "thermal")), [("throttling", "warning")]),
        (aa_test(*QUIET, host_bound=True), [("host", "warning")]),
    ],
)
def test_what_the_aa_test_shows(tried: AATest, expected: list[tuple[str, str]]) -> None:
    found = judged_test(tried)
    assert complaints(found) == expected
    assert all(bool(f.todo) == (f.level != "ok") for f in found)


def test_readings_that_tell_nothing_are_said_to_be_not_comparable_in_figures_that_a_person_reads() -> None:
    """Readings that scatter tenfold are reported as not comparable, not as a smallest difference of 3.28e+06%."""
    (line,) = (f for f in judged_test(aa_test(2.5, -1.9, 0.3, -2.2, 1.4, -0.6)) if f.check == "resolution")
    assert line.level == "unfit"
    assert line.found.startswith("not comparable: one reading each tells over 100x apart, 5 rounds ")
    said = [difference_in_words(fraction) for fraction in (0.004, 0.5, 0.999, 1.0, 9.0, 98.9, 99.0, 32800.0, 1e300)]
    assert said == ["0.4%", "50%", "100%", "2.00x", "10.0x", "99.9x", "over 100x", "over 100x", "over 100x"]


def test_a_job_that_failed_is_all_that_is_said() -> None:
    record = Record(CASES[1], "b", 0, "oom", "CUDA out of memory")
    (line,) = judged_test(aa_test(*QUIET, failed=record))
    assert line.level == "unfit"
    assert line.found == "sdpa-flash against itself: 16k b1 ended as oom: CUDA out of memory"


def test_a_gpu_is_refused_and_a_cpu_is_not() -> None:
    assert refusal(replace(H200, busy=0.02)) == ""
    assert refusal(H200) == ""
    assert refusal(replace(CPU, busy=3.0)) == ""
    assert refusal(replace(H200, busy=0.97, users=("train (pid 7)",))) == (
        "another process uses cuda:0 (97% of its time: train (pid 7)), so that no figure could be believed; wait for "
        "its end, choose another GPU with --device cuda:N, or measure all the same with --allow-busy"
    )


@pytest.mark.parametrize("load", [0.2, 0.5, 0.74, 0.76, 2.0])
def test_a_cpu_is_loaded_where_the_doctor_calls_it_unfit(load: float) -> None:
    host = {**HOST, "cores": 10, "load": 10 * load}
    found = findings_of_machine(environment(CPU), {"asked": "cpu", "host": host})
    (finding,) = [one for one in found if one.check == "load"]
    assert is_too_busy(replace(CPU, busy=load)) == (finding.level == "unfit")


def test_fences_that_hold_and_why_others_do_not() -> None:
    """They leave the machine fit to measure, whatever holds."""
    old = "this kernel has no Landlock"
    for held, said in (
        ({"files": "", "network": ""}, "for --untrusted hold: files, network"),
        ({"files": old, "devices": old, "disk": ""}, f"hold: disk; do not hold: files, devices ({old})"),
        ({"files": old}, f"hold: none; do not hold: files ({old})"),
        ({}, "they cannot be tried here"),
    ):
        found = [*findings_of_machine(environment(CPU), {"asked": "cpu", "host": HOST, "fences": held})]
        assert found[-1].check == "fences"
        assert found[-1].found.endswith(said)
        assert complaints(found) == []
