"""The HTML report without a browser: what is in the file, and the rows and figures it is made of."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import builders
from attnbench.core.errors import UserError
from attnbench.core.record import Run
from attnbench.report.html import chart_rows, figures, html_page, image, palette
from attnbench.results import metrics, run_file
from attnbench.results.cells import cells
from builders import case, ended, measurements, ok, run

ASSETS = Path(html_page.__file__).parent / "assets"
CHECKSUMS = {
    "vega.min.js": "8f6a3587cf8d4f42c7e08120e3eb05d067e746d554e39d2dcf52acc0bd5ba28f",
    "vega-lite.min.js": "35a9821df838825b05a6a73e9414b58747a1b18321583858ed903c66393a5c7e",
}


def small() -> Run:
    """Two backends on two lengths and masks; one skip, one cell whose clock was held down."""
    records = []
    for seqlen in (1024, 2048):
        for causal in (False, True):
            which = case(seqlen, causal=causal)
            more: dict[str, Any] = {"memory_peak": 2**20 * seqlen, "clock_held": 1.98e9, "power": 600.0}
            records.append(ok(which, "triton", 400, **more))
            if seqlen == 1024:
                records.append(ok(which, "eager", 40, **{**more, "clock_held": 1.5e9 if causal else 1.98e9}))
            else:
                records.append(ended(which, "eager", "skipped", "needs 512 GiB of <scores> & more"))
    return run(records, argv=("run", "--seqlen", "1k,2k"))


def page(*runs: Run) -> str:
    return html_page.page(runs, [Path(f"/somewhere/run{i}.jsonl") for i in range(len(runs))])


def data(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def field(name: str, found: Any) -> list[Any]:
    """As report.js unpacks it."""
    packed = found["fields"][name]
    if "same" in packed:
        return [packed["same"]] * found["number"]
    return [packed["of"][i] for i in packed["at"]] if "of" in packed else packed["each"]


def test_the_page_asks_for_nothing() -> None:
    """No address that a browser would load, and a policy that forbids it all the same."""
    text = page(small())
    assert "default-src 'none'" in text
    own = text
    for name in CHECKSUMS:
        library, _, _ = (ASSETS / name).read_text(encoding="utf-8").partition("//# sourceMappingURL")
        assert library in own
        own = own.replace(library, "")
    assert len(own) < 100_000
    assert not re.search(r"https?:|\bsrc=|<link|@import|url\(|sourceMappingURL|fetch\(|XMLHttpRequest", own)


def test_the_libraries_are_the_published_ones() -> None:
    assert {name: hashlib.sha256((ASSETS / name).read_bytes()).hexdigest() for name in CHECKSUMS} == CHECKSUMS
    for name in CHECKSUMS:
        assert "</script" not in (ASSETS / name).read_text(encoding="utf-8").lower()


def test_what_a_library_said_cannot_break_out_of_the_page() -> None:
    evil = "</script><script>alert(1)</script><!-- & ' \""
    text = page(run([ended(case(), "eager", "failed", evil), ok(case(), "triton", 400)], argv=("run", "'", evil)))
    assert "<script>alert" not in text
    assert field("reason", data(text))[0] == " ".join(evil.split())


def test_it_says_how_to_do_it_again_and_on_what() -> None:
    text = page(small())
    assert "attnbench run --seqlen 1k,2k" in text
    assert "attnbench report run0.jsonl --html report.html" in text
    assert "/somewhere" not in text
    for known in ("580.82", "2.11.0+cu130", "Intel Xeon", "700 W", "1980 MHz", "2026-07-01"):
        assert known in text


def test_every_warning_and_reason_is_there() -> None:
    text = page(small())
    assert "<strong>Clock held down in 1 of 6 cells" in text
    assert "needs 512 GiB of &lt;scores&gt; &amp; more" in text
    assert "<strong>8 cells</strong>: 6 measured, 2 skip" in text
    assert "Fastest of 2 cases: <strong>triton</strong> in 2." in text


def test_the_convention_is_named(tmp_path: Path) -> None:
    assert "Utilisation (FLOPs: exact), share of the peak (989 for bf16)" in page(small())
    assert "FLOPs: fa, causal counts half" in html_page.page([small()], [tmp_path / "run.jsonl"], "fa")
    drawn = chart_rows.points(cells([small()]))
    titles = {f.name: image.drawing(f, drawn, "fa")["title"]["subtitle"] for f in figures.drawable(drawn)}
    assert titles["throughput"].startswith("NVIDIA H200, bf16 · FLOPs: fa, causal counts half · hollow")
    assert "FLOPs" not in titles["memory"] + titles["latency"]


def test_no_records_make_a_page() -> None:
    text = page(run([]))
    assert "Nothing was measured" in text
    assert data(text)["number"] == 0


def test_figures_of_rows_are_the_metrics_to_seven_digits() -> None:
    found = chart_rows.points(cells([small()]))
    for cell, row in zip(sorted(cells([small()]), key=lambda c: c.case.causal), found.cells, strict=True):
        for name, metric in chart_rows.METRICS.items():
            value = cell.value(metric)
            assert row[name] == (pytest.approx(value, rel=1e-6) if value is not None else None), name


def test_rows_of_several_runs_and_rounds() -> None:
    """The interval is of the samples of one round, and of the rounds' medians where there are several."""
    which = case()
    one = chart_rows.points(cells([run([ok(which, "triton", 400, n=100, spread=0.01)])])).cells[0]
    assert 0.99 < one["lo"] < 1 < one["hi"] < 1.01
    several = run([ok(which, "triton", 400 * (1 + 0.1 * i), round=i) for i in range(3)])
    (row,) = chart_rows.points(cells([several])).cells
    assert (row["lo"], row["hi"]) == (pytest.approx(1.1 / 1.2, rel=1e-3), pytest.approx(1.1, rel=1e-3))
    assert (row["p0"], row["p100"]) == (
        pytest.approx(-0.002, rel=1e-3),
        pytest.approx(0.002, rel=1e-3),
    )  # each sample against its own round


