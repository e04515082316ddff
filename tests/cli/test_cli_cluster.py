"""`attnbench cluster` as a black box: on a Ray cluster of several nodes on this machine, and on run files alone."""

from __future__ import annotations

import gzip
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import Nodes, nodes
from tool import SMALL, Result, Tool

from needs_ray import needs_ray

RUN = ("cluster", "run", "--device", "fake", "-b", "fake", *SMALL)
NAMES = ("alpha", "beta", "gamma")


def statuses(path: Path) -> list[str]:
    """Return the statuses of the records of a run file, in the order of its lines."""
    return [json.loads(line)["status"] for line in path.read_text().splitlines()[1:]]


def cluster_run(tool: Tool, *words: str, code: int) -> Result:
    """Run the command to its end in a separate process, because Ray leaves threads and signal handlers behind."""
    with tool.start(*RUN, *words) as process:
        out, err = process.communicate(timeout=150)
    assert process.returncode == code, err
    return Result(code, out, err)


def wait_for(what: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


# Ray offers GPUs that do not exist; the simulated device is measured instead.
EACH_GPU = """
import sys
from pathlib import Path
from attnbench.run import cluster, cluster_node

seen = f"import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'), file=open({str(Path('seen').absolute())!r}, 'a'))\\n"
cluster_node.PROGRAM = seen + cluster_node.PROGRAM

class Observer:
    def say(self, text, **_): pass
    def changed(self, unit, what): pass

plan = cluster.Plan(("--device", "fake", "-b", "fake", "--seqlen", "1k", *sys.argv[2:]), (), "cuda", Path("gpus"))
with cluster.connected(sys.argv[1]):
    found, notes = cluster.units(plan, Observer())
    cluster.measure(found, plan, Observer())
print(*sorted(path.name for path in Path("gpus").iterdir()), found[0].node.model, cluster.exit_code(found, False))
"""


def test_a_cluster_that_asks_for_a_token(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster with a token is measured, although nodes die.

    Of three nodes one is slow, with two GPUs, and one is wrong; both die, and one returns.
    """
    needs_ray()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a" * 64)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with nodes(("alpha", ""), ("beta", "speed=0.9 hang@8k", "2"), ("gamma", "wrong@4k hang@8k")) as (cluster, address):
        one_stands_out_and_one_is_wrong(tool, ("--address", address))
        each_gpu_is_measured_once_by_a_child_that_sees_it_alone(tool, address)
        one_comes_back_and_one_stays_away(tool, cluster, ("--address", address))


def one_stands_out_and_one_is_wrong(tool: Tool, at: tuple[str, ...]) -> None:
    again = (*at, "--seqlen", "1k,2k,4k", "--rounds", "2")
    dry = cluster_run(tool, *again, "--dry-run", "-f", "csv", code=0)
    assert [line.split(",")[0] for line in dry.out.splitlines()] == ["file", *(f"{n}.jsonl" for n in NAMES)]
    done = cluster_run(tool, *again, "--out", "acceptance", "-f", "json=report.json", code=5)
    folder = tool.folder / "acceptance"
    assert {path.stem for path in folder.iterdir()} == {*NAMES}
    assert statuses(folder / "alpha.jsonl") == ["ok"] * 6
    assert sorted(statuses(folder / "gamma.jsonl")) == ["ok"] * 4 + ["wrong"] * 2
    assert "beta: done: 6 of 6 jobs measured" in done.err
    assert "gamma: done: 4 of 6 jobs measured, 2 WRONG" in done.err
    told = " ".join(done.out.split())
    assert told.startswith("gamma computed wrong results that 2 other units of its model computed right")
    assert "beta stands out of 3 units: +1" in told
    (alpha, beta, gamma) = json.loads((tool.folder / "report.json").read_text())["units"]
    assert (alpha["outlier"], beta["outlier"], gamma["outlier"]) == ("", "all cells", "")


def each_gpu_is_measured_once_by_a_child_that_sees_it_alone(tool: Tool, address: str) -> None:
    command = [sys.executable, "-c", EACH_GPU, address, *SMALL]
    done = subprocess.run(command, cwd=tool.folder, env=tool.env(), capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1:] == ["beta-gpu0.jsonl beta-gpu1.jsonl H100 0"], done.stderr
    assert (tool.folder / "seen").read_text().split()[-2:] == ["0", "1"]  # the first ones report their nodes' versions


def one_comes_back_and_one_stays_away(tool: Tool, cluster: Nodes, at: tuple[str, ...]) -> None:
    """Two nodes that hang at a job keep their earlier measurements, and the one that returns measures the rest."""
    options = (*at, "--seqlen", "1k,2k,8k", "--patience", "10s", "--timeout", "100s")
    with tool.start(*RUN, *options, "--out", "runs") as process:
        files = [tool.folder / "runs" / f"{name}.jsonl" for name in ("beta", "gamma")]
        wait_for(lambda: all(file.exists() and len(statuses(file)) >= 1 for file in files))
        for name in ("beta", "gamma"):
            cluster.tell("kill", name)
        before = [file.read_text() for file in files]
        cluster.tell("add", "beta")
        _, err = process.communicate(timeout=150)
    assert process.returncode == 1, err
    assert files[0].read_text().startswith(before[0])
    assert sorted(statuses(files[0])) == ["ok"] * 3, err
    assert files[1].read_text().startswith(before[1])  # a second job may have ended before the node died
    assert set(statuses(files[1])) == {"ok"}
    assert "beta: retried: continues after" in err
    assert "gamma: LOST: the node died; it did not come back; " in err
    assert "attnbench run --resume gamma.jsonl" in err


def test_ctrl_c_stops_the_children_and_keeps_the_files(tool: Tool, tmp_path_factory: Any) -> None:
    """Ctrl-C stops the children and keeps the files, and no process of Ray imports from the working directory."""
    needs_ray()
    tool.write("pydantic.py", f"open({str(tool.folder / 'ran')!r}, 'w')\nraise ImportError\n")
    start = tmp_path_factory.mktemp("scripts") / "attnbench.py"  # like pip's script, whose folder is on Python's path
    start.write_text("import sys\nsys.path.pop(0)\nfrom attnbench.cli import main\nmain()\n")
    options = ("--seqlen", "1k,8k", "--out", "runs", "--timeout", "100s")
    with tool.start(*RUN, *options, command=(sys.executable, str(start)), fake="hang@8k") as process:
        wait_for(lambda: any((tool.folder / "runs").glob("*.jsonl")))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=90)
    assert process.returncode == 130
    assert "interrupted; what was measured is in runs" in err
    assert "Traceback" not in err
    assert not (tool.folder / "ran").exists()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--sweet", "quick"), "no such option: --sweet"),
        (("--suite", "quik"), 'did you mean "quick"'),
        (("-b", "no-such"), "no-such"),
        (("--address", "localhost:1"), "--address localhost:1: no Ray cluster answers there"),
        (("--address", "ray://host:10001"), "the Ray Client (ray://) is not supported"),
        (("--device", "cuda:1"), "every GPU is measured"),
        (("--resume", "x.jsonl"), "--resume is of a single run file"),
        (("--out", "full"), "full is there already and is not empty"),
    ],
)
def test_bad_input_is_said_before_anything_starts(tool: Tool, words: tuple[str, ...], error: str) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install ray")
    (tool.folder / "full").mkdir()
    tool.write("full/a.jsonl", "")
    assert error in " ".join(tool("cluster", "run", *words, code=2).err.split())


def test_without_ray_a_line_says_how_to_get_it(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install ray" in tool(*RUN, code=2).err


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the run files of four units, none of which stands out."""
    tool = Tool(tmp_path_factory.mktemp("four"))
    for name in ("n1", "n2", "n3", "n4"):
        options = ("--device", "fake", "-b", "fake", *SMALL, "--seqlen", "2k,4k", "--out", f"units/{name}.jsonl")
        tool("run", *options)
    assert "NO UNIT STANDS OUT" in tool("cluster", "report", "units").out
    return tool.folder / "units"


@pytest.mark.parametrize("damage", ["empty", "first line", "all records", "one record", "cut gzip file"])
def test_a_unit_whose_file_is_damaged_is_not_accepted(tool: Tool, units: Path, damage: str) -> None:
    folder = Path(shutil.copytree(units, tool.folder / "units"))
    first, *records = (folder / "n4.jsonl").read_text().splitlines()
    bad = [record[:-40] for record in records]
    lines = {
        "empty": [],
        "first line": [first[:-40], *records],
        "all records": [first, *bad],
        "one record": [first, *records[:-1], bad[-1]],
        "cut gzip file": [],
    }[damage]
    (folder / "n4.jsonl").write_text("".join(f"{line}\n" for line in lines))
    if damage == "cut gzip file":
        (folder / "n4.jsonl").unlink()
        text = "\n".join([first, *records, ""]).encode()
        (folder / "n4.jsonl.gz").write_bytes(gzip.compress(text, compresslevel=0)[: len(text) - len(records[-1]) // 2])
    done = tool("cluster", "report", "units", "-f", "json=units.json", "-f", "table", code=1)
    in_part = damage in ("one record", "cut gzip file")
    assert f"{'Readable in part' if in_part else 'Not readable'}: n4. " in " ".join(done.out.split())
    assert f"{'DAMAGED FILES' if in_part else 'MEASURED NOTHING'}: 1 of 4 units" in done.out
    assert [*json.loads((tool.folder / "units.json").read_text())["damaged"]] == ["n4"]
    if damage == "empty":
        (tool.folder / "none").mkdir()
        tool.write("none/n4.jsonl", "")
        assert "n4.jsonl is not an attnbench run file (it is empty)" in tool("cluster", "report", "none", code=2).err
    (folder / "copy").mkdir()
    (folder / "copy" / "n4.jsonl").write_text("\n".join([first, *records, ""]))
    tool("cluster", "report", "units/copy/n4.jsonl", *(f"units/{name}.jsonl" for name in ("n1", "n2", "n3")))


def test_a_report_on_files_from_anywhere(tool: Tool) -> None:
    for name in ("n1", "n2", "n3"):
        slow = "speed=0.95" if name == "n3" else ""
        tool("run", "--device", "fake", "-b", "fake", *SMALL, "--seqlen", "4k", "--out", f"{name}.jsonl", fake=slow)
    done = tool("cluster", "report", "n1.jsonl", "n2.jsonl", "n3.jsonl", "--html", "page.html", code=1)
    assert "n3 stands out of 3 units" in " ".join(done.out.split())
    assert (tool.folder / "page.html").read_text().count("<circle") == 3
    assert "No outlier can be named among 2 units" in tool("cluster", "report", "n1.jsonl", "n3.jsonl", code=3).out
    for name in ("n1", "n2", "n3"):  # as from jobs of Slurm: a folder for each node, and one name
        (tool.folder / name).mkdir()
        (tool.folder / f"{name}.jsonl").rename(tool.folder / name / "run.jsonl")
    assert "n3/run stands out of 3 units" in " ".join(tool("cluster", "report", "n1", "n2", "n3", code=1).out.split())
