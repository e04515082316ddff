"""The document of a profile: names of kernels, the timeline, figures, and several backends side by side."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

import builders
from attnbench.analysis.profile import timeline
from attnbench.analysis.profile.document import document
from attnbench.analysis.profile.figures import sentences
from attnbench.analysis.profile.side_by_side import difference
from attnbench.core.activity import Activity
from attnbench.core.formats import times
from attnbench.render import terminal
from attnbench.render.document import Bar, Steps, Table
from attnbench.run.profile.ncu import KernelTraffic, Traffic
from attnbench.run.profile.profile import HostWork, Outcome, Profile, roofline

GIB = 2.0**30
CASE = builders.case(8192, causal=True)


def activities(*parts: tuple[str, float, float]) -> tuple[Activity, ...]:
    """Return activities from (name, gap before, duration), in microseconds."""
    found, at = [], 0.0
    for name, gap, seconds in parts:
        at += gap * 1e-6
        found.append(Activity(name, at, at + seconds * 1e-6))
        at += seconds * 1e-6
    return tuple(found)


STEPS = activities(("gemm_one", 0, 1700), ("softmax_kernel", 1.5, 5600), ("gemm_two", 2.5, 1900))
EAGER = Profile(
    "eager",
    "events",
    "cold",
    (9.21e-3, 9.207e-3, 9.3e-3),
    0.4,
    memory_peak=int(4 * GIB),
    version="torch 2.11",
    ceilings={"matmul": 780e12, "copy": 4.25e12},
    enqueue=(45e-6,),
    activities=STEPS,
    length=STEPS[-1].end,
    spans=(9.204e-3,),
    traced=(9.207e-3,),
    memory=((0.0, int(2 * GIB)), (STEPS[1].start, int(4 * GIB)), (STEPS[2].start, int(3 * GIB))),
    traffic=Traffic(
        (KernelTraffic("a", GIB, GIB), KernelTraffic("b", 3 * GIB, GIB), KernelTraffic("c", GIB, 0.0)), GIB
    ),
)
FUSED = activities(("_attn_fwd", 0, 520))
TRITON = replace(
    EAGER,
    backend="triton",
    times=(522e-6,),
    activities=FUSED,
    length=FUSED[-1].end,
    spans=(520e-6,),
    traced=(523e-6,),
    memory=((0.0, 2**26),),
    traffic=Traffic((KernelTraffic("a", GIB / 8, GIB / 8),), 0.0),
)


def outcome(*profiles: Profile, device: Any = builders.H200, **rest: Any) -> Outcome:
    return Outcome(builders.environment(device), CASE, roofline(CASE, device, profiles), profiles, **rest)


def rendered(found: Outcome, width: int = 120, encoding: str = "utf-8") -> str:
    raw = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    terminal.render(Console(file=raw, width=width, highlight=False), document(found))
    raw.flush()
    raw.seek(0)
    return raw.read()


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1> >()",
         "FillFunctor"),
        ("void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
         "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#7}> >(int)",
         "direct_copy_kernel_cuda"),
        ("void native::elementwise_kernel<128, 4, void native::gpu_kernel_impl_nocast<native::<unnamed>::"
         "masked_fill_kernel(at::TensorIterator &, const c10::Scalar &)::[lambda() (instance 1)]>(int)>(int, T3)",
         "masked_fill_kernel"),
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128> >(x)",
         "flash_fwd_kernel"),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<2> > >(flash::Params)",
         "FlashAttnFwdSm90"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>(cutlass_80_tensorop_bf16_s16816gemm::Params)",
         "cutlass_80_tensorop_bf16_s16816gemm"),
        ("Memset (Device)", "Memset (Device)"),
        ("aten::bmm", "bmm"),
        ("", ""),
    ],
)  # fmt: skip
def test_names_of_kernels(name: str, short: str) -> None:
    assert timeline.kernel_name(name) == short


def test_communication_beside_computation_and_exposed() -> None:
    """Of 30 us of NCCL 20 are beside the attention kernel; the call takes a quarter longer than without NCCL."""
    kernels = (
        Activity("ncclDevKernel_AllGather", 0.0, 10e-6, 1),
        Activity("flash_fwd", 10e-6, 50e-6),
        Activity("ncclDevKernel_SendRecv", 20e-6, 40e-6, 1),
    )
    times = {"times": (50e-6,), "compute": (40e-6,), "spans": (), "traced": ()}
    found = replace(TRITON, activities=kernels, length=50e-6, memory=(), traffic=None, **times)  # type: ignore[arg-type]
    text = rendered(outcome(found), 200)
    assert "communication  30.0 us  in 2 collectives of rank 0, 20.0 us of it beside computation" in squeezed(text)
    assert "exposed  20%  of the latency" in squeezed(text)


def squeezed(text: str) -> str:
    return re.sub(" {2,}", "  ", text)


def test_bars_and_the_memory_share_one_axis() -> None:
    table = document(outcome(EAGER)).blocks[1]
    assert isinstance(table, Table)
    length = STEPS[-1].end
    *bars, memory = (row[-1] for row in table.rows)
    assert bars == [Bar(a.start / length, a.end / length, i) for i, a in enumerate(STEPS)]
    assert memory == Steps(((0.0, 0.5), (STEPS[1].start / length, 1.0), (STEPS[2].start / length, 0.75)))


def test_short_kernels_share_a_row() -> None:
    many = activities(*[("long", 0, 100), *[("tiny", 0, 0.1)] * 10, ("middle", 0, 50)])
    own, rest = timeline.split_by_length(many, 151e-6)
    assert [a.name for a in own] == ["long", "middle"]
    assert len(rest) == 10
    equal = activities(*[("same", 0, 1)] * 40)
    assert len(timeline.split_by_length(equal, 40e-6)[0]) == timeline.MAX_ROWS


def test_a_profile_in_full() -> None:
    text = rendered(outcome(EAGER))
    for part in (
        "latency       9.21 ms  median of 3 samples, CUDA events, L2 cold",
        "launch gap    3.00 us  between CUDA events and the kernels, before and after, in the same calls",
        "gaps          4.00 us  0.043% of the span, between its 3 kernels",
        "CPU launch    45.0 us  of the host for one call; less than the GPU's time: hidden",
        "roofline       556 us  bound by compute: 2048 FLOP/B, and memory is the limit below 206; by the datasheet",
        "reached            6%  of the roofline, 59.7 TFLOP/s; 7.7% of what a matmul, 780 TFLOP/s",
        "HBM traffic  8.00 GiB  read 5.00 GiB, written 3.00 GiB; by ncu",
        "rate       933 GB/s  over the span, 19% of the bandwidth",
    ):
        assert part in text, part
    (softmax,) = (line for line in text.splitlines() if line.startswith("softmax_kernel"))
    assert " ".join(softmax.split()).startswith("softmax_kernel 1.70 ms 5.60 ms 61% 1.50 us 4.00 GiB ")
    assert all(len(line) <= 120 for line in text.splitlines())


def test_a_wrong_kernel_says_so_in_its_heading() -> None:
    text = rendered(outcome(replace(EAGER, wrong="out is off by [3]"), TRITON))
    assert "WRONG  eager: out is off by [3]" in text.splitlines()
    assert "eager WRONG" in text.split("side by side")[1]
    assert "Standard attention" not in text  # no claim is made from a wrong kernel's traffic


def test_nothing_but_refusals_is_one_line_each() -> None:
    text = rendered(outcome(refused={"sdpa-cudnn": "needs a GPU", "mine": "no [such] thing"}, notes=("unsaid",)))
    assert text.splitlines() == ["!  sdpa-cudnn: no profile  needs a GPU", "!  mine: no profile  no [such] thing"]


def test_side_by_side_and_the_bytes_that_standard_attention_moves() -> None:
    said = difference([TRITON, EAGER])
    assert said.startswith(
        f"eager takes {times(EAGER.latency / TRITON.latency)} the time of triton, and has 32.0x the HBM"
    )
    assert document(outcome(EAGER, TRITON)).answer == (said,)
    lines = rendered(outcome(EAGER, TRITON)).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("side by side"))
    table = {line[:20].strip(): line[20:].split() for line in lines[start : start + 11]}
    assert table["HBM traffic"] == ["8.00", "GiB", "256", "MiB", "32.0x"]
    assert table["over the least"] == ["32.0x", "1.00x"]
    assert " ".join(lines[-2:]).startswith("Standard attention (eager) moves 32.0 times the bytes of triton: 8.00 GiB")
    math = replace(EAGER, backend="sdpa-math")
    assert len(sentences(outcome(math, TRITON))) == 1
    assert sentences(outcome(EAGER, math)) == []
    assert sentences(outcome(TRITON)) == []
    assert sentences(outcome(EAGER, replace(TRITON, traffic=None))) == []
    waits = replace(TRITON, backend="mine", times=(1.0,), host=HostWork(waits={"aten::nonzero": 2}))
    assert difference([TRITON, waits]).endswith("and has waits for a result where the other has none.")
    same = replace(waits, host=HostWork())
    assert difference([TRITON, same]).endswith("the figures here do not say why, as they are the same for both.")
    assert difference([replace(EAGER, wrong="out is off"), TRITON]) == "", "a wrong backend is not compared"


def test_the_host_that_is_slower_and_the_overhead_of_tracing() -> None:
    slowed = replace(TRITON, enqueue=(700e-6,), spans=(600e-6,), traced=(602e-6,), limits=("power cap",))
    text = rendered(outcome(slowed))
    assert "slower than the GPU, so calls in a row wait for it" in text
    assert "tracing           15%  longer than untraced: by the profiler's overhead, or another clock" in text
    assert "clock limited by power cap" in text
    assert "tracing" not in rendered(outcome(TRITON))


def test_traffic_of_several_passes_and_of_other_kernels() -> None:
    assert EAGER.traffic is not None
    cleared = activities(("Memset (Device)", 0, 1), ("gemm_one", 1, 99))
    one = Traffic((KernelTraffic("a", GIB, GIB),), 0.0)
    mixed = replace(EAGER, activities=cleared, length=cleared[-1].end, traffic=one)
    lines = rendered(outcome(mixed)).splitlines()
    assert any(line.startswith("gemm_one") and "2.00 GiB" in line for line in lines)  # ncu does not see fills
    other = replace(EAGER, traffic=one)
    header = next(line for line in rendered(outcome(other)).splitlines() if line.startswith("kernels "))
    assert "HBM" not in header
