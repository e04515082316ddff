"""One sequence over several ranks, on a CPU with gloo: right results, wrong ones, and ranks that fail."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from split_methods import KEPT, OWN_KEYS, WRONG

import forked_worker
from attnbench.backends.several_devices.ring_transformer_engine import Ulysses
from attnbench.core import split_sequence
from attnbench.core.case import Case, Shape
from attnbench.core.json import from_json, to_json
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Accuracy, Forecast, Job, Record
from attnbench.judge import inputs
from attnbench.judge.heads import draw_heads, head_case, head_seed
from attnbench.judge.service import JudgeService
from attnbench.run import rank_workers
from attnbench.run.device_probe import probe_device
from attnbench.run.judge import Judge
from attnbench.run.process import WorkerDied
from attnbench.run.profile.profile import Profile
from attnbench.run.workers import WorkerPool

OWN = Path(__file__).with_name("split_methods.py")
PACKAGE = Path(__file__).with_name("ring_package.py")
TE = Path(__file__).with_name("te_package.py")
LIARS = {
    "Denies": "the judge found hard results wrong: out is off",
    "Conceals": "the judge was shown no results on hard inputs",
}
POLICY = Policy(l2="warm", warmup_s=0.0, min_samples=3, max_samples=3, min_seconds=0.0, timeout_s=60.0)


def case(direction: str = "fwd", dtype: str = "fp32", seqlen: int = 256, nheads_k: int = 4, **fields: Any) -> Case:
    shape = Shape(1, seqlen, seqlen, 4, nheads_k, 64, 64)
    return Case(shape, dtype, direction, **{"causal": True, "ranks": 2, **fields})  # type: ignore[arg-type]


@pytest.fixture(scope="module", autouse=True)
def _forked() -> Iterator[None]:
    with forked_worker.workers():
        yield


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    own = ("Ulysses", "GatheredKeys", "Ring", "RingAlltoall", "Wrong", *LIARS, "Misnamed", "Fails", "Keeps")
    specs = {name: f"{OWN}:{name}" for name in own}
    specs |= {name: f"{TE}:{name.removeprefix('te-')}" for name in ("te-P2p", "te-Ulysses")}
    specs["ulysses-attend"] = f"{OWN}:attend"
    judge = Judge(cpu(), None)
    made = WorkerPool({**specs, "ring-flash-attn": f"{PACKAGE}:OnACpu"}, judge=judge)
    yield made
    made.close()
    judge.close()


def measured(pool: WorkerPool, name: str, of: Case, policy: Policy = POLICY) -> Record:
    return pool.measure(Job(of, name, 0, Forecast(0.1, 0.001, 2**20)), policy, cpu())


@cache
def cpu() -> Device:
    return probe_device("cpu").device


@pytest.mark.parametrize(
    "of",
    [
        case("bwd", nheads_k=1),
        case("fwd_bwd", nheads_k=2, ranks=4),
        replace(case("fwd_bwd", "bf16", causal=False), shape=Shape(2, 256, 256, 4, 4, 64, 32)),
    ],
    ids=lambda of: f"{of.direction}-{of.dtype}-{of.shape.nheads_k}-{of.ranks}-b{of.shape.batch}-{of.causal}",
)
def test_ulysses_is_right(pool: WorkerPool, of: Case) -> None:
    record = measured(pool, "Ulysses", of)
    assert record.status == "ok", record.reason
    found = record.measurements
    ranks = [found[f"time_rank{rank}"].values for rank in range(of.ranks)]
    assert found["time"].values == tuple(map(max, zip(*ranks, strict=True)))
    assert len(found["memory_ranks"].values) == of.ranks
    assert found["memory_peak"].values == (max(found["memory_ranks"].values),)
    assert found["compute"].values
    assert found["ceiling_bus"].values


def test_ulysses_around_an_own_function(pool: WorkerPool) -> None:
    """Ulysses works around an own function, which is always causal."""
    record = measured(pool, "ulysses-attend", case())
    assert record.status == "ok", record.reason
    assert measured(pool, "ulysses-attend", case(causal=False)).status == "wrong"


@pytest.mark.parametrize(("name", "causal"), [("Ring", True), ("RingAlltoall", False)])
def test_torchs_ring_is_right(pool: WorkerPool, name: str, causal: bool) -> None:
    """torch's ring is right; each of 2 ranks sends keys and values: 128 tokens, 4 heads of 64 float32."""
    record = measured(pool, name, case(causal=causal))
    assert record.status == "ok", record.reason
    assert record.measurements["moved"].values == (2 * 128 * 4 * 64 * 4,)
    assert record.measurements["compute"].values


