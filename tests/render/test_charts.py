"""The data of figures, the figures themselves, their colours, and figures as files."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_pages import page, small

import builders
from attnbench.core.errors import UserError
from attnbench.core.record import Approximation, Record
from attnbench.render.html import figures, image, palette, vega_spec
from attnbench.render.html.charts import Charts, charts
from attnbench.results import run_file
from attnbench.results.cells import cells
from builders import case, ended, measurements, ok, run

RESULTS = Path(__file__).parents[2] / "results"


def small_charts() -> Charts:
    return charts(cells([small()]))


def test_the_convention_is_named() -> None:
    assert "Utilisation (FLOPs: exact), share of the peak (989 for bf16)" in page(small())
    assert "FLOPs: fa, causal counts half" in page(small(), convention="fa")
    drawn = charts(cells([small()], "fa"))
    titles = {f.name: image.specification(f, drawn)["title"]["subtitle"] for f in figures.drawable(drawn)}
    assert titles["throughput"].startswith("NVIDIA H200, bf16 · FLOPs: fa, causal counts half · hollow")
    assert "FLOPs" not in titles["memory"] + titles["latency"]


def test_panels_hold_one_cell_a_length_and_backend() -> None:
    """Panels have one cell for each length and backend, also where heads, batches and query lengths vary."""
    cases = [case(s, nheads=h, batch=b) for s in (1024, 2048) for h in (8, 16) for b in (1, 2)]
    cases += [case(s, seqlen_q=1, batch=4) for s in (1024, 2048)]
    cases += [case(1024, softcap=30.0), case(1024, dtype="fp16", headdim_v=64)]
    found = charts(cells([run([ok(c, "triton", 400) for c in cases])]))
    seen = [(row["panel"], row["seqlen"], row["backend"]) for row in found.rows]
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
    marked = {(r["dtype"], r["backend"]): r["slot"] for r in charts(cells([run(records)])).rows}
    assert marked["bf16", "triton"] is None
    assert (marked["fp8", "eager"], marked["fp8", "triton"], marked["fp8", "cudnn-fp8"]) == (None, None, None)
    slots = [r["slot"] for r in charts(cells([run(records)])).rows if r["dtype"] == "bf16" and r["status"] != "ok"]
    assert slots == [0, 0]


@pytest.mark.parametrize(("dtypes", "scale"), [(("bf16", "fp16"), "shared"), (("bf16", "fp8"), "independent")])
def test_throughputs_of_several_peaks_have_scales_of_their_own(dtypes: tuple[str, ...], scale: str) -> None:
    found = charts(cells([run([ok(case(dtype=d), "triton", 400) for d in dtypes])]))
    by_name = {f.name: f for f in figures.FIGURES}
    for name, wanted in (("throughput", scale), ("utilization", "shared")):
        spec = vega_spec.spec(by_name[name], found, (300, 200), 2, legend=True)
        assert spec["resolve"] == {"scale": {"y": wanted}}


def test_memory_runs_beside_slopes_of_one_and_two() -> None:
    records = [ok(case(s), "eager", 40, memory_peak=s * s * 16384 // s) for s in (1024, 4096)]
    found = charts(cells([run(records)]))
    lines = {w: [v["y"] for v in found.lines if v["kind"] == "slope" and v["which"] == w] for w in ("∝ n", "∝ n²")}
    rows = [row["memory_sequence"] for row in found.rows]
    assert rows[1] / rows[0] == pytest.approx(16)  # for one sequence of the batch
    assert lines["∝ n"][1] / lines["∝ n"][0] == pytest.approx(4)
    assert lines["∝ n²"][1] / lines["∝ n²"][0] == pytest.approx(16)


def test_the_roof_is_the_datasheets_and_the_one_measured() -> None:
    which = case()
    ceilings = measurements(ceiling_matmul=8e14, ceiling_copy=4e12)
    record = ok(which, "triton", 400)
    found = charts(cells([run([replace(record, measurements={**record.measurements, **ceilings})])]))
    tops = {w: max(v["y"] for v in found.lines if v.get("which") == w) for w in ("datasheet", "measured")}
    assert tops == {"datasheet": pytest.approx(989, rel=0.01), "measured": pytest.approx(800)}
    ridge = sorted(v["x"] for v in found.lines if v.get("which") == "measured")[1]
    assert ridge == pytest.approx(200)


@pytest.mark.parametrize(("headdim", "direction", "tflops"), [(64, "fwd", 1024), (128, "fwd", 2048), (64, "bwd", 2560)])
def test_the_exponentials_of_the_softmax_are_a_roof(headdim: int, direction: str, tflops: float) -> None:
    """The softmax's exponentials are a roof: one for each pair and head, with 4 headdim FLOPs forward, 10 backward."""
    shapes = [case(n, headdim=headdim, direction=direction, causal=c) for n in (1024, 4096) for c in (False, True)]
    ceilings = measurements(ceiling_exp=4e12)
    records = [ok(which, "triton", 400) for which in shapes]
    found = charts(cells([run([replace(r, measurements={**r.measurements, **ceilings}) for r in records])]))
    ends = [(line["x"], line["y"]) for line in found.lines if line.get("which") == "exp"]
    assert [y for _, y in ends] == [pytest.approx(tflops)] * 2
    intensities = [row["intensity"] for row in found.rows]
    assert ends[0][0] < min(intensities) < max(intensities) < ends[1][0]


