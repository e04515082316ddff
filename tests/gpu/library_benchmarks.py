"""Compare attnbench with the benchmarks that libraries publish, on this GPU, with calls of some 0.5 to 6 ms.

    python tests/gpu/library_benchmarks.py flex                 attention-gym, examples/benchmark.py
    python tests/gpu/library_benchmarks.py flashinfer-fa2       FlashInfer, benchmarks/bench_batch_decode.py
    python tests/gpu/library_benchmarks.py fa2 fa3 fa4          flash-attention, benchmarks/benchmark_attn.py --varlen
    python tests/gpu/library_benchmarks.py flashmla             FlashMLA, tests/test_flash_mla_*.py
    python tests/gpu/library_benchmarks.py fla                  flash-linear-attention, benchmarks/ops/run.py
    python tests/gpu/library_benchmarks.py flashqla             FlashQLA, benchmark/bench_gated_delta_rule.py
    python tests/gpu/library_benchmarks.py indexer-deepgemm     DeepGEMM, tests/test_attention.py; the scores alone
    python tests/gpu/library_benchmarks.py sage2                SageAttention, bench/bench_qk_int8_pv_fp8_cuda_sm90.py

The script makes the libraries' calls as in these files, on separate tensors, and times them by the timers of these
files, with L2 cold. attnbench times its backend's call of the same case. Both run in turns in one process
(peer_timers.py). A line has

- the time by attnbench, and the time of the library's benchmark over it,
- the same ratio in cycles, because a benchmark's loop without pauses lets the clock fall,
- the times of attnbench's call and of the library's call, both by the library's timer, as a ratio: the difference of
  the calls,
- the same for the library's call with the work of attnbench's alone, where its benchmark does more or less:
  attention-gym's backward adds to earlier gradients, fla's forward keeps what a backward needs and has no state, and
  FlashQLA's q and k are divided by their lengths before.

DeepGEMM's and SageAttention's benchmarks time some of the kernels of attnbench's call: without the choice of the
highest scores, without the rounding. Only these kernels are compared.

Exit code 1 means that the median ratio in cycles (FlashMLA: in seconds, since its benchmark writes 8 GB between two
calls, at another clock), or of the calls alone, is further than 3 % from 1, or a wrong result.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from peer_timers import PEER_TIMERS, Launch, PeerTimer, compare_timers

from attnbench import backends
from attnbench.core import masks, stats
from attnbench.core.case import Case, Shape, sizes_of
from attnbench.core.policy import Policy
from attnbench.judge import inputs
from attnbench.results.case_names import case_name
from attnbench.worker import environment
from attnbench.worker.measure_cell import CellMeasurer

MOST = 0.03  # largest allowed difference of medians from 1


@dataclass(frozen=True)
class Benchmark:
    """The benchmark of a library: its cases, its call of a case, and its timer."""

    cases: Callable[[], Iterator[Case]]
    call: Callable[[Case], Launch]
    timer: PeerTimer
    alone: Callable[[Case], Launch] | None = None  # the library's call with exactly the work of the backend's call
    is_part: bool = False  # the benchmark times some kernels of the backend's call, so that only these are compared
    unit: Literal["cycles", "ratio"] = "cycles"  # "ratio": seconds, as the clock after a burst is not the kernels'


def attention_gym_cases() -> Iterator[Case]:
    shape = Shape(16, 8192, 8192, 16, 16, 64, 64)
    for direction in ("fwd", "bwd"):
        plain = Case(shape, "fp16", direction, causal=True)
        yield from (plain, replace(plain, window_size=(1024, 0)), replace(plain, mask="prefix:1k"))


def attention_gym_call(case: Case, *, adds: bool = True) -> Launch:
    """Return the call of test_mask, whose backward adds to earlier gradients if `adds`."""
    from attn_gym import masks as of_gym  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    shape, mask = case.shape, of_gym.causal_mask
    if case.window_size[0] is not None:
        mask = of_gym.generate_sliding_window(window_size=case.window_size[0])
    elif case.mask:
        mask = of_gym.generate_prefix_lm_mask(prefix_length=1024)
    block_mask = create_block_mask(mask, 1, 1, shape.seqlen_q, shape.seqlen_k, device="cuda")
    size = (shape.batch, shape.nheads, shape.seqlen_q, shape.headdim)
    q, k, v = (torch.randn(size, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(3))
    attention = torch.compile(flex_attention, dynamic=False)
    if case.direction == "fwd":
        return lambda: attention(q, k, v, score_mod=None, block_mask=block_mask)
    out, dout = attention(q, k, v, score_mod=None, block_mask=block_mask), torch.randn_like(q)
    if not adds:
        return lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)
    return lambda: out.backward(dout, retain_graph=True)


def flashinfer_cases() -> Iterator[Case]:
    for batch, seqlen in ((96, 8192), (128, 8192), (64, 16384), (32, 32768)):
        yield Case(Shape(batch, 1, seqlen, 32, 8, 128, 128), "bf16", "fwd", causal=True, page_size=16)


def flashinfer_call(case: Case) -> Launch:
    """Return the call of bench_batch_decode, with pages in the order of memory."""
    import flashinfer  # type: ignore[import-not-found,import-untyped,unused-ignore]

    shape, page = case.shape, case.page_size
    pages = shape.seqlen_k // page  # pages of a sequence
    indptr = torch.arange(shape.batch + 1, dtype=torch.int32, device="cuda") * pages
    indices = torch.arange(shape.batch * pages, dtype=torch.int32, device="cuda")
    last = torch.full((shape.batch,), page, dtype=torch.int32, device="cuda")
    q = torch.rand(shape.batch, shape.nheads, shape.headdim, dtype=torch.bfloat16, device="cuda")
    cache = torch.randn(len(indices), 2, page, shape.nheads_k, shape.headdim, device="cuda", dtype=torch.bfloat16)
    workspace = torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
    decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, kv_layout="NHD", use_tensor_cores=True)
    sizes = (shape.nheads, shape.nheads_k, shape.headdim, page)
    decode.plan(indptr, indices, last, *sizes, data_type=torch.bfloat16, q_data_type=torch.bfloat16)
    return lambda: decode.run(q, cache)


def varlen_cases() -> Iterator[Case]:
    for direction, lengths in (
        ("fwd", ((8, 4096, 4096), (16, 1024, 1024))),
        ("fwd", ((24, 2048, 2048), (8, 1000, 1000))),
        ("bwd", ((4, 4096, 4096), (8, 1024, 1024))),
        ("bwd", ((12, 2048, 2048), (4, 1000, 1000))),
    ):
        shape = Shape(*sizes_of(lengths), 16, 16, 128, 128)
        yield Case(shape, "bf16", direction, causal=True, lengths=lengths)  # type: ignore[arg-type]


def varlen_call(backend: str, case: Case) -> Launch:
    if backend == "fa2":
        from flash_attn import flash_attn_varlen_func as attention
    elif backend == "fa3":
        from flash_attn_interface import flash_attn_varlen_func as attention
    else:
        from flash_attn.cute.interface import flash_attn_varlen_func as attention
    lengths = [seqlen for number, seqlen, _ in case.lengths for _ in range(number)]
    ends = torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)
    size = (sum(lengths), case.shape.nheads, case.shape.headdim)
    needs_grad = case.direction != "fwd"
    q, k, v = (torch.randn(size, device="cuda", dtype=torch.bfloat16, requires_grad=needs_grad) for _ in range(3))
    longest = {"max_seqlen_q": max(lengths), "max_seqlen_k": max(lengths)}
    if backend == "fa4":
        longest = {}

    def forward() -> Any:
        found = attention(q, k, v, cu_seqlens_q=ends, cu_seqlens_k=ends, **longest, causal=True)
        return found[0] if isinstance(found, tuple) else found

    if not needs_grad:
        return forward
    out, dout = forward(), torch.randn_like(q)

    def backward() -> None:
        for tensor in (q, k, v):
            tensor.grad = None
        out.backward(dout, retain_graph=True)

    return backward


def flashmla_cases() -> Iterator[Case]:
    """Yield dense decode, prefill over chosen keys, and decode over chosen keys of an fp8 cache."""
    options: dict[str, Any] = {"causal": True, "page_size": 64, "latent": True, "scale": 576**-0.5}
    for seqlen in (16384, 32768):
        yield Case(Shape(128, 1, seqlen, 128, 1, 576, 512), "bf16", "fwd", **options)
    for seqlen in (8192, 131072):
        yield Case(Shape(1, 4096, seqlen, 128, 1, 576, 512), "bf16", "fwd", mask="topk:2k", **options)
    shape = Shape(148, 2, 32768, 128, 1, 576, 512)
    yield Case(shape, "bf16", "fwd", mask="topk:16k", cache_dtype="fp8", **options)


def flashmla_call(case: Case) -> Launch:
    """Return the call of FlashMLA's tests, on random keys in place of the case's choice."""
    import flash_mla  # type: ignore[import-not-found,import-untyped,unused-ignore]

    s, rows = case.shape, case.shape.batch * case.shape.seqlen_k
    q = torch.randn(s.batch, s.seqlen_q, s.nheads, s.headdim, device="cuda", dtype=torch.bfloat16)
    if not case.mask:
        cache = torch.randn(rows // 64, 64, 1, s.headdim, device="cuda", dtype=torch.bfloat16)
        table = torch.randperm(rows // 64, device="cuda", dtype=torch.int32).view(s.batch, -1)
        lengths = torch.full((s.batch,), s.seqlen_k, device="cuda", dtype=torch.int32)
        plan = flash_mla.get_mla_metadata()[0]
        given = (q, cache, table, lengths, s.headdim_v, plan)
        return lambda: flash_mla.flash_mla_with_kvcache(*given, causal=True, use_legacy=True)
    number = masks.chosen(case.mask)
    chosen = torch.randint(rows, (s.batch, s.seqlen_q, number), device="cuda", dtype=torch.int32)
    if case.cache_dtype == "same":
        keys = torch.randn(rows, 1, s.headdim, device="cuda", dtype=torch.bfloat16)
        return lambda: flash_mla.flash_mla_sparse_fwd(
            q[0], keys, chosen.view(s.seqlen_q, 1, number), s.headdim**-0.5, use_legacy=True
        )
    cache = torch.randint(0, 120, (rows // 64, 64, 1, 656), device="cuda", dtype=torch.uint8)  # finite in e4m3
    cache[..., 512:528] = torch.ones(4, device="cuda").view(torch.uint8)
    cache[..., 528:] = torch.randn(*cache.shape[:3], 64, device="cuda", dtype=torch.bfloat16).view(torch.uint8)
    plan = flash_mla.get_mla_metadata()[0]
    return lambda: flash_mla.flash_mla_with_kvcache(
        *(q, cache, None, None, s.headdim_v, plan), is_fp8_kvcache=True, indices=chosen, use_legacy=True
    )


def delta_cases() -> Iterator[Case]:
    for kind in ("gdn", "kda"):
        for direction, batch, seqlen, nheads in (("fwd", 2, 16384, 16), ("fwd", 4, 4096, 64), ("fwd_bwd", 4, 2048, 16)):
            shape = Shape(batch, seqlen, seqlen, nheads, nheads, 128, 128)
            yield Case(shape, "bf16", direction, causal=True, kind=kind)  # type: ignore[arg-type]


def delta_inputs(case: Case) -> dict[str, Any]:
    """Return q, k, v, g and beta as FlashQLA's benchmark and fla's registry.py make them."""
    from torch.nn.functional import logsigmoid

    s = case.shape
    rest: Any = {"device": "cuda", "dtype": torch.bfloat16}
    tokens = (s.batch, s.seqlen_k, s.nheads)
    q, k, v = (torch.randn(*tokens[:2], n, 128, **rest) for n in (s.nheads_k, s.nheads_k, s.nheads))
    gate = logsigmoid(torch.randn(*tokens, *((s.headdim,) if case.kind == "kda" else ()), **rest))
    return {"q": q, "k": k, "v": v, "g": gate, "beta": torch.randn(*tokens, **rest).sigmoid()}


def fla_call(case: Case, *, alone: bool = False) -> Launch:
    """Return the call of run.py, which saves what a backward needs; `alone`: the backend's, with states and without."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule  # type: ignore[import-not-found,unused-ignore]
    from fla.ops.kda import chunk_kda  # type: ignore[import-not-found,unused-ignore]

    is_forward = case.direction == "fwd"
    given = {name: t.requires_grad_(not (alone and is_forward)) for name, t in delta_inputs(case).items()}
    options: dict[str, Any] = {} if case.kind == "gdn" else {"safe_gate": True, "lower_bound": -5}
    if alone:
        s = case.shape
        state = torch.randn(s.batch, s.nheads, s.headdim, s.headdim_v, device="cuda")
        options = {"initial_state": state if is_forward else None, "output_final_state": True}
    function = chunk_gated_delta_rule if case.kind == "gdn" else chunk_kda
    call = partial(function, **given, use_qk_l2norm_in_kernel=True, **options)
    dout = torch.randn_like(given["v"])
    return call if is_forward else lambda: call()[0].backward(dout)


