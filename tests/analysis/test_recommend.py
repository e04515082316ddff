"""Recommendations from cells whose latencies, statuses and kernels a test sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import builders
from attnbench.analysis.choose.document import Choices
from attnbench.analysis.recommend.asked_for import asked_for
from attnbench.analysis.recommend.document import document
from attnbench.analysis.recommend.findings import TRAINING, Problem, answered_once, model_problems, problems
from attnbench.core.errors import UserError
from attnbench.core.models import find
from attnbench.core.policy import Policy
from attnbench.core.record import Bitwise, Measurement, Record, Run
from attnbench.render import terminal
from attnbench.render.document import Code, Document, Span, Table
from attnbench.results.cells import cells
from attnbench.results.uncertainty import of_sum
from attnbench.run.suite import parse_options
from builders import case, ended, environment, ok, run

CUDNN = {"cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_kernel0_0": 1}
FLASH = {"pytorch_flash::flash_fwd_kernel<...": 1}
SLOW, FAST, CASE = 300.0, 600.0, case(4096, causal=True)


def of(*runs: Run, **options: Any) -> list[Problem]:
    return problems(cells(runs), **options)


def one(*records: Record) -> Problem:
    (problem,) = of(run(records))
    return problem


def told(shown: Document) -> str:
    return " ".join(terminal.text(shown).split())


def used(found: Sequence[Problem]) -> list[str | None]:
    return [problem.use and problem.use.backend for problem in found]


def test_ties_are_shown_and_the_default_is_kept_where_it_ties() -> None:
    tie = one(ok(CASE, "sdpa", 599), ok(CASE, "fa2", FAST), ok(CASE, "triton", SLOW))
    assert [candidate.backend for candidate in tie.fastest] == ["fa2", "sdpa"]
    assert used([tie]) == ["sdpa"]
    assert tie.gain is None
    text = told(document(cells([run([ok(CASE, "sdpa", 599), ok(CASE, "fa2", FAST)])])))
    assert "use sdpa for 4k d128 causal fwd" in text
    assert "Alike within the uncertainty: fa2." in text
    other = one(ok(CASE, "sdpa", SLOW), ok(CASE, "fa2", FAST), ok(CASE, "triton", 601))
    assert used([other]) == ["triton"]
    assert [candidate.backend for candidate in other.fastest] == ["triton", "fa2"]


def bits(**more: Any) -> Bitwise:
    return Bitwise(**{"launches": 8, "differing": {"out": 0}, "digests": {"out": "1"}, "no_process": "", **more})


def test_only_backends_whose_bits_are_known_are_recommended() -> None:
    """Of the backends that are left out, those that differ and those that were not compared are told apart."""
    differs, alone = bits(differing={"out": 3}), bits(alone=("out",))
    records = [
        *(ok(CASE, "fa2", 900, bitwise=differs), ok(CASE, "flex", 800, bitwise=alone), ok(CASE, "fa3", 700)),
        *(ok(CASE, "triton", FAST, bitwise=bits()), ok(CASE, "sdpa", SLOW)),
    ]
    assert used(of(run(records))) == ["fa2"]
    assert used(of(run(records), bits=("deterministic",))) == ["flex"]
    both = ("deterministic", "batch_invariant")
    (problem,) = of(run(records), bits=both)
    assert used([problem]) == ["triton"]
    assert problem.gain, "over PyTorch's default, which is not known"
    text = told(document(cells([run(records)]), bits=both))
    assert "left out that are not deterministic and batch-invariant: fa2, flex." in text
    assert "left out that are not known to be deterministic and batch-invariant: fa3, sdpa. attnbench run --b" in text
    text = told(document(cells([run(records[:1])]), bits=both))
    assert "no backend that is known to be deterministic and batch-invariant has a right figure" in text


def test_what_would_prove_the_bits_is_told() -> None:
    """A batch of 1, and a sequence that cannot be computed alone, are not advised to be compared again."""
    single, same = case(4096, causal=True, batch=1), bits(not_alone="its batch has one sequence")
    records = [
        *(ok(single, "fa2", FAST, bitwise=same), ok(single, "fa3", FAST), ok(CASE, "fa3", FAST)),
        ok(CASE, "triton", FAST, bitwise=bits(not_alone="a call that appends changes the cache")),
    ]
    text = told(document(cells([run(records)]), bits=("batch_invariant",)))
    assert "fa2, fa3. In a batch of 1 there are no other sequences, so only larger ones can be proven: --batch" in text
    assert "fa3. attnbench run --bitwise compares their bits" in text
    assert "triton. No sequence was computed alone: a call that appends changes the cache." in text
    choices = told(Choices(cells([run(records[:2])], by_machine=True), bits=("batch_invariant",)).document())
    assert "none is known to be batch-invariant (--bits). In a batch of 1 there are no other" in choices
    assert "attnbench run --bitwise" not in choices


@pytest.mark.parametrize(
    ("usual", "later", "is_variant"), [(299, 0, False), (300, 1, False), (299, 1, False), (200, 1, True)]
)
def test_a_usual_call_with_known_bits_is_preferred_to_a_variant(usual: float, later: int, is_variant: bool) -> None:
    """A variant is named only where it is faster than the usual call by more than the uncertainty, also in two runs."""
    backward, variant = (replace(CASE, direction="bwd", deterministic=of) for of in (False, True))
    plain, of_variant = ok(backward, "sdpa", usual, bitwise=bits()), ok(variant, "sdpa", 300, bitwise=bits())
    runs = (
        [run([of_variant]), run([plain], started="2026-07-02T10:00:00+00:00")] if later else [run([of_variant, plain])]
    )
    (problem,) = answered_once(problems(cells(runs, by_machine=True), bits=("deterministic",)))
    assert [one.is_variant for one in problem.candidates] == [is_variant]


def test_a_deterministic_variant_competes_with_the_usual_calls_of_others() -> None:
    backward, variant = (replace(CASE, direction="bwd", deterministic=of) for of in (False, True))
    differs = bits(differing={"dq": 3})
    records = [
        *(ok(backward, "fa2", 500, bitwise=differs), ok(variant, "fa2", 400, bitwise=bits())),
        *(ok(backward, "triton", 300, bitwise=bits()), ok(variant, "triton", 299, bitwise=bits())),
    ]
    for order in (records, records[::-1]):
        assert used(of(run(order))) == ["fa2", "fa2"]
        (problem,) = of(run(order), bits=("deterministic",))
        assert [(one.name, one.cells[0].case.deterministic) for one in problem.candidates] == [
            ("fa2 (deterministic)", True),
            ("triton", False),
        ]


def test_a_figure_with_known_bits_is_found_in_a_slower_run() -> None:
    first, later = run([ok(CASE, "fa2", FAST), ok(CASE, "triton", SLOW)]), "2026-07-02T10:00:00+00:00"
    slower = run([ok(CASE, "fa2", 0.9 * FAST, bitwise=bits()), ok(CASE, "triton", 0.9 * SLOW)], started=later)
    found = cells([first, slower], by_machine=True)
    (problem,) = answered_once(problems(found, bits=("deterministic",)))
    assert [(one.backend, one.run.started) for one in problem.candidates] == [("fa2", later)]


def test_a_wrong_result_is_never_recommended() -> None:
    wrong = ended(CASE, "fa2", "wrong", "out is off by 1 where 0.1 is allowed")
    other = ended(CASE, "flex", "wrong-kernel", "no kernel like 'triton_tem' ran")
    shown = document(cells([run([wrong, other, ok(CASE, "triton", SLOW)])]))
    assert used(of(run([wrong, other, ok(CASE, "triton", SLOW)]))) == ["triton"]
    text = told(shown)
    assert "WRONG fa2" in text
    assert "KERNEL! flex" in text
    rounds = [ok(CASE, "fa2", FAST), replace(wrong, round=1), *(ok(CASE, "triton", SLOW, round=i) for i in (0, 1))]
    assert used(of(run(rounds))) == ["triton"], "wrong in one round is wrong"


def test_a_training_step_needs_both_passes_of_one_backend() -> None:
    backward = replace(CASE, direction="bwd")
    both = [ok(CASE, "fa2", 600), ok(backward, "fa2", 200), ok(CASE, "sdpa", 300), ok(backward, "sdpa", 400)]
    skipped = [ok(CASE, "flashinfer", 900), ended(backward, "flashinfer", "skipped", "forward only")]
    found = of(run([*both, *skipped, ok(CASE, "triton", 700), ended(backward, "triton", "wrong", "dq is off")]))
    assert [problem.step for problem in found] == ["fwd", TRAINING]
    assert used(found) == ["flashinfer", "sdpa"]
    training = found[1]
    assert {one.backend for one in training.candidates} == {"fa2", "sdpa"}
    step = training.candidates[0]
    assert step.latency == pytest.approx(sum(cell.value("latency") or 0 for cell in step.cells))
    assert step.rate[1] == pytest.approx(3.5 / (1 / 300 + 2.5 / 400))
    assert [problem.step for problem in of(run([ok(backward, "fa2", 200)]))] == ["bwd"]


def test_the_uncertainty_of_a_sum_is_that_of_errors_that_add() -> None:
    assert of_sum([(1.0, 0.01), (3.0, 0.03)]) == pytest.approx(0.025)
    assert of_sum([(1.0, 0.01), (3.0, None)]) is None


def test_the_next_default_where_sdpa_was_not_measured() -> None:
    shown = document(cells([run([ok(CASE, "hf-sdpa", SLOW, kernels=FLASH), ok(CASE, "fa2", FAST)])]))
    assert "PyTorch's default is represented by hf-sdpa" in told(shown)
    assert [(row["default"], row["default_ran"]) for row in shown.rows] == [("hf-sdpa", "flash")]
    both = one(ok(CASE, "hf-sdpa", SLOW), ok(CASE, "sdpa", 400), ok(CASE, "fa2", FAST))
    assert both.default is not None
    assert both.default.backend == "sdpa"


def test_no_default_and_no_rival_are_told() -> None:
    text = told(document(cells([run([ok(CASE, "fa2", FAST)])])))
    assert "sdpa was not measured. Measure both with the same shapes: attnbench recommend -b sdpa,fa2" in text
    assert "In 1 case one backend alone has a right figure, so there is no choice." in text
    skipped = run([ok(CASE, "fa2", FAST), ended(CASE, "sdpa", "skipped", "no fp8")])
    text = told(document(cells([skipped])))
    assert "PyTorch's default has no right figure in 1 case" in text
    assert "was not measured" not in text


def test_backends_that_were_not_asked_for_do_not_compete_but_compare() -> None:
    records = run([ok(CASE, "fa2", FAST), ok(CASE, "triton", 400), ok(CASE, "sdpa", SLOW)])
    (problem,) = of(records, wanted=lambda name: name == "triton")
    assert used([problem]) == ["triton"]
    assert problem.gain is not None
    assert problem.gain.value == pytest.approx(4 / 3)


def test_why_nothing_that_was_asked_for_is_recommended() -> None:
    late = ended(CASE, "triton", "skipped", "no room for it within the time limit of 3m")
    shown = document(cells([run([ok(CASE, "fa4", FAST), late])]), lambda backend: backend == "triton")
    assert "No backend that was asked for has a right figure there. Each has its reason" in told(shown)


def test_a_forward_and_the_backward_of_another_backend_are_no_training_step() -> None:
    backward = ok(replace(CASE, direction="bwd"), "fa2", SLOW)
    text = told(document(cells([run([ok(CASE, "sdpa", FAST), backward])])))
    assert "No backend has a right figure there." in text
    assert "has its reason" not in text, "nothing failed"


def test_nothing_to_recommend() -> None:
    assert told(document(cells([run([])]))).startswith("Nothing was measured: there are no records.")
    shown = document(cells([run([ended(CASE, "fa2", "wrong", "out is off"), ended(CASE, "sdpa", "oom", "full")])]))
    assert told(shown).startswith("On NVIDIA H200 nothing can be recommended: no exact backend has a right figure.")
    assert not any(row["use"] for row in shown.rows)


def test_own_code_is_recommended_without_a_line_of_ours(tmp_path: Path) -> None:
    mine = run([ok(CASE, "tiled", FAST), ok(CASE, "sdpa", SLOW)], specs={"tiled": f"{tmp_path}/no_such.py:tiled"})
    shown = document(cells([mine]))
    assert "use tiled" in told(shown)
    assert "No code to paste is known for tiled in 1 case." in told(shown)
    named = run([ok(CASE, "sdpa", FAST, kernels=CUDNN)], specs={"sdpa": f"{tmp_path}/no_such.py:sdpa"})
    (problem,) = of(named)
    assert problem.use is not None
    assert [*problem.use.codes.values()] == [problem.use.ran] == [""], "another's backend of that name is not loaded"


def test_two_machines_stand_apart() -> None:
    records = [ok(CASE, "fa2", FAST), ok(CASE, "sdpa", SLOW)]
    other = run([ok(CASE, "fa2", SLOW), ok(CASE, "sdpa", FAST)], started="2026-07-02T10:00:00+00:00")
    slower = replace(other, environment=environment(power_limit_w=500.0))
    for second in (other, slower):
        found = of(run(records), second)
        assert used(found) == ["fa2", "sdpa"]
        assert len({problem.device for problem in found}) == 2


def test_the_same_kernels_under_another_name_are_told() -> None:
    records = [ok(CASE, "sdpa", SLOW, kernels=CUDNN), ok(CASE, "sdpa-cudnn", FAST, kernels=CUDNN)]
    text = told(document(cells([run(records)])))
    assert "In 1 case PyTorch's default ran the same kernels as the backend to use (sdpa-cudnn)." in text
    records[1] = replace(records[1], kernels=FLASH)
    assert "the same kernels" not in told(document(cells([run(records)])))


GEMMA = find("gemma-2-9b")


def layers_of_gemma(backend: str, local: float, full: float, direction: Any = "fwd") -> list[Record]:
    """Return records of gemma-2-9b's two kinds of layers with these TFLOP/s."""
    sizes = {"nheads": GEMMA.nheads, "nheads_k": GEMMA.nheads_k, "headdim": GEMMA.headdim, "headdim_v": GEMMA.headdim_v}
    plain = case(8192, causal=True, direction=direction, softcap=GEMMA.softcap, **sizes)
    # gemma-2-9b has the usual scale, 1 / sqrt(256)
    windowed = replace(plain, window_size=(4095, 0))
    return [ok(windowed, backend, local, kernels=CUDNN), ok(plain, backend, full, kernels=CUDNN)]


