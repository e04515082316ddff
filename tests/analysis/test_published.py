"""Published figures of GPUs that nobody here measured stand apart, with their sources."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.analysis.claims import claim_file
from attnbench.analysis.claims.published import published, table
from attnbench.analysis.compare.document import document
from attnbench.analysis.compare.findings import compare
from attnbench.core.flops import flops, ideal_bytes
from attnbench.render import json_and_csv, markdown, terminal
from attnbench.render.html import html_page
from builders import H200, case, ok, run

FILE = """
source: A paper (2026)
address: https://example.org/paper
checked: "2026-11-29, table 1"
gpu: B200
axes: {{dtype: bf16}}
claims:
  - {{id: rate, what: forward, axes: {{seqlen: 16k, pass: fwd}}, printed: {{fa4: 1500}}}}
  - {{id: time, what: forward, axes: {{seqlen: 16k, pass: fwd}}, metric: latency, printed: {{fa4: 2 ms}}}}
  - id: decode
    what: one query
    axes: {{seqlen_q: 1, seqlen: 64k, pass: fwd, batch: 1}}
    metric: latency
    printed: {{fa4: 50 us}}
  - {{id: unknown, what: "at its best", printed: {{someone: to 1600}}, cannot: it is no backend of attnbench}}
  - {{id: approximation, what: faster, axes: {{seqlen: 16k}}, metric: latency, printed: {{linformer: 1 ms}}}}
  - {{id: ratio, what: over, axes: {{seqlen: 16k}}, ratios: {{fa4 / fa2: 2-3}}}}
  - {{id: other, gpu: {other}, what: forward, axes: {{seqlen: 16k, pass: fwd}}, printed: {{fa3: 600}}}}
"""
B200 = replace(H200, name="NVIDIA B200", memory=192 << 30)


@pytest.fixture
def settings(tmp_path: Path) -> list[claim_file.Setting]:
    path = tmp_path / "mine.yaml"
    path.write_text(FILE.format(other="H200 SXM"))
    return claim_file.load([str(path)])


def test_rates_are_those_printed_or_follow_from_a_printed_time(settings: list[claim_file.Setting]) -> None:
    found = {one.claim: one for one in published([], settings)}
    assert {*found} == {"rate", "time", "decode", "unknown", "other"}, "no ratio, and nothing that is not attention"
    assert [(found[name].rate, found[name].unit) for name in ("rate", "unknown")] == [
        (1500, "TFLOP/s"),
        (1600, "TFLOP/s"),
    ]
    (long,), (one_query,) = (next(s for s in settings if s.claim.id == name).cases for name in ("time", "decode"))
    assert found["time"].rate == pytest.approx(flops(long) / 2e-3 / 1e12)
    assert found["decode"].rate == pytest.approx(ideal_bytes(one_query) / 50e-6 / 1e9)
    assert [found[name].work for name in ("rate", "decode", "unknown")] == ["prefill", "decode", ""]


def test_a_gpu_that_was_measured_is_not_among_them(settings: list[claim_file.Setting]) -> None:
    assert {one.gpu for one in published([H200], settings)} == {"B200"}
    assert {one.gpu for one in published([B200], settings)} == {"H200 SXM"}


def test_all_bars_are_hatched_and_every_figure_names_its_source(settings: list[claim_file.Setting]) -> None:
    shown = table(published([], settings))
    assert all(row[-1] == "[1]" for row in shown.rows)
    assert shown.footnotes == (
        "A paper (2026), https://example.org/paper; compared with the source: 2026-11-29, table 1.",
    )
    bars = [entry for row in shown.rows for entry in row if not isinstance(entry, str)]
    assert len(bars) == 4, "of TFLOP/s alone"
    assert all(bar.hatched for bar in bars)  # type: ignore[union-attr]


def test_shipped_figures_of_other_gpus_have_a_work_a_rate_and_a_source() -> None:
    found = published([H200])
    assert {"B200", "GB200", "GB300", "MI300X", "MI355X"} <= {one.gpu for one in found}
    assert "H200 SXM" not in {one.gpu for one in found}
    assert all(one.rate and one.address.startswith("https://") and one.checked for one in found)


def test_a_comparison_shows_them_apart_in_every_format() -> None:
    h100 = replace(H200, name="NVIDIA H100 80GB HBM3", memory=80 << 30)
    runs = [
        run([ok(case(n), "triton", 400 * f) for n in (1024, 2048)], device=of) for of, f in ((H200, 1), (h100, 0.9))
    ]
    c = compare([Path("a"), Path("b")], runs, prices=["h200=3/h", "h100=2/h"])
    brief, whole = document(c), document(c, every=True)
    data = json.loads(json_and_csv.json_text(whole))
    assert {one["gpu"] for one in data["published"]} >= {"B200", "MI300X"}
    assert not any(one["measured"] for one in data["published"])
    assert {machine["name"] for machine in data["machines"]} == {"H200", "H100 80GB HBM3"}, "no published GPU is priced"
    assert "Published, not measured: " in terminal.text(brief)
    texts = [terminal.text(whole), markdown.render(whole), html_page.render(whole)]
    for text in texts:
        after = text[text.index("Published, not measured") :]
        assert "MI300X" in after
        assert "arXiv" in after
        assert "MI300X" not in text[: text.index("Published, not measured")]
    assert "hatched" in texts[-1]


def test_nothing_is_shown_where_there_is_no_choice_between_gpus() -> None:
    runs = [run([ok(case(1024), "triton", 400)], device=H200) for _ in range(2)]
    assert compare([Path("a"), Path("b")], runs).published == ()
