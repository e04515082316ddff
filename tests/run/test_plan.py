"""The plan: complete, shuffled by a seed, with a reason for every job that will not run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from attnbench.core.backend import Workspace
from attnbench.core.case import Case
from attnbench.core.flops import flops
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.core.record import Job
from attnbench.core.sizes import parse_duration
from attnbench.render.progress.run_progress import plan_summary
from attnbench.run import plan
from attnbench.run.plan import CaseSupport
from builders import CPU, H200, case

CASES = tuple(case(n, causal=c) for n in (1024, 2048, 4096, 8192) for c in (False, True))
H200_READ = replace(H200, matmul={"bf16": 700e12, "fp16": 700e12}, copy=4e12)


def make(
    answers: dict[str, CaseSupport] | None = None,
    cases: tuple[Case, ...] = CASES,
    device: Device = H200_READ,
    policy: Policy | None = None,
    **more: Any,
) -> tuple[Job, ...]:
    answers = answers or {"eager": CaseSupport(), "triton": CaseSupport()}
    return plan.make_plan(cases, {n: [a] * len(cases) for n, a in answers.items()}, device, policy or Policy(), **more)


def test_every_case_on_every_backend_in_every_round_once() -> None:
    jobs = make(rounds=3)
    assert Counter((j.case, j.backend, j.round) for j in jobs) == {
        (c, name, round_): 1 for c in CASES for name in ("eager", "triton") for round_ in range(3)
    }
    assert [j.round for j in jobs] == sorted(j.round for j in jobs)
    assert len({j.id for j in jobs}) == len(jobs)


def test_a_case_may_be_of_some_backends_only() -> None:
    answers = {name: CaseSupport() for name in ("eager", "sdpa-flash", "sdpa-cudnn")}
    jobs = make(answers, only={CASES[0]: ("sdpa-*",), CASES[1]: ("eager", "fa3")})
    of = {case: {job.backend for job in jobs if job.case == case} for case in CASES}
    assert (of[CASES[0]], of[CASES[1]], of[CASES[2]]) == ({"sdpa-flash", "sdpa-cudnn"}, {"eager"}, {*answers})


def test_a_backend_of_another_kind_of_attention_says_so_only_where_it_computes_nothing_else() -> None:
    softmax, gdn, indexer = (
        replace(case(4096, nheads_k=1), causal=True, kind=kind, mask=mask)
        for kind, mask in (("softmax", ""), ("gdn", ""), ("indexer", "topk:2k"))
    )
    of_all = {name: CaseSupport() for name in ("triton", "fla", "mine")}

    def planned(*cases: Case) -> set[tuple[str, str]]:
        return {(job.case.kind, job.backend) for job in make(of_all, cases)}

    own = {("softmax", "mine"), ("gdn", "mine")}
    assert planned(softmax, gdn) == {("softmax", "triton"), ("gdn", "fla"), *own}
    assert planned(gdn) == {("gdn", name) for name in of_all}  # why triton has no figure is said
    assert planned(indexer, gdn) == {(kind, name) for kind in ("indexer", "gdn") for name in of_all} - {
        ("indexer", "fla")  # `mine` may compute it
    }


def test_the_backends_of_a_case_follow_each_other() -> None:
    jobs = make({name: CaseSupport() for name in "abc"})
    for i in range(0, len(jobs), 3):
        assert len({j.case for j in jobs[i : i + 3]}) == 1


def test_backends_that_come_last_do_so_in_each_round() -> None:
    answers = {name: CaseSupport() for name in "abc"}
    usual, jobs = make(answers, rounds=2), make(answers, rounds=2, last={"b"})
    order = [(0, False), (0, True), (1, False), (1, True)]  # (round, whether the backend comes last)
    assert [*jobs] == [job for at in order for job in usual if (job.round, job.backend == "b") == at]


def test_the_first_round_begins_with_what_a_person_looks_at_first() -> None:
    """The first round begins with all lengths and passes of one panel, the cheapest first; others are in any order."""
    cases = tuple(
        case(n, headdim=d, causal=causal, direction=way)
        for d in (64, 128, 256)
        for causal in (True, False)
        for way in ("fwd", "bwd")
        for n in (4096, 1024, 2048)
    )
    planned = [job.case for job in make(cases=cases, rounds=2) if job.backend == "eager"]
    first, again = planned[: len(cases)], planned[len(cases) :]
    assert {(c.shape.headdim, c.causal) for c in first[:6]} == {(128, True)}
    assert [flops(c) for c in first[:6]] == sorted(flops(case) for case in first[:6])
    others = [flops(c) for c in first[6:]]
    assert others != sorted(others)
    assert {(c.shape.headdim, c.causal) for c in again[:6]} != {(128, True)}


def test_order_is_shuffled_by_the_seed() -> None:
    jobs = make(rounds=2)
    assert jobs == make(rounds=2)
    assert jobs != make(rounds=2, policy=Policy(seed=1))
    first, second = ([j for j in jobs if j.round == r] for r in (0, 1))
    assert [j.case for j in first] != [j.case for j in second]
    assert list(dict.fromkeys(j.case for j in first)) != list(CASES)
    assert {tuple(j.backend for j in first[i : i + 2]) for i in range(0, len(first), 2)} == {
        ("eager", "triton"),
        ("triton", "eager"),
    }


def test_answers_stay_with_their_case() -> None:
    """Answers stay with their cases, which the plan shuffles."""
    answers = [CaseSupport(reason=f"no {c.key}") if c.causal else CaseSupport() for c in CASES]
    for job in plan.make_plan(CASES, {"a": answers}, H200_READ, Policy()):
        assert job.skip == (f"no {job.case.key}" if job.case.causal else None)
        assert not job.resumable


def test_scores_that_do_not_fit_are_skipped_and_said() -> None:
    scores = CaseSupport(workspace=Workspace(300 * 2**30, "scores"))
    skips = {j.backend: j.skip for j in make({"eager": scores, "triton": CaseSupport()}, CASES[:1])}
    assert skips["triton"] is None
    assert skips["eager"] is not None
    assert skips["eager"].startswith("needs 300 GiB of scores; ")
    assert skips["eager"].endswith(" GiB free")


def test_tensors_that_do_not_fit_are_skipped_without_blaming_the_workspace() -> None:
    huge = case(2**20, batch=64)
    (job,) = make({"triton": CaseSupport(workspace=Workspace(2**20, "log-sum-exp"))}, (huge,))
    assert job.skip is not None
    assert "log-sum-exp" not in job.skip
    assert job.skip.startswith("needs ")
    assert job.forecast.nbytes > H200.free


def test_the_backends_own_reason_comes_first() -> None:
    (job,) = make({"eager": CaseSupport("no softcap", Workspace(2**50, "scores"))}, CASES[:1])
    assert job.skip == "no softcap"


def test_workers_contexts_are_counted_on_a_gpu() -> None:
    """On a GPU the contexts of workers count: a case that fits beside one worker may not fit beside nine others."""
    big = CaseSupport(workspace=Workspace(H200.free - 5 * 2**30, "scores"))
    assert [j.skip for j in make({"a": big}, CASES[:1])] == [None]
    many = make({f"b{i}": big for i in range(10)}, CASES[:1])
    assert all(j.skip for j in many)
    absent = {f"b{i}": CaseSupport("not installed") for i in range(9)}  # workers that do not open the device
    assert [j.skip for j in make({"a": big, **absent}, CASES[:1]) if j.backend == "a"] == [None]
    on_cpu = replace(CPU, free=H200.free)
    assert not any(j.skip for j in make({f"b{i}": big for i in range(10)}, CASES[:1], on_cpu))


def limited(jobs: tuple[Job, ...], seconds: float, kind: str = "cuda", last: tuple[str, ...] = ()) -> tuple[Job, ...]:
    return plan.within(jobs, seconds, kind, last)


BOTH = tuple(replace(c, direction=way) for c in CASES for way in ("fwd", "bwd"))


def total(jobs: Iterable[Job]) -> float:
    return sum(job.forecast.seconds for job in jobs if not job.skip)


def test_a_time_limit_keeps_whole_cases_from_the_cheapest_on() -> None:
    """A time limit keeps whole cases, from the cheapest on, with all backends and passes; the others are resumable."""
    answers = {name: CaseSupport(efficiency=e) for name, e in (("fast", 0.8), ("slow", 1e-4))}
    free = make(answers, BOTH, rounds=2)
    costs = {c: total(j for j in free if plan.problem(j.case) == plan.problem(c)) for c in CASES}
    cheapest = sorted(CASES, key=lambda c: costs[c])
    limit = sum(costs[c] for c in cheapest[:3]) * 1.01
    jobs = limited(free, limit)
    assert Counter(replace(j.case, direction="fwd") for j in jobs if not j.skip) == dict.fromkeys(cheapest[:3], 8)
    assert total(jobs) <= limit
    assert all(j.resumable and "--time-limit" in str(j.skip) for j in jobs if j.skip)
    assert {j.id for j in jobs} == {j.id for j in free}
    order = [replace(j.case, direction="fwd") for j in jobs if not j.skip and not j.round]
    assert list(dict.fromkeys(order)) == cheapest[:3], "the cheapest first, should the forecasts be too low"
    assert [j.round for j in jobs] == sorted(j.round for j in jobs)


def test_a_time_limit_does_not_touch_other_skips() -> None:
    jobs = limited(make({"a": CaseSupport(), "b": CaseSupport("refused")}), 1e-6)
    assert {(j.backend, j.resumable) for j in jobs} == {("a", True), ("b", False)}
    assert {j.skip for j in jobs if j.backend == "b"} == {"refused"}
    nothing = make({"b": CaseSupport("refused")})
    assert limited(nothing, 1.0) == nothing


def test_a_limit_with_much_room_changes_nothing() -> None:
    free = make()
    assert limited(free, 3 * total(free)) == free
    assert plan.left_out(free, free, 3 * total(free), "cuda") == ""


def test_backends_that_come_last_do_so_within_a_time_limit() -> None:
    free = make({name: CaseSupport() for name in "abc"}, last={"b"})
    jobs = limited(free, total(free), last=("b",))
    assert [j.backend == "b" for j in jobs] == [False] * 16 + [True] * 8


def forecast(which: Case, answer: CaseSupport | None = None, device: Device = H200_READ) -> Any:
    return plan.forecast_job(which, answer or CaseSupport(), device, Policy())


def test_forecasts_follow_the_work() -> None:
    one, two = (forecast(case(n, batch=1, nheads=16)).call for n in (2**15, 2**16))
    assert two == pytest.approx(4 * one, rel=0.02)
    square = case(2**15, batch=1)
    fast, slow = (forecast(square, CaseSupport(efficiency=e)).call for e in (0.8, 0.2))
    assert slow == pytest.approx(4 * fast, rel=0.02)
    exact = 4 * 2**30 * 128 * 16 / (700e12 * 0.4)
    assert forecast(square).call == pytest.approx(exact, rel=0.02)
    backward = case(2**15, batch=1, direction="bwd")
    assert forecast(backward).call == pytest.approx(2.5 * exact, rel=0.02)
    assert forecast(backward).nbytes > forecast(square).nbytes


def test_forecasts_count_what_a_workspace_moves() -> None:
    space = Workspace(2**40, passes=3.0)
    without, with_it = forecast(CASES[0]), forecast(CASES[0], CaseSupport(workspace=space))
    assert with_it.call - without.call == pytest.approx(3 * 2**40 / 4e12)
    assert with_it.nbytes - without.nbytes == 2**40


def test_masked_pairs_cost_where_they_are_computed() -> None:
    full, causal = case(2**15, batch=1), case(2**15, batch=1, causal=True)
    assert forecast(causal).call == pytest.approx(forecast(full).call / 2, rel=0.02)
    dense = CaseSupport(workspace=Workspace(dense=True))
    assert forecast(causal, dense).call == pytest.approx(forecast(full, dense).call, rel=0.02)


def seconds(policy: Policy, device: Device = H200_READ, which: Case | None = None) -> float:
    return plan.forecast_job(which or case(2**14, batch=1), CaseSupport(), device, policy).seconds


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize(("direction", "calls"), [("fwd", 3), ("bwd", 6)])
def test_forecasts_count_the_launches_of_the_checks(kind: Any, direction: Any, calls: int) -> None:
    """Forecasts include the checks: three launches of a long call, each with its forward, besides the timed one."""
    policy = Policy(min_samples=1, max_seconds=0.0, warmup_s=0.0)
    slow = replace(H200, kind=kind, matmul={"bf16": 1e12}, copy=1e12)
    found = plan.forecast_job(case(2**14, batch=1, direction=direction), CaseSupport(), slow, policy)
    beside = plan.OVERHEAD[kind] + (plan.BACKWARD_OVERHEAD[kind] if direction != "fwd" else 0.0)
    assert found.seconds - beside == pytest.approx((calls + 1) * found.call, rel=1e-3)


def test_forecasts_count_the_gradients_of_packed_inputs_twice() -> None:
    native = case(4096, direction="bwd")
    s, packed = native.shape, replace(native, layout="packed")
    more = forecast(packed).nbytes - forecast(native).nbytes
    assert more == 2 * s.batch * s.seqlen_q * (s.nheads + 2 * s.nheads_k) * s.headdim
    forward = replace(native, direction="fwd")
    assert forecast(replace(forward, layout="packed")).nbytes == forecast(forward).nbytes


def test_forecasts_count_the_first_call_of_each_kind_of_case() -> None:
    """A compiler's seconds count once for all lengths of a backend, mask and pass, and again for others, on a GPU."""
    cases = (*CASES, *(replace(of, direction="bwd") for of in CASES), replace(CASES[0], page_size=16))
    kinds = len({(of.causal, of.shape.headdim, of.direction, of.page_size) for of in cases})
    assert kinds < len(cases)
    for device, more in ((H200_READ, 3.0 * kinds), (CPU, 0.0)):
        without, with_it = (
            total(make({"a": CaseSupport(compiles=seconds), "b": CaseSupport()}, cases, device, rounds=2))
            for seconds in (0.0, 3.0)
        )
        assert with_it - without == pytest.approx(more)


