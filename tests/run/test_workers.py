"""The pool of workers: every job ends as one record, whatever happens to a worker, and the next job runs."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import builders
from attnbench.backends import BACKENDS
from attnbench.core import masks
from attnbench.core.backend import Probe
from attnbench.core.case import Case, Shape
from attnbench.core.errors import EXIT_NOTHING_MEASURED, UserError
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Accuracy, Forecast, Job, Measurement, Record, TensorError
from attnbench.results.exit_codes import GIVEN_UP, MAX_FAILED_STARTS, exit_code, given_up
from attnbench.run import job_order, process, workers
from attnbench.run.process import WorkerProcess
from attnbench.run.workers import WorkerPool, checked

DEVICE = Device("fake", 0, "Simulated GPU", 2**36, 2**36)
POLICY = Policy(timeout_s=60.0)
FAKE = {"fake": BACKENDS["fake"]}
QUICK = Forecast(0.01, 0.001, 1)
NewPool = Callable[..., WorkerPool]

OWN = """
import json, os, sys, time
from attnbench.backends.fake import Fake

class Own(Fake):
    '''Simulated; its peak memory is its process id, and its seqlen says what it does.'''
    launches = 0

    def prepare(self, case, inputs):
        n = case.shape.seqlen_q
        self.launches += 1
        print("stdout of", n)
        print("stderr of", n, file=sys.stderr)
        if n == 2:
            os._exit(3)
        if n == 3:
            sys.exit("an exit")
        if n == 4:
            raise ValueError("of the library")
        if n == 5:
            raise KeyboardInterrupt("a wish")
        if n == 6:
            os.kill(os.getpid(), 9)
        if n == 10 and os.fork() == 0:
            sys.exit()
        if n == 10 and os.wait()[1]:
            raise ValueError("a helper process that failed")
        if n == 11 and os.fork() == 0:
            raise ValueError("of a helper process")
        if n == 12:
            os.kill(os.getpid(), 35)
        if n == 13:
            json.dumps = sys.stderr = None
        if n == 14:
            sys.stderr.close()
        if n == 15:
            raise SyntaxError("x", ("f", 1, 5, b"abc"))
        if n == 7:
            print("terminate called after throwing an instance of 'std::bad_alloc'", file=sys.stderr, flush=True)
            os.abort()
        prepared = super().prepare(case, inputs)
        prepared.simulation.memory["memory_peak"] = 2**70 if n == 16 else os.getpid()
        return prepared

class Compiles(Own):
    starts_compiler = True

class Slow(Own):
    def __init__(self):
        time.sleep(1)
        super().__init__()

class Crashes:
    def __init__(self):
        print("last words", file=sys.stderr, flush=True)
        os.abort()

class Leaves:
    def __init__(self):
        sys.exit("without this library")

class Unsure(Own):
    def unsupported(self, case, device):
        raise RuntimeError("cannot tell")
"""


def case(seqlen: int) -> Case:
    return Case(Shape(1, seqlen, seqlen, 1, 1, 64, 64), "bf16", "fwd")


def job(seqlen: int, backend: str = "fake", round_: int = 0, forecast: Forecast = QUICK, **more: object) -> Job:
    return Job(case(seqlen), backend, round_, forecast, **more)  # type: ignore[arg-type]


@pytest.fixture
def new_pool(tmp_path: Path) -> Iterator[NewPool]:
    pools = []

    def make(specs: dict[str, str] | None = None, **own: str) -> WorkerPool:
        (tmp_path / "own_simulated.py").write_text(OWN)
        own = {name: f"{tmp_path}/own_simulated.py:{attribute}" for name, attribute in own.items()}
        pools.append(WorkerPool({**(specs or {}), **own}))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def run(pool: WorkerPool, *jobs: Job, policy: Policy = POLICY) -> list[Record]:
    """Measure jobs and return their records."""
    ends = [record for _, record in job_order.measure_jobs(jobs, pool, policy, DEVICE) if record]
    assert [r.id for r in ends] == [j.id for j in jobs]
    return ends


def pid(record: Record) -> float:
    return record.measurements["memory_peak"].values[0]


@pytest.mark.parametrize("ask", ["input('which block size? ')", "breakpoint()", "sys.stdin.buffer.read(1)[0]"])
@pytest.mark.parametrize("when", ["module", "launch"])
def test_a_kernel_that_waits_for_a_person_fails_at_once(new_pool: NewPool, tmp_path: Path, ask: str, when: str) -> None:
    at_import, at_launch = (ask, "pass") if when == "module" else ("pass", ask)
    own = f"""
