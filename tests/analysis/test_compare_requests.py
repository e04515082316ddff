"""Requests in words as a workload: what is read, which cases stand for it, and what the answer says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.analysis.compare import requests
from attnbench.analysis.compare.answer import answer
from attnbench.analysis.compare.compare import Comparison, compare
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.record import Record
from attnbench.run.suite import load_suite, parse_options, resolve
from builders import H200, run, times

CHAT = "chat: 2k in, 300 out, llama-3.1-8b, batch 32"
H100 = replace(H200, name="NVIDIA H100")


def cases(model: str, phase: str, **axes: str) -> tuple[Case, ...]:
    return resolve(load_suite("quick"), "cuda", parse_options({"models": model, "phase": phase, "axes": axes})).cases


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
    got = compared(CHAT, records(1e-3, 1e-4), records(2e-3, 1e-4))
    assert got.workload
    prefill, decode = got.workload.parts
    assert prefill.name == "prefill, 32 layers: 2k b4 bf16"
    assert decode.name == "decode, 32 layers: 1x2k b32 bf16 page_size 16"
    assert (prefill.calls, decode.calls) == (32 * 32 / 4, 32 * 300)
    h200, h100 = got.main.machines["H200"], got.main.machines["H100"]
    assert prefill.seconds(h200) == pytest.approx(256 * 1e-3)
    assert decode.seconds(h200) == pytest.approx(9600 * 1e-4)
    total = 256 * 1e-3 + 9600 * 1e-4
    assert got.workload.seconds_a_token(h200) == pytest.approx(total / (32 * 300))
    ratio = got.workload.ratio(h100)
    assert ratio
    assert ratio.value == pytest.approx(total / (256 * 2e-3 + 9600 * 1e-4))
    assert [part.share for part in got.workload.parts] == pytest.approx([0.256 / total, 0.96 / total])


def test_the_answer_has_tokens_a_second_and_what_they_cost() -> None:
    got = compared(CHAT, records(1e-3, 1e-4), records(2e-3, 1e-4), prices=("h200=3.60/h", "h100=1.80/h"))
    said = " ".join(answer(got))
    assert "on the workload 'chat'" in said
    assert "attention alone gives 7895 tokens/s on H200, 6522 tokens/s on H100" in said
    assert "a million tokens of 'chat' cost $0.127 on H200, $0.0767 on H100 (attention alone, all layers)" in said


def test_cases_that_one_machine_lacks_do_not_stand_for_it() -> None:
    few = [case for case in (*PREFILL, *DECODE) if case.shape.batch != 32]
    got = compared(CHAT, records(1e-3, 1e-4), records(1e-3, 1e-4, few))
    assert got.workload
    decode = got.workload.parts[1]
    assert decode.name.endswith("1x2k b16 bf16 page_size 16")
    assert decode.calls == 32 * 300 * 2


def test_every_kind_of_layers_is_a_part() -> None:
    found = (
        *cases("gemma-3-27b", "prefill", seqlen="4k", batch="1"),
        *cases("gemma-3-27b", "decode", seqlen="4k", batch="16", page_size="16"),
    )
    text = "4k in, 100 out, gemma-3-27b, batch 16"
    got = compared(text, records(1e-3, 1e-4, found), records(1e-3, 1e-4, found))
    assert got.workload
    assert got.workload.name == "gemma-3-27b"
    assert [(part.name.partition(":")[0], part.calls) for part in got.workload.parts] == [
        ("prefill, 52 layers, window 1024", 52 * 16),
        ("decode, 52 layers, window 1024", 52 * 100),
        ("prefill, 10 layers", 10 * 16),
        ("decode, 10 layers", 10 * 100),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2k in, 300 out, batch 32", "does not say model; write 'chat: 2k in"),
        ("chat: 2k in, 300 out, llama-3.1-8b", "does not say batch"),
        ("chat: 2k in", "does not say out, model and batch"),
        ("llama-3.1-8b, batch 32", "does not say in and out"),
        ("300 out", "does not say in, model and batch"),
        ("chat: 2k in, 1k in, 3 out, llama-3.1-8b, batch 2", "says in a second time"),
        ("chat: 2k in, 300 out, llama-9, batch 32", "no model 'llama-9'"),
        ("chat: 2k in, x out, llama-3.1-8b, batch 32", "'x' is not a size"),
        ("chat: 2k in, 300 out, llama-3.1-8b, batch 32, tp 3", "3 does not divide"),
        ("chat: 2k in, 300 out, flux.1-dev, batch 32", "cannot measure the decoding of flux.1-dev"),
        (
            "chat: 2k in, 300 out, llama-3.1-70b, batch 32, tp 2",
            "on each machine: attnbench run --model llama-3.1-70b --tp 2 --seqlen 2k",
        ),
    ],
)
def test_what_cannot_be_is_told_in_a_line(text: str, said: str) -> None:
    with pytest.raises(UserError) as told:
        compared(text, records(1e-3, 1e-4), records(1e-3, 1e-4))
    assert said in str(told.value)
    assert "\n" not in str(told.value)


def test_a_decode_that_is_missing_says_what_to_measure() -> None:
    with pytest.raises(UserError, match="--phase decode --page-size 16 --batch 32 --seqlen 2k"):
        compared(CHAT, records(1e-3, 1e-4, PREFILL), records(1e-3, 1e-4, PREFILL))


@pytest.mark.parametrize("asked", ["16k in, 10 out, llama-3.1-8b, batch 4", "2k in, 10 out, llama-3.1-8b, batch 128"])
def test_what_is_far_from_all_that_was_measured_is_no_figure(asked: str) -> None:
    with pytest.raises(UserError, match="no figure on all machines"):
        compared(asked, records(1e-3, 1e-4), records(1e-3, 1e-4))


def test_files_are_no_words() -> None:
    assert requests.is_in_words(CHAT)
    assert not requests.is_in_words("chat.yaml")
    assert not requests.is_in_words("in/my, folder.yaml")