def test_a_model_s_step_has_one_backend_for_all_its_layers() -> None:
    records = [
        *layers_of_gemma("fa2", 600, 200),
        *layers_of_gemma("flex", 300, 400),
        *layers_of_gemma("sdpa", 100, 100),
    ]
    every = cells([run(records)])
    (step,) = model_problems(every, GEMMA, 1)
    expected = sum(21 * (cell.value("latency") or 0) for cell in every if cell.backend == "flex")
    by_backend = {one.backend: one for one in step.candidates}
    assert by_backend["flex"].latency == pytest.approx(expected)
    assert step.use is not None
    assert step.use.latency == min(one.latency for one in step.candidates)
    assert step.default is by_backend["sdpa"]
    shown = document(every, models=[GEMMA])
    assert shown.answer[0].startswith(f"On NVIDIA H200 use {step.use.backend} for all layers of gemma-2-9b, 8k, batch")
    assert set(used(of(run(records)))) == {"fa2", "flex"}, "each kind of layers has its own fastest"
    codes = [block.text for block in shown.blocks if isinstance(block, Code)]
    assert any("window_size=(4095, 0)" in code for code in codes)


def test_a_backend_of_several_devices_is_named_for_several_ranks_only() -> None:
    one, two = (replace(case(16384), ranks=ranks) for ranks in (1, 2))
    alone = [ok(one, "ulysses-fa3", 700.0)]
    assert (
        document(cells([run(alone)])).answer[0].startswith("Nothing can be recommended: backends for several devices")
    )
    both = document(cells([run([*alone, ok(one, "fa3", 600.0), ok(two, "ulysses-fa3", 700.0)])]))
    assert [(row["ranks"], row["use"]) for row in both.rows] == [(1, "fa3"), (2, "ulysses-fa3")]


