"""Requests to a whole model: results that equal hand arithmetic, their parts, and the parts that are left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import builders
from attnbench.analysis.compare import requests
from attnbench.analysis.compare.document import document
from attnbench.analysis.compare.findings import Comparison, compare
from attnbench.analysis.compare.machines import Machine, machines
from attnbench.analysis.compare.products import step_shares
from attnbench.analysis.compare.serving import Served
from attnbench.analysis.compare.serving import served as predicted
from attnbench.analysis.compare.serving_document import charts
from attnbench.core.case import Case, Shape
from attnbench.core.flops import weight_bytes
from attnbench.core.machine import Device
from attnbench.core.record import Measurement, Record
from attnbench.results import run_file
from attnbench.run.suite import load_suite, parse_options, resolve
from builders import H200

CHAT = "chat: 2k in, 300 out, llama-3.1-8b, batch 32"
H100 = replace(H200, name="NVIDIA H100 80GB HBM3", memory=85 * 10**9, free=84 * 10**9)
PEAK, BANDWIDTH = 989.4e12, {"H200": 4.8e12, "H100 80GB HBM3": 3.35e12}  # of both datasheets, and of each
LAYER = 4096 * (32 + 2 * 8) * 128 + 32 * 128 * 4096 + 3 * 4096 * 14336  # weights of q, k, v; of the output; of the MLP
LAYERS, LOGITS = 32 * LAYER, 4096 * 128256
SIZES = "arch=llama hidden=4096 intermediate=14336 vocab=128256"
FILL, STEP = 1e-3, 1e-4  # seconds of a layer's attention: of 4 prompts of 2k, and of a decode of 32 x 2k keys


def cases(model: str, phase: str, tp: int = 1, **axes: str) -> tuple[Case, ...]:
    options = parse_options({"models": model, "phase": phase, "tp": tp, "axes": axes})
    return resolve(load_suite("quick"), "cuda", options).cases


PREFILL = cases("llama-3.1-8b", "prefill", seqlen="2k", batch="4")
DECODE = cases("llama-3.1-8b", "decode", seqlen="2k,8k", batch="4,32", page_size="16")


def attention(which: Iterable[Case] = (*PREFILL, *DECODE), watts: float | None = None) -> list[Record]:
    """Return records of attention: a prefill takes time by its prompts, a decode by its keys."""
    found = []
    for case in which:
        s = case.shape
        seconds = STEP * s.seqlen_k * s.batch / 2**16 if case.is_decode else FILL * s.seqlen_k * s.batch / 2**13
        taken = {"time": builders.times(seconds)}
        if watts:
            taken |= builders.measurements(sustained=seconds, sustained_power=watts)
        found.append(Record(case, "triton", 0, "ok", measurements=taken))
    return found


def step(phase: str, share: float, model: str = "llama-3.1-8b", device: Device = H200) -> Record:
    """Return a step of 4 of 32 layers whose products reach a share of the datasheet's rate.

    Its attention takes 1 ms, and the device waits for 2 ms.
    """
    decodes = phase == "decode"
    shape = Shape(1, 1 if decodes else 4096, 4096, 32, 8, 128, 128)
    flops, nbytes = 2 * (4 * LAYER * 4096 + LOGITS), 2 * (4 * LAYER + LOGITS)
    bandwidth = BANDWIDTH["H200" if device is H200 else "H100 80GB HBM3"]
    rest = nbytes / (share * bandwidth) if decodes else flops / (share * PEAK)
    taken = builders.measurements(time=[rest + 3e-3] * 10, attention=1e-3, step_traced=rest + 1e-3)
    case = Case(shape, "bf16", "fwd", True, step=f"{phase} {model} 4/32 {SIZES}")
    return Record(case, "step-sdpa", 0, "ok", measurements=taken, timer="events", l2="cold")


def compared(
    text: str = CHAT,
    ours: Sequence[Record] = (),
    steps: Sequence[tuple[Device, Record]] = ((H200, step("prefill", 0.5)), (H200, step("decode", 0.6))),
    devices: Sequence[Device] = (H200, H100),
    **options: Any,
) -> Comparison:
    measured = list(ours) or attention()
    runs = [builders.run(measured, device=device) for device in devices]
    runs += [builders.run([record], device=device) for device, record in steps]
    return compare([Path(f"{i}") for i in range(len(runs))], runs, workload=text, **options)


def served(c: Comparison, label: str = "H200") -> Served:
    assert c.serving
    return c.serving.found[label]


def high_end(one: Served) -> float:
    """Return the upper end of a value's interval, over the value."""
    ends = one.interval(1.0)
    assert ends
    return ends[1]


