"""The devices of a cluster: which are measured, the environment of each child, the outcome of the whole run."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnbench.core.errors import (
    EXIT_BAD_INPUT,
    EXIT_DONE,
    EXIT_NOTHING_MEASURED,
    EXIT_WRONG_RESULT,
    Interrupted,
    UserError,
)
from attnbench.results import run_file
from attnbench.run import cluster
from builders import H200, case, environment, ok, run

NODE = cluster.Node("n1", "id", 2, 8, "H200", "0.1.0", "")


def unit(folder: Path, name: str, uuid: str | None = None, **fields: object) -> cluster.Unit:
    path = folder / f"{name}.jsonl"
    if uuid:
        run_file.RunFile.create(path, run([], environment=environment(replace(H200, uuid=uuid)))).close()
    found = cluster.Unit(NODE, 0, path, "done", jobs=2, done=2, measured=2)
    for field, value in fields.items():
        setattr(found, field, value)
    return found


def test_a_gpu_that_was_measured_twice_is_said(tmp_path: Path) -> None:
    found = [unit(tmp_path, "a", "GPU-1"), unit(tmp_path, "b", "GPU-2"), unit(tmp_path, "c", "GPU-1")]
    assert cluster.twins(found) == ["c and a are one GPU (GPU-1), so another GPU was not measured"]
    assert cluster.twins([*found[:2], unit(tmp_path, "lost")]) == []


def test_the_exit_code_is_that_of_the_worst_device(tmp_path: Path) -> None:
    good, wrong = unit(tmp_path, "a"), unit(tmp_path, "b", wrong=1)
    lost = unit(tmp_path, "c", state="lost", code=EXIT_NOTHING_MEASURED)
    refused = unit(tmp_path, "d", state="lost", code=EXIT_BAD_INPUT)
    assert cluster.exit_code([good], False) == EXIT_DONE
    assert cluster.exit_code([good, lost], False) == EXIT_NOTHING_MEASURED
    assert cluster.exit_code([good, refused], False) == EXIT_NOTHING_MEASURED
    assert cluster.exit_code([refused, refused], False) == EXIT_BAD_INPUT
    assert cluster.exit_code([good, lost, wrong], False) == EXIT_WRONG_RESULT
    assert cluster.exit_code([good, wrong], True) == EXIT_DONE


def test_lines_that_come_are_on_the_disk_and_counted(tmp_path: Path) -> None:
    said = []

    class Observer:
        def say(self, text: str, *, also_in_a_pipe: bool = False) -> None: ...
        def planned(self, *_: object) -> None: ...
        def changed(self, unit: cluster.Unit, what: str) -> None:
            said.append(what)

    plan = cluster.Plan((), (), "cuda", tmp_path)
    device = cluster.Unit(NODE, 0, tmp_path / "n1.jsonl")
    node = cluster._NodeRun([device], plan, Observer())
    head, *records = run_file.encoded(run([ok(case(s), "triton", 300) for s in (1024, 2048)])).splitlines(keepends=True)
    node._keep(device, head + records[0])
    node._ended("the node died")
    assert (device.state, device.done, device.jobs) == ("died", 1, 2)
    node._keep(device, records[1])
    node._close(device, EXIT_DONE, "")
    device.close()
    assert device.path.read_bytes() == head + records[0] + records[1]
    assert said == [
        "measures 2 jobs",
        "",
        "the node died; it is retried if the node comes back",
        "measures 1 job",
        "",
        "done: 2 of 2 jobs measured",
    ]


def test_a_cluster_that_asks_for_a_token_is_named_and_its_log_held_back(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ray = pytest.importorskip("ray", reason="needs Ray: pip install ray")

    def refused(*_: object, **__: object) -> None:
        os.write(2, b"gcs_client.cc:210: Unauthenticated: RPC error: InvalidAuthToken\n" * 20)
        raise ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")

    monkeypatch.setattr(ray, "init", refused)
    monkeypatch.setattr(cluster, "_check_address", lambda address: None)
    asks = "the cluster asks for a token: set RAY_AUTH_MODE=token"
    with pytest.raises(UserError, match=asks), cluster.connected("10.0.0.1:6379"):
        pass
    os.write(2, b"shown again\n")
    assert capfd.readouterr().err == "shown again\n"


def test_a_signal_while_ray_connects_is_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal while Ray connects is an interrupt, although Ray's handler raises SystemExit with its number."""
    ray = pytest.importorskip("ray", reason="needs Ray: pip install ray")

    def terminated(*_: object, **__: object) -> None:
        raise SystemExit(signal.SIGTERM)

    monkeypatch.setattr(ray, "init", terminated)
    monkeypatch.setattr(cluster, "_check_address", lambda address: None)
    with pytest.raises(Interrupted), cluster.connected("10.0.0.1:6379"):
        pass


