"""The attention of a model in one step, from the cells of its layers; and the output of `attnbench models`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest

from attnbench.analysis.models import document, findings, step_document
from attnbench.analysis.models.crossover import crossovers
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.models import MODELS, find
from attnbench.core.record import Measurement, Record
from attnbench.render.document import Table
from attnbench.results.cells import Cell
from attnbench.results.cells import cells as cells_of
from attnbench.run.suite import load_suite, parse_options, resolve
from builders import run, times

GEMMA = find("gemma-2-9b")  # 21 local layers, 21 global


def cases(**given: Any) -> tuple[Case, ...]:
    axes = {"seqlen": "8k", "batch": "2", **given.pop("axes", {})}
    return resolve(load_suite("quick"), "cuda", parse_options({"models": GEMMA.name, **given, "axes": axes})).cases


def measured(which: Case, backend: str, seconds: float, plan: float | None = None) -> Record:
    built = {"plan": Measurement("s", (plan,))} if plan else {}
    return Record(which, backend, 0, "ok", measurements={"time": times(seconds), **built})


def cells(records: Iterable[Record]) -> list[Cell]:
    return cells_of([run(records, peak=dict.fromkeys(("bf16", "fp8"), 1e18))])  # the times are invented


def test_a_step_has_each_kind_of_layers_as_often_as_the_model() -> None:
    local, everywhere = cases()
    of_both = [measured(local, "triton", 1e-3), measured(everywhere, "triton", 2e-3)]
    (step,) = findings.step_times(cells([*of_both, measured(local, "eager", 1e-3)]), GEMMA, 1)
    assert (step.backend, step.direction) == ("triton", "fwd")
    assert step.seconds == pytest.approx(21 * 1e-3 + 21 * 2e-3)
    assert step.uncertainty is not None
    (half,) = {cell.half_interval("latency") for cell in cells(of_both)}
    assert step.uncertainty == pytest.approx(half)


def test_forward_and_backward_are_added() -> None:
    records = [
        measured(case, "triton", {"fwd": 1e-3, "bwd": 3e-3}[case.direction], plan=1e-4) for case in cases(phase="train")
    ]
    steps = {step.direction: step for step in findings.step_times(cells(records), GEMMA, 1)}
    seconds = {name: round(step.seconds / 42, 9) for name, step in steps.items()}
    assert seconds == {"fwd": 1e-3, "bwd": 3e-3, findings.BOTH: 4e-3}
    assert steps["fwd"].plan == pytest.approx(2e-4), "one plan for each kind of layers, whatever their number"


def test_sizes_of_another_share_or_model_are_not_of_the_step() -> None:
    records = [measured(case, "triton", 1e-3) for case in cases(tp=2)]
    assert findings.step_times(cells(records), GEMMA, 1) == []
    assert len(findings.step_times(cells(records), GEMMA, 2)) == 1
    assert findings.step_times(cells(records), find("llama-3.1-8b"), 1) == []


def test_the_document_says_the_fastest_and_marks_ties() -> None:
    local, everywhere = cases()
    speeds = {"triton": 1e-3, "fa3": 1.0005e-3, "eager": 5e-3}
    records = [measured(case, name, seconds) for name, seconds in speeds.items() for case in (local, everywhere)]
    shown = step_document.document(cells(records), GEMMA, 1)
    assert shown.answer == ("gemma-2-9b, 8k, batch 2, bf16, fwd on NVIDIA H200: 42.0 ms with triton and fa3.",)
    (grids,) = shown.blocks
    ((_, figures),) = grids.grids[0].rows
    assert [(f.digits, f.best) for f in figures] == [("210", False), ("42.0", True), ("42.0", True)]


def test_why_a_backend_has_no_step_is_said() -> None:
    local, everywhere = cases()
    records = [measured(case, "triton", 1e-3) for case in (local, everywhere)]
    records += [measured(everywhere, "fa3", 1e-3), Record(local, "fa3", 0, "skipped", "no sliding window")]
    other = dataclasses.replace(local, softcap=0.0)
    shown = step_document.document(cells([*records, Record(other, "gluon", 0, "skipped", "of no layer")]), GEMMA, 1)
    assert [reason.reason for reason in shown.reasons] == ["no sliding window"]
    assert [row["backend"] for row in shown.rows] == ["triton"]


def test_a_step_that_is_not_whole_says_what_is_missing() -> None:
    local, _ = cases()
    with pytest.raises(UserError) as told:
        step_document.document(cells([measured(local, "triton", 1e-3)]), GEMMA, 1)
    assert "not measured here: 21 layers; attnbench run --model gemma-2-9b measures it" in str(told.value)
    failed = [measured(local, "triton", 1e-3), Record(cases()[1], "triton", 0, "wrong", "off by 1")]
    with pytest.raises(UserError, match="no right figure of 21 layers; report without --model says why"):
        step_document.document(cells(failed), GEMMA, 1)
    with pytest.raises(UserError, match="--model gemma-2-9b --tp 2 measures it"):
        step_document.document(cells([measured(local, "triton", 1e-3)]), GEMMA, 2)


def test_all_models_are_listed_with_what_lacks() -> None:
    listed = document.listed([*MODELS.values()])
    assert [row["name"] for row in listed.rows] == [*MODELS]
    (table,) = listed.blocks
    phases = {row[0]: row[-1] for row in table.rows}
    assert (phases["llama-3.1-8b"], phases["flux.1-dev"]) == ("all", "prefill, train")
    assert document.in_full(find("flux.1-dev")).data["source"].startswith("https://")


def test_a_step_that_is_hardly_known_is_not_the_fastest() -> None:
    def scattered(case: Case, name: str) -> Record:
        return Record(case, name, 0, "ok", measurements={"time": Measurement("s", (1e-6, 1e-3, 1e-1))})

    loud = [scattered(case, "fa3") for case in cases()]
    known = [measured(case, "triton", 2e-3) for case in cases()]
    (said,) = step_document.document(cells([*known, *loud]), GEMMA, 1).answer
    assert said.endswith("fwd on NVIDIA H200: fa3 may be faster, since it is hardly known.")
    (said,) = step_document.document(cells(loud), GEMMA, 1).answer
    assert (
        said == "gemma-2-9b, 8k, batch 2, bf16, fwd on NVIDIA H200: no latency is known to better than a factor of 1.5."
    )


def test_a_hybrid_has_a_backend_for_each_kind_of_attention() -> None:
    """The layers of a delta rule take the same time in any context; each pair of backends is a step."""
    hybrid = find("qwen3-next-80b-a3b")  # 12 softmax layers, 36 of gdn
    given = {"models": hybrid.name, "phase": "decode", "axes": {"seqlen": "8k,16k", "batch": "2"}}
    *softmax, rule = sorted(cases(**given), key=lambda case: (case.is_delta, case.shape.seqlen_k))
    assert [case.shape.seqlen_k for case in (*softmax, rule)] == [8192, 16384, 1]
    records = [measured(case, name, 1e-3 * case.shape.seqlen_k / 8192) for case in softmax for name in ("fa3", "fa4")]
    records += [measured(rule, "fla", 1e-4), measured(dataclasses.replace(rule, dtype="fp16"), "delta-torch", 1e-4)]
    steps = findings.step_times(cells(records), hybrid, 1)
    assert {(step.backend, step.case.shape.seqlen_k, round(step.seconds, 6)) for step in steps} == {
        (f"{name} + fla", 8192 * times, 12e-3 * times + 36e-4) for name in ("fa3", "fa4") for times in (1, 2)
    }


def test_the_indexer_of_a_model_is_in_its_step_where_it_was_measured() -> None:
    """A step without its indexer says so; one of another length is not taken."""
    model = find("deepseek-v3.2")
    for phase in ("prefill", "decode"):
        which = cases(models=model.name, phase=phase, axes={"seqlen": "8k,16k", "batch": "1"})
        softmax, indexers = ([case for case in which if case.is_indexer == own] for own in (False, True))
        assert [(case.shape.nheads, case.shape.headdim, case.mask) for case in indexers] == [(64, 128, "topk:2k")] * 2
        assert [case.shape.seqlen_q for case in indexers] == [case.shape.seqlen_q for case in softmax]
        records = [measured(case, "flashmla", 1e-3) for case in softmax]
        records += [measured(case, "indexer-triton", 2e-3) for case in indexers if case.shape.seqlen_k == 16384]
        steps = findings.step_times(cells(records), model, 1)
        assert {(step.backend, step.case.shape.seqlen_k, round(step.seconds, 6)) for step in steps} == {
            ("flashmla", 8192, 61e-3),
            ("flashmla + indexer-triton", 16384, 3 * 61e-3),
        }
        said = [str(of) for of in step_document.document(cells(records), model, 1).facts]
        assert any("The indexer that chooses the keys is not in steps without a name of its own" in of for of in said)
        said = [str(of) for of in step_document.document(cells(records[:2]), model, 1).facts]
        assert any("The indexer that chooses the keys is not in these steps; attnbench run" in of for of in said)


def test_the_layers_of_a_hybrid_in_training_have_one_length() -> None:
    hybrid = find("kimi-linear-48b-a3b")
    which = cases(models=hybrid.name, phase="train", axes={"seqlen": "4k,8k", "batch": "1"})
    records = [measured(case, "fla" if case.is_delta else "fa3", 1e-3) for case in which]
    steps = findings.step_times(cells(records), hybrid, 1)
    assert {(step.case.shape.seqlen_k, step.direction) for step in steps} == {
        (seqlen, direction) for seqlen in (4096, 8192) for direction in ("fwd", "bwd", findings.BOTH)
    }
    assert {round(step.seconds, 6) for step in steps} == {27e-3, 54e-3}


def test_the_length_from_which_a_delta_rule_pays() -> None:
    """Softmax attention grows with the square of the length; at 4k it is faster, from 8k on the delta rule is."""
    hybrid = find("qwen3-next-80b-a3b")
    which = cases(models=hybrid.name, axes={"seqlen": "4k,8k,16k", "batch": "1"})

    def seconds(case: Case) -> float:
        n = case.shape.seqlen_k / 4096
        return 1e-3 * n if case.is_delta else 0.7e-3 * n**2

    records = [measured(case, "fla" if case.is_delta else "fa3", seconds(case)) for case in which]
    records += [measured(case, "eager", 9.0) for case in which if not case.is_delta]  # slower, so of no weight
    made = step_document.document(cells(records), hybrid, 1)
    assert made.answer[-1] == (
        "In bf16, fwd, batch 1 on NVIDIA H200 a layer of gdn takes less time than a layer of softmax attention from a "
        "length between 4k and 8k on: 36% of its time at 16k."
    )
    table = made.blocks[-1]
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == ["4k", "8k", "16k"]
    assert [str(row[-1]).partition("x")[0] for row in table.rows] == ["0.70", "1.40", "2.80"]
    long = [record for record in records if record.case.shape.seqlen_k == 16384]
    said = step_document.document(cells(long), hybrid, 1).answer[-1]
    assert "at every length measured, 16k: 36% of its time at 16k" in said, "no length from which on it is known"
    short = [record for record in records if record.case.shape.seqlen_k == 4096]
    assert "takes longer than" in step_document.document(cells(short), hybrid, 1).answer[-1]
    assert not crossovers(findings.step_times(cells([measured(c, "triton", 1e-3) for c in cases()]), GEMMA, 1), GEMMA)