import sys
{at_import}
class Mine:
    def unsupported(self, case, device): {at_launch}
    def probe(self):
        from attnbench.core.backend import Probe
        return Probe("1")
    def prepare(self, case, inputs): ...
"""
    (tmp_path / "mine.py").write_text(own)
    pool, began = new_pool({"own": f"{tmp_path}/mine.py:Mine"}), time.monotonic()
    probes = pool.probe()
    device = replace(DEVICE, kind="cpu")
    found = probes["own"].why_not if when == "module" else pool.survey(probes, [case(1)], device)["own"][0].reason
    assert time.monotonic() - began < 60
    if "stdin" in ask:
        assert "IndexError" in str(found), "the end of the file, and no part of a request"
    else:
        assert "input cannot be given during a measurement" in str(found)


IN_A_CALL = """
class InCall(Own):
    def prepare(self, case, inputs):
        if case.shape.seqlen_q == 1024:
            __import__("be" + "side")
        return super().prepare(case, inputs)
"""


@pytest.mark.parametrize(
    ("code", "named", "said"),
    [
        ("from beside import A\n", "Own", r".*, source .*, source "),
        (IN_A_CALL, "InCall", r"a process loaded .*/beside\.py with the hash \w+, a later one with \w+; the records "),
    ],
)
def test_code_that_changes_between_two_processes_ends_the_run(
    code: str, named: str, said: str, new_pool: NewPool, tmp_path: Path
) -> None:
    """Code that changes during a run, also in a module that it imports, ends the run; earlier rounds stay valid."""
    (tmp_path / "beside.py").write_text("A = 1\n")
    (tmp_path / "mine.py").write_text(OWN + code)
    pool = new_pool({"own": f"{tmp_path}/mine.py:{named}"})
    assert pool.probe()["own"].usable
    for jobs in ((1024, 2048), (2048, 1024)):
        assert [r.status for r in run(pool, *(job(n, "own") for n in jobs))] == ["ok", "ok"]
        pool.close()  # as between rounds
    (tmp_path / "beside.py").write_text("A = 2\n")
    with pytest.raises(UserError, match=f"^own was changed while it was measured: {said}"):
        run(pool, job(1024, "own", 1))


def test_a_mask_that_changes_ends_the_run(new_pool: NewPool, tmp_path: Path) -> None:
    """A mask that changes or is gone ends the run, and no job with it has a record."""
    (file := tmp_path / "mine.py").write_text("def f(b, h, q, k): return q < k")
    (mask,) = masks.parse_masks(f"{file}:f")
    pool, masked = new_pool(FAKE), replace(job(1024), case=replace(case(1024), mask=mask))
    assert [r.status for r in run(pool, masked)] == ["ok"]
    file.write_text("def f(b, h, q, k): return q > k")
    with pytest.raises(UserError, match=f"^mask: {file}, or a file that it imports, was changed after the run was"):
        run(pool, masked)
    file.unlink()
    with pytest.raises(UserError, match=f"^mask: cannot read {file}: No such file or directory; restore the file"):
        run(pool, masked)


def test_every_status_and_the_next_job_works(new_pool: NewPool, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "error@1k crash@2k oom@4k wrong@8k refuse@16k"
    monkeypatch.setenv("ATTNBENCH_FAKE", script)
    expected = [
        (1024, "failed", "RuntimeError: scripted error"),
        (2048, "failed", "the worker crashed (SIGABRT)"),
        (4096, "oom", "MemoryError: scripted: out of memory"),
        (8192, "wrong", "out is off by 1 where 0.002 is allowed (eager: 0.001)"),
        (16384, "skipped", "scripted refusal"),
    ]
    jobs = [j for n, _, _ in expected for j in (job(n), job(100 + n))]
    records = run(new_pool(FAKE), *jobs)
    assert [(r.case.shape.seqlen_q, r.status, r.reason) for r in records[::2]] == expected
    assert [(r.status, r.reason) for r in records[1::2]] == [("ok", None)] * len(expected)
    assert all(r.forecast == QUICK for r in records)
    assert all(r.measurements["time"].values for r in records[1::2])
    assert "Traceback" in str(records[0].stderr)
    assert "scripted error" in str(records[0].stderr)
    assert records[8].stderr is None  # a refusal is no failure


@pytest.mark.parametrize(
    ("own", "forecast", "timeout", "seconds", "why"),
    [
        ("Own", QUICK, 0.6, 0.6, "0.6s; its worker was killed (--timeout, policy timeout_s)"),
        ("Own", Forecast(0.25, 0.1, 1), 0.1, 1.25, "1.2s; its worker was killed (5 times its forecast)"),
        ("Compiles", QUICK, 0.1, 1.0, "1.0s; its worker was killed (it may have compiled kernels)"),
    ],
)
def test_a_hang_is_a_timeout_and_the_next_job_works(
    new_pool: NewPool,
    monkeypatch: pytest.MonkeyPatch,
    own: str,
    forecast: Forecast,
    timeout: float,
    seconds: float,
    why: str,
) -> None:
    monkeypatch.setenv("ATTNBENCH_FAKE", "hang@1k")
    monkeypatch.setattr(workers, "COLD_TIMEOUT", 1.0)
    began, jobs = time.monotonic(), (job(1024, "own", forecast=forecast), job(2048, "own"))
    hung, after = run(new_pool(own=own), *jobs, policy=Policy(timeout_s=timeout))
    assert (hung.status, after.status) == ("timeout", "ok")
    assert hung.reason == f"no answer within {why}"
    assert hung.seconds is not None
    assert seconds <= hung.seconds <= time.monotonic() - began < 30


def test_a_library_that_ends_the_process(new_pool: NewPool) -> None:
    dead, after = run(new_pool(own="Own"), job(2, "own"), job(9, "own"))
    assert (dead.status, dead.reason) == ("failed", "the worker ended with exit code 3")
    assert "stderr of 2" in str(dead.stderr)
    assert after.status == "ok"


@pytest.mark.parametrize(
    ("seqlen", "said"),
    [(3, "SystemExit: an exit (own_simulated.py:"), (5, "KeyboardInterrupt: a wish (")],
)
def test_a_library_that_asks_for_the_end_keeps_its_worker(new_pool: NewPool, seqlen: int, said: str) -> None:
    before, ended, after = run(new_pool(own="Own"), job(8, "own"), job(seqlen, "own"), job(9, "own"))
    assert ended.status == "failed"
    assert str(ended.reason).startswith(said)
    assert f"stderr of {seqlen}" in str(ended.stderr)
    assert pid(before) == pid(after)


@pytest.mark.parametrize("seqlen", [10, 11])
def test_a_process_that_a_kernel_forks_does_not_answer(new_pool: NewPool, seqlen: int) -> None:
    before, *later = run(new_pool(own="Own"), job(8, "own"), *(job(n, "own") for n in (seqlen, 9, 18, 20)))
    assert [(r.status, r.reason) for r in later] == [("ok", None)] * 4
    assert [pid(r) for r in later] == [pid(before)] * 4


@pytest.mark.skipif(sys.platform != "linux", reason="signals without a name")
def test_a_signal_without_a_name(new_pool: NewPool) -> None:
    dead, after = run(new_pool(own="Own"), job(12, "own"), job(9, "own"))
    assert (dead.status, dead.reason, after.status) == ("failed", "the worker crashed (signal 35)", "ok")


@pytest.mark.parametrize(("seqlen", "status"), [(13, "ok"), (14, "ok"), (15, "failed")])
def test_what_a_kernel_breaks_of_python_costs_no_answer(new_pool: NewPool, seqlen: int, status: str) -> None:
    pool = new_pool(own="Own")
    (broken,) = run(pool, job(seqlen, "own"))
    assert (broken.status, pool.lost("own")) == (status, False)


def test_what_the_system_killed_for_lack_of_memory_is_oom(new_pool: NewPool, monkeypatch: pytest.MonkeyPatch) -> None:
    why = "often the system ran out of memory, or a limit of CPU time was reached"
    killed, kills = iter((7, 8, 8)), f"the worker was killed (SIGKILL; {why})"
    pool = new_pool(own="Own")
    monkeypatch.setattr(process, "_killed_for_memory", lambda: 7)
    (other,) = run(pool, job(6, "own"))
    assert (other.status, other.reason) == ("failed", kills)
    pool.probe()
    monkeypatch.setattr(process, "_killed_for_memory", lambda: next(killed))
    (dead,) = run(pool, job(6, "own"))
    assert (dead.status, dead.reason) == ("oom", "the system had no memory left and killed the worker")


def test_memory_that_cpp_does_not_get_is_oom(new_pool: NewPool) -> None:
    dead, after = run(new_pool(own="Own"), job(7, "own"), job(9, "own"))
    assert (dead.status, dead.reason) == ("oom", "the worker crashed (SIGABRT): std::bad_alloc, no memory left")
    assert after.status == "ok"


def test_a_slow_import_is_told_once(new_pool: NewPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "SLOW_START", 0.0)
    told: list[str] = []
    probes = new_pool(FAKE, own="Slow").probe(told.append)
    assert all(probe.usable for probe in probes.values())
    assert told == ["fake, own are still importing after 0 s (given up after 5m00s; Ctrl-C stops)"]
    monkeypatch.setattr(workers, "SLOW_START", 60.0)
    new_pool(FAKE, dies="Crashes").probe(told.append)
    assert len(told) == 1


def test_the_tail_of_stderr_is_of_the_job_that_failed(new_pool: NewPool) -> None:
    fine, failed = run(new_pool(own="Own"), job(9, "own"), job(4, "own"))
    assert fine.stderr is None
    tail = str(failed.stderr)
    assert "stderr of 4" in tail
    assert "stdout of 4" in tail  # a library's output goes there, not among the answers
    assert tail.splitlines()[-1] == "ValueError: of the library"
    assert "of 9" not in tail


def test_a_worker_is_kept_from_job_to_job_and_each_backend_has_its_own(new_pool: NewPool) -> None:
    records = run(new_pool(a="Own", b="Own"), job(8, "a"), job(8, "b"), job(9, "a"), job(9, "b"))
    assert pid(records[0]) == pid(records[2])
    assert pid(records[1]) == pid(records[3])
    assert len({os.getpid(), *map(pid, records)}) == 3


def test_a_new_round_gets_fresh_processes(new_pool: NewPool) -> None:
    pool = new_pool(a="Own")
    pool.probe()
    records = run(pool, *(job(n, "a", round_) for round_ in (0, 1, 2) for n in (8, 9)))
    assert [r.round for r in records] == [0, 0, 1, 1, 2, 2]
    assert pid(records[0]) == pid(records[1])
    assert len({pid(r) for r in records}) == 3


def test_the_workers_of_a_round_import_at_once(tmp_path: Path) -> None:
    """The workers of a round import at the same time; in this test each import waits for the start of the other."""
    for own, other in ("ab", "ba"):
        (tmp_path / f"{own}.py").write_text(f"""
