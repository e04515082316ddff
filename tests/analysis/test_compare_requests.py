"""Requests in words, "4k in, 2k out", as a workload: their parsing, the cases that represent them, and the answer."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.analysis.compare import requests
from attnbench.analysis.compare.answer import answer
from attnbench.analysis.compare.findings import Comparison, compare
from attnbench.analysis.compare.machines import File, machine_of
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.machine import Device
from attnbench.core.record import Record
from attnbench.results import run_file
from attnbench.run.suite import load_suite, parse_options, resolve
from builders import H200, run, times

CHAT = "chat: 2k in, 300 out, llama-3.1-8b, batch 32"
H100 = replace(H200, name="NVIDIA H100")


def cases(model: str, phase: str, tp: int = 1, **axes: str) -> tuple[Case, ...]:
    options = parse_options({"models": model, "phase": phase, "tp": tp, "axes": axes})
    return resolve(load_suite("quick"), "cuda", options).cases


PREFILL = cases("llama-3.1-8b", "prefill", seqlen="2k,4k", batch="4")
DECODE = cases("llama-3.1-8b", "decode", seqlen="2k,8k", batch="16,32", page_size="none,1,16")


def records(prefill: float, decode: float, which: Iterable[Case] = (*PREFILL, *DECODE)) -> list[Record]:
    def seconds(case: Case) -> float:
        s = case.shape
        return decode * s.seqlen_k * s.batch / 2**16 if case.is_decode else prefill * s.seqlen_k / 2048

    return [Record(case, "triton", 0, "ok", measurements={"time": times(seconds(case))}) for case in which]


def compared(text: str, *machines: list[Record], prices: tuple[str, ...] = ()) -> Comparison:
    runs = [run(found, device=device) for found, device in zip(machines, (H200, H100), strict=False)]
    return compare([Path("a"), Path("b")], runs, workload=text, prices=prices)


def test_a_batch_is_filled_and_then_generates() -> None:
    """A prefill counts as measured, four sequences at a time; a decode over 2048 + 150 keys lies between 2k and 8k."""
    got = compared(CHAT, records(1e-3, 1e-4), records(2e-3, 1e-4))
    assert got.workload
    prefill, decode = got.workload.parts
    assert prefill.name == "prefill, 32 layers: 2k b32 bf16"
    assert decode.name == "decode, 32 layers: 1x2198 b32 bf16 page_size 16"
    assert (prefill.calls, decode.calls) == (32 * 32, 32 * 300)
    h200, h100 = got.main.machines["H200"], got.main.machines["H100"]
    assert prefill.seconds(h200) == pytest.approx(256 * 1e-3)
    of_decode = 9600 * 1e-4 * 2198 / 2048
    assert decode.seconds(h200) == pytest.approx(of_decode, rel=1e-3)
    total = 256 * 1e-3 + of_decode
    assert got.workload.seconds_a_token(h200) == pytest.approx(total / (32 * 300), rel=1e-3)
    ratio = got.workload.ratio(h100)
    assert ratio
    assert ratio.value == pytest.approx(total / (256 * 2e-3 + of_decode), rel=1e-3)
    assert [part.share for part in got.workload.parts] == pytest.approx([0.256 / total, of_decode / total], rel=1e-3)


def test_a_time_follows_length_and_batch() -> None:
    """Times follow length and batch: in these records a decode is in proportion to keys, a prefill to tokens."""

    def expected(given: int, out: int, batch: int) -> float:
        filling = batch * (1e-3 / 4) * given / 2048
        return out / (filling + out * 1e-4 * (given + out // 2) * batch / 2**16) / 32 * batch

    for given, batch in ((2048, 32), (2500, 20), (4096, 18)):
        got = compared(f"{given} in, 300 out, llama-3.1-8b, batch {batch}", *[records(1e-3, 1e-4)] * 2)
        assert got.tokens_a_second(got.main, "H200") == pytest.approx(expected(given, 300, batch), rel=0.02)


def test_the_answer_has_tokens_a_second_and_what_they_cost() -> None:
    got = compared(CHAT, records(1e-3, 1e-4), records(2e-3, 1e-4), prices=("h200=3.60/h", "h100=1.80/h"))
    said = " ".join(answer(got))
    rates = [got.tokens_a_second(got.main, label) for label in got.labels]
    assert f"attention alone gives {rates[0]:.0f} tokens/s on H200, {rates[1]:.0f} tokens/s on H100 (of gene" in said
    assert re.search(
        r"a million generated tokens of 'chat' cost \$0\.1\d\d on H200, \$0\.0\d+ on H100 \(attention", said
    )


def test_between_two_batches_and_two_lengths() -> None:
    """A decode between two measured batches and lengths is a mean of all four cases, by its position between them."""
    got = compared("4k in, 2k out, llama-3.1-8b, batch 24", records(1e-3, 1e-4), records(1e-3, 1e-4))
    assert got.workload
    prefill, decode = got.workload.parts
    (times,) = {
        tuple(sorted((c.shape.seqlen_k, c.shape.batch, round(n, 2)) for (c, _), n in of.items()))
        for of in decode.cells.values()
    }
    assert times == ((2048, 16, 0.25), (2048, 32, 0.25), (8192, 16, 0.25), (8192, 32, 0.25))
    assert decode.stands_in == (
        "decode of 5k keys at batch 24 is interpolated between 2k and 8k keys at batch 16 and 32, to some 4.4%"
    )
    assert decode.interpolation == pytest.approx(0.04 * (math.log2(8 / 5) + math.log2(32 / 24)), rel=1e-3)
    assert (prefill.stands_in, prefill.interpolation) == ("prefill counts as measured at batch 4, of 4k", 0.0)
    assert decode.stands_in in answer(got)[0]


def test_an_interpolated_time_is_less_sure() -> None:
    def half(text: str) -> float:
        got = compared(text, records(1e-3, 1e-4), records(2e-3, 1e-4))
        ratio = got.main.ratio("H100")
        assert ratio
        assert ratio.high
        return math.log(ratio.high / ratio.value)

    got = compared(CHAT.replace("2k in", "1898 in"), records(1e-3, 1e-4), records(2e-3, 1e-4))
    assert "prefill of 1898 is scaled from 2k at batch 4, to some 0.88%" in answer(got)[0]
    measured, near, far = (half(f"{given} in, 300 out, llama-3.1-8b, batch 32") for given in (2048, 2100, 3700))
    assert max(measured, near) < far


def test_each_machine_runs_the_backend_that_is_fastest_at_what_was_asked_for() -> None:
    """Each machine runs its faster backend: one is faster at 2k, the other at 8k, and the request lies between."""
    ours = records(1e-3, 1e-4)
    gaining = [
        replace(r, backend="fa3", measurements={"time": times({2048: 1.5e-4, 8192: 2e-4}[r.case.shape.seqlen_k])})
        for r in ours
        if r.case.is_decode and r.case.shape.batch == 32
    ]
    for given, backend in ((2048, "triton"), (6000, "fa3")):
        prefill = records(1e-3, 1e-4, cases("llama-3.1-8b", "prefill", seqlen=str(given), batch="1"))
        got = compared(f"{given} in, 10 out, llama-3.1-8b, batch 32", *[[*ours, *gaining, *prefill]] * 2)
        assert got.workload
        assert got.workload.parts[1].backends(got.main.machines["H200"]) == [backend]


def test_every_device_of_a_model_that_is_divided_is_paid() -> None:
    """A model on two devices has one device's tokens per second at twice the price."""
    halves = [
        *cases("llama-3.1-8b", "prefill", tp=2, seqlen="2k", batch="32"),
        *cases("llama-3.1-8b", "decode", tp=2, seqlen="2k,8k", batch="32", page_size="16"),
    ]
    sequences_on_two = [replace(case, ranks=2) for case in halves[:1]]  # it has no share of this, as it has no heads
    prices = ("h200=3.6/h", "h100=7.2/h")
    one = compared(CHAT, *[records(1e-3, 1e-4)] * 2, prices=prices)
    found = records(8e-3, 1e-4, halves) + records(1e-9, 1e-9, sequences_on_two)
    two = compared(f"{CHAT}, tp 2", found, found, prices=prices)
    assert two.tokens_a_second(two.main, "H200") == pytest.approx(one.tokens_a_second(one.main, "H200"))
    assert two.million_tokens(two.main, "H200") == pytest.approx(2 * (one.million_tokens(one.main, "H200") or 0))
    assert two.main.tflops("H200") == pytest.approx((one.main.tflops("H200") or 0) / 2), "of one device"
    assert "attention alone of 2 devices gives" in answer(two)[0]
    assert "(attention alone, all layers, 2 devices)" in answer(two)[1]


