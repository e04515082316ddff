"""The parent's side of a profile: one case, files of traces, the roofline, and the counters of ncu."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import builders
from attnbench.core import flops, gpus
from attnbench.core.errors import UserError
from attnbench.core.machine import Device
from attnbench.run import session
from attnbench.run.profile import ncu, nsight_reports, profile
from attnbench.run.profile.profile import Profile
from attnbench.run.suite import parse_options
from attnbench.run.workers import WorkerPool

EAGER = "attnbench.backends.pytorch.eager:Eager"


def one(backend: str = "eager", **changes: Any) -> Profile:
    return Profile(backend, "events", "cold", (3e-3, 1e-3, 2e-3), 0.5, 2**20, **changes)


def test_the_defaults_are_one_case_on_every_device() -> None:
    on_gpu, notes = profile.one_case(parse_options({}), "cuda")
    assert (on_gpu.shape.seqlen_k, on_gpu.shape.batch, on_gpu.shape.nheads, on_gpu.shape.headdim) == (8192, 2, 16, 128)
    assert (on_gpu.dtype, on_gpu.direction, on_gpu.causal, notes) == ("bf16", "fwd", False, ())
    indexer, _ = profile.one_case(parse_options({"axes": {"kind": "indexer"}}), "cuda")
    assert indexer.causal, "as other commands have it"
    on_cpu, notes = profile.one_case(parse_options({}), "cpu")
    assert (on_cpu.shape.seqlen_k, on_cpu.shape.nheads, on_cpu.dtype) == (1024, 2, "fp32")
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("options", "more", "said"),
    [
        ({}, {}, "--backend is missing"),
        ({"backends": ["eager"]}, {"device": "tpu"}, "--device: 'tpu'"),
        ({"backends": ["fake"]}, {"device": "fake"}, "nothing to profile"),
        ({"backends": ["eager"], "axes": {"headdim": "64,192-128"}}, {}, "--headdim has 2 values (64, 192-128)"),
        ({"backends": ["eagre"]}, {}, 'did you mean "eager"?'),
        ({"backends": ["eager"]}, {"pythons": ("triton=python",)}, "--python: 'triton'"),
    ],
)
def test_mistakes_are_said_before_anything_starts(
    options: dict[str, Any], more: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: Any) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(session, "DeviceProbe", start)
    with pytest.raises(UserError) as error:
        profile.profile(parse_options(options), lambda _: None, **more)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_each_backend_keeps_files_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert profile.kept_files(None, ["eager"]) == {}
    monkeypatch.chdir(tmp_path)
    found = profile.kept_files(Path("new/folder"), ["eager", "./m.py:f"])
    folder = tmp_path / "new" / "folder"
    assert folder.is_dir()
    ends = {"trace": "trace.json", "flame": "flame.html", "ncu": "ncu-rep", "nsys": "nsys-rep"}
    stems = {"eager": "eager", "./m.py:f": ".-m.py:f"}
    assert found == {n: {of: folder / f"{stem}.{end}" for of, end in ends.items()} for n, stem in stems.items()}
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"no folder file can be made: it is a file; choose another place"):
        profile.kept_files(Path("file"), ["eager"])
    with pytest.raises(UserError, match="no folder file/in can be made: Not a directory"):
        profile.kept_files(Path("file/in"), ["eager"])


@pytest.mark.parametrize("device", [builders.CPU, Device("cuda", 0, "NVIDIA Unheard", 2**35, 2**35)])
def test_without_a_datasheet_it_is_by_what_was_reached(device: Device) -> None:
    gpu = gpus.find(builders.H200.name, builders.H200.memory)
    of_gpu = profile.roofline(builders.case(8192, seqlen_q=1), builders.H200, [])
    assert gpu is not None
    assert of_gpu is not None
    assert (of_gpu.peak, of_gpu.bandwidth, of_gpu.datasheet) == (gpu.peak_flops["bf16"], gpu.bandwidth, True)
    assert of_gpu.bound == "memory"
    assert of_gpu.seconds == flops.ideal_bytes(builders.case(8192, seqlen_q=1)) / gpu.bandwidth
    case = builders.case(1024, dtype="fp32")
    slow, fast = ({"matmul": 1e11, "copy": 2e10}, {"matmul": 2e11, "copy": 1e10})
    found = profile.roofline(case, device, [one(ceilings=slow), one(ceilings=fast)])
    assert found is not None
    assert (found.peak, found.bandwidth, found.datasheet) == (2e11, 2e10, False)
    assert profile.roofline(case, device, [one()]) is None
    assert profile.roofline(case, device, []) is None


class FakePool(WorkerPool):
    """A pool that answers as workers would."""

    answers: dict[str, Any]
    writes_trace = False

    def probe(self) -> dict[str, Any]:
        from attnbench.core.backend import Probe

        return {name: Probe(version="1") for name in self.specs}

    def survey(self, probes: Any, cases: Any, device: Any) -> dict[str, Any]:
        from attnbench.run.plan import CaseSupport

        return {name: [CaseSupport(reason="not here" if name == "refuses" else None)] for name in self.specs}

    def ask(self, name: str, request: Any, timeout: float, **_: Any) -> dict[str, Any]:
        assert request["op"] == "profile"
        if isinstance(self.answers[name], str):
            raise UserError(f"{name}: {self.answers[name]}")
        if self.writes_trace and "trace" in request["keep"]:
            Path(request["keep"]["trace"]).write_text("{}")
        return {"profile": self.answers[name]}


PROFILED = {"timer": "events", "l2": "cold", "times": [1e-3], "first_call": 0.5, "memory_peak": 7}


def test_one_backend_that_fails_costs_its_own_profile_only(tmp_path: Path) -> None:
    answers = {"dies": "the worker crashed", "good": PROFILED, "says": {"refused": "too large"}, "refuses": "unasked"}
    pool = FakePool(dict.fromkeys(answers, "x:y"))
    pool.answers = answers
    files = profile.kept_files(tmp_path, ["good"])
    trace = files["good"]["trace"]
    profiles, _, _ = profile.profile_backends(pool, builders.case(), builders.H200, files, lambda _: None)
    assert profiles[0].kept == {}  # no file was written
    pool.writes_trace = True
    profiles, refused, wrong = profile.profile_backends(pool, builders.case(), builders.H200, files, lambda _: None)
    assert [(p.backend, p.version, p.kept) for p in profiles] == [("good", "1", {"trace": str(trace)})]
    assert refused == {"dies": "the worker crashed", "says": "too large", "refuses": "not here"}
    assert wrong == []


def test_wrong_results_are_named_with_a_profile_and_without() -> None:
    shown = {**PROFILED, "wrong": "dq is off"}
    pool = FakePool({"one": "x:y", "several": "x:y"})
    pool.answers = {"one": shown, "several": {"refused": "wrong: out is off", "wrong": True}}
    profiles, refused, wrong = profile.profile_backends(pool, builders.case(), builders.H200, {}, lambda _: None)
    assert ([p.backend for p in profiles], [*refused], wrong) == (["one"], ["several"], ["one", "several"])


def count(monkeypatch: pytest.MonkeyPatch, found: str | None, answers: dict[str, Any]) -> tuple[list[Profile], Any]:
    asked = []

    def measure(tool: str, python: str | None, request: dict[str, Any]) -> ncu.Traffic:
        asked.append(request["name"])
        assert (tool, request["spec"]) == ("/ncu", EAGER)
        assert set(request) == {"name", "spec", "case", "device"}
        assert python == ("/py" if request["name"] == "b" else None)
        answer = answers[request["name"]]
        if isinstance(answer, str):
            raise ncu.NotCounted(answer)
        assert isinstance(answer, ncu.Traffic)
        return answer

    monkeypatch.setattr(ncu, "find", lambda: found)
    monkeypatch.setattr(ncu, "measure", measure)
    pool = WorkerPool(dict.fromkeys(answers, EAGER), {"b": "/py"})
    given = [one(name) for name in answers]
    return profile.add(profile.TRAFFIC, given, pool, builders.case(), builders.H200, lambda _: None)


def test_what_hinders_all_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    profiles, notes = count(monkeypatch, "/ncu", {"a": "only root", "b": "only root"})
    assert [p.traffic for p in profiles] == [None, None]
    assert notes == ("HBM traffic: only root",)
    moved = ncu.Traffic((), 5.0)
    profiles, notes = count(monkeypatch, "/ncu", {"a": "too slow", "b": moved})
    assert [p.traffic for p in profiles] == [None, moved]
    assert notes == ("HBM traffic of a: too slow",)
    profiles, notes = count(monkeypatch, None, {"a": "unasked", "b": "unasked"})
    assert (len(profiles), notes) == (2, (f"HBM traffic: {ncu.MISSING}",))


def test_a_report_is_one_more_file_that_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(tool: str, file: Path, python: str | None, request: dict[str, Any]) -> None:
        assert (tool, python) == ("ncu", "/py" if request["name"] == "b" else None)
        if request["name"] == "c":
            raise ncu.NotCounted("out of memory")
        file.write_text("a report")

    monkeypatch.setattr(nsight_reports, "write", write)
    names = ("a", "b", "c")
    files = profile.kept_files(tmp_path, names)
    pool = WorkerPool(dict.fromkeys(names, EAGER), {"b": "/py"})
    given = [one(name, kept={"trace": "t"}) for name in names]
    report = profile.report("ncu", files)
    profiles, notes = profile.add(report, given, pool, builders.case(), builders.H200, lambda _: None)
    assert [p.kept.get("ncu") for p in profiles] == [str(files["a"]["ncu"]), str(files["b"]["ncu"]), None]
    assert all(p.kept["trace"] == "t" for p in profiles)
    assert notes == ("ncu-rep of c: out of memory",)