@pytest.mark.parametrize(("direction", "nheads_k", "causal", "ranks"), [("bwd", 2, True, 4), ("fwd_bwd", 4, False, 2)])
def test_ring_flash_attn_is_right(pool: WorkerPool, direction: str, nheads_k: int, causal: bool, ranks: int) -> None:
    """ring-flash-attn is right; keys and values go to each other rank twice, their gradients around in float32."""
    record = measured(pool, "ring-flash-attn", case(direction, "bf16", nheads_k=nheads_k, causal=causal, ranks=ranks))
    assert record.status == "ok", record.reason
    keys = 2 * (256 // ranks) * nheads_k * 64 * 2
    moved = keys * (ranks - 1) * (2 if direction == "fwd_bwd" else 1) + (0 if direction == "fwd" else 2 * keys * ranks)
    assert record.measurements["moved"].values == (moved,)
    assert record.measurements["compute"].values


@pytest.mark.parametrize(
    ("direction", "nheads_k", "causal", "ranks"),
    [("fwd", 4, False, 2), ("bwd", 2, True, 4)],
)
def test_transformer_engines_context_parallel_is_right(
    pool: WorkerPool, direction: str, nheads_k: int, causal: bool, ranks: int
) -> None:
    """Transformer Engine's context parallel is right; keys, values and gradients go around in the inputs' dtype."""
    of = case(direction, "bf16", nheads_k=nheads_k, causal=causal, ranks=ranks)
    record = measured(pool, "te-P2p", of)
    assert record.status == "ok", record.reason
    keys = 2 * (256 // ranks) * nheads_k * 64 * 2
    assert record.measurements["moved"].values == (keys * (ranks - 1) * {"fwd": 1, "bwd": 2}[direction],)
    assert record.measurements["compute"].values


def test_transformer_engines_all_to_all_moves_parts_of_heads(pool: WorkerPool) -> None:
    record = measured(pool, "te-Ulysses", case("fwd_bwd", "bf16"))
    assert record.status == "ok", record.reason
    assert record.measurements["moved"].values == (8 * 128 * 4 * 64 * 2 // 2,)  # half of each of eight tensors
    refused = Ulysses().cannot_split(case(nheads_k=1), cpu())
    assert refused == "its all-to-all needs heads that 2 ranks share evenly, not 4 and 1"


def profiled(pool: WorkerPool, name: str, of: Case, keep: dict[str, str]) -> dict[str, Any]:
    request = {"op": "profile", "device": to_json(cpu()), "case": to_json(of), "keep": keep}
    found: dict[str, Any] = pool.ask(name, request, 60.0, ranks=2, device=cpu())["profile"]
    return found


def test_a_profile_has_the_communication_of_rank_0(pool: WorkerPool, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    found = from_json(Profile, {"backend": "u", **profiled(pool, "Ulysses", case("fwd_bwd"), {"trace": str(trace)})})
    assert found.times
    assert found.compute
    names = [a.name for a in found.activities]
    moving = [name for name in names if split_sequence.COLLECTIVES.search(name)]
    assert 8 <= len(moving) < len(names)  # q, k, v and dout to the heads; out, dq, dk and dv back
    assert json.loads(trace.read_text())["traceEvents"]
    assert "the timeline shows rank 0 of 2" in found.notes


def test_a_rank_that_sees_its_own_keys_only_is_wrong_and_has_no_profile(pool: WorkerPool) -> None:
    assert measured(pool, "GatheredKeys", case()).status == "ok"
    found = profiled(pool, "GatheredKeys", case(seqlen=OWN_KEYS), {})
    assert "wrong: out is off" in found["refused"]
    assert found["wrong"] is True


@pytest.mark.parametrize("part", WRONG, ids=WRONG.get)
def test_wrong_in_one_rank_is_wrong(pool: WorkerPool, part: int) -> None:
    record = measured(pool, "Wrong", case("fwd_bwd" if "dk" in WRONG[part] else "fwd", seqlen=2 * part))
    assert record.status == "wrong", record.reason
    if "dk" in WRONG[part]:
        assert "dk is off" in str(record.reason)


@pytest.mark.parametrize("liar", LIARS)
def test_rank_0_is_not_believed_where_it_says_that_wrong_results_are_right(pool: WorkerPool, liar: str) -> None:
    (part,) = (part for part, what in WRONG.items() if what.startswith("out is"))
    record = measured(pool, liar, case(seqlen=2 * part))
    assert record.status == "wrong"
    assert str(record.reason).startswith(f"its worker says ok, but {LIARS[liar]}")


def test_several_ranks_are_judged_beside_them_by_the_heads_that_the_judge_draws(pool: WorkerPool) -> None:
    """Several ranks are judged on heads that the judge draws. A rank sends half of its q, k, v and out."""
    record = measured(pool, "Ulysses", replace(case(), shape=Shape(1, 64, 64, 12, 6, 16, 16)))
    assert record.status == "ok", record.reason
    assert record.judge == "beside"
    assert record.accuracy
    assert record.accuracy.heads == 8  # of four key heads
    assert "checked: 4 of 6 key heads, as whole sequences" in record.notes
    assert record.measurements["moved"].values == ((12 + 6 + 6 + 12) * 32 * 16 * 4 / 2,)
    assert {"reference", "first call", "memory", "check", "timing", "trace"} <= record.phases.keys()


def test_without_a_judge_rank_0_judges_and_no_process_and_no_file_stays_behind() -> None:
    pool = WorkerPool({name: f"{OWN}:{name}" for name in ("Ulysses", "Wrong")})
    pool.open_device([("Ulysses", 2)], cpu())
    group = pool._workers["Ulysses", 2]
    records = measured(pool, "Ulysses", case()), measured(pool, "Wrong", case(seqlen=64))
    assert pool._workers["Ulysses", 2] is group  # the group that was opened ahead
    assert isinstance(group, rank_workers.RankWorkers)
    pids = [rank._process.pid for rank in group._ranks]
    pool.close()
    assert [record.status for record in records] == ["ok", "wrong"]
    assert {record.judge for record in records} == {"within"}
    assert "out is off" in str(records[1].reason)
    assert not group._folder.exists()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_no_verdict_on_several_ranks_before_each_head_was_shown() -> None:
    of = replace(case(), shape=Shape(1, 16, 16, 4, 2, 16, 16))
    service = JudgeService(cpu())
    begun = service.answer({"do": "begin", "case": to_json(of), "seed": 1})
    assert begun["heads"] == [0, 1]
    service.answer({"do": "results", "like": {"out": ["float32", [1, 16, 2, 16], [512, 32, 16, 1]]}, "calls": 1})
    for head in (0, 0, 1):
        results = service._hearings[0]._results[0]["out"]
        results.copy_(exact(head_case(of), head_seed(1, head)) * (2.0 if head else 1.0))
        answer = service.answer({"do": "check", "what": "first", "head": head})
        assert bool(answer["together"]) == bool(head)
    assert "out is off" in from_json(Accuracy, answer["together"]).problem()
    results.copy_(exact(head_case(of), head_seed(1, 1)))
    answer = service.answer({"do": "check", "what": "first", "head": 1})
    assert from_json(Accuracy, answer["accuracy"]).ok
    assert not from_json(Accuracy, answer["together"]).ok  # a head that was wrong once stays wrong
    with pytest.raises(ValueError, match="head 2 was not drawn for the check"):
        service.answer({"do": "check", "what": "first", "head": 2})


def exact(of: Case, seed: int) -> torch.Tensor:
    given = inputs.make(of, "cpu", seed)
    q, k, v = (t.transpose(1, 2) for t in (given.q, given.k, given.v))
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(q, k, v, is_causal=True, scale=of.softmax_scale, enable_gqa=True).transpose(1, 2)


@pytest.mark.parametrize(("nheads_k", "ranks", "count"), [(1, 2, 1), (4, 2, 4), (30, 2, 4), (30, 8, 8)])
def test_the_heads_that_are_judged_are_drawn_of_sections(nheads_k: int, ranks: int, count: int) -> None:
    of = replace(case(ranks=ranks), shape=Shape(1, 64, 64, nheads_k, nheads_k, 16, 16))
    heads = draw_heads(of)
    assert len(heads) == count
    assert all(i * nheads_k // count <= head < (i + 1) * nheads_k // count for i, head in enumerate(heads))


def test_other_kernels_than_declared_are_wrong_kernels(pool: WorkerPool) -> None:
    record = measured(pool, "Misnamed", case())
    assert record.status == "wrong-kernel"
    assert "no kernel like 'of_another_library' ran; instead: " in str(record.reason)
    assert record.accuracy
    assert record.accuracy.ok


@pytest.mark.parametrize(
    ("seqlen", "status", "said"),
    [
        (128, "failed", "rank 1: the worker ended with exit code 3"),
        (256, "failed", "rank 1: ValueError: of the library"),
        (1024, "timeout", "no answer within"),
    ],
)
def test_a_rank_that_fails_costs_one_record(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch, seqlen: int, status: str, said: str
) -> None:
    monkeypatch.setattr(rank_workers, "GRACE", 0.3)
    policy = replace(POLICY, timeout_s=1.0 if status == "timeout" else 60.0)
    record = measured(pool, "Fails", case(seqlen=seqlen), policy)
    assert record.status == status, record.reason
    assert said in str(record.reason)
    assert ("Fails", 2) not in pool._workers or not pool._workers["Fails", 2].alive
    assert measured(pool, "Ulysses", case()).status == "ok"


def fitted(pool: WorkerPool, name: str, of: Case) -> Record:
    return pool.fit(Job(of, name, 0, Forecast(0.1, 0.001, 2**20)), POLICY, cpu(), None)


def test_what_fits_on_several_ranks_has_the_memory_of_one(pool: WorkerPool) -> None:
    """The memory of several ranks is the memory of one rank, with its part of q, k, v and dout."""
    record = fitted(pool, "te-P2p", case("fwd_bwd", "bf16", nheads_k=2))
    assert record.status == "ok", record.reason
    found = {name: measurement.values[0] for name, measurement in record.measurements.items()}
    assert found["memory_inputs"] == 128 * (4 + 2 + 2 + 4) * 64 * 2
    assert found["memory_peak"] >= 128 * 4 * 64 * 2  # at least out of the results
    assert 0 < found["call"] < 10


def test_the_memory_is_that_of_the_rank_that_takes_most(pool: WorkerPool) -> None:
    usual, keeps = (fitted(pool, name, case()).measurements["memory_peak"].values[0] for name in ("Ulysses", "Keeps"))
    assert keeps - usual == pytest.approx(KEPT, rel=0.02)


@pytest.mark.parametrize("part", [64, 128], ids=WRONG.get)
def test_what_is_wrong_in_one_rank_does_not_fit(pool: WorkerPool, part: int) -> None:
    record = fitted(pool, "Wrong", case("fwd_bwd" if "dk" in WRONG[part] else "fwd", seqlen=2 * part))
    assert record.status == "wrong", record.reason
    assert ("wrote to its input v" in str(record.reason)) == ("input" in WRONG[part])


def test_a_rank_without_room_does_not_fit(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_workers, "GRACE", 0.3)
    record = fitted(pool, "Fails", case(seqlen=512))
    assert record.status == "oom"
    assert "rank 1: " in str(record.reason)
    assert fitted(pool, "Ulysses", case()).status == "ok"


def test_a_library_that_one_rank_cannot_import_is_named_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ATTNBENCH_TEST_FIRST", str(tmp_path / "first"))
    pool = WorkerPool({"InOneProcess": f"{OWN}:InOneProcess"})
    record = measured(pool, "InOneProcess", case())
    pool.close()
    assert record.status == "failed"
    assert re.fullmatch("its worker did not start: rank [01]: fails at import", str(record.reason))


class Answers:
    """A stand-in for a rank that gives a set answer at once, or never answers."""

    def __init__(self, answer: dict[str, Any] | None) -> None:
        self.answer = answer

    def answered(self, timeout: float) -> bool:
        return self.answer is not None

    def receive(self, timeout: float) -> dict[str, Any]:
        assert self.answer is not None
        return self.answer

    def send_kill(self) -> None: ...

    kill = send_kill


@pytest.mark.parametrize(
    ("first", "seconds", "said"),
    [
        ({"probe": {"reason": "fails at import"}}, 0.1, {"error": "rank 1: fails at import"}),
        ({"probe": {"reason": None}}, 0.8, None),
    ],
)
def test_others_have_less_time_after_a_rank_that_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: dict[str, Any], seconds: float, said: dict[str, Any] | None
) -> None:
    monkeypatch.setattr(rank_workers, "GRACE", 0.1)
    monkeypatch.setattr(rank_workers, "START_GRACE", 0.8)
    group = object.__new__(rank_workers.RankWorkers)
    group._ranks, group._folder = [Answers(None), Answers(first)], tmp_path / "group"  # type: ignore[list-item]
    group._failed, group._left = 0, None
    began = time.monotonic()
    if said:
        assert group.receive(60.0) == said
    else:
        with pytest.raises(WorkerDied, match="rank 0 gave no answer after rank 1 had ended the job"):
            group.receive(60.0)
    assert seconds <= time.monotonic() - began < seconds + 0.6