def test_the_cases_of_a_code_are_counted_as_those_of_the_answer() -> None:
    records = [ok(case(1024 * n, direction=way), "sdpa", 300.0) for n in (1, 2) for way in ("fwd", "bwd")]
    shown = document(cells([run(records, device=device) for device in (builders.H200, builders.CPU)]))
    (code,) = (block for block in shown.blocks if isinstance(block, Code))
    assert code.title == "sdpa, 8 cases"


def test_a_model_of_which_a_kind_of_layers_is_missing() -> None:
    shown = document(cells([run(layers_of_gemma("fa2", 600, 200)[:1])]), models=[GEMMA])
    text = told(shown)
    assert (
        "No backend has a right figure of all layers of gemma-2-9b. Layers without a window have no right figure."
        in text
    )
    assert "attnbench run --model gemma-2-9b measures them." in text


def test_what_is_asked_for_of_run_files() -> None:
    records = [r for way in ("fwd", "bwd") for r in layers_of_gemma("fa2", 300, 200, way)]
    every = cells([run([*records, ok(CASE, "fa2", FAST)])])
    of_model = {"models": "gemma-2-9b"}
    for options, number in ((of_model, 4), ({**of_model, "phase": "prefill"}, 2), ({"axes": {"window": "4095/0"}}, 2)):
        assert len(asked_for(every, parse_options(options))) == number
    for options, said in (({**of_model, "phase": "decode"}, "no case of"), ({"phase": "decode"}, "needs a model")):
        with pytest.raises(UserError, match=said):
            asked_for(every, parse_options(options))


