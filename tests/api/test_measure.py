"""attnbench.measure and attnbench.check: the results of a run, from Python."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import attnbench
import forked_worker
from attnbench.analysis.baseline import baseline_files
from attnbench.results import run_file
from worker_here import quick_cpu

SMALL = {"headdim": 64, "dtype": "fp32", "causal": True, "direction": "fwd", "nheads": 2, "batch": 1, "progress": False}
FAKE = {**SMALL, "device": "fake"}


def attend(q: Any, k: Any, v: Any, *, causal: bool, softmax_scale: float, factor: float = 1.0) -> Any:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(k.shape[-2] - q.shape[-2]) if causal else None
    found = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=softmax_scale, enable_gqa=True
    )
    return factor * found.transpose(1, 2)


def wrong(q: Any, k: Any, v: Any, *, causal: bool, softmax_scale: float) -> Any:
    return attend(q, k, v, causal=causal, softmax_scale=softmax_scale, factor=1.1)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Go to an empty folder; workers are forked, but those of `found`."""
    monkeypatch.chdir(tmp_path)
    with forked_worker.workers():
        yield


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> attnbench.Results:
    out = tmp_path_factory.mktemp("found") / "run.jsonl"
    return attnbench.measure("fake", seqlen=[1024, "2k"], rounds=5, out=out, **FAKE)


def test_a_measurement_is_that_of_run(found: attnbench.Results) -> None:
    (file,) = found.files
    assert run_file.read(file)[0].records == found.runs[0].records
    assert [cell.case.shape.seqlen_k for cell in found.cells] == [1024, 2048]
    assert {cell.status for cell in found.cells} == {"ok"}
    assert repr(found) == "<Results: 2 cells of 1 run>"
    assert [c.value("latency") for c in attnbench.load(file).cells] == [c.value("latency") for c in found.cells]
    assert len(found.table()) == 10


@pytest.mark.parametrize(
    ("axes", "count", "windows"),
    [
        ({"seqlen": range(1024, 3072, 1024), "dtype": torch.bfloat16}, 2, {(None, None)}),
        ({"seqlen": 512, "window": (128, 0), "causal": [True]}, 1, {(128, 0)}),
        ({"seqlen": 512, "window": [(None, 64), (3, 64)], "causal": False}, 2, {(None, 64), (3, 64)}),
        ({"seqlen": "1k,2k", "softcap": 30, "direction": ["fwd", "bwd"]}, 4, {(None, None)}),
    ],
)
def test_values_of_axes_are_those_of_python(axes: dict[str, Any], count: int, windows: set[Any]) -> None:
    cells = attnbench.measure("fake", **{**FAKE, **axes}).cells
    assert len(cells) == count
    assert {cell.case.window_size for cell in cells} == windows


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"seqlen": 1024, "seqlens": 3}, "there is no axis 'seqlens'; did you mean \"seqlen\"?"),
        ({"seqlen": "1j"}, "seqlen: '1j'"),
        ({"seqlen": []}, "^seqlen: no value is given"),
        ({"seqlen": 1024, "direction": "fw"}, "pass: unknown"),
        ({"seqlen": 1024, "nheads": 4, "nheads_k": 3}, "nheads-k: 4 query heads .* or give --nheads too$"),
        ({"seqlen": 1024, "causal": "False"}, "^causal: 'False' is neither True nor False"),
        ({"seqlen": 1024, "rounds": "2"}, "^rounds: '2' is not a whole number"),
        ({"seqlen": 1024, "model": [3]}, "^model: 3 is not a text"),
        ({"seqlen": 1024, "tp": 2}, "--tp needs a model"),
        ({"seqlen": 1024, "policy": {1: 2}}, "^policy: 1 is not a text"),
        ({"seqlen": 1024, "policy": {"max_seconds": "x"}}, "max.seconds: 'x'"),
        ({"seqlen": 1024, "python": ["fake=x"]}, r"^python: \['fake=x'\] is not a dict or None"),
        ({"seqlen": 1024, "out": "a\0b"}, "^out: no file can have the name"),
        ({"seqlen": 1024, "policy": {"l3": "cold"}}, "policy: unknown key 'l3'"),
        ({"seqlen": 1024, "device": "cuda:99"}, "no CUDA device|no cuda:99"),
    ],
)
def test_what_a_person_can_mend_is_a_user_error(more: dict[str, Any], said: str) -> None:
    with pytest.raises(attnbench.UserError, match=said):
        attnbench.measure("fake", **{**FAKE, **more})


