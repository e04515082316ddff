"""Kernels that cheat (cheats.py) are wrong, or not proven, by a judge and a clock outside their process.

A cheat runs in a process of its own beside a judge, as by `attnbench check --untrusted` and `run --untrusted`.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cheats
import pytest
import torch
from right_attention import attention

import forked_worker
from attnbench import backends
from attnbench.core import chain
from attnbench.core.case import Case, Shape
from attnbench.core.json import from_json, to_json
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Accuracy, Forecast, Job, Record
from attnbench.judge import chain_judge
from attnbench.judge.chain_judge import ChainJudge
from attnbench.run import untrusted
from attnbench.run.judge import Judge
from attnbench.run.workers import WorkerPool

importlib.import_module("attnbench.worker.measure_cell")  # or each forked worker would import it
FILE = Path(cheats.__file__)
CPU = Device("cpu", 0, "CPU", 2**34, 2**34, l2=2**16)
CASE = Case(Shape(1, 64, 64, 2, 2, 32, 32), "fp32", "fwd", causal=False)
OK = Record(CASE, "own", 0, "ok")
TIMED = ("patched_clock", "claims_half", "pads_short_chains")  # right results, wrong times
REFUSED = ("another_case", "lazy")  # there is no result to judge
LONG = 60  # launches of a long chain


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with forked_worker.workers():
        made = Judge(CPU, None)
        yield made
        made.close()


@pytest.fixture
def pool(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerPool]:
    monkeypatch.setitem(untrusted.MOST_BYTES, "cpu", 2**21)  # the judge clears fewer places
    made = WorkerPool({}, judge=judge)
    yield made
    made.close()


def chains_of(pool: WorkerPool, cheat: str, case: Case = CASE) -> untrusted._Chains:
    """Return the chains of a cheat in a new process."""
    pool.specs = {"own": f"{FILE}:{cheat}"}
    assert pool.judge
    made = untrusted._Chains(pool, pool.judge, "own", 60.0)
    made.begin(case, CPU, any_strides=True)
    return made


def verdict(pool: WorkerPool, cheat: str, *counts: int, case: Case = CASE) -> tuple[Accuracy, int]:
    """Return the verdict on chains of these lengths, and the launch that it is on."""
    made = chains_of(pool, cheat, case)
    for count in counts:
        made.run(count)
        made.keep(count)
    return ruled(made)


def ruled(made: untrusted._Chains) -> tuple[Accuracy, int]:
    """Return the judge's verdict on all kept results, and the launch that it is on."""
    found = made._judged({"do": "rule"})
    return from_json(Accuracy, found["accuracy"]), found["launch"]


def test_a_right_kernel_passes(pool: WorkerPool) -> None:
    for changes in (
        {"layout": "packed"},
        {"dtype": "bf16", "direction": "fwd_bwd", "layout": "bhsd"},
        {"layout": "native"},
    ):
        accuracy, _ = verdict(pool, "attention", 3, LONG, case=replace(CASE, **changes))  # type: ignore[arg-type]
        assert accuracy.ok, accuracy.problem()
        pool.close_worker("own")


@pytest.mark.parametrize("cheat", [name for name in cheats.CHEATS if name not in (*TIMED, *REFUSED)])
def test_wrong(pool: WorkerPool, cheat: str) -> None:
    """Fault: results are not computed in each launch from its inputs. Found: wrong, in chains of 3 or 60 launches."""
    means = cheats.CHEATS[cheat]
    case = replace(CASE, layout="bhsd") if cheats.STRIDES in means else CASE
    accuracy, launch = verdict(pool, cheat, 3, LONG, case=case)
    assert not accuracy.ok
    if means == (cheats.GUARD,):
        assert "beside the memory" in accuracy.problem()
    elif means == (cheats.NAN,):
        assert accuracy.unwritten
    elif not {cheats.FRESH, cheats.NAN, cheats.APART, cheats.STRIDES} & {*means}:
        assert launch > 1


