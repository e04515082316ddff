"""Baselines: a gate reads the same from them as from the run, files are small and stable, the right one is found."""

from __future__ import annotations

import errno
import gzip
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from attnbench.analysis.baseline import baseline_files, document
from attnbench.analysis.baseline.reduce_run import KEPT, reduced
from attnbench.analysis.gate.findings import Request, judge
from attnbench.analysis.gate.margins import RULES
from attnbench.commands.baseline import app
from attnbench.core.errors import UserError
from attnbench.core.files import write_whole
from attnbench.core.machine import Device
from attnbench.core.record import Record, Run
from attnbench.render import terminal
from attnbench.results import metrics, run_file
from attnbench.results.rows import Row, Source
from attnbench.run import run_suite as runs
from builders import CPU, H200, case, ended, environment, job, ok, run, times
from denied import deny

NOISE = (0.0, 0.002, -0.001, 0.0007, -0.002)


def records(backend: str = "triton", seqlens: Sequence[int] = (4096, 1024), **changes: Any) -> list[Record]:
    """Return records with all measurements that a gate reads, and others, in the order of a shuffled plan."""
    taken: dict[str, Any] = {
        "clock_held": (1.9e9, 1.98e9, 1.97e9),
        "enqueue": (1e-5, 3e-5, 2e-5),
        "first_call": 0.123456789,
        "memory_peak": 2**30 + 1,
        "memory_driver": 2**31,
        "memory_saved": 2**20,
        "sustained": (1e-3, 2e-3, 4e-3),
        "sustained_power": (600.0, 700.0),
        "power": (500.0, 600.0),
    }
    return [
        ok(case(n), backend, 300 * (1 + NOISE[i]), round=i, **{**taken, **changes})
        for i in (3, 0, 1, 4, 2)
        for n in seqlens
    ]


def value(metric: str, record: Record) -> float | None:
    return metrics.value(metric, Row(record, Source(run([]))))


def short(which: Record) -> Record:
    """Return the record with a latency under 100 us, so that it is timed by the kernels' span."""
    return replace(which, measurements={**which.measurements, "time": times(9e-5), "span": times(8.7e-5)})


def test_every_kept_measurement_is_read_and_reduced_as_its_metric() -> None:
    named = {"latency": "time", "cycles": "clock_held", "sustained_latency": "sustained", "joules": "sustained_power"}
    of_marks = {"clock_before", "clock_after", "clock_best", "clock_idle"}  # measurements that show a clock held down
    assert {named.get(m, m) for m in RULES} | {"span"} | of_marks == {*KEPT} | {"relative_error"}
    one = records()[0]
    for metric in RULES:
        assert value(metric, reduced(run([one])).records[0]) == pytest.approx(value(metric, one), rel=1e-6)


def test_a_gate_judges_by_it_as_by_the_run() -> None:
    capped: dict[str, Any] = {"limits": ("power cap",), "clock_held": 1.9e9}  # every record: only the limit shows it
    base = run([*records(**capped), *map(short, records("eager", **capped))])
    now = run([*records(), *records("eager")])
    request = Request(tuple(RULES))
    by_run, by_baseline = judge(base, now, request), judge(reduced(base), now, request)
    assert by_run.exit_code == by_baseline.exit_code == 1
    assert any(f.held_down for f in by_run.findings)
    assert [(f.name, f.metric, f.verdict, f.held_down) for f in by_run.findings] == [
        (f.name, f.metric, f.verdict, f.held_down) for f in by_baseline.findings
    ]


def test_the_same_cells_make_the_same_lines_whatever_their_order() -> None:
    some = [*records("eager"), *records()]
    a = run_file.encoded(reduced(run(some))).splitlines()
    b = run_file.encoded(reduced(run(some[::-1], versions={"b": "1", "a": "2"}))).splitlines()
    assert a[1:] == b[1:]
    order = [(r["backend"], r["case"]["shape"]["seqlen_k"], r["round"]) for r in map(json.loads, a[1:])]
    assert order == sorted(order)


def test_it_is_a_small_run_file_without_paths_of_the_machine(tmp_path: Path) -> None:
    whole = run(records(), specs={"triton": "/home/me/a.py:f"}, interpreters={"triton": "/home/me/python"})
    path, before = baseline_files.save(whole, "main", tmp_path)
    assert before == []
    assert path == tmp_path / "main" / "nvidia-h200.jsonl"
    found, problems = run_file.read(path)
    assert problems == []
    assert found == reduced(whole)
    assert "/home/me" not in path.read_text()
    assert path.stat().st_size < 1500 * len(whole.records)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    with pytest.raises(UserError, match="is a baseline, which has no plan"):
        runs.run_suite(runs.Request(resume=path), None)  # type: ignore[arg-type]


def test_what_makes_it_poor_is_said() -> None:
    few = replace(run(records()), records=records()[:6], plan=())
    incomplete = run(records(), plan=[job(case(2048), "triton")])
    shared = run(records(others=("python 4711",)))
    for one, said in ((few, "has 3 rounds: a weak"), (incomplete, "1 job of 1 not"), (shared, "(python 4711)")):
        (doubt,) = document.doubts(one, Path("a.jsonl"))
        assert said in doubt


