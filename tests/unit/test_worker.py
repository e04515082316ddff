"""What a worker does between its answers."""

from __future__ import annotations

import io
import json

import pytest
import torch

from attnbench import environment, reference, worker
from attnbench.backends import BACKENDS


@pytest.mark.parametrize(
    ("request_", "opened"),
    [
        ({"name": "eager", "spec": BACKENDS["eager"], "opens": "auto"}, ["cuda:1", "session", "warm cuda:1"]),
        ({"name": "eager", "spec": BACKENDS["eager"], "opens": None}, []),
        ({"name": "eager", "spec": BACKENDS["eager"]}, []),
        ({"name": "fake", "spec": BACKENDS["fake"], "opens": "auto"}, []),  # simulated
        ({"name": "fa3", "spec": BACKENDS["fa3"], "opens": "auto"}, []),  # not installed
        ({"name": "none", "spec": "no_such:Backend", "opens": "auto"}, []),
    ],
)
def test_the_device_is_opened_after_the_answer(
    request_: dict[str, str], opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, done = io.StringIO(), []
    monkeypatch.setattr(environment, "pick", lambda device: "cuda:1")
    monkeypatch.setattr(torch.cuda, "set_device", lambda name: done.append((name, answers.getvalue().count("\n"))))
    monkeypatch.setattr(worker, "first_session", lambda: done.append(("session", 1)))
    monkeypatch.setattr(reference, "warm", lambda device: done.append((f"warm {device}", 1)))
    requests = io.StringIO(json.dumps({"op": "load", **request_}) + "\n")
    worker.serve(requests, answers)
    assert done == [(name, 1) for name in opened]
    assert len(answers.getvalue().splitlines()) == 1


def test_a_device_that_does_not_open_is_said_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "pick", lambda device: "cuda:7")
    answers = io.StringIO()
    load = json.dumps({"op": "load", "name": "eager", "spec": BACKENDS["eager"], "opens": "cuda:7"})
    worker.serve(io.StringIO(f"{load}\n{load}\n"), answers)
    assert all("probe" in json.loads(line) for line in answers.getvalue().splitlines())
