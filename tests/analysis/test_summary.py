"""Layouts as golden text, endings and warnings in words."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from attnbench.analysis.summary.contents import contents
from attnbench.core.errors import UserError
from attnbench.core.record import Accuracy, Record, Run, TensorError
from attnbench.report import markdown, terminal
from attnbench.report.export import flat_rows
from attnbench.report.html import chart_rows
from attnbench.results.cells import cells
from builders import CPU, H200, SIX, case, decode, ended, forwards, measurements, ok, run


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def shown(runs: list[Run], width: int = 100, encoding: str = "utf-8", **options: Any) -> str:
    """What the terminal report writes to a pipe."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    terminal.render(Console(file=stream, width=width), contents(runs, **options))
    stream.flush()
    return raw.getvalue().decode(encoding)


WIDE = """\
NVIDIA H200  140 GiB, 700 W, driver 580.82, torch 2.11.0+cu130, CUDA 13.0, suite quick, 2026-07-01
latency = median of 100 samples, CUDA events, L2 cold, SM clock 1755 of 1980 MHz

Throughput, TFLOP/s (FLOPs: exact), and share of the peak (989 for bf16)  * best of its row

bf16, headdim 128, full, fwd  16 heads, batch x seqlen = 16k
seqlen     eager   sdpa-efficient   sdpa-flash   sdpa-cudnn    triton
─────────────────────────────────────────────────────────────────────
    1k   32.1 3%          141 14%      245 25%     *414 42%   339 34%
   16k      skip          212 21%      368 37%     *621 63%   508 51%

bf16, headdim 128, causal, fwd  16 heads, batch x seqlen = 16k
seqlen     eager   sdpa-efficient   sdpa-flash   sdpa-cudnn    triton
─────────────────────────────────────────────────────────────────────
    1k   32.1 3%          141 14%      245 25%     *414 42%   339 34%
   16k      skip          212 21%      368 37%     *621 63%     WRONG

Peak memory added by one call

bf16, headdim 128, full, fwd  16 heads, batch x seqlen = 16k
seqlen      eager   sdpa-efficient   sdpa-flash   sdpa-cudnn     triton
───────────────────────────────────────────────────────────────────────
    1k   1.00 GiB         64.0 MiB     64.0 MiB     64.0 MiB   64.0 MiB
   16k       skip         64.0 MiB     64.0 MiB     64.0 MiB   64.0 MiB

WRONG  triton 16k d128 causal fwd: out is off by 0.02 where 0.004 is allowed (eager: 0.002)
skip   eager (2 cases: 16k): needs 137 GiB of scores; 120 GiB free
skip   sdpa-math (all): needs a CUDA GPU

!  1 result wrong: triton 16k d128 causal fwd.  The speed of a wrong answer says nothing, so none
   is shown. See above by how much; report it to the backend's authors.
"""

NARROW = """\
NVIDIA H200  140 GiB, 700 W, driver 580.82, torch
2.11.0+cu130, CUDA 13.0, suite quick, 2026-07-01
latency = median of 100 samples, CUDA events, L2 cold, SM
clock 1755 of 1980 MHz

Throughput, TFLOP/s (FLOPs: exact), and share of the peak
(989 for bf16)
* best of its row

bf16, headdim 128, full, fwd  16 heads, batch x seqlen = 16k
                     sdpa-    sdpa-     sdpa-
seqlen    eager  efficient    flash     cudnn   triton
──────────────────────────────────────────────────────
    1k  32.1 3%    141 14%  245 25%  *414 42%  339 34%
   16k     skip    212 21%  368 37%  *621 63%  508 51%

"""


def test_golden_at_100_columns() -> None:
    assert shown([run(forwards())]) == WIDE


def test_golden_at_60_columns() -> None:
    """Names on two lines, the table in parts, nothing cut."""
    text = shown([run(forwards())], 60)
    assert text.startswith(NARROW)
    assert max(map(len, text.splitlines())) <= 60


def test_narrower_still() -> None:
    text = shown([run(forwards())], 40, memory=False)
    tables = text[: text.index("WRONG  ")]
    for figure in ("32.1 3%", "141 14%", "245 25%", "*414 42%", "339 34%", "*621 63%"):
        assert tables.count(figure) == 2
    assert max(map(len, text.splitlines())) <= 40


def test_a_pipe_gets_no_escape_codes_and_ascii_gets_ascii() -> None:
    assert "\x1b" not in shown([run(forwards())])
    text = shown(
        [run([*forwards(), ended(case(4096), "fa4", "failed", "5 × 3 — \x1b[31mred\x1b[0m")])], encoding="ascii"
    )
    assert "-----" in text
    assert "5 ? 3 ? red" in text