import pathlib, time
from attnbench.backends.fake import Fake
here = pathlib.Path({str(tmp_path)!r})
(here / "{own}.began").touch()
end = time.monotonic() + 10
while not (here / "{other}.began").exists():
    time.sleep(0.01)
    if time.monotonic() > end:
        (here / "alone").touch()
        break
""")
    pool = WorkerPool({name: f"{tmp_path}/{name}.py:Fake" for name in "ab"})
    pool.open_device([("a", 1), ("b", 1)], DEVICE)
    records = run(pool, job(1, "a"), job(1, "b"))
    pool.close()
    assert [r.status for r in records] == ["ok", "ok"]
    assert not (tmp_path / "alone").exists()


def test_close_ends_the_workers(new_pool: NewPool) -> None:
    pool = new_pool(a="Own")
    (record,) = run(pool, job(8, "a"))
    worker = int(pid(record))
    os.kill(worker, 0)
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_close_waits_for_no_worker_before_all_are_told(new_pool: NewPool, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = new_pool(a="Own", b="Own")
    pool.probe()
    done: list[str] = []
    send, kill = WorkerProcess.send_kill, WorkerProcess.kill
    monkeypatch.setattr(WorkerProcess, "send_kill", lambda worker: (done.append("send"), send(worker))[1])
    monkeypatch.setattr(WorkerProcess, "kill", lambda worker: (done.append("kill"), kill(worker))[1])
    pool.close()
    assert done[:3] == ["send", "send", "kill"]


def test_probes(new_pool: NewPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNBENCH_FAKE", "missing")
    specs = {**FAKE, "gone": "no_such_module_of_ours:f", "none": "attnbench.backends.fake:Nothing"}
    probes = new_pool(specs, dies="Crashes", leaves="Leaves", own="Own").probe()
    assert probes["fake"] == Probe(reason="ATTNBENCH_FAKE says it is missing", install="unset ATTNBENCH_FAKE")
    assert "ModuleNotFoundError: No module named 'no_such_module_of_ours'" in str(probes["gone"].reason)
    assert "has no 'Nothing'" in str(probes["none"].reason)
    assert "SystemExit: without this library (own_simulated.py:" in str(probes["leaves"].reason)
    assert str(probes["dies"].reason).endswith("(SIGABRT): last words")
    assert probes["dies"].install is None  # it is a person's own file, not a library built for another torch
    assert not any(p.usable for name, p in probes.items() if name in ("fake", "gone", "none", "dies"))


def test_what_to_do_is_said_for_the_interpreter_that_lacks_it(new_pool: NewPool) -> None:
    pool = new_pool({"hf-sdpa": BACKENDS["hf-sdpa"], "eager": BACKENDS["eager"]})
    if importlib.util.find_spec("transformers"):
        pytest.skip("transformers is there")
    pool.interpreters = {"hf-sdpa": sys.executable, "eager": "/bin/true"}
    probes = pool.probe()
    assert probes["hf-sdpa"].install == f"{sys.executable} -m pip install transformers"
    assert probes["eager"].reason == "importing it in /bin/true: the worker ended with exit code 0"
    assert probes["eager"].install == "check that it is a Python"


def test_what_has_begun_to_load_is_asked_once(new_pool: NewPool, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    send = WorkerProcess.send
    monkeypatch.setattr(WorkerProcess, "send", lambda w, request: (sent.append(request["op"]), send(w, request))[1])
    pool = new_pool(FAKE)
    pool.start_loading()
    assert sent == ["load"]
    first = pool.probe()
    assert sent == ["load"]
    assert pool.probe() == first
    assert sent == ["load", "load"]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    ("when_torch_is_imported", "reason"),
    [
        ("os.abort()", "the worker crashed (SIGABRT)"),
        ("raise ImportError('broken')", "ImportError: broken (own.py:6 in find_spec)"),
    ],
)
def test_what_fails_ahead_is_said_by_the_first_job(
    when_torch_is_imported: str, reason: str, ahead: bool, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(f"""