@pytest.mark.parametrize("cheat", cheats.COUNTED)
def test_gains_nothing(pool: WorkerPool, cheat: str) -> None:
    """Fault: work is done at another time, or by something else. Found: it is right, and its time counts."""
    made = chains_of(pool, cheat)
    seconds, _ = made.run(1)
    made.keep(1)
    accuracy, _ = ruled(made)
    assert accuracy.ok, accuracy.problem()
    if cheat == "watches_the_inputs":
        assert seconds >= 0.02


@pytest.mark.parametrize("cheat", TIMED)
def test_not_proven(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch, cheat: str) -> None:
    """Fault: its times are not its launches' times. Found: not proven; on a busy machine also for another reason."""
    for name, value in {"LONGEST": 0.02, "REPEATS": 3, "MORE": 1}.items():
        monkeypatch.setattr(untrusted, name, value)
    pool.specs = {"own": f"{FILE}:{cheat}"}
    record = untrusted.judged(pool, OK, Policy(untrusted=True), CPU, timed=True)
    assert record.status == "failed"
    assert record.reason
    assert record.reason.startswith("not proven: ")


def test_a_record_of_another_case(pool: WorkerPool) -> None:
    """Fault: its process reports a smaller case. Found: its answer is not a record of the job."""
    pool.specs = {"own": f"{FILE}:another_case"}
    record = pool.check(Job(CASE, "own", 0, Forecast(0.0, 0.0, 0)), Policy(untrusted=True), CPU)
    assert record.status == "failed"
    assert "of another job" in str(record.reason)
    assert record.case == CASE


def test_a_lazy_result(pool: WorkerPool) -> None:
    """Fault: a result computes its values when it is read. Found: it is not a plain tensor, so there is no verdict."""
    pool.specs = {"own": f"{FILE}:lazy"}
    record = untrusted.judged(pool, OK, Policy(untrusted=True), CPU, timed=False)
    assert record.status == "failed"
    assert "expected a plain torch.Tensor" in str(record.reason)


def test_own_masks_do_not_run_in_the_judge() -> None:
    """Fault: a mask is code that would run in the judge's process. Found: not proven."""
    assert "own code" in str(chain.refusal(replace(CASE, mask="./mine.py:mask")))


# Times


def proven(outside: Any, own: Any = None, link: float = 0.0) -> Record:
    """Return the verdict on made-up times of chains, in seconds."""
    times = {count: [outside(count) * (1 + 1e-4 * repeat) for repeat in range(7)] for count in (250, 500, 1000)}
    claimed = {count: [(own or outside)(count)] * 7 for count in times}
    return untrusted._with_latency(OK, times, claimed, link, CPU)


def test_times() -> None:
    """Fault: other times than of launches in proportion to their number. Found: not proven, with the reason."""
    each = 200e-6
    assert proven(lambda n: each * n + 5e-4).status == "ok"
    for failing, why, outside, own in (
        ("proportion", "does not grow", lambda n: 0.2, None),  # it sleeps, or has computed all before
        ("clock", "by its own clock", lambda n: each * n, lambda n: -each * n),
        ("clock", "its own clock says", lambda n: each * n, lambda n: each * n / 2),
        ("proportion", "in proportion", lambda n: each * (n if n > 250 else n / 2), None),  # fast where it is short
        ("proportion", "beside its launches", lambda n: each * n / 10 + each * 900, None),  # sleeps in short chains
        ("proportion", "beside its launches", lambda n: each * n * 0.9 + each * 100, None),
    ):
        record = proven(outside, own)
        assert (record.status, record.failing) == ("failed", failing)
        assert why in str(record.reason)


def test_times_that_differ_between_repeats() -> None:
    """Fault: it sleeps in the shortest chains of some repeats, and in the middle ones of others. Found: not proven.

    The median time of each length is honest, and in each repeat a launch seems faster than it is.
    """
    each, pad = 1e-3, 0.6
    outside = {count: [each * count] * 9 for count in (250, 500, 1000)}
    for repeat in range(8):
        count, share = ((250, 1.143), (500, 0.286))[repeat % 2]
        outside[count][repeat] += pad * each * 1000 / share
    claimed = {count: [(1 - pad) * each * count] * 9 for count in outside}
    assert untrusted._with_latency(OK, outside, claimed, 0.0, CPU).failing == "proportion"