def test_no_color_keeps_the_figures_and_the_star(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = io.StringIO()
    terminal.render(Console(file=stream, width=100, force_terminal=True), contents([run(forwards())]))
    assert "*414" in stream.getvalue()
    assert "\x1b[3" not in stream.getvalue()  # bold and dim may stay


def test_colour_marks_best_and_wrong() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=100, force_terminal=True, color_system="standard")
    terminal.render(console, contents([run(forwards())], memory=False))
    assert "\x1b[1;32m*414\x1b[0m" in stream.getvalue()
    assert "\x1b[1;31mWRONG\x1b[0m" in stream.getvalue()


def test_a_cpu_has_no_utilisation_and_no_warning_about_it() -> None:
    records = [ok(case(512, dtype="fp32"), name, t) for name, t in (("eager", 0.1234), ("sdpa-math", 0.0456))]
    text = shown([run(records, device=CPU)])
    assert "   512   *0.123      0.0456\n" in text
    assert "share of the peak" not in text
    assert "Utilisation" not in text


def test_ties_share_the_star_and_a_star_on_most_is_none() -> None:
    def row(*speeds: float) -> str:
        records = [ok(case(), name, t) for name, t in zip(SIX, speeds, strict=False)]
        return next(line for line in shown([run(records)]).splitlines() if line.startswith("    1k"))

    assert row(300.2, 300.1, 200.0, 100.0).count("*") == 2
    assert row(300.2, 300.1, 200.0).count("*") == 0
    assert row(300.0).count("*") == 0