def test_what_is_built_once_a_step_is_told() -> None:
    record = ok(CASE, "flashinfer", FAST)
    record = replace(record, measurements={**record.measurements, "plan": Measurement("s", (2e-4,))})
    text = told(document(cells([run([record, ok(CASE, "sdpa", SLOW)])])))
    assert "Built once a step, for all layers, and not in the latency: flashinfer up to 200 us." in text


def test_what_is_hardly_known_is_not_recommended() -> None:
    loud = [1e-9, 6e-4, 3e-2]
    scattered = ok(CASE, "sdpa", FAST, time=loud)
    problem = one(scattered, ok(CASE, "fa2", SLOW), ok(CASE, "triton", 100))
    assert problem.fastest == ()
    assert used([problem]) == [None], "nor is what reads slower, though it is known well"
    assert used([one(ok(CASE, "fa2", SLOW), ok(CASE, "sdpa", 3000))]) == ["fa2"], "no device can do 3000 TFLOP/s"
    assert used([one(ok(CASE, "fa2", SLOW, n=1), ok(CASE, "sdpa", FAST))]) == [None], "nothing is known of one call"
    known = document(cells([run([scattered, ok(CASE, "fa2", SLOW)])])).answer
    assert known == ("On NVIDIA H200 nothing can be recommended: sdpa may be faster, since it is hardly known.",)
    shown = document(cells([run([scattered, ok(CASE, "fa2", FAST, time=loud)])]))
    assert "Nothing is recommended in 1 case (4k d128 causal fwd): no latency is known to better" in told(shown)


