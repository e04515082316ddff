"""The price at which two machines cost the same for the same work: by hand arithmetic, as table, chart and sheet."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnbench.analysis.compare.answer import answer
from attnbench.analysis.compare.break_even import ALL, BreakEven, break_even
from attnbench.analysis.compare.break_even_tables import charts, tables
from attnbench.analysis.compare.document import document
from attnbench.analysis.compare.findings import Comparison, compare
from attnbench.render import json_and_csv
from attnbench.render.html import html_page
from builders import H200, case, decode, ok, run

H100 = replace(H200, name="NVIDIA H100 80GB HBM3", memory=80 << 30)


def compared(*prices: str, others: tuple[Any, ...] = (H100,), workload: str | None = None) -> Comparison:
    """Compare an H200 with others that have 0.9 of its speed in prefill and 0.5 in decode, in five rounds each."""

    def of(device: Any, prefill: float, decoding: float) -> Any:
        wobbles = [1 + 0.0005 * (i - 2) for i in range(5)]
        records = [
            ok(case(n), "triton", 400 * prefill * w, round=i) for i, w in enumerate(wobbles) for n in (1024, 4096)
        ]
        records += [decode(8192, "triton", 2 * decoding * w, round=i) for i, w in enumerate(wobbles)]
        return run(records, device=device)

    runs = [of(H200, 1, 1), *(of(device, 0.9, 0.5) for device in others)]
    return compare([Path(f"{i}") for i in range(len(runs))], runs, prices=prices, workload=workload)


def by_kind(c: Comparison) -> dict[str, BreakEven]:
    return {of.kind: of for of in break_even(c)}


def test_a_machine_that_does_half_is_worth_half_the_price() -> None:
    found = by_kind(compared("h200=4/h", "h100=2.50/h"))
    assert {*found} == {ALL, "prefill", "decode"}
    assert found["prefill"].at(4).value == pytest.approx(3.6)
    assert found["decode"].at(4).value == pytest.approx(2.0)
    assert found["decode"].at(8).value == pytest.approx(4.0), "a line over the price"
    assert found[ALL].at(4).value == pytest.approx(4 * (0.9 * 0.9 * 0.5) ** (1 / 3))
    at = found["prefill"].at(4)
    assert at.low
    assert at.high
    assert at.low / 3.6 == pytest.approx(found["prefill"].ratio.low / 0.9)  # type: ignore[operator]


def test_what_it_costs_at_the_given_prices_depends_on_the_work() -> None:
    found = by_kind(compared("h200=4/h", "h100=2.50/h"))
    assert (found["prefill"].verdict, found["decode"].verdict) == ("less", "more")
    assert by_kind(compared("h200=4/h", "h100=3.60/h"))["prefill"].verdict == "not told apart"
    assert by_kind(compared("h200=4/h"))["prefill"].verdict is None, "no price of its own was given"


def test_prices_of_hosts_and_of_purchases_are_those_of_one_device() -> None:
    host = by_kind(compared("h200=320000/8gpu/4y", "h100=90000/4gpu/4y"))["decode"]
    assert host.at(40_000).value == pytest.approx(20_000)
    assert host.given == pytest.approx(22_500)
    assert host.verdict == "more"


def test_the_answer_says_the_ends_over_the_kinds_of_work() -> None:
    assert any(
        "if H200 costs $4.00/h, from $2.00/h in decode to $3.60/h in prefill" in s for s in answer(compared("h200=4/h"))
    )
    assert any("of the price of H200, from 0.500x in decode to 0.900x in prefill" in s for s in answer(compared()))


def test_without_the_price_of_the_reference_there_is_neither_table_nor_chart() -> None:
    for c in (compared(), compared("h100=2.50/h")):
        assert tables(c, brief=False) == []
        assert charts(c) == []
    same = compared("h200=4/h", others=(H200,))
    assert break_even(same) == [], "a model against itself is never priced"
    assert document(same, every=True).sheet is None


def test_the_chart_is_a_line_with_a_band_through_the_break_even() -> None:
    (chart,) = charts(compared("h200=4/h", "h100=2.50/h"))
    assert [line.label.split()[0] for line in chart.lines] == ["all", "prefill", "decode"]
    for x, y, low, high in chart.lines[1].points:
        assert y == pytest.approx(0.9 * x)
        assert low <= y <= high
    assert chart.lines[1].points[-1][0] == 8
    assert chart.marks == ((4.0, 2.5, "given: H100 80GB HBM3"),)
    assert chart.level == 4


def test_several_machines_have_a_line_each() -> None:
    h800 = replace(H100, name="NVIDIA H800")
    (chart,) = charts(compared("h200=4/h", "h100=2/h", others=(H100, h800)))
    assert [line.label.split(" 0.740x")[0] for line in chart.lines] == ["H100 80GB HBM3", "H800"]
    (table,) = tables(compared("h200=4/h", "h100=2/h", others=(H100, h800)), brief=True)
    assert [row[-1] for row in table.rows] == ["costs less", "-"]


def test_json_has_the_break_even_and_a_page_its_chart() -> None:
    whole = document(compared("h200=4/h", "h100=2.50/h"), every=True)
    found = {of["work"]: of for of in json.loads(json_and_csv.json_text(whole))["break_even"]}
    assert found["decode"]["price"] == pytest.approx(2.0)
    assert found["decode"]["costs"] == "more"
    page = html_page.render(whole)
    assert 'id="break-even-chart"' in page
    assert 'id="line-charts"' in page
    assert "script" not in html_page.render(document(compared(), every=True)), "a page without a chart has no script"


def test_a_sheet_has_few_rows_and_short_sentences_whatever_is_compared() -> None:
    many = tuple(replace(H100, name=f"NVIDIA H{i}00 with a long name of its product") for i in range(2, 14))
    sheet = document(compared("h200=4/h", others=many), every=True).sheet
    assert sheet
    assert len(sheet.blocks[0].rows) <= 7  # type: ignore[union-attr]
    assert len(sheet.machines) == 3
    assert sum(map(len, sheet.answer)) <= 1800
    assert len(sheet.cautions) <= 4


def test_each_part_of_a_workload_has_its_own_price(tmp_path: Path) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text(
        "parts:\n  - {name: reading, weight: 50%, seqlen: 1k, seqlen_q: 1k}\n"
        "  - {name: writing, weight: 50%, seqlen: 8k, seqlen_q: 1}\n"
    )
    found = by_kind(compared("h200=4/h", "h100=2.50/h", workload=str(path)))
    assert {*found} == {ALL, "reading", "writing"}
    assert found["reading"].at(4).value == pytest.approx(3.6)
    assert found["writing"].at(4).value == pytest.approx(2.0)
    assert found[ALL].at(4).value == pytest.approx(4 / (0.5 / 0.9 + 0.5 / 0.5)), "half of the reference's time each"