def test_columns_by_another_axis() -> None:
    records = [
        ok(case(s, headdim=d, nheads=2048 // d), b, t)
        for s in (1024, 2048)
        for d in (64, 128)
        for b, t in (("triton", 300.0), ("sdpa-flash", 200.0))
    ]
    text = shown([run(records)], by="headdim")
    assert "bf16, full, fwd, triton  batch x seqlen = 16k\nseqlen   d64 h32   d128 h16\n" in text
    assert "*" not in text
    text = shown([run(records)], by="seqlen", metrics=("speedup", "latency"), memory=False)
    assert "No cell has a figure for this." in text
    assert "Latency  * best of its column" in text
    assert "backend" in text
    assert "triton" in text


@pytest.mark.parametrize(("backends", "corner"), [(9, "seqlen"), (10, "backend")])
def test_many_backends_are_rows(backends: int, corner: str) -> None:
    """Skipped ones do not count; --by backend has them side by side all the same."""
    names = [f"mine-{i}" for i in range(backends)]
    records = [ok(case(s), name, 300.0) for s in (1024, 2048) for name in names]
    records.append(ended(case(), "triton", "skipped", "no dropout"))
    text = shown([run(records)], metrics=("tflops", "latency"), memory=False)
    assert [line.split()[0] for line in text.splitlines() if line.startswith(("seqlen", "backend"))] == [corner] * 2
    assert "seqlen" in shown([run(records)], by="backend")


def test_unknown_names_are_user_errors() -> None:
    with pytest.raises(UserError, match='no metric "tflop"; did you mean "tflops"'):
        shown([run(forwards())], metrics=("tflop",))
    with pytest.raises(UserError, match='no columns "head"'):
        shown([run(forwards())], by="head")


def test_what_row_and_column_do_not_tell_makes_tables() -> None:
    two_batches = [ok(case(batch=b), "triton", 300.0) for b in (1, 2)]
    text = shown([run(two_batches)])
    assert "16 heads, batch 1" in text
    assert "16 heads, batch 2" in text
    decode = [ok(case(s, seqlen_q=1, batch=8, nheads=32, nheads_k=8), "triton", 1.0) for s in (1024, 3000)]
    text = shown([run(decode)])
    assert "32 heads, 8 key heads, batch 8, seqlen_q 1\n" in text
    assert "  3000 " in text
    odd = [ok(case(s, batch=b), "triton", 1.0) for s, b in ((1024, 3), (2048, 5))]
    assert "1k b3" in shown([run(odd)])
    window = [ok(case(causal=True, window_size=(1023, None), softcap=30.0), "triton", 1.0)]
    assert "bf16, headdim 128, causal window (1023, open), softcap 30, fwd" in shown([run(window)])


def test_memory_is_shown_once_for_all_masks() -> None:
    text = shown([run(forwards())])
    assert text.count("1.00 GiB") == 1
    assert "Peak memory" not in shown([run(forwards())], memory=False)
    assert shown([run(forwards())], metrics=("memory_peak",)).count("1.00 GiB") == 2


def test_a_figure_of_one_sample_says_so() -> None:
    assert "latency = median of 1 sample," in shown([run([ok(case(), "triton", 300.0, n=1)])])


def test_a_sample_that_is_not_finite_costs_no_page() -> None:
    odd = replace(ok(case(), "triton", 300.0), measurements=measurements(time=[1e-3] * 8 + [math.inf]))
    (row,) = chart_rows.points(cells([run([odd])])).cells
    assert (row["latency"], row["p100"]) == (1e-3, None)


def test_several_devices() -> None:
    b200 = replace(H200, name="NVIDIA B200", memory=192 * 10**9)
    runs = [run(forwards(("triton",))), run([ok(case(), "triton", 500.0)], device=b200)]
    text = shown(runs)
    assert "NVIDIA H200, bf16, headdim 128, full, fwd" in text
    assert "(989 for bf16 on NVIDIA H200, 2250 for bf16 on NVIDIA B200)" in text.replace("\n", " ")


def test_backends_skipped_alike_share_a_line_and_no_column() -> None:
    records = [ok(case(s), "eager", 1.0) for s in (1024, 2048)]
    records += [
        ended(case(s), b, "skipped", "needs a CUDA GPU") for s in (1024, 2048) for b in ("triton", "sdpa-cudnn")
    ]
    text = shown([run(records)])
    assert "skip  sdpa-cudnn, triton (all): needs a CUDA GPU\n" in text
    assert text.count("triton") == 1


def test_only_skips_make_no_table() -> None:
    text = shown([run([ended(case(), "triton", "skipped", "needs a CUDA GPU")])])
    assert "No cell has a figure for this." in text
    assert "needs a CUDA GPU" in text


def test_an_empty_run() -> None:
    assert shown([run([])]) == "Nothing was measured: there are no records.\n"
    assert markdown.render(contents([run([])])) == "Nothing was measured: there are no records.\n"
    assert json.loads(flat_rows.json_text([run([])])) == []


def test_markdown() -> None:
    text = markdown.render(contents([run(forwards())]))
    assert (
        "### Throughput, TFLOP/s (FLOPs: exact), and share of the peak (989 for bf16) (bold: best of its row)" in text
    )
    assert "| seqlen | eager | sdpa-efficient | sdpa-flash | sdpa-cudnn | triton |\n| ---: | ---:" in text
    assert "| 16k | skip | 212 21% | 368 37% | **621** 63% | WRONG |" in text
    assert "- skip: sdpa-math (all): needs a CUDA GPU" in text
    assert "FLOPs: fa, causal counts half" in markdown.render(contents([run(forwards())], convention="fa"))


def test_where_memory_bounds_the_share_is_of_the_roofline() -> None:
    records = [
        ok(case(16384), "sdpa-flash", 300.0),
        ok(case(16384), "triton", 350.0),
        decode(16384, "sdpa-flash", 9.0),
        decode(16384, "triton", 12.0),
    ]
    heading = "and share of the peak (989 for bf16); m: of the roofline, where memory bounds (4.80 TB/s)"
    text = shown([run(records)], 140)
    assert heading in " ".join(text.split())
    # 4 FLOPs a byte with 4 query heads a key head: 12 TFLOP/s move 3 TB/s
    assert "   16k     9.00 47%m    *12.0 63%m\n" in text
    assert "   16k   300    30%    *350   35%\n" in text
    marked = markdown.render(contents([run(records)]))
    assert heading in marked
    assert "| 16k | 9.00 47%m | **12.0** 63%m |" in marked
    assert "roofline" not in shown([run(records[:2])])
    assert "roofline" not in shown([run(records)], metrics=("utilization",), memory=False)
    unknown = shown([run(records, device=replace(H200, name="GPU of tomorrow"))])
    assert "roofline" not in unknown


def test_cells_whose_clock_was_held_down_are_marked() -> None:
    records = [
        ok(case(1024), "eager", 32.1, clock_held=1.98e9, memory_peak=2**20),
        ok(case(1024), "triton", 300.0, clock_held=1.6e9, memory_peak=2**20),
        ok(case(2048), "eager", 32.15, clock_held=1.7e9, memory_peak=2**20),
        ok(case(2048), "triton", 301.0, clock_held=1.97e9, memory_peak=2**20),
    ]
    text = shown([run(records)], 120)
    assert "* best of its row, ~ clock held down" in text
    assert "    1k   32.1  3%   *300~ 30%\n    2k   32.1~ 3%   *301  30%\n" in text
    assert "1.00 MiB~" not in text
    assert "Clock held down in 2 of 4 cells, SM clock 1600-1700 of 1980 MHz." in text
    latency = shown([run(records)], metrics=("latency", "utilization_clock"), memory=False)
    assert "ms" in latency
    assert latency.count("~ clock held down") == 1
    marked = markdown.render(contents([run(records)]))
    assert "(bold: best of its row, \\~ clock held down)" in marked
    assert "| 1k | 32.1 3% | **300**\\~ 30% |" in marked


def test_units_and_marks_stand_in_line() -> None:
    records = [ok(case(1024), "triton", 300.0, clock_held=1.98e9), ok(case(65536), "triton", 300.0, clock_held=1.5e9)]
    lines = shown([run(records)], metrics=("latency",), memory=False).splitlines()
    assert [line for line in lines if line.startswith(("1k", "64k"))] == ["1k b16   458  us", "64k b1   117~ ms"]


def test_a_wrong_kernel_has_no_figure() -> None:
    reason = "no kernel like 'flash_fwd' ran; instead: sgemm"
    records = [ok(case(), "eager", 32.1), ended(case(), "fa4", "wrong-kernel", reason, kernels={"sgemm": 1})]
    text = shown([run(records)])
    assert "    1k   32.1 3%   KERNEL!\n" in text
    assert f"KERNEL!  fa4 1k d128 full fwd: {reason}\n" in text
    assert "1 cell where another kernel ran than the backend's: fa4 1k d128 full fwd." in text
    assert "| 1k | 32.1 3% | KERNEL! |" in markdown.render(contents([run(records)]))


def test_how_it_was_measured() -> None:
    def method(*records: Record) -> str:
        return " ".join(shown([run(records)], 200).split("\n\n")[0].splitlines()[1:])

    assert method(ok(case(), "triton", 300.0, timer="graph", l2="warm")) == (
        "latency = median of 100 samples, CUDA graph replay, L2 warm"
    )
    assert method(ok(case(), "triton", 300.0, timer="cupti", l2="unproven")) == (
        "latency = median of 100 samples, CUPTI kernel spans, L2 unproven"
    )
    tiny = case(128, batch=1)
    spans = ok(tiny, "triton", 2.0, span=(55e-6,) * 30, clock_held=(1.98e9, 1.97e9, 1.9e9), clock_sm=1e9)
    bf16 = ok(case(), "triton", 300.0, clock_sm=1.6e9, ceiling_matmul=7.95e14, ceiling_copy=4.2e12)
    fp16 = ok(case(dtype="fp16"), "triton", 300.0, ceiling_matmul=8e14)
    assert method(spans, bf16, fp16) == (
        "latency = median of 30 to 100 samples, CUDA events, CUPTI kernel spans under 100 us, L2 cold, "
        "SM clock 1600-1970 of 1980 MHz; ceilings here: matmul 795 TFLOP/s bf16, 800 TFLOP/s fp16, copy 4.20 TB/s"
    )
    slow = ok(case(dtype="fp32"), "eager", 0.1, ceiling_copy=43.1e9)
    assert "; ceilings here: copy 43.1 GB/s" in method(slow)


def test_fp8_stands_beside_its_error_and_its_own_peak() -> None:
    narrow, wide = case(dtype="fp8"), case()
    accuracy = Accuracy({"out": TensorError(0.1, 0.1, 0.3, 0.052)}, rows=64, heads=4)
    found = shown([run([ok(narrow, "cudnn-fp8", 989.45, accuracy=accuracy), ok(wide, "cudnn", 494.7)])], 200)
    assert "share of the peak (989 for bf16, 1979 for fp8)" in found
    assert "989 50%" in found
    assert "495 50%" in found
    _, _, after = found.partition("Relative error")
    assert after.count("5.2%") == 1
    assert "cudnn-fp8" in after.partition("Peak memory")[0]
    assert "0.2%" not in after  # of bf16
    assert "i  fp8 is e4m3 with one scale per tensor, in 1 cell." in found
    assert "Relative error" not in shown([run([ok(wide, "cudnn", 494.7)])])
    asked = shown([run([ok(narrow, "cudnn-fp8", 989.45)])], metrics=("relative_error", "tflops"))
    assert asked.count("Relative error") == 1