def tables_of(shown: Document) -> list[Table]:
    return [block for block in shown.blocks if isinstance(block, Table)]


LENGTHS = [2**n for n in range(10, 17)]
MANY = [case(n, headdim=d, causal=c) for n in LENGTHS for d in (64, 128) for c in (False, True)]


def test_a_screen_has_cases_of_each_kind_from_the_shortest_to_the_longest() -> None:
    every = cells([run([ok(c, b, s) for c in MANY for b, s in (("fa2", FAST), ("sdpa", SLOW))])])
    full, short = document(every), document(every, every=False)
    (table,) = tables_of(short)
    kinds = ("d64 full", "d64 causal", "d128 full", "d128 causal")
    assert [str(row[0]) for row in table.rows] == [f"{n} {kind}" for kind in kinds for n in ("1k", "8k", "64k")]
    assert "Not shown: 16 cases. attnbench recommend --all shows everything" in told(short)
    assert (short.answer, short.data, short.rows) == (full.answer, full.data, full.rows)


def test_what_stands_in_a_table_says_why_there_is_no_backend_to_use() -> None:
    def shown(*records: Record) -> object:
        (table,) = tables_of(document(cells([run([*records, ok(case(8192, causal=True), "sdpa", FAST)])])))
        use = [column.heading for column in table.columns].index("use")
        return {row[0]: row[use] for row in table.rows}["4k d128 causal"]

    skipped, wrong = ended(CASE, "sdpa", "skipped", "no time for it"), ended(CASE, "triton", "wrong", "out is off by 3")
    assert shown(skipped) == Span("nothing: skip", "warning")
    assert shown(skipped, ended(CASE, "eager", "oom", "needs 90 GiB")) == Span("nothing: OOM", "warning")
    assert shown(skipped, wrong) == Span("nothing: WRONG", "bad")