def test_forecasts_count_a_sustained_run() -> None:
    assert seconds(Policy(sustained_s=20.0)) - seconds(Policy()) == pytest.approx(20.0)


def test_forecasts_count_the_share_of_cells_that_are_cross_checked() -> None:
    none, some, each = (seconds(Policy(cross_check=share)) for share in (0.0, 0.1, 1.0))
    assert none < some < each
    assert each - none == pytest.approx(10 * (some - none))
    assert (
        each - none > 24 * plan.forecast_job(case(2**14, batch=1), CaseSupport(), H200_READ, Policy()).call
    )  # 8 turns of 3
    on_cpu = replace(CPU, matmul={"bf16": 1e12}, copy=1e10)
    assert seconds(Policy(cross_check=1.0), on_cpu) == seconds(Policy(), on_cpu)


def test_forecasts_follow_how_many_samples_are_taken_at_least() -> None:
    few, many = (seconds(Policy(min_samples=n), replace(H200, matmul={"bf16": 1e12})) for n in (2, 6))
    assert few < many


@pytest.mark.parametrize("device", [H200, CPU, replace(H200, kind="fake"), H200_READ])
def test_forecasts_are_positive_on_any_device(device: Device) -> None:
    for which in (case(1, dtype="fp32"), case(1024, direction="bwd")):
        found = forecast(which, device=device)
        assert 0 < found.call < found.seconds
        assert found.nbytes > 0


