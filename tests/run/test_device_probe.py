"""A run before its first job: it describes the device, opens it in the workers, measures its rates when idle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnbench.core.errors import UserError
from attnbench.core.json import from_json, to_json
from attnbench.core.machine import Device
from attnbench.core.record import Job, Record
from attnbench.results import run_file
from attnbench.run import device_probe, run_suite, workers
from attnbench.run.process import WorkerProcess
from attnbench.run.run_suite import Request
from attnbench.run.suite import parse_options
from builders import CPU, H200, environment

RATES: dict[str, Any] = {"matmul": {"bf16": 7e14, "fp32": 5e13}, "copy": 4e12}
PROBE = "probe"


def test_several_devices_are_for_ranks() -> None:
    probe = object.__new__(device_probe.DeviceProbe)
    with pytest.raises(UserError, match="several devices are for --ranks"):
        probe.peers(H200, 1, ["cuda:1"])
    assert probe.peers(H200, 1) == ()
    assert probe.peers(CPU, 4) == ()


class SimulatedWorker:
    """A stand-in for a worker process. `log` has each request, answer and end with the worker's name."""

    log: list[tuple[str, str]]
    devices: dict[tuple[str, str], Device]  # (worker, operation) -> the device of the request
    here: Device
    stops: tuple[str, str] | None  # (worker, operation) that Ctrl-C interrupts
    looks: list[bool]  # for each job, whether it was asked for other work on the device

    def __init__(self, python: str | None = None, _: Mapping[str, str] | None = None) -> None:
        self.name, self.alive = "", True
        self._asked: list[Mapping[str, Any]] = []

    def ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        self.send(request)
        return self.receive(timeout)

    def send(self, request: Mapping[str, Any]) -> None:
        self.name = self.name or request.get("name", PROBE)
        self.log.append((self.name, request["op"]))
        self._asked.append(request)

    def answered(self, timeout: float) -> bool:
        return True

    def interrupt_import(self) -> bool:
        return False

    def receive(self, timeout: float) -> dict[str, Any]:
        assert self.alive
        request = self._asked.pop(0)
        operation = request["op"]
        if (self.name, operation) == self.stops:
            raise KeyboardInterrupt
        if "device" in request and operation != "environment":
            self.devices[self.name, operation] = from_json(Device, request["device"])
        self.log.append((self.name, f"{operation} done"))
        return getattr(self, f"_{operation}")(request) if hasattr(self, f"_{operation}") else {}

    def _environment(self, _: Any) -> dict[str, Any]:
        return {"environment": to_json(environment(replace(self.here, matmul={}, copy=None)))}

    def _rates(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {"device": {**request["device"], **RATES}}

    def _load(self, request: Mapping[str, Any]) -> dict[str, Any]:
        probe = {"reason": "not installed"} if request["name"] == "fa2" else {"version": "1"}
        return {"probe": probe, "compiler": False, "files": {}}

    def _survey(self, request: Mapping[str, Any]) -> dict[str, Any]:
        reason = "forward only" if self.name == "sdpa-math" else None
        workspace = {"nbytes": 2**34} if self.name == "eager" else {}
        return {"answers": [[reason, workspace, 0.4, 0.0] for _ in request["cases"]]}

    def _run(self, request: Mapping[str, Any]) -> dict[str, Any]:
        job = from_json(Job, request["job"])
        self.looks.append(request.get("look", False))
        return {"record": to_json(Record(job.case, job.backend, job.round, "failed", "simulated")), "imported": {}}

    def stderr_tail(self) -> None:
        return None

    def send_kill(self) -> None: ...

    def kill(self) -> None:
        if self.alive:
            self.log.append((self.name, "ended"))
        self.alive = False


class RecordingObserver:
    """An observer of a run that adds its events to the workers' log."""

    def say(self, text: str) -> None:
        SimulatedWorker.log.append(("says", text.partition(" ")[0]))

    def planned(self, *_: Any) -> None:
        SimulatedWorker.log.append(("says", "planned"))

    def started(self, *_: Any) -> None: ...

    def ended(self, *_: Any) -> None: ...


@pytest.fixture(autouse=True)
def simulated_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Replace the worker processes by simulated ones on a machine with an H200."""
    SimulatedWorker.log, SimulatedWorker.devices, SimulatedWorker.here, SimulatedWorker.stops = [], {}, H200, None
    SimulatedWorker.looks = []
    for module in (workers, device_probe):
        monkeypatch.setattr(module, "WorkerProcess", SimulatedWorker)
    monkeypatch.setattr(run_suite, "has_nvidia_gpu", lambda: True)
    monkeypatch.chdir(tmp_path)


def measured(backends: str = "eager,sdpa-math,fa2,triton", **changes: Any) -> list[tuple[str, str]]:
    """Return the log of a run."""
    policy = changes.pop("policy", {})
    chosen = parse_options({"backends": [backends], "axes": {"seqlen": "1k", "headdim": "64"}, "policy": policy})
    run_suite.run_suite(Request(settings=chosen, out=Path("run.jsonl"), **changes), RecordingObserver())
    return SimulatedWorker.log


def at(who: str, operation: str) -> int:
    return SimulatedWorker.log.index((who, operation))


def test_on_a_gpu_the_rates_are_read_when_all_workers_are_open_and_idle() -> None:
    log = measured()
    assert at("triton", "import") < at(PROBE, "environment done") < at("eager", "load done")
    opened = [who for who, what in log[: at(PROBE, "rates")] if what == "ready done"]
    assert opened == ["eager", "triton"]  # without backends that are not installed or take no case
    asked = {(who, what) for who, what in log if what in ("load", "import", "survey", "ready")}
    assert {(who, f"{what} done") for who, what in asked} <= {*log[: at(PROBE, "rates")]}, "not idle"
    assert at(PROBE, "environment done") < at(PROBE, "judge") < at("eager", "load done"), "not while others load"
    assert at(PROBE, "judge done") < at(PROBE, "rates"), "not idle"
    assert at(PROBE, "rates done") < at("says", "planned") < at("eager", "run")
    words = [what for who, what in log if who == "says"]
    assert words == ["looking", "importing", "opening", "timing", "planned"]


def test_plan_and_workers_know_the_rates_in_the_end() -> None:
    measured()
    planned, _ = run_file.read(Path("run.jsonl"))
    assert planned.environment.device == replace(H200, **RATES)
    assert SimulatedWorker.devices["eager", "survey"].copy is None
    assert SimulatedWorker.devices["eager", "run"] == planned.environment.device
    assert planned.plan[0].forecast.call > 20e-6


def test_a_dry_run_opens_nothing() -> None:
    log = measured(dry_run=True)
    assert not [entry for entry in log if entry[1] in ("import", "ready", "run")]
    assert at(PROBE, "rates done") < at("says", "planned")
    assert "opening" not in [what for _, what in log]


def test_fresh_caches_open_nothing_ahead() -> None:
    """With fresh caches no device is opened ahead, because each job has a new worker."""
    log = measured(policy={"caches": "fresh"})
    assert not [entry for entry in log if entry[1] == "ready"]
    assert at("eager", "survey done") < at(PROBE, "rates")


@pytest.mark.parametrize("changes", [{"device": "cpu"}, {}])
def test_a_cpu_is_timed_before_any_worker_starts(changes: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    SimulatedWorker.here = CPU
    if not changes:
        monkeypatch.setattr(run_suite, "has_nvidia_gpu", lambda: False)
    log = measured(**changes)
    assert log[:2] == [(PROBE, "environment"), ("says", "looking")]
    assert log[2:5] == [(PROBE, what) for what in ("environment done", "rates", "rates done")]
    assert log[5] == ("says", "importing")
    assert not [entry for entry in log if entry[1] == "import"]


@pytest.mark.parametrize(("dtype", "timed"), [("fp32", False), ("bf16", True)])
def test_a_dry_run_on_a_cpu_asks_torch_only_for_what_numpy_lacks(
    dtype: str, timed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    SimulatedWorker.here = CPU
    monkeypatch.setattr(run_suite, "has_nvidia_gpu", lambda: False)
    settings = parse_options({"backends": ["eager,flex"], "axes": {"seqlen": "1k", "headdim": "64", "dtype": dtype}})
    outcome = run_suite.run_suite(Request(settings=settings, dry_run=True), RecordingObserver())
    assert ((PROBE, "rates") in SimulatedWorker.log) is timed
    assert outcome.run.environment.device.matmul[dtype] != 1e11
    assert {who for who, _ in SimulatedWorker.log} == {PROBE, "says"}  # no worker of a backend


@pytest.mark.parametrize(
    "stops", [(PROBE, "environment"), ("eager", "load"), ("eager", "import"), ("triton", "ready"), (PROBE, "rates")]
)
def test_ctrl_c_ends_all_workers(stops: tuple[str, str]) -> None:
    SimulatedWorker.stops = stops
    with pytest.raises(KeyboardInterrupt):
        measured()
    started = {who for who, _ in SimulatedWorker.log} - {"says"}
    assert started == {PROBE, "eager", "sdpa-math", "fa2", "triton"}
    assert {who for who, what in SimulatedWorker.log if what == "ended"} == started
    assert not Path("run.jsonl").exists()


def test_a_gpu_in_use_is_refused_before_a_worker_opens_it_and_measured_where_that_is_allowed() -> None:
    SimulatedWorker.here = replace(H200, busy=0.97)
    with pytest.raises(UserError, match=r"another process uses cuda:0 .* --allow-busy$"):
        measured()
    assert not [entry for entry in SimulatedWorker.log if entry[1] in ("ready", "rates", "run")]
    assert not Path("run.jsonl").exists()
    measured(allow_busy=True)
    assert run_file.read(Path("run.jsonl"))[0].environment.device.busy == 0.97


def test_each_gpu_of_several_ranks_must_be_free() -> None:
    with device_probe.DeviceProbe("cuda:0") as probe:
        first = probe.describe().device
        SimulatedWorker.here = replace(H200, index=1, busy=0.5)
        with pytest.raises(UserError, match="another process uses cuda:1"):
            probe.peers(first, 2)


def test_the_load_of_a_cpu_is_in_the_run_file_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    SimulatedWorker.here = CPU
    monkeypatch.setattr(device_probe, "cpu_load", lambda: 3.0)
    monkeypatch.setattr(device_probe.os, "cpu_count", lambda: 2)
    measured(device="cpu")
    assert run_file.read(Path("run.jsonl"))[0].environment.device.busy == 1.5


@pytest.mark.parametrize("here", [H200, CPU])
def test_the_last_job_on_a_gpu_looks_at_what_others_do(here: Device) -> None:
    SimulatedWorker.here = here
    measured("eager,triton")
    *others, last = SimulatedWorker.looks
    assert last == (here is H200)
    assert not any(others)


class TestReal:
    """Tests with real worker processes."""

    @pytest.fixture(autouse=True)
    def real(self, simulated_workers: None, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (workers, device_probe):
            monkeypatch.setattr(module, "WorkerProcess", WorkerProcess)

    def test_the_simulated_device(self) -> None:
        known = device_probe.probe_device("fake")
        assert (known.device.kind, known.device.copy) == ("fake", None)
        assert device_probe.probe_device("fake", ["bf16"]).device.matmul["bf16"] > 0

    def test_a_device_that_is_not_there(self) -> None:
        with pytest.raises(UserError, match=r"CUDA|cuda:99"):
            device_probe.probe_device("cuda:99")

    def test_what_fails_is_said_in_a_line(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        with device_probe.DeviceProbe("fake") as probe:
            known = probe.describe()
            with pytest.raises(UserError, match=r"^cannot look at the device: \S+Error: "):
                probe.measure_rates(replace(known, device=replace(known.device, kind="cuda", index=99)), ["bf16"])
        (tmp_path / "torch.py").write_text("import os; os.abort()")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        with pytest.raises(UserError, match=r"^cannot look at the device: the worker crashed \(SIGABRT\)"):
            device_probe.probe_device("cpu")


def test_each_worker_is_told_once_to_open_and_again_after_a_round() -> None:
    log = measured("eager,triton", rounds=2)
    told = [who for who, what in log if what == "ready"]
    assert sorted(told[:2]) == sorted(told[2:]) == ["eager", "triton"]
    assert log.count(("eager", "load")) == 2


def test_a_worker_whose_jobs_are_all_skipped_does_not_hold_the_device() -> None:
    SimulatedWorker.here = replace(H200, free=2**33)
    log = measured("eager,triton")
    assert at("eager", "ready done") < at("eager", "ended") < at("says", "planned") < at("triton", "run")
    assert ("eager", "run") not in log