def test_a_chain_is_long_unless_memory_ends_it() -> None:
    times = {count: [1e-3 * count] * 7 for count in (1, 2, 4)}
    assert untrusted._with_latency(OK, times, times, 0.0, CPU, is_longest=True).status == "ok"
    assert untrusted._with_latency(OK, times, times, 0.0, CPU, is_longest=False).failing == "proportion"


def test_a_faster_link_is_open() -> None:
    """Fault: it links in 1 us, where the judge needs 10 us. Found: nothing; its latency is 9 us too low."""
    record = proven(lambda n: 201e-6 * n, link=10e-6)
    assert record.status == "ok"
    assert record.measurements["time"].values[0] == pytest.approx(191e-6)


class Counted:
    """Chains whose launches take 1 ms, and their links 0.2 ms, or 0.1 ms where all is contiguous."""

    name, chains, uncaptured, is_plain = "own", 0, "", False
    pool: Any = type("Pool", (), {"close_worker": lambda *_: None})()

    def run(self, count: int) -> tuple[float, float]:
        self.chains += 1
        return count * 1e-3, count * 1e-3

    def keep(self, _: int) -> None: ...
    def link(self, count: int, *, plain: bool) -> float:
        return count * (1e-4 if plain else 2e-4)

    def right(self, record: Record) -> Record:
        return record


def test_the_number_of_chains_is_not_known() -> None:
    """Fault: a cheat is honest in the last chain, which ends with SIGKILL. Found: it does not know which one it is."""
    found = set()
    for _ in range(40):
        counted: Any = Counted()
        untrusted._timed(counted, OK, 1000, CPU)
        found.add(counted.chains)
    assert len(found) > 1


def test_stated_orders_make_no_link_dearer(pool: WorkerPool) -> None:
    """Fault: it states orders whose link costs more than its own. Found: the link on contiguous tensors counts."""
    counted: Any = Counted()
    record = untrusted._timed(counted, OK, 1000, CPU)
    assert record.measurements["time"].values[0] == pytest.approx(0.9e-3)
    made = chains_of(pool, "attention")
    orders = {"inputs": {}, "results": {"out": [3, 2, 1, 0]}}
    answer = made._judged({"do": "chain", "case": to_json(CASE), "bytes": 2**20, "orders": orders})
    assert not answer["is_plain"]
    assert made.link(3, plain=True) > 0


# What is open


@pytest.mark.parametrize("cheat", cheats.OPEN)
def test_open(pool: WorkerPool, cheat: str) -> None:
    """Fault: it is right at some shapes alone, or less precise than its dtype. Found: not here."""
    accuracy, _ = verdict(pool, cheat, 3, LONG)
    assert accuracy.ok, accuracy.problem()
    if cheat == "small_shapes_only":
        pool.close_worker("own")
        larger = replace(CASE, shape=replace(CASE.shape, seqlen_q=80, seqlen_k=80))
        assert not verdict(pool, cheat, 3, case=larger)[0].ok


# The judge alone


def test_the_link_depends_on_every_result() -> None:
    """Each element of each input changes with a bit of any result: no head or row can run ahead."""
    made = torch.Generator().manual_seed(0)
    base = {name: torch.randn(1, 8, 2, 4, generator=made) for name in "qkv"}
    results, into = (
        {"out": torch.randn(1, 8, 2, 4, generator=made)},
        {name: torch.empty_like(t) for name, t in base.items()},
    )
    chain.link(base, results, into)
    before = {name: t.clone() for name, t in into.items()}
    results["out"].view(torch.int32)[0, -1, -1, -1] ^= 1
    chain.link(base, results, into)
    assert all((into[name] == before[name]).sum() <= 1 for name in base)  # its own element may be as before