import os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            {when_torch_is_imported}
sys.meta_path.insert(0, Finder())
def attention(q, k, v, *, causal, softmax_scale):
    return q
""")
    pool = WorkerPool({"own": f"{tmp_path}/own.py:attention"})
    cpu = Device("cpu", 0, "CPU", 2**30, 2**30)
    pool.start_loading(import_ahead=ahead)
    (answer, *_) = pool.survey(pool.probe(), [case(8)], cpu)["own"]
    assert answer.reason is None
    pool.open_device([("own", 1)], cpu)
    record = pool.measure(job(8, "own"), POLICY, cpu)
    pool.close()
    assert (record.status, record.reason) == ("failed", reason)


@pytest.mark.parametrize(
    "answer",
    [{}, {"answers": 5}, {"answers": [[None]]}, {"answers": [[None, {"nbytes": "x"}, 0.4]]}, {"answers": []}]
    + [
        {"answers": [[None, {"nbytes": n}, share]]}
        for n, share in ((8, 0.0), (8, 1e-300), (8, float("nan")), (-1, 0.4))
    ],
)
def test_answers_that_cannot_be_read_support_nothing(answer: dict[str, Any]) -> None:
    (found,) = workers._supports(answer, 1)
    assert found.reason == "its support is unknown: its worker's answer has not what was asked for"


def test_survey(new_pool: NewPool) -> None:
    """In a survey an unusable backend, or one whose answer fails, refuses every case with a reason; others do not."""
    specs = {**FAKE, "gone": "no_such_module_of_ours:f", "eager": BACKENDS["eager"]}
    pool = new_pool(specs, unsure="Unsure")
    answers = pool.survey(pool.probe(), (c for c in (case(8), case(9))), DEVICE)
    assert {name: len(found) for name, found in answers.items()} == dict.fromkeys(answers, 2)
    assert [a.reason for a in answers["fake"]] == [None, None]
    assert "no_such_module_of_ours" in str(answers["gone"][1].reason)
    assert "cannot tell" in str(answers["unsure"][0].reason)
    assert answers["eager"][0].reason == "the simulated device runs simulated backends only"
    assert answers["eager"][0].workspace.nbytes == 0  # it is not asked about refused cases
    assert (
        pool.survey({"eager": pool.probe()["eager"]}, [case(8)], Device("cpu", 0, "CPU", 2**30, 2**30))["eager"][
            0
        ].workspace.nbytes
        > 0
    )
    assert run(pool, job(8))[0].status == "ok"


def test_a_backend_that_will_not_start_is_given_up(new_pool: NewPool) -> None:
    pool = new_pool({**FAKE, "gone": "no_such_module_of_ours:f"})
    tries = MAX_FAILED_STARTS
    jobs = [job(n, "gone") for n in range(1, tries + 2)]
    records = [pool.measure(j, POLICY, DEVICE) for j in jobs]
    assert {r.status for r in records} == {"failed"}
    assert all("No module named 'no_such_module_of_ours'" in str(r.reason) for r in records[:tries])
    assert records[-1].reason == GIVEN_UP
    whole = builders.run([*records, replace(records[0], status="ok", reason=None)])
    assert (exit_code(whole, allow_wrong=False), given_up(whole)) == (EXIT_NOTHING_MEASURED, {"gone": 1})
    assert pool.measure(job(8), POLICY, DEVICE).status == "ok"


def test_skips_start_nothing(new_pool: NewPool) -> None:
    pool = new_pool({"gone": "no_such_module_of_ours:f"})
    plain, resumable = run(pool, job(8, "gone", skip="too large"), job(9, "gone", skip="no time", resumable=True))
    assert (plain.status, plain.reason, plain.resumable) == ("skipped", "too large", False)
    assert (resumable.status, resumable.resumable) == ("skipped", True)


RIGHT = TensorError(1e-3, 1e-3, 2e-3, 1e-3)


@pytest.mark.parametrize(
    ("accuracy", "said"),
    [
        (Accuracy({"out": replace(RIGHT, max_error=0.3)}, 1, 1), "out is off by 0.3 where 0.002 is allowed"),
        (Accuracy({"out": replace(RIGHT, max_error=math.nan)}, 1, 1), "out is off by nan"),
        (Accuracy({"out": RIGHT}, 1, 1, unwritten=("out",)), "out has values that are not finite"),
        (Accuracy({}, 1, 1), "no errors that show it"),
        (None, "no errors that show it"),
    ],
    ids=str,
)
def test_a_record_that_contradicts_its_errors_is_wrong(accuracy: Accuracy | None, said: str) -> None:
    """Fault: a worker reports ok with errors beyond the tolerance. Found: wrong, by the parent's own judgement."""
    record = Record(case(8), "own", 0, "ok", accuracy=accuracy)
    found = workers.checked(record)
    assert found.status == "wrong"
    assert said in str(found.reason)
    right = replace(record, accuracy=Accuracy({"out": RIGHT}, 1, 1))
    assert workers.checked(right) is right
    assert workers.checked(replace(record, status="oom")).status == "oom"


