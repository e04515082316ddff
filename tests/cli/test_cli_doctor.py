"""`attnbench doctor` as a person uses it, on this machine's CPU and on the simulated device."""

from __future__ import annotations

import json
import signal
import sys

import pytest
from tool import Tool, alive, children

import worker_here
from attnbench.run import aa_test, doctor

FAKE = ("doctor", "--device", "fake")


def test_a_simulated_device_is_fit(tool: Tool) -> None:
    result = tool(*FAKE)
    assert "ok     A/A test    fake against itself: no difference" in result.out
    *_, smallest, _, verdict = result.out.splitlines()
    assert verdict == "Simulated GPU: fit to measure."
    assert smallest.startswith("Smallest difference that can be told apart here: 0%")
    assert result.err == ""
    assert not list(tool.folder.iterdir())


@pytest.mark.parametrize("script", ["error@16k", "crash@16k", "wrong@16k"])
def test_a_job_that_is_not_ok_makes_it_unfit(tool: Tool, script: str) -> None:
    result = tool(*FAKE, "--quick", fake=script, code=3)
    (line,) = [line for line in result.out.splitlines() if line.startswith("unfit")]
    assert "fake against itself: 16k b1 ended" in line
    assert "Smallest difference" not in result.out


def test_an_implementation_that_is_missing_makes_it_unfit(tool: Tool) -> None:
    found = tool(*FAKE, "--json", fake="missing", code=3).out
    assert "fake cannot be used: ATTNBENCH_FAKE says it is missing" in found


def test_json(tool: Tool) -> None:
    found = json.loads(tool(*FAKE, "--json").out)
    assert (found["verdict"], found["exit_code"]) == ("ok", 0)
    assert [len(case["a"]) for case in found["trial"]["cases"]] == [24, 24, 24]


def test_in_files_and_for_a_page(tool: Tool) -> None:
    result = tool(*FAKE, "--html", "doctor.html", "-f", "csv=findings.csv", "-f", "md")
    assert result.out.startswith("### ")
    assert "fit to measure" in result.out.splitlines()[0]
    assert (tool.folder / "findings.csv").read_text().startswith("check,level,found,todo\ndevice,ok,simulated")
    assert "Smallest difference that can be told apart here" in (tool.folder / "doctor.html").read_text()


def test_a_cpu(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On any CPU every check has a value, or the reason why it has none."""
    monkeypatch.setattr(doctor, "QUICK_SECONDS", 4.0)
    monkeypatch.setattr(aa_test, "Policy", lambda: worker_here.SHORT)
    done = tool("doctor", "--quick", "--device", "cpu", code=None)
    code, out = done.code, done.out
    assert code in (0, 3)
    levels = {line.split()[0] for line in out.splitlines()[3:] if line and line[0] != " "}
    for check in ("software", "GPU", "load", "CPU governor", "container limit", "resolution"):
        assert f" {check} " in out
    assert (" A/A test " in out) != ("not known: " in out)  # a busy machine has too few turns
    assert levels & {"ok"}
    assert ("Smallest difference that can be told apart here: " in out) != ("not known: " in out)
    worst = "unfit to measure." if code == 3 else "with warnings." if "warning" in levels else "fit to measure."
    assert out.splitlines()[-1].endswith(worst)


def test_progress_is_for_a_terminal(tool: Tool) -> None:
    code, said = tool.terminal(*FAKE)
    assert code == 0
    assert "A/A test: turn 24" in said


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda:99"])
def test_a_device_that_is_not_there_is_one_line(tool: Tool, device: str) -> None:
    result = tool("doctor", "--device", device, code=2)
    assert result.err.startswith("attnbench: ")
    assert result.err.count("\n") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_interrupt_leaves_no_worker(tool: Tool) -> None:
    with tool.start(*FAKE, fake="hang@1k") as process:
        workers: list[int] = []
        while len(workers) < 2:
            workers = children(process.pid)
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == "attnbench: interrupted before the diagnosis was complete\n"
    assert not alive(workers)