def test_what_did_not_work_in_some_rounds_or_in_none_is_said(tmp_path: Path) -> None:
    some = [ok(case(), "triton", 300), ended(case(), "triton", "oom", "full", round=1), ok(case(2048), "triton", 300)]
    path, before = baseline_files.save(run(some), "main", tmp_path)
    said = terminal.text(document.saved(path, run(some), before))
    assert (
        "1 cell failed in some rounds, so failures in some rounds of a later run are no regression: triton 1k" in said
    )
    assert "in some rounds" not in terminal.text(document.saved(path, run(some[:1]), before))
    with pytest.raises(UserError, match="nothing was measured"):
        baseline_files.save(run(some[1:2]), "main", tmp_path)


def test_names_and_folders_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--name"):
        baseline_files.save(run(records()), "../main", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="--dir"):
        baseline_files.save(run(records()), "main", tmp_path / "file")


def test_a_baseline_that_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path, _ = baseline_files.save(run(records()), "main", tmp_path)
    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match=r"cannot write .*nvidia-h200\.jsonl: No space left.*--dir"):
        baseline_files.save(run(records("eager")), "main", tmp_path)
    assert [*path.parent.iterdir()] == [path]
    assert path.read_bytes() == before


def test_a_damaged_baseline_is_not_replaced_and_what_to_do_is_said(tmp_path: Path) -> None:
    path, _ = baseline_files.save(run(records()), "main", tmp_path)
    path.write_text("not a run file\n")
    with pytest.raises(UserError, match=r"nvidia-h200\.jsonl, cannot be read; delete it, or .*--name"):
        baseline_files.save(run(records()), "main", tmp_path)
    assert path.read_text() == "not a run file\n"


def on(device: Device) -> Run:
    return run(records(), environment=environment(device))


def test_the_one_of_this_gpu_is_picked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="main is neither a file nor a folder, and there is no folder baselines"):
        baseline_files.pick(Path("main"), on(H200))
    folder = Path("baselines")
    a100 = Device("cuda", 0, "NVIDIA A100-SXM4-80GB", 2**36, 2**36)
    own = {name: baseline_files.save(on(H200), name, folder)[0] for name in ("main", "v1.0")}
    baseline_files.save(on(a100), "main", folder)
    os.mkfifo(folder / "main" / "pipe.jsonl")  # a read would wait
    run_path = Path("run.jsonl")
    run_path.write_bytes(run_file.encoded(on(H200)))
    for given, expected in (
        ("baselines", own["main"]),
        ("v1.0", own["v1.0"]),
        ("baselines/v1.0", own["v1.0"]),
        ("run.jsonl", run_path),
        ("none.jsonl", Path("none.jsonl")),  # the reader reports that there is no such file
    ):
        assert baseline_files.pick(Path(given), on(H200)) == [expected]
    assert "a100" in baseline_files.pick(folder, on(a100))[0].name
    with pytest.raises(
        UserError, match=r"no baseline for AMD EPYC in baselines; there are some for NVIDIA A100.*H200;"
    ):
        baseline_files.pick(folder, on(CPU))
    with pytest.raises(UserError, match=r"no baseline for NVIDIA H200 in \.; measure"):
        baseline_files.pick(Path("."), on(H200))  # run files are not baselines
    with pytest.raises(UserError, match="no baseline 'mian' in baselines; did you mean \"main\""):
        baseline_files.pick(Path("mian"), on(H200))
    baseline_files.save(on(H200), "v2", folder)
    own["main"].unlink()
    with pytest.raises(UserError, match="several baselines for NVIDIA H200; name one: baselines/v1"):
        baseline_files.pick(folder, on(H200))


def test_two_runs_of_one_second_are_two(tmp_path: Path) -> None:
    """Two runs that begin in the same second count as two, for example jobs of a matrix on CPUs, which have no UUID."""
    for seconds in (1e-3, 2e-3):
        baseline_files.save(run(records(time=[seconds])), "main", tmp_path, add=True)
    assert len(baseline_files.pick(tmp_path, run(records()))) == 2


def test_a_baseline_of_several_runs_grows_and_is_replaced_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baseline_files, "MOST", 3)
    days = [run(records(), started=f"2026-07-0{day}T10:00:00+00:00") for day in range(1, 6)]
    saved = [baseline_files.save(one, "main", tmp_path, add=True) for one in days[:3]]
    assert [path.name for path, _ in saved] == [
        "nvidia-h200.jsonl",
        "nvidia-h200+20260702T100000.jsonl",
        "nvidia-h200+20260703T100000.jsonl",
    ]
    assert {*baseline_files.pick(tmp_path, days[4])} == {path for path, _ in saved}
    with pytest.raises(UserError, match="the baseline has this run already"):
        baseline_files.save(days[1], "main", tmp_path, add=True)
    last, gone = baseline_files.save(days[3], "main", tmp_path, add=True)
    assert [head.started for head in gone] == [days[0].started]  # the oldest one
    assert {*last.parent.iterdir()} == {last, *(path for path, _ in saved[1:])}
    kept = [last.with_name(f"{last.name}{ending}") for ending in (".bak", "~", ".txt")]  # a person's or an editor's
    for file in kept:
        file.write_text("mine")
    path, gone = baseline_files.save(days[4], "main", tmp_path)
    assert (len(gone), {*path.parent.iterdir()}) == (3, {path, *kept})