@pytest.mark.parametrize(
    ("asks", "said"),
    [
        (lambda of: of.gate(of, margin=[3]), "^margin: 3 is not a text"),
        (lambda of: of.gate(of, margin="x"), "margin: 'x' is not a margin"),
        (lambda of: of.gate(of, margin=3), "margin: 3 is not from 0 to below 1"),
        (lambda of: of.gate(3), "^path: 3 is not a path"),
        (lambda of: of.gate("x" * 5000), "^baseline: no file can have the name 'xxx"),
        (lambda of: of.report(by=["dtype"]), "^by: .'dtype'. is not a text"),
        (lambda of: of.report(5), "^metric: 5 is not a text; known: "),
        (lambda of: of.cells[0].value(["latency"]), "^no metric .'latency'."),
        (lambda _: attnbench.load(torch.tensor(5)), "^path: tensor.5. is not a path"),
        (lambda _: attnbench.load("x" * 100_000), "^path: no file can have the name 'x{1,200}"),
        (lambda of: of.plot("x"), "figure: unknown 'x'"),
        (lambda of: of.save("a\0.jsonl"), "^path: no file can have the name"),
        (lambda of: of.to_csv("there.jsonl"), "^there.jsonl: a run file, whose samples would be lost"),
        (lambda of: of.to_parquet("there.jsonl.gz"), "^there.jsonl.gz: a run file, whose samples would be lost"),
        (lambda of: of.to_csv(3), "^path: 3 is not a path"),
        (lambda _: attnbench.load("x.jsonl", convention="all"), "^convention: unknown 'all'"),
        (lambda _: attnbench.check("fake", timeout=-1), "^timeout: -1 is not a number of seconds"),
        (lambda _: attnbench.check("fake", kind="gdn"), "attnbench run --kind gdn checks each result"),
    ],
)
def test_what_a_person_can_mend_in_a_call_of_results(found: attnbench.Results, asks: Any, said: str) -> None:
    with pytest.raises(attnbench.UserError, match=said):
        asks(found)


def test_what_the_commands_say_of_results(found: attnbench.Results, tmp_path: Path) -> None:
    assert "Throughput, TFLOP/s" in str(found)
    assert "latency" in str(found.report("latency")).lower()
    assert found._repr_mimebundle_().keys() == {"text/plain", "text/html", "text/markdown"}
    assert "<script" not in found._repr_html_()
    assert "fake alone was right in 2" in str(found.recommend())
    verdict = found.gate(found)
    assert verdict
    assert verdict.passed
    assert {f.verdict for f in verdict.findings} == {"unchanged"}
    baseline_files.save(found.runs[0], "main", tmp_path / "baselines")
    assert found.gate("main", margin="5%", metrics=["latency"])
    assert found.gate("main", margin=0).findings
    with pytest.raises(attnbench.UserError, match="gate judges the results of one run; these are of 0"):
        attnbench.load([]).gate(found)


def test_a_damaged_file_passes_no_gate(found: attnbench.Results, tmp_path: Path) -> None:
    """What is lost may be a wrong result: refused as by the command, never saved, always said."""
    *lines, last = found.save(tmp_path / "whole.jsonl").read_text().splitlines()
    (tmp_path / "damaged.jsonl").write_text("\n".join([*lines, last[:200], ""]))
    damaged = attnbench.load(tmp_path / "damaged.jsonl")
    for refused in (
        lambda: damaged.gate(found),
        lambda: found.gate(damaged),
        lambda: found.gate(tmp_path / "damaged.jsonl"),
        lambda: damaged.save(tmp_path / "again.jsonl"),
    ):
        with pytest.raises(attnbench.UserError, match=r"restore the file, or measure again"):
            refused()
    for shown in (damaged.report(), damaged.recommend()):
        assert "cannot be read in whole" in str(shown)


