"""Published claims: the content of the files, and the verdict on known measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

import builders
from attnbench.analysis.claims import claim_file
from attnbench.analysis.claims.document import document
from attnbench.analysis.claims.findings import Finding, by_gpu, judge, outcome_of
from attnbench.core.errors import UserError
from attnbench.core.flops import flops
from attnbench.core.record import Record
from attnbench.results.cells import cells
from attnbench.run.shipped_suites import shipped_claims
from attnbench.run.suite import resolve

HEAD = """
source: A paper
address: https://example.org
checked: 2026-11-23, its table
gpu: H200 SXM
axes: {seqlen: "1k,16k", headdim: 128, pass: fwd}
claims:
"""


def claims(tmp_path: Path, text: str) -> list[claim_file.Setting]:
    path = tmp_path / "mine.yaml"
    path.write_text(HEAD + text)
    return claim_file.load([str(path)])


def findings(tmp_path: Path, text: str, *records: Record, gpu: str = "H200 SXM") -> list[Finding]:
    (setting,) = claims(tmp_path, text)
    (found,) = by_gpu(cells([builders.run(records)])).values()
    return judge(setting, gpu, found)


def speeds(**tflops: tuple[float, float]) -> list[Record]:
    """Return records of the two cases of HEAD: backend -> TFLOP/s at 1k and 16k."""
    return [
        builders.ok(builders.case(seqlen), name, value)
        for name, values in tflops.items()
        for seqlen, value in zip((1024, 16384), values, strict=True)
    ]


@pytest.mark.parametrize(
    ("text", "low", "high", "kind"),
    [
        ("616", 616, 616, "equal"),
        ("64.4 us", 64.4e-6, 64.4e-6, "equal"),
        ("60 MB", 6e7, 6e7, "equal"),
        ("90%", 0.9, 0.9, "equal"),
        ("1.5-2.0", 1.5, 2.0, "range"),
        ("1.5-2.0x", 1.5, 2.0, "range"),
        ("to 740", 740, 740, "up to"),
        ("over 1", 1, 1, "at least"),
    ],
)
def test_printed_figures_are_read(text: str, low: float, high: float, kind: str) -> None:
    printed = claim_file.parse_printed(text)
    assert (printed.low, printed.high, printed.kind) == (pytest.approx(low), pytest.approx(high), kind)
    for wrong in ("", "fast", "3-2", "1-2-3", "0", "to", "5 furlongs", "-1"):
        with pytest.raises(UserError, match="figure"):
            claim_file.parse_printed(wrong)


def test_all_shipped_claims_can_be_read_and_measured() -> None:
    settings = claim_file.load()
    assert len(shipped_claims()) >= 15
    assert all(bool(setting.cases) != bool(setting.claim.cannot) for setting in settings)
    assert all(setting.claim.why for setting in settings if setting.claim.tolerance)
    resolved = resolve(claim_file.suite_of(settings, 1.0), "cuda")
    assert {*resolved.only} == {*resolved.cases}
    for setting in settings:
        for case in setting.cases:
            assert {*setting.backends} <= {*resolved.only[case]}
    on_one = resolve(claim_file.suite_of(settings, 1.0, "H100 SXM"), "cuda").only
    jobs = [(case, name) for case, names in on_one.items() for name in names]
    seconds = sum(2.0 + 40 * flops(case) / (5e13 if name == "eager" else 3e14) for case, name in jobs)
    assert seconds < 15 * 60
    assert resolve(claim_file.suite_of(settings, 1.0), "cpu").time_limit == 600, "all would take a CPU days"


def test_on_a_gpu_only_what_can_be_judged_on_it_is_measured() -> None:
    settings = claim_file.load()
    only = resolve(claim_file.suite_of(settings, 1.0, "H100 SXM"), "cuda").only
    judged = {
        (case, name)
        for setting in settings
        for case in setting.cases
        for figure in setting.figures
        if figure.over or setting.gpu in ("any", "H100 SXM")
        for name in (*figure.backends, *figure.over)
    }
    assert {(case, name) for case, names in only.items() for name in names} == judged
    with pytest.raises(UserError, match="on H100 SXM: they print metrics of GB200 and GB300, and no ratio"):
        claim_file.suite_of(claim_file.load(["cudnn-blackwell"]), 1.0, "H100 SXM")


@pytest.mark.parametrize(
    ("tflops", "outcome"),
    [(600, "reproduced"), (570, "reproduced"), (500, "not reproduced"), (700, "not reproduced")],
)
def test_a_figure_is_judged_with_its_tolerance_and_the_uncertainty(tmp_path: Path, tflops: float, outcome: str) -> None:
    text = "- {id: one, what: x, axes: {seqlen: 16k}, printed: {fa3: 600}}"
    (found,) = findings(tmp_path, text, builders.ok(builders.case(16384), "fa3", tflops))
    assert found.outcome == outcome
    assert found.bursts
    assert found.bursts.value == pytest.approx(tflops)
    assert found.bursts.low < tflops < found.bursts.high
    assert found.off == pytest.approx(tflops / 600 - 1)


def test_what_was_printed_may_be_between_bursts_and_no_pauses(tmp_path: Path) -> None:
    case = builders.case(16384)
    slower = flops(case) / 500e12

    def found(printed: int) -> Finding:
        text = f"- {{id: one, what: x, axes: {{seqlen: 16k}}, printed: {{fa3: {printed}}}}}"
        return findings(tmp_path, text, builders.ok(case, "fa3", 700, sustained=(slower, slower)))[0]

    assert [found(printed).outcome for printed in (440, 600, 790)] == ["not reproduced", "reproduced", "not reproduced"]
    assert found(600).off == 0
    assert found(440).off == pytest.approx(500 / 440 - 1)


def test_calls_without_pauses_that_time_the_host_are_left_out(tmp_path: Path) -> None:
    text = "- {id: one, what: x, axes: {seqlen: 16k}, printed: {fa3: 100}}"
    case = builders.case(16384)
    by_host = flops(case) / 100e12
    (found,) = findings(tmp_path, text, builders.ok(case, "fa3", 600, sustained=(by_host,), enqueue=(by_host,)))
    assert (found.sustained, found.outcome) == (None, "not reproduced")


def test_a_metric_of_another_gpu_is_not_judged_but_its_ratio_is(tmp_path: Path) -> None:
    text = "- {id: one, what: x, gpu: A100 SXM 80GB, axes: {seqlen: 16k}, printed: {fa2: 100, fa3: 200}}"
    records = [builders.ok(builders.case(16384), name, tflops) for name, tflops in (("fa2", 300), ("fa3", 610))]
    of_fa2, of_fa3, ratio = findings(tmp_path, text, *records)
    assert (of_fa2.outcome, of_fa3.outcome) == ("cannot be tried here",) * 2
    assert of_fa2.why == "printed for an A100 SXM 80GB"
    assert ratio.figure.name == "fa3 / fa2"
    assert ratio.bursts
    assert ratio.bursts.value == pytest.approx(610 / 300)
    assert (ratio.outcome, outcome_of([of_fa2, of_fa3, ratio])) == ("reproduced",) * 2


def test_ranges_and_bounds_over_several_cases(tmp_path: Path) -> None:
    records = speeds(fa2=(200, 300), fa3=(300, 600))  # 1.5x and 2x

    def outcome(printed: str) -> str:
        (found,) = findings(tmp_path, f"- {{id: one, what: x, ratios: {{fa3 / fa2: {printed}}}}}", *records)
        assert found.bursts
        assert (found.bursts.least, found.bursts.most) == pytest.approx((1.5, 2.0))
        return found.outcome

    assert outcome("1.6-1.8") == "reproduced"  # the geometric mean is 1.73
    assert outcome("1.9-2.5") == "not reproduced"
    assert outcome("to 2.0") == "reproduced"
    assert outcome("to 2.5") == "not reproduced"
    assert outcome("over 1.4") == "reproduced"
    assert outcome("over 1.8") == "not reproduced"


def test_a_best_that_is_not_reached_says_nothing_where_cases_are_missing(tmp_path: Path) -> None:
    some = builders.ok(builders.case(1024), "fa3", 400)
    (found,) = findings(tmp_path, "- {id: one, what: x, printed: {fa3: to 740}}", some)
    assert (found.outcome, found.why) == ("cannot be tried here", "1 of 2 cases measured, and the best may be another")
    (found,) = findings(tmp_path, "- {id: one, what: x, printed: {fa3: to 390}}", some)
    assert (found.outcome, found.why) == ("reproduced", "1 of 2 cases")


def test_of_several_names_the_first_that_was_measured_counts(tmp_path: Path) -> None:
    text = "- {id: one, what: x, printed: {fa2|sdpa-flash: to 300}}"
    skipped = builders.ended(builders.case(1024), "fa2", "skipped", "flash-attn is not installed")
    (found,) = findings(tmp_path, text, skipped, *speeds(**{"sdpa-flash": (200, 310)}))
    assert (found.outcome, found.ran, found.why) == ("reproduced", ("sdpa-flash",), "sdpa-flash for fa2")
    slow = speeds(**{"sdpa-flash": (100, 100)})
    (found,) = findings(tmp_path, text.replace("to 300", "300"), skipped, *slow)
    assert found.outcome == "cannot be tried here", "a stand-in refutes nothing"
    assert "sdpa-flash for fa2 gives 100" in found.why


def test_a_wrong_result_reproduces_nothing(tmp_path: Path) -> None:
    text = "- {id: one, what: x, axes: {seqlen: 16k}, printed: {fa3: 600}}"
    (found,) = findings(tmp_path, text, builders.ended(builders.case(16384), "fa3", "wrong", "out is off by 1"))
    assert (found.outcome, found.why) == ("cannot be tried here", "fa3: WRONG, out is off by 1")


def test_of_several_runs_the_latest_with_a_result_counts(tmp_path: Path) -> None:
    (setting,) = claims(tmp_path, "- {id: one, what: x, axes: {seqlen: 16k}, printed: {fa3: 600}}")
    case = builders.case(16384)
    records = {
        "2026-07-01T10:00:00+00:00": builders.ok(case, "fa3", 600),
        "2026-07-02T10:00:00+00:00": builders.ended(case, "fa3", "wrong", "out is off by 1"),
        "2026-07-03T10:00:00+00:00": builders.ended(case, "fa3", "skipped", "not installed"),
    }
    runs = [builders.run([record], started=started) for started, record in records.items()]
    (found,) = by_gpu(cells(runs)).values()
    assert [finding.why for finding in judge(setting, "H200 SXM", found)] == ["fa3: WRONG, out is off by 1"]


def test_the_answer_counts_claims_and_names_what_is_off(tmp_path: Path) -> None:
    settings = claims(
        tmp_path,
        """