def test_of_runs_that_are_added_at_one_time_none_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(path: Path, content: bytes) -> None:
        time.sleep(0.1)
        write_whole(path, content)

    monkeypatch.setattr(baseline_files, "write_whole", slow)
    days = [run(records(), started=f"2026-07-0{day}T10:00:00+00:00") for day in range(1, 5)]
    with ThreadPoolExecutor() as threads:
        saved = [*threads.map(lambda one: baseline_files.save(one, "main", tmp_path, add=True)[0], days)]
    assert len({*saved}) == len(days)
    assert {head.started for head in map(run_file.head, baseline_files.pick(tmp_path, days[0]))} == {
        one.started for one in days
    }


def test_a_folder_that_may_not_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    baseline_files.save(run(records()), "main", tmp_path)
    deny(monkeypatch, tmp_path / "main")
    for folder in (tmp_path, tmp_path / "main"):
        with pytest.raises(UserError, match="main: Permission denied"):
            baseline_files.found(folder)


def test_a_gzipped_baseline_is_found_picked_and_replaced(tmp_path: Path) -> None:
    path, _ = baseline_files.save(run(records()), "main", tmp_path)
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert [(b.name, b.path) for b in baseline_files.found(tmp_path)] == [("main", packed)]
    assert baseline_files.pick(tmp_path, run(records())) == [packed]
    again, before = baseline_files.save(run(records()), "main", tmp_path)
    assert (again, bool(before), [*path.parent.iterdir()]) == (path, True, [path])


def test_another_device_of_the_same_file_name_is_not_overwritten(tmp_path: Path) -> None:
    baseline_files.save(on(H200), "main", tmp_path)
    with pytest.raises(UserError, match="belongs to another device"):
        baseline_files.save(on(replace(H200, name="NVIDIA-H200")), "main", tmp_path)


def test_neither_a_run_nor_what_a_link_leads_to_is_replaced(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    whole.write_bytes(run_file.encoded(run(records())))
    before = whole.read_bytes()
    path = tmp_path / "main" / "nvidia-h200.jsonl"
    path.parent.mkdir()
    for target in (whole, tmp_path / "none"):
        path.symlink_to(target)
        with pytest.raises(UserError, match="is a link, and what it leads to would be overwritten"):
            baseline_files.save(run(records()), "main", tmp_path)
        path.unlink()
    path.write_bytes(before)
    with pytest.raises(UserError, match="is a run file with all samples and not a baseline"):
        baseline_files.save(run(records()), "main", tmp_path)
    assert (whole.read_bytes(), path.read_bytes(), (tmp_path / "none").exists()) == (before, before, False)


def test_a_folder_that_is_a_link_leads_to_no_other_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that leads out of a stranger's checkout is not followed to another baseline."""
    (there := tmp_path / "victim").mkdir()
    baseline_files.save(run(records()), "main", there)
    before = [path.read_bytes() for path in there.rglob("*.jsonl")]
    (here := tmp_path / "checkout").mkdir()
    monkeypatch.chdir(here)
    (here / "baselines").symlink_to(there)
    with pytest.raises(UserError, match=r"^baselines is a link, .* name .*victim with --dir$"):
        baseline_files.save(run(records()), "main", Path("baselines"))
    (here / "baselines").unlink()
    (here / "baselines").mkdir()
    (here / "baselines" / "main").symlink_to(there / "main")
    with pytest.raises(UserError, match=r"^baselines/main is a link, .* choose --name$"):
        baseline_files.save(run(records()), "main", Path("baselines"))
    assert [path.read_bytes() for path in there.rglob("*.jsonl")] == before


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole = run([*records(), ended(case(2048), "triton", "oom", "out of memory")], argv=("run", "-b", "triton"))
    Path("a.jsonl").write_bytes(run_file.encoded(replace(whole, plan=())))
    said = [CliRunner().invoke(app, command.split()) for command in ("list", "save a.jsonl", "save a.jsonl", "show")]
    assert [done.exit_code for done in said] == [0] * 4
    empty, first, second, shown = (" ".join(done.output.split()) for done in said)
    assert "No baselines in baselines" in empty
    assert "1 cell did not work and so cannot regress: triton 2k d128 full fwd bf16 b8 h16: OOM" in first
    assert "in place of the run of 2026-07-01" in second
    assert "attnbench run -b triton" in shown
    assert 'did you mean "main"' in str(CliRunner().invoke(app, ["show", "man"]).exception)
