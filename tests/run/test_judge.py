"""The judge process beside the workers when it dies, hangs, lacks memory, or cannot share memory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import forked_worker
from attnbench.backends import BACKENDS
from attnbench.core import shared_tensors
from attnbench.core.case import Case, Shape
from attnbench.core.json import to_json
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Accuracy, Forecast, Job, Record, TensorError
from attnbench.judge import hearing, service
from attnbench.run.judge import Judge
from attnbench.run.process import WorkerHung, WorkerProcess
from attnbench.run.workers import WorkerPool

CPU = Device("cpu", 0, "CPU", 2**34, 2**34, l2=2**16)
CASE = Case(Shape(1, 32, 32, 2, 2, 16, 16), "fp32", "fwd", True)
OTHER = Case(Shape(1, 48, 48, 2, 2, 16, 16), "fp32", "fwd", True)


@pytest.fixture(autouse=True)
def _forked() -> Iterator[None]:
    with forked_worker.workers():
        yield


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    judge = Judge(CPU, None)
    made = WorkerPool({"eager": BACKENDS["eager"]}, judge=judge)
    yield made
    made.close()
    judge.close()


def check(pool: WorkerPool, case: Case = CASE, timeout: float = 60.0) -> Record:
    return pool.check(Job(case, "eager", 0, Forecast(0.0, 0.0, 0)), Policy(timeout_s=timeout), CPU)


def test_a_judge_that_died_is_replaced(pool: WorkerPool) -> None:
    assert pool.judge
    assert check(pool).judge == "beside"
    assert pool.judge.pid
    os.kill(pool.judge.pid, signal.SIGKILL)
    record = check(pool)
    assert record.status == "ok", record.reason


def test_a_judge_that_dies_costs_the_record(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(*_: Any) -> None:
        os._exit(3)

    monkeypatch.setattr(hearing.Hearing, "_check", end)
    record = check(pool)
    assert record.status == "failed"
    assert "the judge ended: the worker ended with exit code 3" in str(record.reason)
    monkeypatch.undo()
    assert check(pool, OTHER).status == "ok"


def test_a_judge_that_hangs_costs_the_record(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    check(pool)
    monkeypatch.setattr(service.JudgeService, "_begin", lambda *_, **__: time.sleep(60))
    assert pool.judge
    pool.judge.close()
    began = time.monotonic()
    record = check(pool, timeout=2.0)
    assert record.status == "failed"
    assert "the judge gave no answer within 2.0s" in str(record.reason)
    assert time.monotonic() - began < 20
    monkeypatch.undo()
    assert check(pool).status == "ok"


def test_a_judge_without_memory_is_not_the_call_s_lack(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(service.JudgeService, "_begin", full)
    record = check(pool)
    assert record.status == "oom"
    assert str(record.reason).startswith("JudgeOutOfMemoryError: the judge failed: MemoryError: no room")


def test_memory_that_a_judge_took_before_it_failed_is_not_the_call_s(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter([100, 60])
    monkeypatch.setattr(service.JudgeService, "_free", lambda _: next(free))
    assert pool.judge
    assert pool.judge.hear(CASE, 0).answer({"do": "hard"}, 60.0)["grown"] == 40


def test_where_memory_cannot_be_shared_the_worker_judges_and_the_record_says_so(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise shared_tensors.NotShared("refused here")

    monkeypatch.setattr(shared_tensors, "_open_file", refuse)
    record = check(pool)
    assert (record.status, record.judge) == ("ok", "within")
    assert "judged within the process of its kernel: refused here" in record.notes


def test_where_no_memory_to_share_can_be_made_the_worker_judges(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "ftruncate", full)
    record = check(pool)
    assert (record.status, record.judge) == ("ok", "within")
    assert any("No space left on device" in note for note in record.notes)


def test_a_worker_may_ask_for_its_own_case_only(pool: WorkerPool) -> None:
    assert pool.judge
    heard = pool.judge.hear(CASE, 0)
    assert "another case" in heard.answer({"do": "begin", "case": to_json(OTHER), "seed": 0}, 10.0)["error"]


def test_a_worker_s_question_reaches_the_judge_s_service_alone(pool: WorkerPool, tmp_path: Path) -> None:
    """A worker's question reaches only the judge's service: no other function, and no other cell's judgement."""
    check(pool)
    assert pool.judge
    file = tmp_path / "mine.py"
    file.write_text(f"open({str(tmp_path / 'loaded')!r}, 'w')")
    heard = pool.judge.hear(OTHER, 0, slot=1)
    load = {"op": "load", "name": "mine", "spec": f"{file}:attention"}
    assert "no case has begun" in heard.answer({"do": "hard", "slot": 0, **load}, 10.0)["error"]
    assert "a worker may not ask" in heard.answer({"do": "ahead", "cases": [], "seed": 0}, 10.0)["error"]
    assert not (tmp_path / "loaded").exists()