def test_speed_up_has_the_intervals_of_both_sides() -> None:
    which = case()
    found = chart_rows.points(cells([run([ok(which, "eager", 40, spread=0.1), ok(which, "triton", 400, spread=0.05)])]))
    eager, triton = found.cells
    assert eager["speedup_lo"] is None
    assert triton["speedup_lo"] == pytest.approx(10 * eager["lo"] / triton["hi"], rel=1e-4)
    assert triton["speedup_hi"] == pytest.approx(10 * eager["hi"] / triton["lo"], rel=1e-4)
    assert triton["speedup_lo"] < 10 < triton["speedup_hi"]


def test_panels_hold_one_cell_a_length_and_backend() -> None:
    """Also where heads, batches and query lengths vary, which no title names otherwise."""
    cases = [case(s, nheads=h, batch=b) for s in (1024, 2048) for h in (8, 16) for b in (1, 2)]
    cases += [case(s, seqlen_q=1, batch=4) for s in (1024, 2048)]
    cases += [case(1024, softcap=30.0), case(1024, dtype="fp16", headdim_v=64)]
    found = chart_rows.points(cells([run([ok(c, "triton", 400) for c in cases])]))
    seen = [(row["panel"], row["seqlen"], row["backend"]) for row in found.cells]
    assert len(set(seen)) == len(cases)
    assert "bf16 d128 full fwd 8 heads batch 1" in found.panels
    assert "bf16 d128 full fwd seqlen_q 1" in found.panels
    assert "bf16 d128 full fwd softcap 30" in found.panels
    assert "fp16 d128-64 full fwd" in found.panels
    assert found.common == "NVIDIA H200"


def test_what_was_skipped_throughout_a_panel_is_not_marked_there() -> None:
    records = [ok(case(), "triton", 400), ended(case(), "eager", "skipped", "too large")]
    records += [ok(case(512), "eager", 40), ended(case(512), "sdpa-math", "oom", "too large")]
    records += [ended(case(dtype="fp8"), b, "skipped", "no fp8") for b in ("eager", "triton")]
    records.append(ok(case(dtype="fp8"), "cudnn-fp8", 900))
    marked = {(r["dtype"], r["backend"]): r["slot"] for r in chart_rows.points(cells([run(records)])).cells}
    assert marked["bf16", "triton"] is None
    assert (marked["fp8", "eager"], marked["fp8", "triton"], marked["fp8", "cudnn-fp8"]) == (None, None, None)
    slots = [
        r["slot"]
        for r in chart_rows.points(cells([run(records)])).cells
        if r["dtype"] == "bf16" and r["status"] != "ok"
    ]
    assert slots == [0, 0]