class Silent:
    """An observer of a cluster that shows nothing."""

    def say(self, text: str, **_: object) -> None: ...

    def planned(self, *_: object) -> None: ...

    def changed(self, unit: cluster.Unit, what: str) -> None: ...


def test_nodes_whose_names_make_one_file_have_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        replace(NODE, name=name, gpus=0) for name in ("rack1/a", "rack1-a", "rack1-a-2", "rack1 a", "b", "x" * 300)
    ]
    monkeypatch.setattr(cluster, "_nodes", lambda: nodes)
    found, _ = cluster.units(cluster.Plan((), (), "cpu", tmp_path), Silent())
    assert [unit.name for unit in found] == ["rack1-a", "rack1-a-2", "rack1-a-2-2", "rack1-a-3", "b", "x" * 200]


def test_lines_of_a_newer_attnbench_are_kept_and_end_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    with contextlib.closing(run_file.RunFile.create(file, run([ok(case(), "fa3", 600)]))) as stored:
        stored.append(ok(case(), "fa3", 600))
    first, record = file.read_bytes().splitlines(keepends=True)
    file.unlink()
    newer = record.replace(b'"status":"ok"', b'"status":"of-tomorrow"')
    found = cluster.Unit(NODE, 0, file)
    cluster._NodeRun([found], cluster.Plan((), (), "cpu", tmp_path), Silent())._keep(found, first + record + newer)
    found.close()
    assert (found.done, found.measured, found.unread) == (1, 1, 1)
    assert file.read_bytes() == first + record + newer
    other = cluster.Unit(NODE, 1, tmp_path / "b.jsonl")
    schema = first.replace(b'"schema":2', b'"schema":9')
    cluster._NodeRun([other], cluster.Plan((), (), "cpu", tmp_path), Silent())._keep(other, schema + record)
    other.close()
    assert other.path.read_bytes() == schema + record


def test_a_device_whose_file_is_taken_away_is_lost_and_its_lines_are_kept(tmp_path: Path) -> None:
    head, *records = run_file.encoded(run([ok(case(s), "triton", 300) for s in (1024, 2048)])).splitlines(keepends=True)
    gone, other = (cluster.Unit(NODE, None, tmp_path / "n1.jsonl") for _ in range(2))
    node = cluster._NodeRun([gone, other], cluster.Plan((), (), "fake", tmp_path), Silent())
    node._keep(gone, head + records[0])
    node._keep(other, head + records[0])  # from a second cluster run that began at the same time
    assert (other.state, other.code, other.done) == ("lost", 2, 0)
    assert "n1.jsonl is there already" in other.reason
    gone.path.unlink()
    node._hear("n1", "lines", records[1])
    node._hear("n1", "lines", records[1])
    assert (gone.state, gone.code, gone.done, gone.has_file) == ("lost", 2, 1, False)
    (kept,) = tmp_path.glob("n1-kept-*.jsonl")
    assert kept.read_bytes() == head + records[0]
    assert str(kept) in gone.reason
    gone.close()


@pytest.mark.parametrize(
    ("version", "why"),
    [("2.60.0", "--address local: the node timed out"), ("2.40.0", "would let anybody on the network run code here")],
)
def test_a_local_cluster_that_cannot_start_is_one_line(version: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local cluster that cannot start is one line; Ray raises a bare Exception if a process is late."""

    def init(*_: object, **_options: object) -> None:
        assert os.environ["RAY_AUTH_MODE"] == "token"
        raise Exception("the node timed out\nmore")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(__version__=version, init=init))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(UserError, match=why), cluster.connected(None):
        pass
