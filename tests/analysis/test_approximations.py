"""Approximate backends in reports: their error beside their time, never ranked with exact attention."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from report_text import report, shown

from attnbench.analysis.check.document import document as check_document
from attnbench.analysis.compare.document import document as compare_document
from attnbench.analysis.compare.findings import compare
from attnbench.analysis.compare.longest_sequence import longest_sequences
from attnbench.analysis.compare.machines import machines
from attnbench.analysis.gate.findings import Request, judge
from attnbench.analysis.models.findings import step_times
from attnbench.analysis.recommend.findings import problems
from attnbench.core.models import find
from attnbench.core.record import Approximation, Run
from attnbench.render import terminal
from attnbench.results import bounds, metrics
from attnbench.results.cells import cells
from attnbench.results.sustained import rank_changes
from builders import H200, case, ended, ok, run

NEAR = Approximation("attention to few keys", 0.42, 0.81, rows=64, heads=4)
CASE, LONG = case(1024, causal=True), case(4096, causal=True)


@pytest.fixture
def measured() -> Run:
    """Return a run of two backends and an approximation that is faster than both, and skipped on a longer case."""
    fast = ok(CASE, "streaming", 900, approximation=NEAR, sustained=1e-6, memory_peak=1.0)
    rest = [
        ok(c, b, t, sustained=1e-3, memory_peak=2.0**20)
        for c in (CASE, LONG)
        for b, t in (("fa2", 400), ("triton", 300))
    ]
    return run([fast, *rest, ended(LONG, "streaming", "skipped", "no memory")])


def test_it_is_best_of_nothing(measured: Run) -> None:
    answer = " ".join(report([measured]).answer)
    assert "Fastest of 2 cases: fa2 in 2." in answer
    assert "Not ranked, as they approximate attention: streaming 2.25x with errors of 42%. 1x is the speed" in answer
    row = next(line for line in shown([measured], metrics=("tflops",)).splitlines() if "900 err" in line)
    assert "*400" in row
    assert "*900" not in row
    found = cells([measured])
    assert [cell.is_exact for cell in found if cell.backend == "streaming"] == [False, False]
    assert all({one.backend for one in problem.candidates} == {"fa2", "triton"} for problem in problems(found))
    (machine,) = machines([Path("a.jsonl")], [measured])
    assert {backend for _, backend in machine.fastest.values()} == {"fa2"}
    assert rank_changes(found) == []


def test_it_is_no_step_of_a_model() -> None:
    model = find("llama-3.1-8b")
    assert model is not None
    layer = case(4096, causal=True, nheads=32, nheads_k=8)
    records = [ok(layer, "fa2", 400), ok(layer, "streaming", 900, approximation=NEAR)]
    assert {time.backend for time in step_times(cells([run(records)]), model, 1)} == {"fa2"}


def test_metrics_and_rates(measured: Run) -> None:
    cell = next(cell for cell in cells([measured]) if not cell.is_exact and cell.case == CASE)
    assert (cell.value("approximation_error"), cell.value("mass_kept")) == (0.42, 0.81)
    assert cell.value("utilization") is None
    assert cell.value("roofline") is None
    assert cell.value("tflops") == pytest.approx(900)
    other = next(cell for cell in cells([measured]) if cell.is_exact)
    assert metrics.value("approximation_error", other.rows[0]) is None


def test_a_gate_judges_its_own_time_and_says_what_it_is(measured: Run) -> None:
    judged = judge(measured, measured, Request(("latency",)))
    assert any("streaming is an approximation of attention, off by up to 42%" in note for note in judged.notes)
    assert {finding.backend for finding in judged.findings} == {"fa2", "triton", "streaming"}


def test_compare_names_its_error_and_has_no_rate_of_it(measured: Run) -> None:
    """An approximation has no rate, because the FLOPs and bytes of exact attention are not its own."""
    other = replace(measured, environment=replace(measured.environment, device=replace(H200, name="NVIDIA H100")))
    found = compare([Path("a.jsonl"), Path("b.jsonl")], [measured, other])
    shown = compare_document(found, every=True)
    assert re.search(r"streaming \S+ d128 causal fwd \(approx., err 42%\) +(\S+ us) +\1", terminal.text(shown))
    (ours, _) = (row for row in shown.rows if row["backend"] == "streaming" and row["status"] == "ok")
    assert ours["latency"]
    assert not any(ours[name] for name in ("tflops", "gbps", "utilization", "sustained_tflops"))


def test_a_check_says_by_what_it_is_right(measured: Run) -> None:
    text = " ".join(terminal.text(check_document(measured)).split())
    assert text.count("Right is its own definition: attention to few keys. From attention it is off by 42%.") == 1


def test_an_error_that_nothing_can_have_damages_a_line(measured: Run) -> None:
    wrong = replace(measured.records[0], approximation=replace(NEAR, error=-1.0))
    with pytest.raises(ValueError, match="approximation"):
        bounds.check_record(wrong)


def test_the_longest_sequence_that_fits_is_of_attention() -> None:
    exact = ok(case(4096, causal=True), "eager", 50)
    longer = ok(case(2**14, batch=exact.case.shape.batch, causal=True), "streaming", 900, approximation=NEAR)
    (machine,) = machines([Path("a.jsonl")], [run([exact, longer])])
    (any_backend,) = longest_sequences([machine], by_backend=False)
    fit = any_backend.fits[machine.label]
    assert fit is not None
    assert fit.longest == 4096
    each = {found.backend: found.fits[machine.label] for found in longest_sequences([machine])}
    assert each["streaming"] is not None
    assert each["streaming"].longest == 2**14