@pytest.mark.parametrize(("kind", "mask"), [("indexer", "topk:2k"), ("gdn", "")])
def test_attention_without_a_softmax_has_no_roof_of_exponentials(kind: str, mask: str) -> None:
    record = ok(replace(case(4096, nheads_k=1, causal=True), kind=kind, mask=mask), "triton", 400)
    ceilings = measurements(ceiling_matmul=8e14, ceiling_copy=4e12, ceiling_exp=4e12)
    found = charts(cells([run([replace(record, measurements={**record.measurements, **ceilings})])]))
    assert {line["which"] for line in found.lines if line["kind"] == "roof"} == {"datasheet", "measured"}


def test_backends_differ_in_two_of_colour_dash_and_shape() -> None:
    """Backends differ in two of colour, dash and shape: all of attnbench's, 24 unknown ones, and a mixture."""
    known = palette.case_names.BACKEND_ORDER
    for names in (known, [f"mine-{i}" for i in range(24)], [*known[:20], *(f"mine-{i}" for i in range(4))]):
        marks = palette.backend_marks(names).values()
        for a, b in itertools.combinations(marks, 2):
            assert (a.color != b.color) + (a.dash != b.dash) + (a.shape != b.shape) >= 2, (a, b)


def test_only_what_was_measured_is_drawn() -> None:
    names = {f.name for f in figures.drawable(small_charts())}
    assert names >= {"throughput", "utilization", "speedup", "memory", "roofline", "spread", "clock"}
    assert "efficiency" not in names
    cpu = run([ok(case(dtype="fp32"), "eager", 0.1)], device=builders.CPU)
    names = {f.name for f in figures.drawable(charts(cells([cpu])))}
    assert names == {"ranking", "throughput", "latency", "roofline", "spread", "speedup"}


def test_no_two_rows_of_stored_runs_have_one_name() -> None:
    """No two rows of stored runs have the same name, in a report of one run or of all; no rate exceeds the device's."""
    last = {file.name.partition("-")[2].partition("-")[2]: file for file in sorted(RESULTS.glob("*.jsonl*"))}
    runs = [found for file in last.values() if not (found := run_file.read(file)[0]).search]
    assert len(runs) > 20
    for of in (*([one] for one in runs), runs):
        rows = charts(cells(of)).rows
        names = Counter((row["shape"], row["bar"]) for row in rows)
        assert [name for name, number in names.items() if number > 1] == [], of[0].started
        assert [row["case"] for row in rows if row["limit"] and (row["rate"] or 0) > 1.02 * row["limit"]] == []


def test_two_devices_are_two_bars_of_one_shape() -> None:
    h100 = run([ok(case(), "eager", 500)], device=replace(builders.H200, name="NVIDIA H100"))
    rows = charts(cells([run([ok(case(), "eager", 400)]), h100])).rows
    assert len({row["shape"] for row in rows}) == 1
    assert [row["bar"] for row in rows] == ["eager, H200", "eager, H100"]


DRAW = """
import json, sys, vl_convert
json.dump([vl_convert.vegalite_to_svg(spec, vl_version=sys.argv[1]) for spec in json.load(sys.stdin)], sys.stdout)
"""


