"""A workload file: its allowed content, and its result, the ratio of total times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnbench.analysis.compare.answer import answer as sentences
from attnbench.analysis.compare.findings import Comparison, compare
from attnbench.analysis.compare.workload import MeasuredPart, MeasuredWorkload
from attnbench.core import flops
from attnbench.core.errors import UserError
from attnbench.core.record import Record
from builders import H200, case, ended, ok, run

H100 = replace(H200, name="NVIDIA H100")
CHAT = """
name: chat
parts:
  - {name: prefill, weight: 70%, seqlen: 8k, causal: true, pass: fwd}
  - {name: training, weight: 30%, seqlen: 4k, pass: [fwd, bwd]}
"""
PREFILL, FWD, BWD = case(8192, causal=True), case(4096), case(4096, direction="bwd")


def records(prefill: float, forward: float, backward: float, **rest: Any) -> list[Record]:
    pairs = zip((PREFILL, FWD, BWD), (prefill, forward, backward), strict=True)
    return [ok(c, "fa3", tflops, **rest) for c, tflops in pairs] + [ok(case(1024), "fa3", 1)]


def weighed(
    path: Path, text: str, *runs: Sequence[Record], to: str | None = None, prices: Sequence[str] = ()
) -> tuple[Comparison, MeasuredWorkload]:
    file = path / "chat.yaml"
    file.write_text(text)
    devices = (H200, H100, replace(H200, name="NVIDIA B200"))
    made = [run(r, device=d) for r, d in zip(runs, devices, strict=False)]
    got = compare([Path(f"{i}") for i in range(len(runs))], made, to=to, prices=prices, workload=str(file))
    assert got.workload
    return got, got.workload


def value(got: Comparison, label: str = "H100", part: MeasuredPart | None = None) -> float:
    """Return the ratio of a machine, in a part of the workload or in all."""
    assert got.workload
    ratio = got.workload.ratio(got.main.machines[label], part)
    assert ratio
    return ratio.value


def test_shares_of_time_give_the_weighted_harmonic_mean(tmp_path: Path) -> None:
    got, answer = weighed(tmp_path, CHAT, records(500, 400, 300), records(1000, 400, 300))
    assert [value(got, part=part) for part in answer.parts] == pytest.approx([2.0, 1.0])
    assert value(got) == pytest.approx(1 / (0.7 / 2 + 0.3 / 1))
    assert value(got, "H200") == 1.0
    assert got.main.tflops("H100") == pytest.approx((got.main.tflops("H200") or 0) * value(got))


def test_a_part_is_one_call_of_each_of_its_cases(tmp_path: Path) -> None:
    got, answer = weighed(tmp_path, CHAT, records(500, 400, 300), records(500, 800, 300))
    work = [flops.flops(c) for c in (FWD, BWD)]
    before, after = work[0] / 400 + work[1] / 300, work[0] / 800 + work[1] / 300
    training = answer.parts[1]
    assert len(training.cases) == 2
    assert value(got, part=training) == pytest.approx(before / after)


def test_shares_of_work_do_not_depend_on_the_reference(tmp_path: Path) -> None:
    text = CHAT.replace("name: chat", "weights: work")
    runs = records(500, 400, 400), records(1000, 200, 200)
    got, answer = weighed(tmp_path, text, *runs)
    assert value(got) == pytest.approx((0.7 / 500 + 0.3 / 400) / (0.7 / 1000 + 0.3 / 200))
    expected = [1 / (0.7 / 500 + 0.3 / 400), 1 / (0.7 / 1000 + 0.3 / 200)]
    assert [got.main.tflops(label) for label in got.labels] == pytest.approx(expected)
    other, _ = weighed(tmp_path, text, *runs, to="H100")
    assert value(other, "H200") == pytest.approx(1 / value(got))
    assert [other.main.tflops(label) for label in got.labels] == pytest.approx(expected)
    assert answer.name == "chat", "a file without a name is called as it is"


def test_the_fastest_backend_of_each_machine_or_of_those_named(tmp_path: Path) -> None:
    ours = [*records(500, 400, 300), ok(PREFILL, "sdpa-cudnn", 550), ok(PREFILL, "sdpa-flash", 450)]
    no_fa4 = ended(PREFILL, "fa4", "skipped", "no bf16")
    theirs = [*records(700, 400, 300), ok(PREFILL, "sdpa-cudnn", 600), ok(PREFILL, "fa4", 800)]
    got, _ = weighed(tmp_path, CHAT, ours, theirs)
    assert not got.beside(sustained=False, shared=False), "nobody tried fa4 on the first"
    assert got.untried == (PREFILL,)
    got, shared = weighed(tmp_path, CHAT, [*ours, no_fa4], theirs)
    assert [shared.parts[0].backends(machine) for machine in got.machines] == [["sdpa-cudnn"], ["fa3"]]
    assert value(got, part=shared.parts[0]) == pytest.approx(700 / 550)
    assert (own := got.beside(sustained=False, shared=False))
    assert own.workload
    assert own.workload.parts[0].backends(got.machines[1]) == ["fa4"]
    got, bound = weighed(tmp_path, CHAT.replace("pass: fwd", 'pass: fwd, backend: "sdpa-*"'), ours, theirs)
    assert value(got, part=bound.parts[0]) == pytest.approx(600 / 550)


def test_without_pauses_where_all_of_it_was_measured_so(tmp_path: Path) -> None:
    def paced(which: Sequence[Record], factor: float) -> list[Record]:
        return [ok(r.case, "fa3", 500, sustained=flops.flops(r.case) / factor / 500e12) for r in which]

    some = [*paced(records(1, 1, 1)[:1], 0.8), *records(500, 500, 500)[1:]]
    assert not weighed(tmp_path, CHAT, some, some)[0].main.sustained
    ours, theirs = (paced(records(1, 1, 1), factor) for factor in (0.8, 0.6))
    got, _ = weighed(tmp_path, CHAT, ours, theirs)
    assert got.main.sustained
    assert value(got) == pytest.approx(0.6 / 0.8)
    assert [figures.sustained for figures in got.figures] == [True, False]


def test_a_million_tokens(tmp_path: Path) -> None:
    """In a part with both passes the tokens of the backward are those of the forward."""
    text = CHAT.replace("name: chat", "name: chat\nlayers: 10")
    prices = ("h200=3.6/h", "h100=1800/1000h")
    got, _ = weighed(tmp_path, text, records(500, 400, 300), records(1000, 400, 300), prices=prices)
    time = {c: flops.flops(c) / tflops / 1e12 for c, tflops in ((PREFILL, 500), (FWD, 400), (BWD, 300))}
    calls = 0.7 / time[PREFILL], 0.3 / (time[FWD] + time[BWD])
    tokens = calls[0] * 8192 * PREFILL.shape.batch + calls[1] * 4096 * FWD.shape.batch
    assert got.million_tokens(got.main, "H200") == pytest.approx(3.6 / 3600 * 1 / tokens * 10 * 1e6)
    assert got.million_tokens(got.main, "H100") == pytest.approx(1.8 / 3600 * (0.7 / 2 + 0.3) / tokens * 10 * 1e6)
    got, _ = weighed(tmp_path, text, records(500, 400, 300), records(1000, 400, 300), prices=("h200=1000", "h100=900"))
    assert got.million_tokens(got.main, "H200") is None, "a purchase without a lifetime has no cost of an hour"


def test_each_device_that_runs_is_paid_and_rates_are_of_one(tmp_path: Path) -> None:
    """A part on two devices has the price of two, but rates of one device. The H100 is twice as fast in this part."""
    parts = "{weight: 1, seqlen: 8k, ranks: 2}, {weight: 1, seqlen: 4k, ranks: 1, pass: fwd}"
    text = f"weights: calls\nparts: [{parts}]"
    long = replace(PREFILL, ranks=2)

    def found(seconds: float, watts: float) -> list[Record]:
        each = ((long, seconds, watts), (FWD, 1.0, 300.0))
        return [
            ok(c, "fa3", flops.flops(c) / 1e12 / s, sustained=s, sustained_power=w, sustained_power_error=0.0)
            for c, s, w in each
        ]

    got, answer = weighed(tmp_path, text, found(2, 600), found(1, 500), prices=("h200=3.6/h", "h100=3.6/h"))
    assert value(got) == pytest.approx((2 + 1) / (1 + 1))
    of_device, work = (2 * 2 + 1) / (2 * 1 + 1), (flops.flops(long) + flops.flops(FWD)) / 1e12
    money, below = got.for_the_money(got.main, "H100"), got.worth_below(got.main, "H100")
    assert money
    assert below
    assert (money.value, below.value) == pytest.approx((of_device, 3.6 * of_device))
    assert [got.main.tflops(label) for label in got.labels] == pytest.approx([work / 5, work / 3])
    assert [got.bought(got.main, label) for label in got.labels] == pytest.approx([work / 5, work / 3])
    tokens = 8192 * long.shape.batch + 4096 * FWD.shape.batch
    assert [got.tokens_a_second(got.main, label) for label in got.labels] == pytest.approx([tokens / 3, tokens / 2])
    costs = [got.million_tokens(got.main, label) for label in got.labels]
    assert costs == pytest.approx([5 / tokens * 1e3, 3 / tokens * 1e3])
    joules = 2 * 2 * 600 + 300, 2 * 1 * 500 + 300
    assert [got.main.watts(label) for label in got.labels] == pytest.approx([joules[0] / 5, joules[1] / 3])
    per_watt = got.main.per_watt("H100")
    assert per_watt
    assert per_watt.value == pytest.approx(joules[0] / joules[1])
    assert answer.devices == (1, 2)
    assert "attention alone of 1 and 2 devices gives" in sentences(got)[0]


def test_a_machine_that_cannot_run_a_part_has_no_figure(tmp_path: Path) -> None:
    small = [ok(FWD, "fa3", 100), ended(PREFILL, "fa3", "oom", "out of memory")]
    got, answer = weighed(tmp_path, CHAT, records(500, 400, 300), small, records(600, 400, 300))
    assert got.main.ratio("H100") is None
    assert got.main.ratio("B200")
    assert got.main.tflops("H100") is None
    assert answer.notes == ("H100 has no figure for 'prefill', and therefore no figure for the workload.",)
    assert got.bought(got.main, "H100") is None
    with pytest.raises(UserError, match=r"H100, to which .* has no figure for 'prefill'"):
        weighed(tmp_path, CHAT, records(500, 400, 300), small, to="H100")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "a workload is a mapping with parts"),
        ("parts: []", "parts is empty"),
        ("parts: [{seqlen: 8k}]", "parts.0.weight is missing"),
        ("parts: [{weight: 1, seqln: 8k}]", 'unknown key; did you mean "seqlen"'),
        ("parts: [{weight: much}]", "'much' is not a weight"),
        ("parts: [{weight: 0}]", "is not a weight above 0"),
        (f"parts: [{{weight: '{9:9<308}'}}, {{weight: '{9:9<308}'}}]", "is not a weight above 0"),
        ("parts: [{weight: 70%}, {weight: 20%}]", "add up to 90%"),
        ("parts: [{weight: 70%}, {weight: 2}]", "some are not"),
        ("parts: [{weight: 1, name: a}, {weight: 1, name: a}]", "one name"),
        ("parts: [{weight: 1, seqlen: 8kk}]", "part 1: .*8kk"),
        ("parts: [{weight: 1, pass: forward}]", "unknown pass 'forward'"),
        ("parts: [{weight: 1, seqlen: 16k}]", "no file has seqlen 16k, only seqlen 1k, 4k, 8k"),
        ("parts: [{weight: 1, seqlen: 8k, pass: bwd}]", "its values were measured, but not together in one case"),
        ("parts: [{weight: 1, backend: fa4}]", "no backend 'fa4' was measured"),
        ("weights: money\nparts: [{weight: 1}]", "weights: .*'time', 'work' or 'calls'"),
        ("tokens: 0\nparts: [{weight: 1}]", "tokens: 0 is not greater than 0"),
        ("layers: 0\nparts: [{weight: 1}]", "layers: 0 is not a number of layers from 1 to 10000"),
        ("parts: [", "not readable as YAML"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        weighed(tmp_path, text, records(500, 400, 300), records(500, 400, 300))
    assert "\n" not in str(error.value)


def test_steps_of_whole_models_are_in_no_part(tmp_path: Path) -> None:
    step = "prefill llama-3.1-8b 4/32 arch=llama hidden=4096 intermediate=14336 vocab=128256"
    steps, plain = [ok(replace(PREFILL, step=step), "step-sdpa", 500)], records(500, 400, 300)
    _, answer = weighed(tmp_path, CHAT, [*plain, *steps], [*plain, *steps])
    assert [part.cases for part in answer.parts] == [(PREFILL,), (FWD, BWD)]
    with pytest.raises(
        UserError, match="'prefill' fits no case that was measured: all cases are steps of whole models"
    ):
        weighed(tmp_path, CHAT, steps, steps)