def test_a_slower_run_fails_the_gate(found: attnbench.Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNBENCH_FAKE", "speed=0.9")
    slower = attnbench.measure("fake", seqlen=[1024, "2k"], rounds=5, **FAKE)
    verdict = slower.gate(found.files[0])
    assert not verdict
    assert verdict.exit_code == 1
    assert verdict.findings[0].verdict == "regressed"
    assert "FAIL" in str(verdict)
    assert "Simulated GPU" in str(slower.compare(found))


def test_results_are_saved_and_exported(found: attnbench.Results, tmp_path: Path) -> None:
    assert attnbench.load(found.save(tmp_path / "again.jsonl")).runs == found.runs
    with pytest.raises(attnbench.UserError, match="is there already and is not overwritten; choose another name"):
        found.save(tmp_path / "again.jsonl")
    assert found.to_csv(tmp_path / "a.csv") == (tmp_path / "a.csv").read_text()
    assert found.to_csv().count("\n") == 11
    assert '"tflops"' in found.to_json()
    assert found.to_markdown().startswith("**2 cells")
    assert "<!doctype html>" in found.to_html()
    assert found.to_tracker("bmf").startswith("{")
    assert len(attnbench.load(found.files).table()) == 10
    with pytest.raises(attnbench.UserError, match="format: unknown 'bmg'; did you mean"):
        found.to_tracker("bmg")
    shown = found.report()
    for ending in ("md", "html", "json", "csv", "txt"):
        assert shown.save(tmp_path / f"shown.{ending}").stat().st_size or ending in ("json", "csv")
    with pytest.raises(attnbench.UserError, match="a document's name ends with"):
        shown.save("shown.pdf")


def test_files_are_written_to_the_home_folder(
    found: attnbench.Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    attnbench.measure("fake", seqlen=1024, out="~/a.jsonl", **FAKE)
    found.save("~/b.jsonl")
    found.to_csv("~/c.csv")
    found.report().save("~/d.md")
    found.plot("latency").save("~/e.json")
    written = {file.name for file in (tmp_path / "home").iterdir()}
    assert written == {"a.jsonl", "b.jsonl", "c.csv", "d.md", "e.json"}


def test_a_figure_is_drawn_by_a_notebook(found: attnbench.Results, tmp_path: Path) -> None:
    plot = found.plot("latency")
    bundle = plot._repr_mimebundle_()
    assert bundle["application/vnd.vegalite.v5+json"]["title"]["text"] == "Latency"
    pytest.importorskip("vl_convert")
    assert bundle["image/svg+xml"].startswith("<svg")
    assert plot.save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(attnbench.UserError, match="unknown 'latencies'"):
        found.plot("latencies")


def test_an_interrupt_returns_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATTNBENCH_FAKE", "hang@2048")
    out = tmp_path / "run.jsonl"

    def interrupt() -> None:
        while not out.exists() or out.read_bytes().count(b"\n") < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    before = signal.getsignal(signal.SIGINT)
    found = attnbench.measure("fake", seqlen=[1024, 2048], out=out, **FAKE)
    assert [cell.status for cell in found.cells] == ["ok"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_function_is_right_or_wrong_and_measured_beside_others() -> None:
    local = {"seqlen": 128, "seqlen_q": 128, "device": "cpu", **SMALL}

    def closure(q: Any, k: Any, v: Any, *, causal: bool, softmax_scale: float) -> Any:
        return attend(q, k, v, causal=causal, softmax_scale=softmax_scale)

    def unlike(q: Any, k: Any, v: Any, mask: Any, *, causal: bool) -> Any: ...

    for in_process in (True, None):
        with pytest.raises(attnbench.UserError, match=r"'mask'; define and give unlike_adapted .*mask=None"):
            attnbench.measure(unlike, in_process=in_process, **local)
    right, bad = [attnbench.check(f, **local, nheads_k=2) for f in (closure, wrong)]
    found = attnbench.measure([closure, attend], backends="eager", policy={"max_seconds": 0.01}, **local)
    assert right
    assert right.raise_if_wrong() is right
    assert not bad
    assert bad.exit_code == 5
    assert {record.status for record in bad.wrong} == {"wrong"}
    with pytest.raises(attnbench.WrongResultError, match=r"wrong is WRONG in .*\nwrong 128 d64"):
        bad.raise_if_wrong()
    assert {cell.backend: cell.status for cell in found.cells} == dict.fromkeys(("closure", "attend", "eager"), "ok")


def test_a_function_without_source_is_measured_in_this_process() -> None:
    ones, threads = torch.ones(1), torch.get_num_threads()

    def closure(q: Any, k: Any, v: Any, *, causal: bool, softmax_scale: float) -> Any:
        return attend(q * ones, k, v, causal=causal, softmax_scale=softmax_scale)

    def off(q: Any, k: Any, v: Any, *, causal: bool, softmax_scale: float) -> Any:
        return closure(q, k, v, causal=causal, softmax_scale=2 * softmax_scale)

    torch.set_default_dtype(torch.float64)
    try:
        with quick_cpu():
            found = attnbench.measure(
                [closure, off], seqlen=128, device="cpu", policy={"max_seconds": 0.01, "l2": "warm"}, **SMALL
            )
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.get_num_threads() == threads
    assert {c.backend: (c.status, c.rows[0].record.judge) for c in found.cells} == {
        "closure": ("ok", "beside"),
        "off": ("wrong", "beside"),
    }
    assert "Measured in the process that gave the function: 1 cell" in str(found)
    assert "report it to" not in str(found)
    assert found.runs[0].specs["closure"] == "attnbench_in_process:closure"


def test_what_of_a_function_in_this_process_cannot_be() -> None:
    """A function of this process is measured without rounds, which need new processes; Ctrl-C ends the whole run."""
    ones = torch.ones(1)

    def interrupts(q: Any, k: Any, v: Any, *, causal: bool, softmax_scale: float) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return attend(q * ones, k, v, causal=causal, softmax_scale=softmax_scale)

    with pytest.raises(attnbench.UserError, match="new processes, and interrupts is measured in this one: ones is"):
        attnbench.measure(interrupts, seqlen=128, device="cpu", rounds=3, **SMALL)
    with quick_cpu(), pytest.raises(KeyboardInterrupt):
        attnbench.measure(interrupts, seqlen=128, device="cpu", **SMALL)


@pytest.mark.usefixtures("collections")
def test_a_function_in_this_process_leaves_nothing_in_it(capfd: pytest.CaptureFixture[str]) -> None:
    """Afterwards no file is open, the collector can free all objects, and a failure is in its record only."""

    def fails(*_: Any, **__: Any) -> Any:
        raise ValueError("no such block")

    def opened() -> int:
        return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

    frozen = gc.get_freeze_count()
    files, shared = list[int](), {"seqlen": 128, "device": "cpu", "in_process": True, **SMALL}
    for function in (attend, fails, attend):
        with quick_cpu():
            found = attnbench.measure(function, policy={"max_seconds": 0.01, "l2": "warm"}, **shared)
        files.append(opened())
        if function is fails:
            (record,) = found.runs[0].records
            assert "no such block" in str(record.reason)
            assert str(record.stderr).startswith("Traceback")
            assert 'raise ValueError("no such' in str(record.stderr)
    assert files[0] == files[2]
    assert gc.get_freeze_count() <= frozen
    assert "Traceback" not in capfd.readouterr().err


def test_one_thread_at_a_time_measures_in_this_process() -> None:
    shared = {"seqlen": 128, "device": "cpu", "in_process": True, **SMALL}
    errors = list[str]()

    def measures_too() -> None:
        try:
            attnbench.measure(attend, **shared)
        except attnbench.UserError as error:
            errors.append(str(error))

    def busy(q: Any, k: Any, v: Any, *, causal: bool, softmax_scale: float) -> Any:
        if not errors:
            other = threading.Thread(target=measures_too)
            other.start()
            other.join()
        return attend(q, k, v, causal=causal, softmax_scale=softmax_scale)

    with quick_cpu():
        for _ in range(2):  # the second time after the first
            errors.clear()
            found = attnbench.measure(busy, policy={"max_seconds": 0.01, "l2": "warm"}, **shared)
            assert [cell.status for cell in found.cells] == ["ok"]
            assert len(errors) == 1
            assert errors[0].startswith("another measurement is under way in this process")


def test_the_api_is_imported_quickly_and_without_torch() -> None:
    import subprocess

    code = "import sys; b = {*sys.modules}; import attnbench; print(*{m.partition('.')[0] for m in {*sys.modules} - b})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {*loaded} & {"torch", "numpy", "pandas", "rich", "pydantic", "typing", "dataclasses"}