def test_every_figure_can_be_drawn() -> None:
    """Every figure can be drawn, in one process, whose start takes longer than all figures."""
    pytest.importorskip("vl_convert")
    sustained = {"sustained": 1e-3, "sustained_power": 650.0, "temperature": 50.0}
    records = [ok(case(s), b, 400, **sustained, memory_peak=s) for s in (1024, 2048) for b in ("eager", "triton")]
    decode = case(4096, seqlen_q=1)
    records += [ok(decode, b, 4, **sustained, memory_peak=1) for b in ("eager", "triton")]
    records.append(ok(case(1024), "near", 900, approximation=Approximation("few keys", 0.4, None, rows=64, heads=4)))
    whole = run([*(replace(r, measurements={**r.measurements, **_state()}) for r in records)])
    drawn = charts(cells([whole]))
    assert figures.drawable(drawn) == [*figures.FIGURES]
    specs = [image.specification(figure, drawn) for figure in figures.FIGURES]
    command = [sys.executable, "-c", DRAW, image.VEGA_LITE]
    done = subprocess.run(command, input=json.dumps(specs), capture_output=True, text=True, check=True)
    mark = palette.backend_marks(["triton"])["triton"]
    for figure, svg in zip(figures.FIGURES, json.loads(done.stdout), strict=True):
        assert figure.title in svg
        assert "NaN" not in svg
        assert palette.LIGHT["c0"] in svg
        assert palette.LIGHT[f"c{mark.color}"] in svg


def test_a_backend_of_any_name_has_its_bar(tmp_path: Path) -> None:
    """A backend of any name has its bar, with control characters or a name of JavaScript's objects too."""
    pytest.importorskip("vl_convert")
    bars = []
    for names in ("abcdef", ("constructor", "toString", "__proto__", "a\x01b", "a\x00b", "a\x1b[31mb")):
        file = tmp_path / "bars.svg"
        image.save(file, "svg", charts(cells([run([ok(case(), name, 400) for name in names])])), "ranking")
        bars.append(file.read_text().count("<path"))
    assert bars[0] == bars[1] > 6


def _state() -> dict[str, Any]:
    return measurements(clock_held=1.98e9, power=600.0, ceiling_matmul=8e14, ceiling_copy=4e12)


def test_a_png_is_one(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    image.save(tmp_path / "a.png", "png", small_charts(), "speedup", "causal")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_backend_that_was_skipped_throughout_has_no_cross_and_no_box() -> None:
    absent = [ended(case(s), "fa3", "skipped", "not installed") for s in (1024, 2048)]
    records = [*absent, ok(case(), "triton", 400), ended(case(2048), "triton", "skipped", "no room")]
    found = charts(cells([run(records)]))
    assert found.backends == ("triton",)
    assert [(row["backend"], row["status"]) for row in found.rows] == [("triton", "ok"), ("triton", "skip")]
    assert "<strong>skip</strong> fa3 (all): not installed" in page(run(records)), "the reason stays"
    assert charts(cells([run(absent)])).backends == ("fa3",)


def test_a_panel_is_chosen_by_its_words() -> None:
    found = small_charts().only("causal d128")
    assert found.panels == ("d128 causal fwd",)
    assert {row["panel"] for row in found.rows} == {"d128 causal fwd"}
    assert {line.get("panel") for line in found.lines if line["kind"] == "slope"} == {"d128 causal fwd"}


@pytest.mark.parametrize(
    ("name", "panel", "message"),
    [
        ("thruput", "", "--figure: unknown 'thruput'; did you mean \"throughput\"?"),
        ("throughput", "d64", "--panel: none has all of 'd64' in its title; there are: d128 full fwd, d128 causal fwd"),
        ("efficiency", "", "nothing to draw for efficiency"),
    ],
)
def test_what_cannot_be_drawn_is_an_error(name: str, panel: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        image.save(tmp_path / "a.svg", "svg", small_charts(), name, panel)
    assert str(error.value).startswith(message)
    with pytest.raises(UserError, match="nothing to draw: no cell has a record"):
        image.save(tmp_path / "a.svg", "svg", charts([]), "speedup")


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*: (Not a directory|File exists)"):
        image.save(tmp_path / "file" / "a.svg", "svg", small_charts(), "speedup")


def test_the_fastest_is_marked_where_a_table_has_a_star() -> None:
    def marks(*records: Record) -> dict[str, str]:
        return {row["backend"]: row["best"] for row in charts(cells([run(records)])).rows if row["best"]}

    loud = [1e-9, 3e-4, 3e-2]  # uncertain by any factor
    assert marks(ok(case(), "triton", 300), ok(case(), "eager", 100)) == {"triton": "best"}
    assert marks(ok(case(), "triton", 300), ok(case(), "fa2", 300)) == {"triton": "= best", "fa2": "= best"}
    assert marks(ok(case(), "triton", 300), ok(case(), "fa2", 100, time=loud)) == {"fa2": "? hardly known"}
    slow = [0.5, 0.7, 1.0, 1.0, 1.4, 2.0]
    both = {"triton": "best", "fa2": "? hardly known"}
    assert marks(ok(case(), "triton", 300), ok(case(), "fa2", 100, time=slow)) == both