def test_a_wrong_launch_that_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: one head of one launch is wrong, and no kept result shows it. Found: by the rows of every launch."""
    judge = ChainJudge(torch.device("cpu"))
    monkeypatch.setattr("attnbench.judge.chain_judge.DRAWN", 0)
    judge.answer({"do": "chain", "case": to_json(CASE), "bytes": 2**22, "orders": {"inputs": {}, "results": {}}})
    judge.answer({"do": "release"})
    given = {name: t.clone() for name, t in judge._base.items()}
    for number, place in enumerate(judge._places[:LONG]):
        place["out"].copy_(attention(**given, causal=False, softmax_scale=CASE.softmax_scale))
        if number == 40:
            place["out"][:, :, 1] = place["out"][:, :, 1].roll(1, 1)
        chain.link(judge._base, place, given)
    judge.answer({"do": "keep", "launches": LONG})
    found = judge.answer({"do": "rule"})
    assert not from_json(Accuracy, found["accuracy"]).ok
    assert found["launch"] == 41


def test_a_wrong_result_among_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a chain is wrong whose results the judge's memory cannot keep. Found: it is compared at once."""
    judge = ChainJudge(torch.device("cpu"))
    monkeypatch.setitem(chain_judge.KEPT_BYTES, "cpu", 0)
    judge.answer({"do": "chain", "case": to_json(CASE), "bytes": 2**16, "orders": {"inputs": {}, "results": {}}})
    for right in (True, False, True):
        judge.answer({"do": "release"})
        out = attention(**judge._base, causal=False, softmax_scale=CASE.softmax_scale)
        judge._places[0]["out"].copy_(out if right else out.roll(1, 1))
        judge.answer({"do": "keep", "launches": 1})
        assert not judge._kept
    found = judge.answer({"do": "rule"})
    assert not from_json(Accuracy, found["accuracy"]).ok
    assert found["checked"] == 3


def test_no_candidate_lives_while_another_is_judged(pool: WorkerPool) -> None:
    """Fault: a candidate writes to the memory of another one, which the judge shares with both. Found: it has ended."""
    pool.specs = {"own": f"{FILE}:attention", "other": f"{FILE}:attention", "eager": backends.BACKENDS["eager"]}
    for name in pool.specs:
        pool.ask(name, {"op": "import"}, 60.0)
    other, eager = pool._workers["other", 1], pool._workers["eager", 1]
    pool.fence = lambda _: {}  # as with --untrusted
    pool.check(Job(CASE, "own", 0, Forecast(0.0, 0.0, 0)), Policy(), CPU)
    assert not other.alive
    assert eager.alive


# The command


def test_command(tmp_path: Path) -> None:
    """Fault: results are right without a chain. Found: wrong, with the number of the launch, and exit code 5.

    A candidate that cannot be imported costs its own verdict alone.
    """
    broken = tmp_path / "broken.py"
    broken.write_text("def attention(")
    case = ["--device", "cpu", "--dtype", "fp32", "--pass", "fwd", "--full", "--headdim", "32"]
    command = [
        sys.executable,
        "-m",
        "attnbench",
        "check",
        f"{broken}:attention",
        "cheats:no_link",  # a module of the working directory
        "--untrusted",
        "--json",
        *case,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=FILE.parent)
    assert done.returncode == 5, done.stdout + done.stderr
    assert "of a chain whose inputs follow from its results" in done.stdout
    assert "cannot be imported: SyntaxError" in done.stdout


def test_every_cheat_is_listed() -> None:
    """Each function of cheats.py without an underscore is in one table, and says what it does."""
    functions = [node for node in ast.parse(FILE.read_text()).body if isinstance(node, ast.FunctionDef)]
    listed = [*cheats.CHEATS, *cheats.COUNTED, *cheats.OPEN]
    assert sorted(listed) == sorted(
        node.name for node in functions if node.decorator_list and not node.name.startswith("_")
    )
    assert all(getattr(cheats, name).__doc__ for name in listed)