- {id: good, what: x, axes: {seqlen: 1k}, printed: {fa3: 300}}
- {id: bad, what: x, axes: {seqlen: 16k}, printed: {fa3: 1000}}
- {id: far, what: a cluster, cannot: many machines}
""",
    )
    shown = document(settings, [builders.run(speeds(fa3=(300, 600)))])
    assert shown.answer == (
        "On H200 SXM, of 3 claims: 1 reproduced, 1 not reproduced, 1 cannot be tried here.",
        "Not reproduced: bad (fa3 -40%).",
    )
    assert [(reason.who, reason.reason) for reason in shown.reasons] == [("far", "many machines")]
    assert [row["verdict"] for row in shown.rows] == ["reproduced", "not reproduced"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- {id: one, what: x}", "one: it has neither printed nor ratios"),
        ("- {id: one, what: x, printed: {fa33: 1}}", "one: no backend 'fa33'"),
        ("- {id: one, what: x, ratios: {fa3: 2}}", "one: ratios: 'fa3' is not A / B"),
        ("- {id: one, what: x, gpu: H300, printed: {fa3: 2}}", "one: gpu: 'H300' is neither"),
        ("- {id: one, what: x, tolerance: 5, printed: {fa3: 2}}", "one: tolerance: '5' is no share"),
        ("- {id: one, what: x, axes: {seqlne: 1k}, printed: {fa3: 2}}", "claims.0.axes.seqlne: unknown key"),
        ("- {id: one, what: x, axes: {seqlen: long}, printed: {fa3: 2}}", "one: seqlen"),
        ("- {id: one, what: x, cannot: y}\n- {id: one, what: x, cannot: y}", "two claims have the id one"),
    ],
)
def test_a_mistake_in_a_file_is_one_line_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        claims(tmp_path, text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