def test_every_kind_of_layers_is_a_part() -> None:
    found = (
        *cases("gemma-3-27b", "prefill", seqlen="4k", batch="1"),
        *cases("gemma-3-27b", "decode", seqlen="4k", batch="16", page_size="16"),
    )
    text = "4k in, 100 out, gemma-3-27b, batch 16"
    got = compared(text, records(1e-3, 1e-4, found), records(1e-3, 1e-4, found))
    assert got.workload
    assert got.workload.name == "gemma-3-27b"
    parts = {part.name.partition(":")[0]: part.calls for part in got.workload.parts}
    assert parts.pop("decode, 52 layers, window 1024") == 52 * 100
    assert parts == {"prefill, 52 layers, window 1024": 52 * 16, "prefill, 10 layers": 160, "decode, 10 layers": 1000}


def test_a_hybrid_and_chosen_keys_are_summed() -> None:
    """A decode of a delta rule takes the same time in any context, and its state is its cache."""
    given = (*cases("qwen3.5-27b", "prefill", seqlen="4k", batch="1"), *cases("deepseek-v3.2", "prefill", seqlen="4k"))
    decoded = [
        case
        for model in ("qwen3.5-27b", "deepseek-v3.2")
        for case in cases(model, "decode", seqlen="4k", batch="16", page_size="none")
    ]

    def measured(case: Case) -> Record:
        seconds = 1e-3 if case.is_decode else 0.1
        return Record(case, "fla" if case.is_delta else "fa3", 0, "ok", measurements={"time": times(seconds)})

    found = [measured(case) for case in (*given, *decoded)]
    got = compared("4k in, 100 out, qwen3.5-27b, batch 16", found, found)
    assert got.workload
    parts = {part.name.partition(":")[0]: part.calls for part in got.workload.parts}
    of_rule = {"prefill, 48 layers of gdn": 48 * 16, "decode, 48 layers of gdn": 4800}
    assert parts == {"prefill, 16 layers": 256, "decode, 16 layers": 1600, **of_rule}
    assert not any(part.stands_in for part in got.workload.parts if part.name.startswith("decode, 48")), (
        "measured itself"
    )
    cache = requests.parse("4k in, 4k out, qwen3.5-27b, batch 1").cache
    assert cache == 2 * 16 * 4 * 512 * 8192 + 48 * 4 * 48 * 128 * 128
    chosen = compared("4k in, 100 out, deepseek-v3.2, batch 16", found, found).workload
    assert chosen
    assert all(case.mask == "topk:2k" for part in chosen.parts for case in part.cases)
    indexer = {part.name.partition(":")[0]: part.calls for part in chosen.parts if "indexer" in part.name}
    assert indexer == {"prefill, 61 layers of indexer": 61 * 16, "decode, 61 layers of indexer": 6100}
    own = requests.parse("4k in, 4k out, deepseek-v3.2, batch 1").cache
    assert own == 2 * 8192 * 61 * (512 + 64 + 128), "with the keys of the indexer"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2k in, 300 out, batch 32", "does not say model; write 'chat: 2k in"),
        ("chat: 2k in", "does not say out, model and batch"),
        ("2k in 300 out llama-3.1-8b", "has several parts; put commas between them, as in 'chat: 2k in"),
        ("2k in, 300 out llama-3.1-8b, batch 4", "'300 out llama-3.1-8b' has several parts"),
        ("chat: 2k in, 1k in, 3 out, llama-3.1-8b, batch 2", "gives in a second time"),
        ("chat: 2k in, 300 out, llama-9, batch 32", "no model 'llama-9'"),
        ("chat: 2k in, x out, llama-3.1-8b, batch 32", "'x' is not a size"),
        ("chat: 2k in, 300 out, llama-3.1-8b, batch 32, tp 3", "3 does not divide"),
        ("chat: 2k in, 300 out, flux.1-dev, batch 32", "cannot measure the decoding of flux.1-dev"),
        ("2k in, 300 out, gpt-oss-20b, batch 32, tp 2", "attnbench run --model gpt-oss-20b --tp 2 --seqlen 2k"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(text: str, said: str) -> None:
    with pytest.raises(UserError) as told:
        compared(text, records(1e-3, 1e-4), records(1e-3, 1e-4))
    assert said in str(told.value)
    assert "\n" not in str(told.value)


def test_what_is_far_from_all_that_was_measured_is_no_figure() -> None:
    for given, out, batch in ((6144, 10, 32), (2048, 20480, 32), (2048, 10, 64), (2048, 10, 8)):
        with pytest.raises(UserError, match="no figure on H200 and H100 of the"):
            compared(f"{given} in, {out} out, llama-3.1-8b, batch {batch}", *[records(1e-3, 1e-4)] * 2)


def test_a_machine_that_lacks_a_figure_is_named() -> None:
    what = r"no figure on H100 of the decode of 32 x 2198 keys .*: .* --page-size 16 --batch 32 --seqlen 2k,4k$"
    with pytest.raises(UserError, match=what):
        compared(CHAT, records(1e-3, 1e-4), records(1e-3, 1e-4, PREFILL))


def test_what_memory_does_not_hold_has_no_figure() -> None:
    """Requests beyond the memory have no result.

    A token takes 128 KiB (32 layers of 8 heads of 128); the model has 8.03 G weights.
    """
    decode = cases("llama-3.1-8b", "decode", seqlen="8k", batch="64", page_size="16")
    found = records(1e-3, 1e-4, (*PREFILL, *decode))
    small = replace(H100, memory=80 * 2**30)

    def of(text: str, *devices: Device, **ask: str) -> Comparison:
        runs = [run(found, device=device) for device in devices]
        return compare([Path("a"), Path("b")], runs, workload=text, prices=("h200=3/h", "h100=2/h"), **ask)

    text = "4k in, 8k out, llama-3.1-8b, batch 64"
    got = of(text, H200, small)
    assert [bool(got.tokens_a_second(got.main, label)) for label in got.labels] == [True, False]
    assert [bool(got.million_tokens(got.main, label)) for label in got.labels] == [True, False]
    need = "'llama-3.1-8b' needs 96.0 GiB of KV cache and 15.0 GiB of weights, in 16 bits, and H100 has 80.0 GiB"
    assert f" tokens/s on H200 (of generated tokens). {need}: no figure of it there." in answer(got)[0]
    with pytest.raises(UserError, match=r"H200 has 139 GiB and H100 has 80.0 GiB; ask for fewer"):
        of("4k in, 14k out, llama-3.1-8b, batch 64", H200, small)
    published = requests.parse("4k in, 4k out, deepseek-v3, batch 1, tp 8").weights * 8
    assert published == pytest.approx(671e9, rel=0.005), "in 8 bits"
    assert requests.parse("4k in, 4k out, llama-3.1-405b, batch 1").weights == 0, "not known"
    latent = requests.parse("4k in, 4k out, deepseek-v3, batch 1, tp 8").cache
    assert latent == 2 * 8192 * 61 * (512 + 64), "each device has all of it"
    windows = requests.parse("4k in, 4k out, gemma-3-27b, batch 1").cache
    assert windows == 2 * 16 * 256 * (52 * 1024 + 10 * 8192)


def test_an_interpolated_decode_is_within_what_is_stated() -> None:
    """Cases of real runs, interpolated from their measured neighbours, are off by no more than the stated error."""
    errors = []
    for name in ("20261125-195215-serving-nvidia-h200", "20261123-170511-serving-nvidia-h100"):
        path = Path(__file__).parents[2] / "results" / f"{name}.jsonl.gz"
        machine = machine_of(name, [File(path, run_file.read(path)[0])])
        measured = [case for case in machine.fastest if case.shape.seqlen_q == 1 and case.page_size == 16]
        measured = [case for case in measured if case.shape.nheads == 32 and not case.is_ragged]
        asked = requests.parse(CHAT)
        for case in measured:
            others = [other for other in measured if other is not case and other.cache_dtype == case.cache_dtype]
            asked = replace(asked, batch=case.shape.batch, seqlen_in=case.shape.seqlen_k, seqlen_out=1)
            found = requests.interpolated(asked, "decode", others)
            cells = requests.fastest_sum(machine, found.times, None) if found else {}
            if found and cells:
                seconds = sum(times * machine.latency(key) for key, times in cells.items())
                error = math.log(seconds / machine.latency(machine.fastest[case]))
                errors.append(abs(error) / (requests.DOUBT * found.doublings))
    print(sorted(errors))
    assert len(errors) >= 10
    assert sum(error <= 1 for error in errors) / len(errors) >= 0.93