def said(c: Comparison) -> str:
    return " ".join(document(c).answer)


def test_the_figures_are_those_by_hand() -> None:
    """Results equal hand arithmetic: the H200's by its own steps, the H100's by the same shares of its own peaks."""
    got = compared()
    for label in ("H200", "H100 80GB HBM3"):
        one = served(got, label)
        first = 32 * FILL / 4 + 2 * (LAYERS * 2048 + LOGITS) / (0.5 * PEAK)
        token = 32 * STEP * 2198 / 2048 + 2 * (LAYERS + LOGITS) / (0.6 * BANDWIDTH[label])
        assert one.first_token == pytest.approx(first, rel=1e-3)
        assert one.decode.seconds == pytest.approx(token, rel=1e-3)
        assert one.tokens_a_second == pytest.approx(32 * 300 / (32 * first + 300 * token), rel=1e-3)
        assert one.of_a_user == pytest.approx(1 / token, rel=1e-3)
        parts = 32 * 32 * FILL / 4 + 300 * 32 * STEP * 2198 / 2048
        assert one.attention == pytest.approx(parts / (32 * first + 300 * token), rel=1e-3)
    assert "on H200 in prefill by the measured step of llama-3.1-8b on it (50% of the peak)" in said(got)
    assert "by its roofline (60% of the bandwidth, as in the measured step of llama-3.1-8b on H200)" in said(got)


def test_products_of_a_large_batch_compute_longer_than_they_read() -> None:
    """The products of a large batch compute longer than they read.

    A weight has 2 FLOPs a sequence, at half of the peak, and 2 bytes, at 0.6 of the bandwidth: from 172 sequences on.
    """
    measured = attention((*PREFILL, *cases("llama-3.1-8b", "decode", seqlen="2k", batch="128,256", page_size="16")))
    for batch, seconds in (
        (128, 2 * (LAYERS + LOGITS) / (0.6 * 4.8e12)),
        (256, 2 * 256 * (LAYERS + LOGITS) / (0.5 * PEAK)),
    ):
        got = compared(
            f"2k in, 2 out, llama-3.1-8b, batch {batch}",
            measured,
            devices=(H200, replace(H100, free=10**12)),
        )
        assert served(got).decode.products == pytest.approx(seconds, rel=1e-3), batch


def test_rent_and_energy_of_a_million_tokens() -> None:
    measured = attention((*PREFILL, *DECODE), watts=500.0)
    got = compared(ours=measured, prices=("h200=3.60/h", "h100=1.80/h"))
    one = served(got)
    seconds = 1 / one.tokens_a_second
    assert f"cost ${seconds * 1e6 * 3.60 / 3600:.3f} ($" in said(got)
    low, high = one.kilowatt_hours()
    assert (low, high) == (pytest.approx(seconds * 500 / 3.6), pytest.approx(seconds * 700 / 3.6))
    assert "the lower figure by the power of attention without pauses (on H200 500 W in 1 prefill and 500 W" in said(
        got
    )
    ratio = served(got, "H100 80GB HBM3").tokens_a_second / one.tokens_a_second
    assert f"H100 80GB HBM3 is worth it below ${3.60 * ratio:.2f}/h ($" in said(got)
    bought = compared(prices=("h200=32000/4y", "h100=25000/4y"), energy_price=0.2, pue=1.5)
    assert bought.offer("H200")
    cost = 32000 / (4 * 8766) + 0.7 * 1.5 * 0.2  # of an hour, at the power limit
    assert document(bought).data["serving"]["machines"][0]["million_tokens"] == pytest.approx(
        seconds * 1e6 * cost / 3600
    )
    assert "with energy at the power limit where power was not measured" in said(bought)
    assert "take at most" in said(bought)


