"""Faults in results, wrong ones and right ones that were not computed in the call, found by the check of results."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import right_attention
import stale_results
import torch
import wrong_results
from measuring_device import ALL_ROWS, CPU, QUICK, Clock, MeasuringDevice, case, measuring_device

from attnbench import judge
from attnbench.backends.limits import TORCH_LIMITS
from attnbench.backends.shared.function import Function
from attnbench.core.case import DATA, Case
from attnbench.core.policy import Policy
from attnbench.core.record import Accuracy
from pairs import pairs

IN_A_LATER_LAUNCH = ("in the second launch", "in call ", "after timing")
SAMPLED = 2**8  # score elements that the check may recompute: so few that it samples rows
BUDGETS = (ALL_ROWS, SAMPLED)


@pairs(
    direction=["fwd", "bwd", "fwd_bwd"],
    dtype=["fp32", "bf16"],
    sizes=[{}, {"seqlen_k": 80, "causal": True}, {"seqlen": 200}],
    budget=BUDGETS,
)
def test_right_kernels_pass(
    steady_cpu: MeasuringDevice, budget: int, direction: str, dtype: str, sizes: dict[str, Any]
) -> None:
    """No fault: attention by its definition is ok in all these cases, and the report has no caution."""
    record = steady_cpu.passes(right_attention.attention, case(direction, dtype=dtype, **sizes), budget=budget)
    assert steady_cpu.cautions(record) == []
    assert steady_cpu.objections(record) == []


# Wrong in the first launch


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_probabilities_normalised_by_their_log_sum_exp_pass(steady_cpu: MeasuringDevice, direction: str) -> None:
    """No fault: exp(score - log-sum-exp), as with split keys; its rounding is common to a whole row of out."""

    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
        k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * options["softmax_scale"]
        return right_attention.weigh((scores - scores.logsumexp(-1, keepdim=True)).exp(), v)

    steady_cpu.passes(kernel, case(direction, 256, nheads=5, nheads_k=1, headdim=64, headdim_v=64), QUICK)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_zeros(steady_cpu: MeasuringDevice, dtype: str) -> None:
    """Fault: it returns zeros. Found: wrong at the first launch."""
    record = steady_cpu.measure(wrong_results.zeros, case(dtype=dtype))
    assert record.status == "wrong"
    assert "out is off by" in str(record.reason)
    assert "time" not in record.measurements


@pytest.mark.parametrize("sizes", [{}, {"batch": 1, "nheads": 1, "nheads_k": 1}], ids=["4 heads", "1 head"])
def test_an_unwritten_result(steady_cpu: MeasuringDevice, sizes: dict[str, int]) -> None:
    """Fault: it writes nothing. Found: wrong, even where its memory still holds eager's output (1 head)."""
    steady_cpu.finds_wrong(wrong_results.unwritten, case(**sizes))


def test_nan(steady_cpu: MeasuringDevice) -> None:
    """Fault: it returns NaN, whose comparisons with a tolerance are all false. Found: wrong."""
    reason = steady_cpu.finds_wrong(wrong_results.not_finite, case())
    assert "out has values that are not finite" in reason