@pytest.mark.parametrize(("dtypes", "scale"), [(("bf16", "fp16"), "shared"), (("bf16", "fp8"), "independent")])
def test_throughputs_of_several_peaks_have_scales_of_their_own(dtypes: tuple[str, ...], scale: str) -> None:
    found = chart_rows.points(cells([run([ok(case(dtype=d), "triton", 400) for d in dtypes])]))
    by_name = {f.name: f for f in figures.FIGURES}
    for name, wanted in (("throughput", scale), ("utilization", "shared")):
        spec = figures.spec(by_name[name], found, palette.LIGHT, (300, 200), 2, legend=True)
        assert spec["resolve"] == {"scale": {"y": wanted}}


@pytest.mark.parametrize(("backends", "abreast"), [(2, None), (20, 4)])
def test_a_legend_is_no_wider_than_its_figure(backends: int, abreast: int | None) -> None:
    """Else a figure of twenty backends is half empty."""
    found = chart_rows.points(cells([run([ok(case(), f"flash_attention_{i:02}", 400) for i in range(backends)])]))
    by_name = {f.name: f for f in figures.FIGURES}
    spec = figures.spec(by_name["throughput"], found, palette.LIGHT, (250, 200), 3, legend=True)
    drawn = [layer.get("encoding", {}).get("stroke") for layer in spec["spec"]["layer"]]
    legends = [stroke["legend"] for stroke in drawn if stroke]
    assert [legend.get("columns") for legend in legends] == [abreast] * len(legends) != []