def test_of_many_machines_the_newest_are_shown_and_the_others_are_one_sentence() -> None:
    runs = [
        run(
            [ok(case(1024 * day), "fa2", FAST)],
            started=f"2026-07-0{day}T10:00:00+00:00",
            environment=environment(power_limit_w=100.0 * day),
        )
        for day in (3, 1, 5, 2, 4)
    ]
    old = run([ok(CASE, "triton", FAST)], started="2026-06-01", device=replace(builders.H200, name="NVIDIA H100"))
    short = document(cells([*runs, old]), every=False)
    assert short.answer[-1] == "On the other 3 machines, of 3 cases: fa2 alone was right in 3: no choice."
    shown = " ".join(machine.label for machine in short.machines)
    assert [day for day in range(1, 6) if f"{day}00 W" in shown] == [4, 5]
    assert "NVIDIA H100" in shown, "the newest of each model"
    assert "Not shown: 3 cases and 2 code blocks." in told(short)


def test_two_steps_of_a_model_have_unlike_names() -> None:
    layers = layers_of_gemma("fa2", 600, 200)
    paged = [replace(record, case=replace(record.case, page_size=16)) for record in layers]
    shown = document(cells([run([*layers, *paged])]), models=[GEMMA])
    assert [str(row[0]) for row in tables_of(shown)[0].rows] == ["8k, batch 2", "8k, batch 2, page_size 16"]


def test_plain_cases_come_first() -> None:
    """Plain cases come first in answers, in tables and on a screen, even if other cases are newer."""
    special = [replace(CASE, ranks=2), *(replace(CASE, mask=f"random:0.{n}") for n in range(1, 10))]
    both = [ok(c, b, rate) for c in (*special, CASE) for b, rate in (("fa2", FAST), ("triton", SLOW))]
    newer = run([ok(replace(case(), ranks=2), "fa2", FAST)], environment=environment(driver="590.0"), started="2026-08")
    for every in (True, False):
        shown = document(cells([newer, run(both)]), every=every)
        assert "use fa2 for 4k d128 causal fwd: " in shown.answer[0]
        assert tables_of(shown)[0].rows[0][0] == "4k d128 causal"


def test_a_backend_that_alone_was_right_is_no_choice() -> None:
    several = [case(n, causal=True) for n in (1024, 2048, 4096)]
    records = [*(ok(c, "triton", FAST) for c in several), ok(several[1], "fa2", SLOW)]
    shown = document(cells([run(records)]))
    assert shown.answer == ("On NVIDIA H200, of 3 cases: use triton in 1; triton alone was right in 2: no choice.",)
    asked = document(cells([run(records)]), lambda backend: backend == "triton")
    assert "triton alone was asked for and right in 3: no choice" in asked.answer[0]


def test_one_case_has_one_answer_on_one_model_of_device() -> None:
    whole = run([ok(CASE, "triton", FAST), ok(CASE, "fa2", SLOW), ok(CASE, "sdpa", SLOW)])
    two = replace(run([ok(CASE, "fa2", FAST), ok(CASE, "eager", 10)]), started="2026-08-01T10:00:00Z")
    shown = document(cells([whole, two]))
    assert [row["use"] for row in shown.rows] == ["triton"], "its own figure of fa2 stands"
    assert "use fa2" not in told(shown)
    assert "1 answer left out: the same case was measured in several runs" in told(shown)
    faster = replace(two, records=[ok(CASE, "fa2", FAST * 1.2)])
    assert [row["use"] for row in document(cells([whole, faster])).rows] == ["fa2"], "of the fastest backend"
    failed = replace(two, records=[ended(CASE, "triton", "failed", "crashed"), ok(CASE, "eager", 10)])
    assert [row["use"] for row in document(cells([whole, failed])).rows] == ["triton"]
    lacking = replace(two, records=[ok(CASE, "gluon", FAST * 1.001), ok(CASE, "fa2", SLOW)])
    answers = document(cells([whole, lacking])).rows
    assert [row["use"] for row in answers] == ["gluon"]
    assert [row["alike"] for row in answers] == ["gluon; triton"], "what it lacks is taken from another run"
    other = replace(two, environment=environment(power_limit_w=500.0))
    assert [row["use"] for row in document(cells([whole, other])).rows] == ["triton", "fa2"]


def test_another_machine_changes_no_answer() -> None:
    """Another machine without spans changes no answer: this machine's cells are still timed without launch gaps."""
    gaps = {"cudnn": 0.0, "ulysses": 2e-6}
    both = [ok(CASE, name, FAST, time=(50e-6 + gap,) * 30, span=(47e-6,) * 30) for name, gap in gaps.items()]
    without = [ok(CASE, "eager", FAST, time=(90e-6,) * 30)]
    other = run(without, device=replace(builders.H200, name="NVIDIA H100"))
    rows = document(cells([run(both, peak={"bf16": 1e16}), other], by_machine=True)).rows
    (row,) = (row for row in rows if row["device"] == "NVIDIA H200")
    assert (row["alike"], row["latency"]) == ("cudnn; ulysses", pytest.approx(47e-6))