def test_tensor_parallel_has_its_share_of_everything_and_pays_each_device() -> None:
    halves = (
        *cases("llama-3.1-8b", "prefill", tp=2, seqlen="2k", batch="4"),
        *cases("llama-3.1-8b", "decode", tp=2, seqlen="2k,8k", batch="32", page_size="16"),
    )
    one, got = served(compared()), compared(f"{CHAT}, tp 2", attention(halves), prices=("h200=3.60/h", "h100=1.80/h"))
    two = served(got)
    assert two.prefill.products == pytest.approx(one.prefill.products / 2)
    assert two.decode.products == pytest.approx(one.decode.products / 2)
    assert two.of_a_gpu == pytest.approx(two.tokens_a_second / 2)
    assert f"cost ${2 / two.tokens_a_second * 1e6 * 3.60 / 3600:.3f} ($" in said(got)


def test_other_heads_stand_in_by_flops_and_by_bytes() -> None:
    """With 16 and 4 heads a prefill has half the model's FLOPs, and 64 sequences have the keys of 32 of the model's."""
    other = [
        replace(case, shape=replace(case.shape, nheads=16, nheads_k=4, batch=batch or case.shape.batch))
        for case, batch in (
            (PREFILL[0], 0),
            (DECODE[0], 64),
            (replace(DECODE[0], shape=replace(DECODE[0].shape, seqlen_k=8192)), 64),
        )
    ]
    got = compared(ours=attention(other))
    one = served(got)
    assert one.prefill.attention == pytest.approx(32 * 2 * FILL / 4, rel=1e-3)
    assert one.decode.attention == pytest.approx(32 * STEP * 2 * 2198 / 2048, rel=2e-3), "of these records, by batch"
    assert "prefill counts as measured at batch 4, of 2k of 16 and 4 heads instead of 32 and 8, to some 31%" in said(
        got
    )
    doubt = one.prefill.doubts["prefill", "interpolation", "H200"]
    assert doubt == pytest.approx(0.31 * one.prefill.attention / one.first_token)


def test_without_steps_the_products_are_as_fast_as_a_matmul_and_a_copy_at_most() -> None:
    devices = [replace(device, matmul={"bf16": 600e12}, copy=3e12) for device in (H200, H100)]
    got = compared(steps=(), devices=devices)
    assert served(got).decode.products == pytest.approx(2 * (LAYERS + LOGITS) / 3e12)
    assert served(got).prefill.products == pytest.approx(2 * (LAYERS * 2048 + LOGITS) / 600e12)
    assert "batch 32) gives at most " in said(got)
    assert "with at least " in said(got)
    assert got.serving
    assert got.serving.ratio("H100 80GB HBM3", "H200") is None
    assert "kWh" not in said(got)
    assert "by its roofline (at most, as a copy before the run)" in said(got)
    (chart,) = charts(got)
    assert chart.lines[0].names[-1] == "32!"
    assert all(low == y == high for _, y, low, high in chart.lines[0].points), "a limit has no interval"
    nothing = compared(steps=())
    assert nothing.serving
    assert not nothing.serving.found
    assert "No figure of the whole model on H200 and H100 80GB HBM3: its rates of products are not known." in said(
        nothing
    )


def test_a_share_is_as_sure_as_steps_agree_and_one_of_another_machine_less() -> None:
    steps = [(H200, step("prefill", 0.5)), (H200, step("prefill", 0.55, "qwen3-8b")), (H100, step("prefill", 0.44))]
    got = compared(steps=[*steps, (H200, step("decode", 0.6))])
    one, other = served(got), served(got, "H100 80GB HBM3")
    assert max(one.prefill.rate.doubts.values()) == pytest.approx(math.log(0.55 / 0.44))
    assert [*other.decode.rate.doubts.values()] == pytest.approx([math.log(1 / 0.6), math.log(0.5 / 0.44)])
    assert one.prefill.rate.value == pytest.approx(0.5 * PEAK, rel=1e-3), "of the model's own step, not of another"