def test_summary() -> None:
    jobs = make({"a": CaseSupport(), "b": CaseSupport("refused")}, CASES[:2])
    text = plan_summary(jobs)
    assert text.startswith("2 jobs to measure, forecast ")
    assert text.endswith("; 1 backend cannot run them")
    assert "skipped" not in plan_summary(make(cases=CASES[:2]))


def test_on_a_cpu_a_time_limit_leaves_out_the_longest_sequences() -> None:
    cases = tuple(case(n, dtype="fp32", direction=d) for n in (512, 1024, 2048, 4096) for d in ("fwd", "bwd"))
    free = make(cases=cases, device=CPU)
    limit = total(job for job in free if job.case.shape.seqlen_k <= 1024) * 1.01
    capped = limited(free, limit, "cpu")
    assert [job.case.shape.seqlen_k for job in capped] == [512] * 4 + [1024] * 4
    assert not any(job.skip for job in capped)
    said = plan.left_out(free, capped, limit, "cpu")
    assert "leaves out 4 of 8 cases, of seqlen 2k to 4k: --time-limit" in said
    found = re.search(r"--time-limit (\w+) takes in the next, (\w+) all of them", said)
    assert found, said
    next_, all_ = map(parse_duration, found.groups())
    assert {job.case.shape.seqlen_k for job in limited(free, next_, "cpu")} == {512, 1024, 2048}
    assert plan.left_out(free, limited(free, all_, "cpu"), all_, "cpu") == ""


def test_where_not_even_the_shortest_fits_its_cheapest_jobs_are_planned() -> None:
    cases = tuple(case(n, dtype="fp32", direction=d) for n in (512, 1024) for d in ("fwd", "bwd"))
    free = make(cases=cases, device=CPU)
    cheapest = min((job for job in free if job.case.shape.seqlen_k == 512), key=lambda job: job.forecast.seconds)
    jobs = limited(free, cheapest.forecast.seconds * 1.01, "cpu")
    assert {job.case.shape.seqlen_k for job in jobs} == {512}
    assert [job.forecast.seconds for job in jobs if not job.skip] == [cheapest.forecast.seconds]
    assert all(job.resumable for job in jobs if job.skip)