def test_slower_figures_of_another_run_turn_no_order() -> None:
    """Slower figures of another run change no order, neither of the fastest backend nor of added ones."""

    def on_card(uuid: str, **rates: float) -> Run:
        records = [ok(CASE, backend, rate) for backend, rate in rates.items()]
        return run(records, device=replace(builders.H200, uuid=uuid), started=f"2026-07-0{uuid}T10:00:00Z")

    ours = on_card("1", fa3=600, gluon=590)
    filled = on_card("2", fa3=588, triton=520, fa2=510)
    (row,) = document(cells([ours, filled])).rows
    assert (row["alike"], row["measured"]) == ("fa3", "fa3; gluon; triton; fa2")
    (row,) = document(cells([ours, filled, on_card("3", fa3=580, triton=500)])).rows
    assert row["measured"] == "fa3; gluon; triton; fa2"


def test_no_backend_is_alone_where_another_run_of_the_machine_has_a_right_one() -> None:
    first = run([ok(CASE, "triton", FAST)], device=replace(builders.H200, uuid="GPU-1"))

    def beside(rate: float, **changes: Any) -> Document:
        others = [ok(CASE, "fa2", rate), ended(CASE, "triton", "failed", "crashed"), ok(CASE, "sdpa", SLOW)]
        return document(cells([first, run(others, **{"device": replace(builders.H200, uuid="GPU-2"), **changes})]))

    near, far = beside(FAST * 0.985), beside(FAST * 0.95)
    assert [row["alike"] for row in near.rows] == ["triton; fa2"], "cards of a model differ by more than 1.5 %"
    assert [row["alike"] for row in far.rows] == ["triton"]
    assert "alone" not in told(near) + told(far)
    assert "Between unlike cards or methods, 3.1% is added to the uncertainty" in told(near)
    gain = far.rows[0]
    assert gain["gain_high"] / gain["gain"] - 1 == pytest.approx(0.026, abs=0.002), "that of two cards"
    wrong = run([ended(CASE, "triton", "wrong", "off"), ok(CASE, "fa2", SLOW)], started="2026-07-03T10:00:00Z")
    contradicted = document(cells([first, wrong]))
    assert [row["use"] for row in contradicted.rows] == ["fa2"], "wrong in one run is wrong"
    assert "left out that were right in one run and wrong in another: triton." in told(contradicted)
    warm = replace(wrong, policy=Policy(l2="warm"), records=wrong.records[1:])
    apart = document(cells([first, warm]))
    assert apart.answer[0].endswith(
        "triton and fa2 were right, but not measured in one way (timer, L2, passes apart or as one)."
    )
    assert [row["use"] for row in apart.rows] == [None]


@pytest.mark.parametrize(("of_both", "step"), [(SLOW, TRAINING), (1.2 * FAST, "fwd_bwd")])
def test_both_passes_have_one_answer(of_both: float, step: str) -> None:
    """Both passes have one answer, whether they were timed together or separately."""
    passes = [replace(CASE, direction=d) for d in ("fwd", "bwd")]
    apart = [ok(c, b, rate) for c in passes for b, rate in (("fa3", FAST), ("sdpa-flash", SLOW))]
    together = [ok(replace(CASE, direction="fwd_bwd"), b, of_both) for b in ("sdpa-flash", "eager")]
    rows = document(cells([run([*apart, *together])])).rows
    assert [row["step"] for row in rows] == ["fwd", step]


def of_passes(**rates: tuple[float, float, float]) -> Run:
    """Return a run of a person's functions with these rates of fwd, bwd and fwd_bwd; a rate of 0 was not measured."""
    each = [(b, d, rate) for b, of in rates.items() for d, rate in zip(("fwd", "bwd", "fwd_bwd"), of, strict=True)]
    records = [ok(replace(CASE, direction=d), b, rate) for b, d, rate in each if rate]
    return run(records, specs={b: f"/mine/step.py:{b}" for b in rates})


PREPARES, RECOMPUTES = (FAST, FAST, FAST / 10), (FAST, SLOW, SLOW)  # only a forward with gradients does the preparation