def test_what_two_machines_are_unsure_by_together_cancels_in_their_ratio() -> None:
    """An uncertainty that two machines share cancels in their ratio.

    Both use the bandwidth's share of one step, which is uncertain by a factor of 1 / 0.6: it acts on their times in
    products.
    """
    steps = [(H200, step("prefill", 0.5)), (H100, step("prefill", 0.5)), (H200, step("decode", 0.6))]
    got = compared(steps=steps)
    assert got.serving
    ratio = got.serving.ratio("H100 80GB HBM3", "H200")
    each = [served(got, label) for label in got.labels]
    parts = [300 * one.decode.products / (32 * one.first_token + 300 * one.decode.seconds) for one in each]
    assert math.log(high_end(each[0])) == pytest.approx(math.log(1 / 0.6) * parts[0], rel=0.05)
    assert ratio
    assert ratio.high
    rest = [half for one in each for name, half in one.doubts.items() if "cells" in name or "interpolation" in name]  # type: ignore[operator]
    expected = math.hypot(math.log(1 / 0.6) * (parts[1] - parts[0]), *rest)
    assert math.log(ratio.high / ratio.value) == pytest.approx(expected, rel=1e-3)


def test_the_curve_ends_where_nothing_was_measured_or_the_memory_is_full() -> None:
    """The curve goes from batch 4 to 32, which were measured, and to a requested 40, as far as memory holds it."""
    got = compared()
    assert got.serving
    batches = {label: [one.asked.batch for one in own] for label, own in got.serving.curves.items()}
    assert batches == {"H200": [4, 8, 16, 32], "H100 80GB HBM3": [4, 8, 16, 32]}
    rates = [(one.of_a_user, one.of_a_gpu) for one in got.serving.curves["H200"]]
    assert rates == sorted(rates, key=lambda pair: -pair[0])
    assert [gpu for _, gpu in rates] == sorted(gpu for _, gpu in rates)
    beyond = compared(CHAT.replace("batch 32", "batch 40"))
    (table,) = (block for block in document(beyond).blocks if getattr(block, "name", "") == "interactivity")
    marks = {str(row[0]): str(row[1])[-1] for row in table.rows}  # type: ignore[union-attr]
    assert (marks["8"], marks["40"]) == ("~", "?")
    (chart,) = charts(beyond)
    names = {line.label: line.names for line in chart.lines}
    assert names == dict.fromkeys(("H200", "H100 80GB HBM3"), ("4~", "8~", "16~", "32~", "40?"))
    small = replace(H100, free=19 * 10**9)  # 16 GB of weights, and 0.31 GB for each sequence
    full = compared(CHAT.replace("batch 32", "batch 4"), devices=(H200, small))
    assert full.serving
    assert [one.asked.batch for one in full.serving.curves["H100 80GB HBM3"]] == [4, 8]


def test_a_model_whose_sizes_are_not_known_has_attention_alone() -> None:
    found = (
        *cases("llama-3.1-405b", "prefill", seqlen="2k", batch="1"),
        *cases("llama-3.1-405b", "decode", seqlen="2k", batch="32", page_size="16"),
    )
    got = compared("2k in, 4 out, llama-3.1-405b, batch 32", attention(found))
    assert "has no sizes of" in said(got)
    assert "attention alone gives" in said(got)