def test_memory_runs_beside_slopes_of_one_and_two() -> None:
    records = [ok(case(s), "eager", 40, memory_peak=s * s * 16384 // s) for s in (1024, 4096)]
    found = chart_rows.points(cells([run(records)]))
    lines = {w: [v["y"] for v in found.lines if v["kind"] == "slope" and v["which"] == w] for w in ("∝ n", "∝ n²")}
    rows = [row["memory_sequence"] for row in found.cells]
    assert rows[1] / rows[0] == pytest.approx(16)  # of one sequence of the batch
    assert lines["∝ n"][1] / lines["∝ n"][0] == pytest.approx(4)
    assert lines["∝ n²"][1] / lines["∝ n²"][0] == pytest.approx(16)


def test_the_roof_is_the_datasheets_and_the_one_measured() -> None:
    which = case()
    ceilings = measurements(ceiling_matmul=8e14, ceiling_copy=4e12)
    record = ok(which, "triton", 400)
    found = chart_rows.points(cells([run([replace(record, measurements={**record.measurements, **ceilings})])]))
    tops = {w: max(v["y"] for v in found.lines if v.get("which") == w) for w in ("datasheet", "measured")}
    assert tops == {"datasheet": pytest.approx(989, rel=0.01), "measured": pytest.approx(800)}
    ridge = sorted(v["x"] for v in found.lines if v.get("which") == "measured")[1]
    assert ridge == pytest.approx(200)


def test_backends_keep_colour_and_shape_whoever_is_beside_them() -> None:
    alone, among = palette.places(["triton"]), palette.places(["eager", "mine", "sdpa-cudnn", "triton", "yours"])
    assert alone["triton"] == among["triton"]
    assert len(set(among.values())) == 5


@pytest.mark.parametrize("scheme", [palette.LIGHT, palette.DARK])
def test_colours_stand_out_from_their_paper(scheme: palette.Look) -> None:
    def luminance(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(a: str, b: str) -> float:
        low, high = sorted((luminance(a), luminance(b)))
        return (high + 0.05) / (low + 0.05)

    assert all(contrast(color, scheme.paper) >= 3 for color in scheme.colors)
    assert contrast(scheme.ink, scheme.paper) >= 7
    assert contrast(scheme.quiet, scheme.paper) >= 4.5
    assert len(set(scheme.colors)) == len(scheme.colors) == len(palette.ON_PAGE.colors)


def test_only_what_was_measured_is_drawn() -> None:
    names = {f.name for f in figures.drawable(chart_rows.points(cells([small()])))}
    assert names >= {"throughput", "utilization", "speedup", "memory", "roofline", "spread", "clock", "power"}
    assert "efficiency" not in names
    cpu = run([ok(case(dtype="fp32"), "eager", 0.1)], device=builders.CPU)
    names = {f.name for f in figures.drawable(chart_rows.points(cells([cpu])))}
    assert names == {"throughput", "latency", "roofline", "spread", "speedup"}


def test_columns_and_fields_that_say_nothing_are_left_out() -> None:
    shown = {column["field"] for column in data(page(small()))["columns"]}
    assert {"backend", "mask", "seqlen", "latency", "tflops", "memory", "status"} <= shown
    assert not shown & {"device", "dtype", "pass", "headdim", "other", "temperature"}


@pytest.mark.parametrize("figure", figures.FIGURES, ids=lambda f: f.name)
def test_every_figure_can_be_drawn(figure: figures.Figure, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    sustained = {"sustained": 1e-3, "sustained_power": 650.0, "temperature": 50.0}
    records = [ok(case(s), b, 400, **sustained, memory_peak=s) for s in (1024, 2048) for b in ("eager", "triton")]
    whole = run([*(replace(r, measurements={**r.measurements, **_state()}) for r in records)])
    file = tmp_path / "figure.svg"
    image.save(file, "svg", [whole], figure.name)
    svg = file.read_text()
    assert figure.title in svg
    assert "NaN" not in svg
    assert palette.LIGHT.colors[0] in svg
    assert palette.LIGHT.colors[palette.places(["triton"])["triton"]] in svg


def _state() -> dict[str, Any]:
    return measurements(clock_held=1.98e9, power=600.0, ceiling_matmul=8e14, ceiling_copy=4e12)


def test_a_png_is_one(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    image.save(tmp_path / "a.png", "png", [small()], "speedup", "causal")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_backend_that_was_skipped_throughout_has_no_cross_and_no_box() -> None:
    absent = [ended(case(s), "fa3", "skipped", "not installed") for s in (1024, 2048)]
    records = [*absent, ok(case(), "triton", 400), ended(case(2048), "triton", "skipped", "no room")]
    found = chart_rows.points(cells([run(records)]))
    assert found.backends == ("triton",)
    assert [(row["backend"], row["status"]) for row in found.cells] == [("triton", "ok"), ("triton", "skip")]
    text = html_page.page([run(records)], [Path("a.jsonl")])
    assert "<strong>skip</strong> fa3 (all): not installed" in text, "the reason stays"
    assert chart_rows.points(cells([run(absent)])).backends == ("fa3",)


def test_a_run_without_a_record_has_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to draw: no cell has a record"):
        image.save(tmp_path / "a.svg", "svg", [run([])], "speedup")


def test_a_panel_is_chosen_by_its_words() -> None:
    found = chart_rows.points(cells([small()])).only("causal d128")
    assert found.panels == ("d128 causal fwd",)
    assert {row["panel"] for row in found.cells} == {"d128 causal fwd"}
    assert {line.get("panel") for line in found.lines if line["kind"] == "slope"} == {"d128 causal fwd"}


@pytest.mark.parametrize(
    ("name", "panel", "said"),
    [
        ("thruput", "", "--figure: unknown 'thruput'; did you mean \"throughput\"?"),
        ("throughput", "d64", "--panel: none has all of 'd64' in its title; there are: d128 full fwd, d128 causal fwd"),
        ("efficiency", "", "nothing to draw for efficiency"),
    ],
)
def test_what_cannot_be_drawn_is_said(name: str, panel: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        image.save(tmp_path / "a.svg", "svg", [small()], name, panel)
    assert str(error.value).startswith(said)


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*: No such file or directory"):
        html_page.save(tmp_path / "none" / "a.html", [small()], [tmp_path / "run.jsonl"])


def test_the_command_writes_it_without_anything_heavy(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    whole = small()
    stored = run_file.RunFile.create(file, whole)
    for record in whole.records:
        stored.append(record)
    stored.close()
    code = (
        "import sys; from attnbench.cli import command_line\n"
        f"try: command_line()(['report', {str(file)!r}, '--html', {str(tmp_path / 'a.html')!r}])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print(*sorted({'torch', 'pandas', 'numpy', 'vl_convert', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"html: {tmp_path / 'a.html'}", ""]
    assert data((tmp_path / "a.html").read_text(encoding="utf-8"))["number"] == 8


def test_shown_metrics_exist() -> None:
    assert set(chart_rows.METRICS.values()) <= set(metrics.METRICS)