def flashqla_cases() -> Iterator[Case]:
    for seqlen, nheads, nheads_k in ((32768, 64, 16), (16384, 48, 16), (32768, 32, 16)):
        shape = Shape(1, seqlen, seqlen, nheads, nheads_k, 128, 128)
        yield Case(shape, "bf16", "fwd", causal=True, kind="gdn")


def flashqla_call(case: Case, *, alone: bool = False) -> Launch:
    """Return the call of bench_fwd, with q and k divided by their lengths before; `alone`: in the call."""
    from flash_qla import chunk_gated_delta_rule_fwd  # type: ignore[import-not-found,unused-ignore]
    from flash_qla.utils import l2norm  # type: ignore[import-not-found,unused-ignore]

    s, given = case.shape, delta_inputs(case)
    q, k, *rest = l2norm(given["q"]), l2norm(given["k"]), given["v"], given["g"].float() / 16, given["beta"].float()
    options = {
        "scale": case.softmax_scale,
        "initial_state": torch.randn(1, s.nheads, s.headdim, s.headdim_v, device="cuda"),
        "cu_seqlens": torch.tensor([0, s.seqlen_k], dtype=torch.int32, device="cuda"),
        "output_final_state": True,
        "output_h": False,
        "auto_cp": True,
    }
    if alone:
        return lambda: chunk_gated_delta_rule_fwd(l2norm(q), l2norm(k), *rest, **options)
    return lambda: chunk_gated_delta_rule_fwd(q, k, *rest, **options)