def test_a_step_reads_the_experts_that_its_tokens_take_and_computes_as_many_as_each_takes() -> None:
    """Of gpt-oss-20b, at 0.6 of the bandwidth: 32 tokens take 32 (1 - (28 / 32)^32) of 32 experts, of 4.25 bits."""
    found = (
        *cases("gpt-oss-20b", "prefill", seqlen="2k", batch="1"),
        *cases("gpt-oss-20b", "decode", seqlen="2k", batch="1,32", page_size="16"),
    )
    one_expert, logits = 3 * 2880 * 2880, 2880 * 201088
    rest = 2880 * (64 + 2 * 8) * 64 + 64 * 64 * 2880 + 2880 * 32  # q, k, v; output; the choice of experts
    for batch, experts in ((1, 4.0), (32, 32 * (1 - (28 / 32) ** 32))):
        got = compared(f"2k in, 4 out, gpt-oss-20b, batch {batch}", attention(found))
        read = 24 * (experts * one_expert * 4.25 / 8 + 2 * rest) + 2 * logits
        assert served(got).decode.products == pytest.approx(read / (0.6 * BANDWIDTH["H200"]), rel=1e-3), batch
        taken = 2 * (24 * (4 * one_expert + rest) * 2048 + logits)
        assert served(got).prefill.products == pytest.approx(taken / (0.5 * PEAK), rel=1e-3)
    assert (
        "each token is assumed to take 4 of 32 experts at random, so that a step of decode reads 31.6 of a layer's; "
        "weights have 4.25 bits for experts, products the rate of bf16"
    ) in said(got)
    assert "by its roofline (60% of the bandwidth, as in the measured step of llama-3.1-8b on it)" in said(got)


def test_a_measured_step_with_experts_counts_for_its_model_alone() -> None:
    """A step of two of 24 layers, each with 4 of 32 experts: 0.2 of the bandwidth, in the bits in which it was run."""
    shape, windows = Shape(1, 1, 4096, 64, 8, 64, 64), {"window_size": (127, 0), "sink": True}
    sizes = "arch=gpt_oss hidden=2880 intermediate=2880 vocab=201088 experts=32 taken=4 windows=128/0"
    case = Case(shape, "bf16", "fwd", True, step=f"decode gpt-oss-20b 2/24 {sizes}", **windows)  # type: ignore[arg-type]
    rest = weight_bytes(case) / (0.2 * BANDWIDTH["H200"])
    taken = builders.measurements(time=[rest + 3e-3] * 10, attention=1e-3, step_traced=rest + 1e-3)
    record = Record(case, "step-sdpa", 0, "ok", measurements=taken, timer="events", l2="cold")
    steps = [(H200, step("prefill", 0.5)), (H200, step("decode", 0.6)), (H200, record)]
    found = (
        *cases("gpt-oss-20b", "prefill", seqlen="2k", batch="1"),
        *cases("gpt-oss-20b", "decode", seqlen="2k", batch="32", page_size="16"),
    )
    got = compared("2k in, 4 out, gpt-oss-20b, batch 32", attention(found), steps)
    assert "in decode by the measured step of gpt-oss-20b on it (20% of the bandwidth)" in said(got)
    assert "by its roofline (20% of the bandwidth, as in the measured step of gpt-oss-20b on H200)" in said(got)
    assert "(60% of the bandwidth)" in said(compared(steps=steps)), "of llama"


def test_all_reduces_take_the_time_of_their_bytes() -> None:
    """Two a layer of 32 x 4096 activations in bf16, of which a ring of 2 sends all: at the bus, else at NVLink's."""
    halves = (
        *cases("llama-3.1-8b", "prefill", tp=2, seqlen="2k", batch="4"),
        *cases("llama-3.1-8b", "decode", tp=2, seqlen="2k,8k", batch="32", page_size="16"),
    )
    records = attention(halves)
    by_nvlink = compared(f"{CHAT}, tp 2", records)
    assert served(by_nvlink).decode.sending == pytest.approx(2 * 32 * 32 * 4096 * 2 / 450e9)
    assert served(by_nvlink).prefill.sending == pytest.approx(2 * 32 * 2048 * 4096 * 2 / 450e9)
    assert "without latency: on H200 at NVLink's 450 GB/s by the datasheet (" in said(by_nvlink)
    taken = {"time": builders.times(FILL), "ceiling_bus": Measurement("B/s", (250e9,))}
    of_ranks = Record(replace(PREFILL[0], ranks=2), "ring-sdpa", 0, "ok", measurements=taken)
    measured = compared(f"{CHAT}, tp 2", [*records, of_ranks])
    assert served(measured).decode.sending == pytest.approx(2 * 32 * 32 * 4096 * 2 / 250e9)
    assert "on H200 at 250 GB/s, as in a large all-to-all of 2 devices (" in said(measured)
    assert served(measured).tokens_a_second < served(by_nvlink).tokens_a_second