def test_a_judge_that_died_is_named_by_all_that_it_judged(pool: WorkerPool) -> None:
    assert pool.judge
    hearings = [pool.judge.hear(CASE, 0, slot=slot) for slot in range(2)]
    for heard in hearings:
        heard.answer({"do": "begin", "case": to_json(CASE), "seed": 0}, 60.0)
    assert pool.judge.pid
    os.kill(pool.judge.pid, signal.SIGKILL)
    for heard in hearings:
        assert "the judge ended: " in heard.answer({"do": "hard"}, 60.0)["error"]


def test_questions_that_are_none_decide_nothing(pool: WorkerPool) -> None:
    """Invalid questions decide nothing: memory that was not shared, a refused check, a check without a name."""
    assert pool.judge
    heard = pool.judge.hear(CASE, 0)
    assert "was not offered" in heard.answer({"do": "refused", "why": "no"}, 60.0)["error"]
    heard.answer({"do": "begin", "case": to_json(CASE), "seed": 0}, 60.0)
    for request in ({"do": "check"}, {"do": "check", "what": "renewed", "head": 99}):
        assert "error" in heard.answer(request, 60.0)
    assert not heard.verdicts
    assert heard._check is None


def test_a_head_that_was_wrong_stays_wrong(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that was wrong stays wrong, even if a worker begins the case again before it has shown other heads."""
    wrong, right = (Accuracy({"out": TensorError(error, 0.1, 0.2, 0.0)}, 1, 1) for error in (1.0, 0.0))
    assert pool.judge
    heard = pool.judge.hear(replace(CASE, ranks=2), 0)
    for accuracy, together in ((wrong, None), (right, None), (right, right)):
        answer = {"accuracy": to_json(accuracy), "together": together and to_json(together)}
        monkeypatch.setattr(pool.judge, "ask", lambda *_, answer=answer: answer)
        heard.answer({"do": "check", "what": "hard"}, 60.0)
    assert not heard.verdicts["hard"].ok


def test_a_worker_that_only_asks_has_its_time_too() -> None:
    loop = 'while True: print(\'{"ask": {"do": "hard"}}\', flush=True); input()'
    worker = WorkerProcess(program=["-c", loop])
    worker.on_question = lambda *_: {}
    began = time.monotonic()
    with pytest.raises(WorkerHung):
        worker.ask({"op": "run"}, 0.5)
    assert time.monotonic() - began < 20


def test_cases_that_are_worked_ahead_are_judged_alike(pool: WorkerPool) -> None:
    pool.work_ahead([CASE, OTHER])
    assert [check(pool, case).status for case in (CASE, OTHER, CASE)] == ["ok"] * 3


def test_a_worker_that_only_says_that_memory_cannot_be_shared_is_not_believed(pool: WorkerPool, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        """
from attnbench.core import shared_tensors

def refuse(*_):
    raise shared_tensors.NotShared("refused here")

shared_tensors._open_file = refuse

def attention(q, k, v, *, causal, softmax_scale):
    return v
"""
    )
    assert pool.judge
    own = WorkerPool({"eager": f"{file}:attention"}, judge=pool.judge)
    record = check(own)
    own.close()
    assert record.status == "failed"
    assert "cannot open memory that another process like it can" in str(record.reason)


def test_a_worker_asks_for_its_own_job_alone() -> None:
    """A kernel in its process could begin a smaller chain of launches, or take memory that the judge then lacks."""
    judge = Judge(CPU, None)
    hearing_ = judge.hear(CASE, 0)
    for do in ("open", "ahead", "room", "chain", "draw", "release", "keep", "rule", "link", None):
        assert "may not ask the judge" in hearing_.answer({"do": do}, 5.0)["error"]
    assert judge.pid is None  # nothing was forwarded