def test_one_nan_outside_the_sample(steady_cpu: MeasuringDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: one NaN in a row that is not compared. Found: wrong, as every element must be finite."""
    monkeypatch.setitem(judge.SCORE_BUDGET, "cpu", SAMPLED)
    monkeypatch.setattr("attnbench.judge.result_check.draw_seed", lambda: 0)
    which = case(seqlen=512)
    compared = judge.choose_rows(which, torch.device("cpu")).rows.flatten().tolist()
    row = next(row for row in range(512) if row not in compared)
    record = steady_cpu.measure(wrong_results.OneNan(row), which)
    assert record.status == "wrong"
    assert record.accuracy is not None
    assert record.accuracy.unwritten == ("out",)
    assert all(error.ok for error in record.accuracy.errors.values())


@pytest.mark.parametrize("kernel", [wrong_results.always_equal, wrong_results.always_equal_from_torch])
def test_nan_that_compares_equal(steady_cpu: MeasuringDevice, kernel: Any) -> None:
    """Fault: it returns a tensor subclass of NaN that compares equal to anything. Found: failed, as it is no plain
    tensor.
    """
    record = steady_cpu.measure(kernel, case())
    assert record.status == "failed"
    assert "expected a plain torch.Tensor" in str(record.reason)


def test_right_at_multiples_of_128_only(steady_cpu: MeasuringDevice) -> None:
    """Fault: the last, partial tile is wrong. Found: wrong at seqlen 200; at 256 there is no partial tile."""
    assert steady_cpu.measure(wrong_results.even_lengths_only, case(seqlen=256)).status == "ok"
    reason = steady_cpu.finds_wrong(wrong_results.even_lengths_only, case(seqlen=200))
    assert "out is off by" in reason


@pytest.mark.parametrize(
    ("lengths", "direction"), [((64, 80), "fwd"), ((1, 64), "fwd"), ((80, 64), "fwd"), ((64, 80), "bwd")]
)
def test_causal_aligned_top_left(steady_cpu: MeasuringDevice, lengths: tuple[int, int], direction: str) -> None:
    """Fault: causal is aligned top-left. Found: wrong where seqlen_q != seqlen_k; elsewhere there is no difference."""
    steady_cpu.finds_wrong(wrong_results.causal_top_left, case(direction, lengths[0], causal=True, seqlen_k=lengths[1]))


@pytest.mark.parametrize("causal", [False, True])
def test_another_mask(steady_cpu: MeasuringDevice, causal: bool) -> None:
    """Fault: full where causal was asked for, and the other way round. Found: wrong."""
    steady_cpu.finds_wrong(wrong_results.ignores_causal, case(causal=causal))


@pytest.mark.parametrize("budget", [ALL_ROWS, 2**15], ids=["all rows", "half the rows"])
def test_wrong_in_one_head(steady_cpu: MeasuringDevice, budget: int) -> None:
    """Fault: one of 16 heads is not computed. Found: wrong, whichever head it is."""
    for batch, head in itertools.product(range(2), range(8)):
        kernel = wrong_results.WrongInOneHead(batch, head)
        steady_cpu.finds_wrong(kernel, case(nheads=8, nheads_k=8), budget=budget)


def test_a_wrong_tile_in_all_heads(steady_cpu: MeasuringDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: 64 of 1024 rows are wrong in all 8 query heads of a key head, of which 6 rows each are compared. Found:
    wrong, as the heads have other rows. In the same rows of all heads 4 tiles of 16 would be found.
    """
    monkeypatch.setattr("attnbench.judge.row_sample.MIN_ROWS", 4)
    which = case(seqlen=1024, batch=1, nheads=8, nheads_k=1)
    for row in (64, 448, 832, 960):
        steady_cpu.finds_wrong(wrong_results.WrongTile(row), which, budget=6 * 8 * 1024)


@pairs(operands=["qkvp", "qk", "v", "p"], dtype=["bf16", "fp16", "fp32"], causal=[False, True])
def test_fp8_inside(steady_cpu: MeasuringDevice, dtype: str, operands: str, causal: bool) -> None:
    """Fault: operands are rounded to float8_e4m3fn. Found: wrong, as the error exceeds twice eager's in the dtype."""
    reason = steady_cpu.finds_wrong(
        wrong_results.InFewerBits(operands, wrong_results.fp8), case(dtype=dtype, seqlen=256, causal=causal)
    )
    assert "out is off by" in reason


@pytest.mark.parametrize(("dtype", "operands"), [("bf16", "qkvp"), ("bf16", "qkv"), ("bf16", "qk"), ("fp16", "qk")])
def test_int8_inside(steady_cpu: MeasuringDevice, dtype: str, operands: str) -> None:
    """Fault: operands are rounded to int8, with a scale for each row. Found: wrong, at each length and mask."""
    lengths = (256, 1024) if dtype == "bf16" else (256, 256)  # float16 matmuls are slow on a CPU
    kernel = wrong_results.InFewerBits(operands, wrong_results.int8)
    for seqlen, causal in zip(lengths, (True, False), strict=True):
        sizes = {"nheads": 2, "headdim": 64, "headdim_v": 64, "batch": 1}
        steady_cpu.finds_wrong(kernel, case(dtype=dtype, seqlen=seqlen, causal=causal, **sizes))


@pytest.mark.parametrize("seqlen", [128, 512])
@pytest.mark.parametrize("causal", [False, True])
def test_int8_scores_alone(steady_cpu: MeasuringDevice, seqlen: int, causal: bool) -> None:
    """Fault: only q and k are rounded to int8, nothing else where eager rounds four times. Found: wrong, by the root
    mean square; at 128 keys on hard inputs, if not before.
    """
    which = case(dtype="bf16", seqlen=seqlen, causal=causal, nheads=2, headdim=64, headdim_v=64, batch=1)
    record = steady_cpu.measure(wrong_results.int8_scores, which)
    assert record.status == "wrong"
    if seqlen == 512:
        assert str(record.reason).startswith("out is off by")


# On hard inputs


def hard_case(**changes: Any) -> Case:
    softcap = changes.pop("softcap", 0.0)
    sizes = {"dtype": "bf16", "seqlen": 256, "nheads": 2, "headdim": 64, "headdim_v": 64, "batch": 1, **changes}
    return replace(case(**sizes), softcap=softcap)


def found_on_hard_inputs(steady_cpu: MeasuringDevice, kernel: Any, which: Case) -> None:
    reason = steady_cpu.finds_wrong(kernel, which)
    assert reason.startswith("on hard inputs: out ")


@pairs(direction=["fwd", "bwd", "fwd_bwd"], dtype=["fp32", "bf16"], causal=[False, True])
def test_a_softmax_without_its_maximum(steady_cpu: MeasuringDevice, direction: str, dtype: str, causal: bool) -> None:
    """Fault: the largest score is not subtracted. Found: wrong on hard inputs, where the exponential overflows."""
    which = hard_case(direction=direction, dtype=dtype, causal=causal)
    reason = steady_cpu.finds_wrong(wrong_results.no_maximum, which)
    assert reason.startswith("on hard inputs: out ")
    assert reason.endswith("subtract the maximum of each row from its scores")


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("sizes", [{}, {"causal": True}, {"seqlen": 1, "seqlen_k": 256, "nheads": 4}], ids=str)
def test_sums_that_are_not_rescaled(steady_cpu: MeasuringDevice, dtype: str, sizes: dict[str, Any]) -> None:
    """Fault: a large rise of the running maximum is ignored. Found: wrong on hard inputs, whose sinks grow."""
    found_on_hard_inputs(steady_cpu, wrong_results.stale_maximum, hard_case(dtype=dtype, **sizes))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_backward_that_saturates(steady_cpu: MeasuringDevice, dtype: str, causal: bool) -> None:
    """Fault: gradients are lost where scores are beyond 80. Found: wrong on hard inputs, in dq and dk alone."""
    record = steady_cpu.measure(
        wrong_results.saturated_backward, hard_case(direction="bwd", dtype=dtype, causal=causal)
    )
    assert record.status == "wrong"
    assert str(record.reason).startswith("on hard inputs: dq ")
    assert record.accuracy is not None
    assert {name for name, error in record.accuracy.errors.items() if not error.ok} <= {"dq", "dk"}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_backward_that_writes_to_dout_on_outliers(steady_cpu: MeasuringDevice, dtype: str) -> None:
    """Fault: gradients of twice the dout, which it overwrites. Found: wrong on hard inputs."""
    reason = steady_cpu.finds_wrong(wrong_results.doubles_dout, hard_case(direction="bwd", dtype=dtype))
    assert reason.startswith("on hard inputs: ")


class Capped(Function):
    """An own function that accepts a case with a softcap."""

    limits = replace(TORCH_LIMITS, softcap=True)


@pytest.mark.parametrize(("softcap", "causal"), [(50.0, False), (20.0, True)])
def test_a_softcap_that_is_ignored(steady_cpu: MeasuringDevice, softcap: float, causal: bool) -> None:
    """Fault: scores are not capped. Found: wrong on hard inputs for a cap of 50, whose scores are beyond it. No fault:
    ok where they are capped.
    """
    which = hard_case(softcap=softcap, causal=causal)
    steady_cpu.passes(Capped("own", wrong_results.Softcapped(softcap)), which)
    record = steady_cpu.measure(Capped("own", wrong_results.Softcapped(0.0)), which)
    assert record.status == "wrong"
    if softcap == 50:
        assert str(record.reason).startswith("on hard inputs: out ")


@pytest.mark.parametrize(("headdim", "causal"), [(64, True), (128, False)])
def test_sums_in_bf16(steady_cpu: MeasuringDevice, headdim: int, causal: bool) -> None:
    """Fault: products with v are added in bf16 after each 64 of 1024 keys. Found: wrong, for v with a mean. No fault:
    ok where all are added before they are rounded.
    """
    which = hard_case(seqlen=1024, nheads=1, nheads_k=1, headdim=headdim, headdim_v=headdim, causal=causal)

    def checked(block: int) -> Accuracy:
        check = judge.HardInputsCheck(which, torch.device("cpu"))
        prepared = Function("own", wrong_results.SumsInFewBits(block)).prepare(which, check.inputs)
        return check.check_first(prepared.canonical(prepared.launch()))

    right = checked(1024)
    assert right.ok, right.problem()
    assert not checked(64).ok
    if (headdim, causal) == (64, True):
        steady_cpu.finds_wrong(wrong_results.SumsInFewBits(64), which, QUICK)


@pytest.mark.parametrize("operands", ["qkvp", "qk", "v", "p"])
@pytest.mark.parametrize("narrow", [wrong_results.tf32_bits, wrong_results.bf16_bits])
def test_tf32_and_bf16_in_fp32(steady_cpu: MeasuringDevice, operands: str, narrow: Any) -> None:
    """Fault: a float32 case in 10 or 7 bits of mantissa, emulated here. Found: wrong."""
    steady_cpu.finds_wrong(wrong_results.InFewerBits(operands, narrow), case(seqlen=256))


def test_autocast_that_a_call_leaves_on(steady_cpu: MeasuringDevice) -> None:
    """Fault: products of a float32 case in bf16, also those of torch after the call. Found: wrong, in every cell."""

    def leaves_autocast(q: Any, k: Any, v: Any, *, softmax_scale: float, **_: Any) -> torch.Tensor:
        torch.autocast("cpu", torch.bfloat16).__enter__()
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * softmax_scale
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).to(q.dtype)

    try:
        records = [steady_cpu.measure(leaves_autocast, case(seqlen=seqlen, nheads_k=4)) for seqlen in (64, 256)]
    finally:
        torch.set_autocast_enabled("cpu", False)
    assert [record.status for record in records] == ["wrong", "wrong"]


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (wrong_results.another_dtype, "out is torch.float64, expected torch.float32"),
        (wrong_results.another_shape, "out has shape (2, 63, 4, 16), expected (2, 64, 4, 16)"),
        (wrong_results.another_layout, "out has shape (2, 4, 64, 16), expected (2, 64, 4, 16)"),
    ],
)
def test_another_dtype_shape_or_layout(
    steady_cpu: MeasuringDevice, kernel: Any, expected: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Fault: rounding, a row or a transpose are left to the caller. Found: failed, with what was expected."""
    record = steady_cpu.measure(kernel, case())
    assert record.status == "failed"
    assert expected in str(record.reason)
    assert "Traceback" in capfd.readouterr().err


# Gradients


@pytest.mark.parametrize(("direction", "budget"), [("bwd", ALL_ROWS), ("fwd_bwd", SAMPLED)])
def test_right_output_and_wrong_dk(steady_cpu: MeasuringDevice, budget: int, direction: str) -> None:
    """Fault: dk is 5 % too large and all else is right. Found: wrong in dk alone."""
    record = steady_cpu.measure(wrong_results.wrong_dk, case(direction), budget=budget)
    assert record.status == "wrong"
    assert record.accuracy is not None
    assert [name for name, e in record.accuracy.errors.items() if not e.ok] == ["dk"]


@pytest.mark.parametrize(("direction", "budget"), [("bwd", SAMPLED), ("fwd_bwd", ALL_ROWS)])
def test_gradients_that_accumulate(steady_cpu: MeasuringDevice, budget: int, direction: str) -> None:
    """Fault: it adds to .grad and never clears it. Found: wrong, as only the first launch is right."""
    reason = steady_cpu.finds_wrong(wrong_results.AccumulatesGrad(), case(direction, seqlen=256), budget=budget)
    assert reason.startswith(IN_A_LATER_LAUNCH)
    assert "dq is off by" in reason


@pytest.mark.parametrize("budget", BUDGETS)
def test_wrong_where_dout_is_dense(steady_cpu: MeasuringDevice, budget: int) -> None:
    """Fault: dk and dv are right for the sparse dout of the check, and wrong for the timed one. Found: wrong."""
    steady_cpu.finds_wrong(wrong_results.wrong_where_dense, case("bwd", seqlen=256), QUICK, budget)


# Right, but not computed in the call


@pairs(
    clone=[False, True],
    key=[stale_results.by_address, stale_results.by_version],
    direction=["fwd", "fwd_bwd"],
    budget=BUDGETS,
)
def test_a_stored_output(steady_cpu: MeasuringDevice, budget: int, clone: bool, key: Any, direction: str) -> None:
    """Fault: it returns the last output for the same addresses, or a copy of it. Found: wrong in a later launch."""
    kernel = stale_results.CachesOutput(key, clone=clone)
    reason = steady_cpu.finds_wrong(kernel, case(direction), budget=budget)
    assert reason.startswith(IN_A_LATER_LAUNCH)
    assert "out is off by" in reason


def test_a_stored_output_by_one_value(steady_cpu: MeasuringDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: it returns the last output where one value of each input is the same. Found: wrong, unless it changed."""
    monkeypatch.setattr("attnbench.judge.case_judge.draw_seed", lambda: 0)
    which = case(seqlen=256, headdim=64, headdim_v=64)

    def status(place: int) -> str:
        stored = stale_results.CachesOutput(lambda t: float(t.flatten()[place]), clone=True)
        return steady_cpu.measure(stored, which).status

    found = [status(place) for place in (0, 16, 32, 48)]
    assert found.count("wrong") >= 3


def test_a_stored_output_by_contents(cpu: MeasuringDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: it returns the last output where a few input values are the same. Found: wrong, or too fast."""
    monkeypatch.setattr("attnbench.judge.case_judge.draw_seed", lambda: 0)
    which = case(seqlen=512, headdim=64, headdim_v=64)
    assert cpu.measure(right_attention.attention, which).status == "ok"
    record = cpu.measure(stale_results.CachesOutput(stale_results.by_contents, clone=True), which)
    assert cpu.objections(record), "it passed as right"


def test_stored_probabilities(cpu: MeasuringDevice) -> None:
    """Fault: softmax(q k) is computed once for the same addresses, and only v is multiplied. Found: wrong."""
    record = cpu.measure(stale_results.CachesProbabilities(), case(seqlen=512, headdim=64, headdim_v=64))
    assert cpu.objections(record), "it passed as right"


def test_an_output_named_as_an_input(steady_cpu: MeasuringDevice) -> None:
    """Fault: it computes in `prepare` and names its output as the v that it reads; both change. Found: marked."""
    record = steady_cpu.measure(stale_results.NamesItsOutputAsInput(), case())
    assert steady_cpu.objections(record), "it passed as right"


@pytest.mark.parametrize(
    ("kernel", "direction", "budget"),
    [
        (stale_results.CachesGradients(), "bwd", SAMPLED),
        (stale_results.CachesGradients(), "fwd_bwd", ALL_ROWS),
        (stale_results.caches_gradients_in_context, "bwd", ALL_ROWS),
        (stale_results.caches_gradients_in_context, "bwd", SAMPLED),
    ],
)
def test_stored_gradients(steady_cpu: MeasuringDevice, kernel: Any, direction: str, budget: int) -> None:
    """Fault: it returns the last gradients for the same addresses of q, k, v and dout, or the first of the graph, which
    it keeps in autograd's context. Found: wrong in a later launch.
    """
    reason = steady_cpu.finds_wrong(kernel, case(direction), budget=budget)
    assert reason.startswith(IN_A_LATER_LAUNCH)
    assert "dq is off by" in reason


@pytest.fixture(scope="module")
def simulated_cpu() -> Iterator[tuple[MeasuringDevice, Clock]]:
    """The CPU on a simulated clock that kernels can move."""
    clock = Clock(1e-5)
    yield from ((made, clock) for made in measuring_device(CPU, clock))


def test_one_call_in_four_computes(simulated_cpu: tuple[MeasuringDevice, Clock]) -> None:
    """Fault: three calls of four return the last output in a thousandth of the time. Found: whichever call computes."""
    device, clock = simulated_cpu
    policy = Policy(l2="warm", warmup_s=0.0, min_samples=40, max_samples=40, min_seconds=0.0)
    passed = [
        phase
        for phase in range(4)
        if not device.objections(
            device.measure(stale_results.ComputesEveryFourthCall(phase, clock.spend), case(), policy), policy
        )
    ]
    assert passed == []


# Work after the launch


@pytest.mark.parametrize("first_whole", [False, True])
def test_work_left_for_the_next_call(steady_cpu: MeasuringDevice, first_whole: bool) -> None:
    """Fault: half the batch is computed at the start of the next call. Found: wrong, at once or in a later launch."""
    reason = steady_cpu.finds_wrong(stale_results.LeavesWorkToNextCall(first_whole=first_whole), case())
    assert reason.startswith(IN_A_LATER_LAUNCH if first_whole else "out")


@pytest.mark.parametrize("buffer", [False, True], ids=["not written yet", "an earlier answer"])
def test_work_left_to_a_thread(steady_cpu: MeasuringDevice, buffer: bool) -> None:
    """Fault: it returns at once, and a Python thread computes later. Found: wrong, as the result is not there."""
    kernel = stale_results.ComputesLaterInThread(0.5, buffer=buffer)
    record = steady_cpu.measure(kernel, case())
    kernel.join()
    assert record.status == "wrong"
    assert str(record.reason).startswith("in the second launch" if buffer else "out")


# Changed inputs


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_zeroes_its_inputs(steady_cpu: MeasuringDevice, direction: str) -> None:
    """Fault: `prepare` zeroes q, which draws less power. Found: wrong, as the reference was computed before."""
    steady_cpu.finds_wrong(stale_results.ZeroesItsInputs(), case(direction))


def test_zeroes_its_inputs_after_the_check(steady_cpu: MeasuringDevice) -> None:
    """Fault: the second `prepare`, for the timed launch, zeroes q. Found: wrong, as sampled rows are compared again."""
    steady_cpu.finds_wrong(stale_results.ZeroesItsInputs(2), case("bwd", seqlen=256), budget=SAMPLED)


def test_zeroes_gradients_that_are_not_compared(steady_cpu: MeasuringDevice) -> None:
    """Fault: the second `prepare` zeroes the rows of dout that the check leaves out. Found: inputs must not change."""
    record = steady_cpu.measure(stale_results.ZeroesUncheckedGradients(), case("bwd", seqlen=256), budget=SAMPLED)
    assert steady_cpu.objections(record), "it passed as right"


def test_an_input_that_is_written_to_is_named_where_that_spoils_a_gradient(steady_cpu: MeasuringDevice) -> None:
    """Fault: q is scaled in place, so that the next call reads what this one wrote. Found: wrong, and why."""
    reason = steady_cpu.finds_wrong(stale_results.scales_without_a_graph, case("bwd"))
    assert reason.endswith("it wrote to its input q")


@pytest.mark.parametrize("kernel", [stale_results.scales_in_place, stale_results.writes_output_to_q])
def test_changes_its_inputs(steady_cpu: MeasuringDevice, kernel: Any) -> None:
    """Fault: each call writes to its inputs, so that only the first on any inputs is right. Found: wrong."""
    record = steady_cpu.measure(kernel, case())
    assert record.status == "wrong"
    assert record.reason == "it wrote to its input q"


# Other data than standard normal


@pairs(
    data=DATA,
    attention=[right_attention.attention, right_attention.fused],
    direction=["fwd", "bwd"],
    causal=[False, True],
    dtype=["fp32", "bf16"],
    budget=BUDGETS,
)
def test_right_kernels_pass_on_all_data(
    steady_cpu: MeasuringDevice, budget: int, causal: bool, dtype: str, direction: str, data: str, attention: Any
) -> None:
    """No fault: attention by its definition and torch's fused one. ok on all data, with a note on zeros alone."""
    which = replace(case(direction, 256, dtype, causal, nheads=2, nheads_k=2), data=data)
    record = steady_cpu.passes(attention, which, QUICK, budget)
    assert any(note.startswith("data zeros: ") for note in record.notes) == (data == "zeros")
    assert record.accuracy is not None
    assert all(math.isfinite(error.relative) for error in record.accuracy.errors.values())


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_kernel_of_zeros_on_zeros(steady_cpu: MeasuringDevice, direction: str) -> None:
    """Fault: it returns zeros, which are right where all inputs are. Found: wrong, by the launch on hard inputs."""

    def zeros(*given: torch.Tensor, **options: Any) -> torch.Tensor:
        return 0 * right_attention.attention(*given, **options)  # has gradients, which are zeros too

    reason = steady_cpu.finds_wrong(zeros, replace(case(direction), data="zeros"), QUICK)
    assert reason.startswith("on hard inputs: ")


@pytest.mark.parametrize("operands", ["qkvp", "qk", "v", "p"])
@pytest.mark.parametrize(
    ("narrow", "direction"), [(wrong_results.tf32_bits, "fwd"), (wrong_results.bf16_bits, "bwd")], ids=["tf32", "bf16"]
)
def test_fewer_bits_on_outliers(steady_cpu: MeasuringDevice, narrow: Any, direction: str, operands: str) -> None:
    """Fault: a float32 case in 10 or 7 bits of mantissa, with scores of 10 to 20. Found: wrong at the first launch."""
    which = replace(hard_case(dtype="fp32", direction=direction), data="outliers")
    reason = steady_cpu.finds_wrong(wrong_results.InFewerBits(operands, narrow), which, QUICK)
    assert not reason.startswith((*IN_A_LATER_LAUNCH, "on hard inputs: "))