def test_heads_that_stand_in_are_within_what_is_stated() -> None:
    """Prefills of Llama's size on real machines are predicted from other heads, as if their own were not measured."""
    results = Path(__file__).parents[2] / "results"
    kinds = ("default", "libraries", "models", "serving", "claims")
    paths = sorted(path for kind in kinds for path in results.glob(f"*-{kind}-nvidia-h?00.jsonl.gz"))
    llama, errors = requests.parse(CHAT), []
    for machine in machines(paths, [run_file.read(path)[0] for path in paths]):

        def families(asked: requests.Requests, machine: Machine = machine) -> list[list[Case]]:
            return requests.families(asked, asked.model.layers[0], "prefill", machine.fastest)

        for case in (case for family in families(llama) for case in family if case.dtype == "bf16"):
            s = case.shape
            model = replace(llama.model, nheads=s.nheads, nheads_k=s.nheads_k)
            asked = replace(llama, model=model, batch=s.batch, seqlen_in=s.seqlen_k)
            sums = [total for one in families(asked) if (total := requests.interpolated(asked, "prefill", one))]
            others = sorted((one for one in sums if one.other_heads and not one.doublings), key=lambda one: one.rank)
            cells = requests.fastest_sum(machine, others[0].times, None) if others else {}
            if cells:
                seconds = sum(times * machine.latency(key) for key, times in cells.items())
                errors.append(math.log(seconds * s.batch / machine.latency(machine.fastest[case])))
    typical = math.sqrt(sum(error**2 for error in errors) / len(errors))
    print(f"1.96 x {typical:.3f} = {1.96 * typical:.3f}, largest {max(map(abs, errors)):.3f}, of {len(errors)}")
    assert len(errors) >= 10
    assert 1.96 * typical <= requests.STAND_IN
    assert sum(abs(error) <= requests.STAND_IN for error in errors) / len(errors) >= 0.93


PUBLISHED = (  # milliseconds for a generated token
    # buildkite.com/vllm/performance-benchmark/builds/9515: 32 in, 128 out, mean of a batch over 128
    ("H200", "llama-3.1-8b, batch 8", 833.421 / 128),
    ("H200", "mixtral-8x7b, batch 8, tp 2", 1917.44 / 128),
    ("H200", "llama-3.1-70b, batch 8, tp 4", 2077.53 / 128),
    # github.com/gpustack/gpustack, docs/performance-lab/qwen3-8b/h100-latency.md: vLLM 0.11, ShareGPT, mean TPOT
    ("H100 80GB HBM3", "qwen3-8b, batch 4", 7.38),
)


def test_published_servers_are_within_what_is_stated() -> None:
    """At the shortest measured context, of 1k; the published ones are shorter, where attention is a smaller part."""
    results = Path(__file__).parents[2] / "results"
    kinds = ("serving", "models", "libraries", "step")
    paths = sorted(path for kind in kinds for path in results.glob(f"*-{kind}-nvidia-h?00.jsonl.gz"))
    runs = [run_file.read(path)[0] for path in paths]
    found, shares = {machine.label: machine for machine in machines(paths, runs)}, step_shares(runs)
    for label, text, milliseconds in PUBLISHED:
        one = predicted(requests.parse(f"1k in, 2 out, {text}"), found[label], shares)
        assert isinstance(one, Served), one
        took, stated = milliseconds / 1e3 / one.decode.seconds, math.exp(math.hypot(*one.decode.doubts.values()))
        print(f"{label}, {text}: published {took:.2f} of ours; stated {1 / stated:.2f} to {stated:.2f}")
        assert 1 / min(stated, 1.2) <= took <= min(stated, 1.2)