def test_a_training_step_is_that_of_both_passes_as_one() -> None:
    shown = document(cells([of_passes(prepares=PREPARES, recomputes=RECOMPUTES)]))
    assert [(row["step"], row["use"]) for row in shown.rows] == [("fwd", "prepares"), ("fwd_bwd", "recomputes")]
    assert "1 answer left out: both passes were timed as one (fwd_bwd) and separately (fwd + bwd)." in told(shown)
    assert "in several runs" not in told(shown)
    assert "without gradients" not in told(shown)


def test_a_sum_that_both_passes_as_one_contradict_is_not_named() -> None:
    shown = document(cells([of_passes(prepares=PREPARES, recomputes=RECOMPUTES, apart=(FAST, 400, 0))]))
    row = shown.rows[-1]
    assert (row["step"], row["alike"]) == (TRAINING, "apart")
    assert row["measured"] == "apart; recomputes; prepares"
    assert "the forward of apart was timed without gradients, and may do more with gradients. --pass fwd_bwd" in told(
        shown
    )


def test_a_sum_of_two_runs_is_none_where_one_run_has_both_passes() -> None:
    forward, backward = CASE, replace(CASE, direction="bwd")
    whole = run([ok(forward, "fa3", SLOW), ok(backward, "fa3", SLOW)])
    parts = (
        run([ok(forward, "fa3", 0.9 * SLOW)], started="2026-07-03T10:00:00Z"),
        run([ok(backward, "fa3", 0.9 * SLOW)], started="2026-07-04T10:00:00Z"),
    )
    rows = {row["step"]: row for row in document(cells([whole, *parts])).rows}
    assert rows[TRAINING]["run"] == whole.started


@pytest.mark.parametrize("beside", [[], ["sdpa", "fa2"]])
def test_methods_are_alike_within_5_percent_whatever_else_was_measured(beside: list[str]) -> None:
    """Latencies within 5 % by two measuring methods tie, also beside a backend that both methods found slower."""
    newer = replace(run([ok(CASE, "triton", 0.97 * FAST), *(ok(CASE, name, SLOW) for name in beside)]), method=2)

    def row(rate: float) -> dict[str, Any]:
        older = run([ok(CASE, "fa4", rate), *(ok(CASE, n, SLOW) for n in beside)], started="2026-06-01T10:00:00Z")
        (found,) = document(cells([newer, replace(older, method=1)])).rows
        return dict(found)

    assert (row(FAST)["use"], row(FAST)["alike"]) == ("fa4", "fa4; triton")
    assert row(1.07 * FAST)["alike"] == "fa4"


def test_a_backend_that_an_earlier_check_called_wrong_is_right_once_it_was_measured_again() -> None:
    case_ = replace(CASE, dtype="fp8")
    missed = run([ended(case_, "fa3", "wrong", "on hard inputs: out is off"), ok(case_, "triton", SLOW)], check=1)
    again = run([ok(case_, "fa3", FAST), ok(case_, "triton", SLOW)], started="2026-07-03T10:00:00Z")
    (row,) = document(cells([missed, again])).rows
    assert row["use"] == "fa3"


def test_a_backward_alone_is_no_answer_beside_a_training_step_of_another_run() -> None:
    backward = replace(CASE, direction="bwd")
    step = run([ok(CASE, "fa3", FAST), ok(backward, "fa3", FAST), ok(CASE, "sdpa", SLOW)])
    alone = replace(run([ok(CASE, "sdpa", SLOW), ok(backward, "eager", SLOW)]), started="2026-08-01T10:00:00Z")
    alone = replace(alone, records=alone.records[1:])
    shown = document(cells([step, replace(alone, environment=environment(driver="590.0"))]))
    assert [(row["step"], row["use"]) for row in shown.rows] == [("fwd", "fa3"), (TRAINING, "fa3")]
    faster = replace(alone, records=[ok(backward, "eager", FAST * 1.2)])
    shown = document(cells([step, replace(faster, environment=environment(driver="590.0"))]))
    assert [row["use"] for row in shown.rows if row["step"] == "bwd"] == ["eager"], "which no training step has"


def test_a_loss_is_no_gain() -> None:
    both = [ok(c, name, rate) for c in (CASE, case(8192)) for name, rate in (("fa2", SLOW), ("sdpa", FAST))]
    shown = document(cells([run(both)]), lambda backend: backend == "fa2")
    assert "They are 0.500x as fast as PyTorch's default (sdpa) in the geometric mean of 2 cases" in told(shown)