def test_an_answer_that_is_no_record_costs_one_record(new_pool: NewPool) -> None:
    odd, after = run(new_pool(own="Own"), job(16, "own"), job(1024, "own"))
    reason = "its worker's answer is not a record: measurements: memory_peak: values: "
    assert (odd.status, odd.reason) == ("failed", f"{reason}{2**70} is beyond 64 bits")
    assert after.status == "ok"


def test_a_killed_parent_leaves_no_folder_of_its_ranks(tmp_path: Path) -> None:
    code = """
import os, tempfile
from attnbench.core.machine import Device
from attnbench.run.rank_workers import RankWorkers
RankWorkers([Device("fake", 0, "Simulated GPU", 2**36, 2**36)] * 2)
print(*os.listdir(tempfile.gettempdir()), flush=True)
os.kill(os.getpid(), 9)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout.startswith("attnbench-ranks-"), done.stderr
    deadline = time.monotonic() + 10
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "unit", "value"), [("time", "s", math.nan), ("time", "s", 1e40), ("clock", "Hz", math.inf)]
)
def test_a_record_that_no_file_could_be_read_with_has_failed(name: str, unit: str, value: float) -> None:
    errors = {"out": TensorError(0.0, 0.1, 0.2, 0.0)}
    good = Record(Case(Shape(1, 8, 8, 1, 1, 8, 8), "bf16", "fwd"), "triton", 0, "ok", accuracy=Accuracy(errors, 8, 1))
    record = replace(good, measurements={**good.measurements, name: Measurement(unit, (1e-3, value))})
    found = checked(record)
    assert (found.status, found.measurements, found.id) == ("failed", {}, record.id)
    assert str(found.reason).startswith(f"its worker gave impossible figures: {name}: ")
    assert checked(good) == good