def indexer_cases() -> Iterator[Case]:
    for queries, keys in ((2048, 65536), (8192, 8192), (8192, 65536)):
        shape = Shape(1, queries, keys, 64, 1, 128, 128)
        yield Case(shape, "fp8", "fwd", causal=True, kind="indexer", mask="topk:2k")


def indexer_call(case: Case) -> Launch:
    """Return the call of test_mqa_logits, without its context parallelism."""
    from deep_gemm import fp8_mqa_logits  # type: ignore[import-not-found,unused-ignore]

    s, fp8 = case.shape, torch.float8_e4m3fn
    q = torch.randn(s.seqlen_q, s.nheads, s.headdim, device="cuda", dtype=torch.bfloat16).to(fp8)
    k = torch.randn(s.seqlen_k, s.headdim, device="cuda", dtype=torch.bfloat16)
    scale = k.abs().float().amax(1) / 448
    weights = torch.randn(s.seqlen_q, s.nheads, device="cuda")
    last = torch.arange(s.seqlen_q, dtype=torch.int32, device="cuda") + (s.seqlen_k - s.seqlen_q)
    keys = (k / scale[:, None]).to(fp8), scale
    return lambda: fp8_mqa_logits(q, keys, weights, torch.zeros_like(last), last, clean_logits=True)


