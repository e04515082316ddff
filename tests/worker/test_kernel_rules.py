"""The kernel rules, on a profiler's kernel names, and the judgement of a traced launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnbench.backends import BACKENDS, load
from attnbench.backends.base import BackendBase
from attnbench.core.activity import Activity, busy_seconds
from attnbench.core.backend import Backend, Prepared, Signature
from attnbench.core.case import DIRECTIONS, Case
from attnbench.core.machine import Device
from attnbench.worker import kernel_trace
from attnbench.worker.instruments import Timing
from attnbench.worker.kernel_rules import (
    NAME_LENGTH,
    count_by_name,
    find_broken_rule,
    find_low_share,
    first_computing_operator,
    short_name,
)
from attnbench.worker.measure.cupti import TracedCall, Untraceable
from attnbench.worker.measure_cell import CellMeasurer
from builders import case, measurements

FLASH = (
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t, "
    "Flash_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t> >, false, true, false, false, true, true, false, false>"
    "(pytorch_flash::Flash_fwd_params)"
)
FLASH_BACKWARD = FLASH.replace("fwd", "bwd")
SOFTMAX = (
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, c10::BFloat16, float, c10::BFloat16, "
    "at::native::(anonymous namespace)::SoftMaxForwardEpilogue>(c10::BFloat16*, c10::BFloat16 const*, int)"
)
EFFICIENT = (
    "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t, "
    "cutlass::arch::Sm80, true, 64, 128, 128, true, true>::Params)"
)
EFFICIENT_BACKWARD = "fmha_cutlassB_bf16_aligned_128x128_k128_sm80(PyTorchMemEffAttention::Params)"
CUDNN = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0"
CUDNN_BACKWARD = CUDNN.replace("fprop", "bprop")
FILL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, std::array<char*, 1ul> >"
    "(int, at::native::FillFunctor<int>, std::array<char*, 1ul>)"
)
NVJET = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
F32_XMMA = (
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_"
    "execute_kernel__5x_cublas"
)
F32_SGEMM = "ampere_sgemm_128x64_nn"
F32_SGEMM_EX = "void magma_sgemmEx_kernel<float, float, float, true, false, 6, 4, 6, 3, 4>(int, int, int)"
TF32_XMMA = "sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize128x128x32_warpgroupsize2x1x1_execute_segment_k_off_kernel"
TF32_OLDER = "sm80_xmma_gemm_tf32f32_tf32f32_f32_nt_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8_kernel"
TF32_CUTLASS = (
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4>"
    "(cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4::Params)"
)
BF16_PRODUCTS = (
    NVJET,
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_64x1_nn_align8>(X::Params)",
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_tn",
    "ampere_fp16_s1688gemm_fp16_128x128_ldg8_f2f_stages_32x1_nn",
    "void cutlass::Kernel2<cutlass_75_tensorop_s1688gemm_f16_256x128_32x2_nn_align8>(X::Params)",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel",
    "void magma_sgemmEx_kernel<float, __nv_bfloat16, __nv_bfloat16, true, false, 6, 4, 6, 3, 4>(int, int, int)",
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Memset (Device)", "Memset (Device)"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"),
        (NVJET, NVJET),
        (F32_SGEMM, F32_SGEMM),
        ("_forward", "_forward"),
        (EFFICIENT, "fmha_cutlassF_bf16_aligned_64x128_rf_sm80"),
        (
            SOFTMAX,
            "at::native::cunn_SoftMaxForward<4, c10::BFloat16, float, c10::BFloat16, "
            "at::native::SoftMaxForwardEpilogue>",
        ),
        (FILL, "at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, std::array<char*, 1ul> >"),
        ("void (anonymous namespace)::softmax_warp_forward<float, 10>(float*, int)", "softmax_warp_forward<float, 10>"),
        ("void f<void (*)(int), g(3)>(int)", "f<void (*)(int), g(3)>"),
    ],
)
def test_a_short_name_keeps_the_template_arguments(name: str, expected: str) -> None:
    assert short_name(name) == expected
    assert short_name(short_name(name)) == expected


@pytest.mark.parametrize(
    ("name", "start"),
    [
        (FLASH, "pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4"),
        (F32_XMMA, "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3"),
    ],
)
def test_a_long_name_is_cut(name: str, start: str) -> None:
    assert short_name(name).startswith(start)
    assert short_name(name).endswith("...")
    assert len(short_name(name)) == NAME_LENGTH
    assert "Flash_fwd_params" not in short_name(name)


def test_kernels_are_counted_in_the_order_of_first_appearance() -> None:
    found = count_by_name([SOFTMAX, NVJET, FILL, NVJET])
    assert found == {short_name(SOFTMAX): 1, NVJET: 2, short_name(FILL): 1}
    assert list(found) == [short_name(SOFTMAX), NVJET, short_name(FILL)]
    assert count_by_name([]) == {}


BF16, FP32 = case(), case(dtype="fp32")


def broken_rule(signature: Signature, *names: str, which: Case = BF16) -> str | None:
    return find_broken_rule(which, signature, count_by_name(names))


def test_declared_kernels_break_no_rule() -> None:
    assert broken_rule(Signature(), FLASH) is None
    assert broken_rule(Signature(("flash_fwd",), ("cudnn",)), FILL, FLASH) is None
    assert broken_rule(Signature(("flash_fwd", "flash_bwd")), FLASH, FLASH_BACKWARD) is None


def test_a_call_without_kernels_breaks_a_rule() -> None:
    for signature in (Signature(), Signature(("flash_fwd",))):
        assert str(broken_rule(signature)).startswith("nothing ran on the device during the launch")


def test_a_required_kernel_did_not_run() -> None:
    assert broken_rule(Signature(("flash_fwd",)), NVJET, SOFTMAX) == (
        f"no kernel like 'flash_fwd' ran; instead: {NVJET}, {short_name(SOFTMAX)}"
    )
    assert str(broken_rule(Signature(("flash_fwd", "flash_bwd")), FLASH)).startswith("no kernel like 'flash_bwd' ran")


def test_of_many_kernels_four_are_named() -> None:
    text = str(broken_rule(Signature(("flash_fwd",)), *(f"kernel_{i}" for i in range(9))))
    assert text.endswith("instead: kernel_0, kernel_1, kernel_2, kernel_3 and 5 more")
    assert str(broken_rule(Signature(("flash_fwd",)), *"abcd")).endswith("instead: a, b, c, d")


def test_of_operators_those_that_compute_are_named_products_first() -> None:
    ran = ("aten::expand", "aten::empty_like", "aten::copy_", "aten::view", "aten::bmm<float>")
    assert str(broken_rule(Signature(("mine",)), *ran)).endswith("instead: aten::bmm<float>, aten::copy_")
    assert str(broken_rule(Signature(("mine",)), "aten::view")).endswith("instead: aten::view")


def test_an_excluded_kernel_ran() -> None:
    text = broken_rule(Signature(("SoftMax",), ("flash|fmha",)), SOFTMAX, EFFICIENT)
    assert text == "fmha_cutlassF_bf16_aligned_64x128_rf_sm80 ran, which is another implementation's"


@pytest.mark.parametrize("name", [F32_XMMA, F32_SGEMM, F32_SGEMM_EX, TF32_XMMA, TF32_OLDER, TF32_CUTLASS])
def test_a_float32_product_in_a_half_precision_case(name: str) -> None:
    for dtype in ("bf16", "fp16"):
        text = broken_rule(Signature(("SoftMax",)), SOFTMAX, name, which=replace(BF16, dtype=dtype))
        assert str(text).startswith(f"{short_name(name)} ran: a float32 product in a {dtype} case; ")
    assert broken_rule(Signature(), name, which=FP32) is None
    assert broken_rule(Signature(("gemm",)), name) is None  # the signature declares this kernel
    assert broken_rule(Signature(("SoftMax",)), SOFTMAX, name, which=FP32) is None


@pytest.mark.parametrize("name", BF16_PRODUCTS)
def test_a_half_precision_product_breaks_no_rule(name: str) -> None:
    assert broken_rule(Signature(), name) is None


VIEWS = ["aten::transpose", "aten::detach", "detach", "aten::as_strided", "aten::view", "aten::_unsafe_view", "aten::t"]


@pytest.mark.parametrize(
    "name", ["aten::copy_", "aten::clone", "aten::contiguous", "aten::to", "aten::mul", "aten::tanh"]
)
def test_views_compute_nothing(name: str) -> None:
    assert first_computing_operator(VIEWS) is None
    assert first_computing_operator([]) is None
    assert first_computing_operator([*VIEWS, name, "aten::bmm"]) == name


DEVICES = [Device("cpu", 0, "a CPU", 2**34, 2**34), Device("cuda", 0, "a GPU", 2**36, 2**36, (9, 0))]


def backend(name: str) -> Backend:
    return load(name, BACKENDS[name])


HALVES = {
    "eager": ([NVJET, SOFTMAX], [SOFTMAX.replace("Forward", "Backward"), NVJET]),
    "sdpa-math": ([NVJET, SOFTMAX], [F32_XMMA]),
    "sdpa-efficient": ([EFFICIENT], [EFFICIENT_BACKWARD]),
    "sdpa-flash": ([FLASH], [FLASH_BACKWARD]),
    "sdpa-cudnn": ([CUDNN], [CUDNN_BACKWARD]),
    "triton": (["_forward"], ["_delta", "_dk_dv", "_dq"]),
    "gluon": (["_forward_hopper"], ["_delta", "_backward_hopper", "_scale_dq"]),
}  # on a GPU: the kernels of a forward and of a backward


def kernels(name: str, direction: str) -> list[str]:
    forward, backward = HALVES[name]
    return {"fwd": forward, "bwd": backward, "fwd_bwd": forward + backward}[direction]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", HALVES)
def test_a_signature_accepts_its_own_kernels_and_no_others(name: str, direction: Any) -> None:
    which = case(direction=direction)
    signature = backend(name).signature(which, DEVICES[1])
    assert broken_rule(signature, FILL, *kernels(name, direction)) is None
    for other in set(HALVES) - {name}:
        if {name, other} == {"eager", "sdpa-math"}:
            continue  # both are matmuls and a softmax
        assert broken_rule(signature, FILL, *kernels(other, direction)), f"{other} would pass for {name}"


@pytest.mark.parametrize("name", ["sdpa-efficient", "sdpa-flash", "sdpa-cudnn", "triton"])
def test_a_forward_and_backward_must_show_the_kernels_of_both(name: str) -> None:
    which = case(direction="fwd_bwd")
    forward, backward = HALVES[name]
    signature = backend(name).signature(which, DEVICES[1])
    assert broken_rule(signature, *forward)
    assert broken_rule(signature, *backward)


SDPA = {f"sdpa-{name}": name for name in ("flash", "efficient", "cudnn", "math")}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("of", ["sdpa", "hf-sdpa"])
def test_what_torch_may_choose_is_accepted_and_named(of: str, direction: Any) -> None:
    which, made = case(direction=direction), backend(of)
    signature = made.signature(which, DEVICES[1])
    assert isinstance(made, BackendBase)
    for name, choice in SDPA.items():
        ran = [FILL, *kernels(name, direction)]
        assert broken_rule(signature, *ran) is None
        assert made.chosen(map(short_name, ran)) == choice
    assert broken_rule(signature, *kernels("sdpa-math", "fwd_bwd"), F32_SGEMM) is None, "math's products may be float32"
    for ran in ([], [FILL], [FILL, SOFTMAX], kernels("triton", direction)):
        assert broken_rule(signature, *ran), "torch's attention did not run"
        assert made.chosen(map(short_name, ran)) == ""


@pytest.mark.parametrize("name", SDPA)
def test_a_forward_of_torch_s_choice_does_not_stand_for_its_backward(name: str) -> None:
    signature = backend("sdpa").signature(case(direction="fwd_bwd"), DEVICES[1])
    forward, backward = HALVES[name]
    if name != "sdpa-math":  # its products are like eager's
        assert broken_rule(signature, *forward)
        assert broken_rule(signature, *backward)


def call(*names: str, seconds: float = 100e-6, overrun: float = 0.0, gap: float = 0.0) -> TracedCall:
    """Return a call of successive kernels, of `seconds` in all, with a gap after each."""
    each = seconds / max(1, len(names))
    starts = [i * (each + gap) for i in range(len(names))]
    return TracedCall(tuple(Activity(n, at, at + each, 7) for n, at in zip(names, starts, strict=True)), overrun)


class Tracer:
    """A tracer that runs the launches and returns scripted calls, or no trace where none are scripted."""

    def __init__(self, *calls: TracedCall) -> None:
        self.planned = list(calls)

    def calls(self, launches: Sequence[Callable[[], Any]], before_each_try: Callable[[], Any]) -> list[TracedCall]:
        if not self.planned:
            raise Untraceable("the profiler saw 1 of 3 markers")
        before_each_try()
        for launch in launches:
            launch()
        return self.planned


@pytest.fixture
def trace_launch() -> Iterator[Callable[..., Any]]:
    """Return a function that traces a launch by scripted calls, on a device that is a GPU by name only."""
    measurer = object.__new__(CellMeasurer)
    measurer.device = torch.device("cuda")
    seen: list[str] = []

    def ask(*calls: TracedCall, latency: float = 100e-6, runs: str = "flash_fwd", host_bound: bool = False) -> Any:
        measurer.tracer = Tracer(*calls)  # type: ignore[assignment]
        prepared = Prepared(lambda: seen.append("launch") or "raw", lambda raw: seen.append(raw) or {})  # type: ignore
        timing = Timing(measurements(time=latency), "events", "cold", [], host_bound=host_bound)
        return kernel_trace.trace_launch(
            measurer, BF16, Signature((runs,)), prepared, timing, lambda: seen.append("renew")
        )

    yield ask
    assert seen[:2] == ["renew", "launch"]


def kernels_at(*spans: tuple[str, float, float]) -> tuple[Activity, ...]:
    return tuple(Activity(name, start, end, 7) for name, start, end in spans)


def test_busy_time_counts_overlaps_once() -> None:
    assert busy_seconds(()) == 0
    assert busy_seconds(kernels_at(("a", 0, 2), ("b", 1, 3), ("c", 5, 6), ("d", 5.2, 5.4))) == 4
    assert busy_seconds(kernels_at(("c", 5, 6), ("a", 0, 2))) == 3  # in any order


@pytest.mark.parametrize(("share", "is_problem"), [(0.015, True), (0.025, False), (1.0, False)])
@pytest.mark.parametrize("runs", [("flash_fwd",), ("flash_fwd", "SoftMax")])
def test_declared_kernels_must_take_2_percent_of_the_time(
    share: float, is_problem: bool, runs: tuple[str, ...]
) -> None:
    """Declared kernels must together take 2 % of the time. The problem names the kernel that took most."""
    activities = kernels_at((FLASH, 0, share), (NVJET, share, 0.999), (FILL, 0.999, 1.0))
    problem = find_low_share(Signature(runs), activities)
    assert bool(problem) == is_problem
    if problem:
        assert problem == f"its declared kernels took 1.50% of the time; {NVJET} did more of the work"
    assert find_low_share(Signature(), activities) is None


@pytest.mark.parametrize(("seconds", "is_problem"), [(100e-6, False), (145e-6, False), (155e-6, True), (1.0, True)])
def test_work_that_is_not_in_the_samples_is_a_problem(
    trace_launch: Callable[..., Any], seconds: float, is_problem: bool
) -> None:
    """Work that is not in the samples is a problem beyond 30 % (a falling clock) and 20 us (overhead of a kernel)."""
    found = trace_launch(call(FLASH, seconds=seconds), call(), latency=100e-6)
    assert bool(found.problem) == is_problem
    if is_problem:
        assert f"kernels ran for {seconds * 1e6:.0f} us in one call, but the samples have 100" in found.problem


def test_gaps_between_kernels_are_no_work(trace_launch: Callable[..., Any]) -> None:
    assert trace_launch(call(FLASH, FLASH, gap=500e-6), call()).problem is None


def test_samples_much_slower_than_a_later_call_get_a_note(trace_launch: Callable[..., Any]) -> None:
    slow = trace_launch(call(FLASH), call(), latency=200e-6)
    assert slow.problem is None
    assert [note[:38] for note in slow.notes] == ["samples much slower than a later call:"]
    assert trace_launch(call(FLASH), call(), latency=165e-6).notes == ()
    assert trace_launch(call(FLASH), call(), latency=200e-6, host_bound=True).notes == ()  # the host explains it


SLOW, ALIKE, LOADED = (0.02, 0.01), (0.011, 0.01), (0.5, 0.45)  # calls on new inputs, and the calls after them


@pytest.mark.parametrize(
    ("pairs", "found"),
    [
        ([ALIKE, ALIKE], False),
        ([SLOW, SLOW, ALIKE, SLOW, ALIKE], False),
        ([SLOW] * 8, True),
        ([SLOW] * 4 + [LOADED] + [SLOW] * 3, True),
        ([SLOW] * 5 + [(0.4, 0.5), SLOW, ALIKE], False),
    ],
)
def test_a_cpu_kernel_that_is_slower_on_new_inputs_but_for_one_time(
    pairs: list[tuple[float, float]], found: bool
) -> None:
    """A CPU kernel that is slower on new inputs in all pairs but one is found; other work may delay single calls.

    Other tensors are renewed before each call of a pair, because a short call is slower after other operators.
    """
    measurer, calls = object.__new__(CellMeasurer), [seconds for pair in pairs for seconds in pair]
    measurer.device = torch.device("cpu")
    order: list[str] = []

    def next_call(_: object, n: int) -> list[float]:
        assert n == 1
        order.append("call")
        return [calls.pop(0)]

    measurer.timer = SimpleNamespace(samples=next_call)  # type: ignore[assignment]
    ready = Prepared(lambda: None, lambda _: {})
    renew, renew_others = (partial(order.append, what) for what in ("new", "other"))
    measured = kernel_trace.slow_on_new_inputs(measurer, ready, renew, renew_others)
    assert [*measured] == (["new_inputs", "same_inputs"] if found else [])
    assert not calls
    assert order == ["new", "other", "call", "other", "call"] * len(pairs)


def test_a_launch_that_cannot_be_traced_gets_a_note(trace_launch: Callable[..., Any]) -> None:
    found = trace_launch()
    assert found.problem is None
    assert found.kernels == {}
    assert found.notes == ("what ran is not known: the profiler saw 1 of 3 markers",)