def sage_cases() -> Iterator[Case]:
    for seqlen in (8192, 16384):
        for causal in (False, True):
            yield Case(Shape(4, seqlen, seqlen, 32, 32, 128, 128), "fp16", "fwd", causal=causal)


def sage_call(case: Case) -> Launch:
    """Return the call of the attention kernel alone, on tensors in int8 and e4m3, with a scale for each column of v."""
    from sageattention import _qattn_sm90  # type: ignore[import-not-found,unused-ignore]

    s = case.shape
    size = (s.batch, s.nheads, s.seqlen_k, s.headdim)
    q, k = (torch.randint(-95, 95, size, dtype=torch.int8, device="cuda") for _ in range(2))
    v = torch.randn(*size[:2], *size[:1:-1], dtype=torch.float16, device="cuda").to(torch.float8_e4m3fn)
    out = torch.empty(size, dtype=torch.float16, device="cuda")
    scales = [torch.randn(*size[:2], n, device="cuda") for n in (s.seqlen_k // 2, s.seqlen_k // 32, s.headdim)]
    attention = _qattn_sm90.qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf
    return lambda: attention(q, k, v, out, *scales, 1, int(case.causal), 3, case.softmax_scale, 0)


def _kernels(pattern: str, launch: Launch) -> float:
    """Return the seconds of a launch's kernels of these names, by torch's profiler with L2 cold, as bench_kineto."""
    from torch.profiler import ProfilerActivity, profile

    flush = torch.empty(2 * 10**9, dtype=torch.int, device="cuda")
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(10):
            flush.zero_()
            launch()
        torch.cuda.synchronize()
    kernels = [event for event in profiler.events() or () if re.search(pattern, event.name)]
    return float(sum(event.device_time for event in kernels)) / 1e7


def _tilelang(launch: Launch) -> float:
    """Return the seconds of a launch by TileLang's do_bench, as in FlashQLA's benchmark."""
    from tilelang.profiler import do_bench  # type: ignore[import-not-found,unused-ignore]

    return float(do_bench(launch, warmup=10, rep=5, backend="event")) / 1e3


def _do_bench(launch: Launch) -> float:
    """Return the seconds of a launch by do_bench with its defaults, 100 ms without a pause, as in attention-gym."""
    from triton.testing import do_bench

    return float(do_bench(launch)) / 1e3


def _read_other(read: Callable[[Launch], float], other: Launch, _: Launch) -> float:
    return read(other)


BENCHMARKS = {
    "flex": Benchmark(
        attention_gym_cases,
        attention_gym_call,
        PeerTimer(_do_bench, "triton"),
        alone=partial(attention_gym_call, adds=False),
    ),
    "flashmla": Benchmark(
        flashmla_cases, flashmla_call, PeerTimer(partial(_kernels, "mla|sparse_attn"), "flash_mla"), unit="ratio"
    ),
    "fla": Benchmark(delta_cases, fla_call, PeerTimer(_do_bench, "triton"), alone=partial(fla_call, alone=True)),
    "flashqla": Benchmark(
        flashqla_cases, flashqla_call, PeerTimer(_tilelang, "tilelang"), alone=partial(flashqla_call, alone=True)
    ),
    "indexer-deepgemm": Benchmark(
        indexer_cases, indexer_call, PeerTimer(partial(_kernels, "mqa_logits|clean_logits"), "deep_gemm"), is_part=True
    ),
    "sage2": Benchmark(
        sage_cases, sage_call, PeerTimer(partial(_kernels, "qk_int8_sv_f8_attn"), "sageattention"), is_part=True
    ),
    "flashinfer-fa2": Benchmark(flashinfer_cases, flashinfer_call, PEER_TIMERS["flashinfer.testing"]),
    **{
        name: Benchmark(varlen_cases, partial(varlen_call, name), PEER_TIMERS["benchmark_attn.py"])
        for name in ("fa2", "fa3", "fa4")
    },
}


def compare(name: str, measurer: CellMeasurer, device: Any, policy: Policy) -> bool:
    """Compare the cases of a backend, print a line for each, and return whether they agree."""
    benchmark, backend = BENCHMARKS[name], backends.load(name, backends.BACKENDS[name])
    agree, times, alike = True, list[float](), list[float]()
    for case in benchmark.cases():
        label = case_name("", case, dtype=True, batch=True).strip()
        if reason := backend.unsupported(case, device):
            print(f"{name}: {label}: skipped: {reason}")
            continue
        found = measurer.measure(backend, case, policy)
        if found["status"] != "ok":
            print(f"{name}: {label}: {found['status']}: {found.get('reason')}")
            agree = False
            continue
        prepared = backend.prepare(case, inputs.make(case, str(measurer.device), 0))
        prepared.launch()
        theirs = replace(benchmark.timer, read=partial(_read_other, benchmark.timer.read, benchmark.call(case)))
        against = compare_timers(measurer, prepared.launch, policy, theirs)
        of_ours = compare_timers(measurer, prepared.launch, policy, benchmark.timer)
        if against is None or of_ours is None:
            print(f"{name}: {label}: too short to compare")
            continue
        alone = None
        if benchmark.alone is not None:
            timer = replace(benchmark.timer, read=partial(_read_other, benchmark.timer.read, benchmark.alone(case)))
            alone = compare_timers(measurer, prepared.launch, policy, timer)
        calls, alike_calls = (found.ratio / of_ours.ratio for found in (against, alone or against))
        times += [] if benchmark.is_part else [getattr(alone or against, benchmark.unit)]
        alike.append(alike_calls)
        clocks = f"{against.clock / 1e6:.0f} and {against.peer_clock / 1e6:.0f} MHz"
        print(
            f"{name}: {label}: {against.latency * 1e3:.3f} ms; benchmark over attnbench {1 / against.ratio:.4f}, "
            f"in cycles {1 / against.cycles:.4f} ({clocks}), by one timer {1 / calls:.4f}"
            + (
                f"; its call alone {1 / alone.cycles:.4f} in cycles, {1 / alike_calls:.4f} by one timer"
                if alone
                else ""
            ),
            flush=True,
        )
        del prepared, theirs
    for words, values in ((f"by their own timers, {benchmark.unit}", times), ("by one timer", alike)):
        if values:
            median = stats.median([1 / value for value in values])
            print(f"{name}: median of {len(values)} {words}: {median:.4f}")
            agree = agree and abs(median - 1) <= MOST
    return agree and bool(alike)


def main() -> int:
    """Compare the named backends, and return the exit code."""
    if not (names := sys.argv[1:]) or not {*names} <= {*BENCHMARKS}:
        print(f"{__doc__}\nnames: {', '.join(BENCHMARKS)}")
        return 2
    device = environment.with_quick_rates(environment.describe(environment.resolve_device("auto")).device)
    measurer, policy = CellMeasurer(device), Policy(max_seconds=0.1)
    agree = [compare(name, measurer, device, policy) for name in names]
    return 0 if all(agree) else 1


if __name__ == "__main__":
    sys.exit(main())
