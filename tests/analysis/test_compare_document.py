"""A comparison as a document, in every format: table, markdown, HTML, CSV, JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attnbench.analysis.baseline.reduce_run import reduced
from attnbench.analysis.compare.answer import answer
from attnbench.analysis.compare.cautions import cautions
from attnbench.analysis.compare.compare import Comparison, compare
from attnbench.analysis.compare.document import document
from attnbench.analysis.compare.tables import tables
from attnbench.core.machine import Device
from attnbench.core.record import Run
from attnbench.report import json_and_csv, markdown, terminal
from attnbench.report.html import html_page
from builders import H200, case, ended, ok, run

H100 = replace(H200, name="NVIDIA H100")
REASON = "out | of *memory* <script>\x07\n50 %"
WOBBLE = (0.0, 0.001, -0.001)


def a_run(device: Any, factor: float, rounds: int = 3, **rest: Any) -> Any:
    records = [
        ok(case(n, causal=causal), backend, tflops * factor * (1 + WOBBLE[i]), round=i, n=10, **rest)
        for n in (1024, 2048)
        for causal in (False, True)
        for backend, tflops in (("eager", 100), ("triton", 400))
        for i in range(rounds)
    ]
    return run(records, device=device)


@pytest.fixture
def comparison() -> Comparison:
    ours, theirs = a_run(H200, 1.0, power=300.0), a_run(H100, 0.5, power=200.0)
    lost = ended(case(4096), "eager", "oom", REASON)
    ours = replace(ours, records=(*ours.records, ok(case(4096), "eager", 100)))
    theirs = replace(theirs, records=(*theirs.records, lost))
    return compare([Path("a.jsonl"), Path("b.jsonl")], [ours, theirs], prices=("h200=4/h", "h100=1/h"))


def text(c: Comparison, every: bool = False) -> str:
    return terminal.text(document(c, every))


def json_of(c: Comparison) -> Any:
    return json.loads(json_and_csv.json_text(document(c)))


def warnings(c: Comparison) -> list[str]:
    return [str(caution) for caution in cautions(c)]


def of(*factors: float, rounds: int = 3) -> str:
    """The answer for machines of these speeds."""
    runs = [a_run(replace(H200, name=f"M{i}"), factor, rounds) for i, factor in enumerate(factors)]
    (said,) = answer(compare([Path(f"{i}") for i in range(len(runs))], runs))
    return said


def test_the_answer_comes_first(comparison: Comparison) -> None:
    (said,) = answer(comparison)
    assert re.match(r"H100 is 0\.500x \(0\.49\d to 0\.50\d\) as fast as H200 over 4 cases", said)
    assert "Most for the money: H100, 720 PFLOP/$, 2.00x of H200." in said
    assert "per watt" not in said, "power samples hold pauses"
    for render in (terminal.text, markdown.render, html_page.render):
        out = render(document(comparison))
        assert out.index("as fast as H200") < out.index("TFLOP/s")


def test_what_cannot_be_told_apart_is_said_so() -> None:
    assert "M1 and M0 cannot be told apart: 1.000x" in of(1.0, 1.0)
    assert "M1 is 1.050x" in of(1.0, 1.05)
    assert "M1 and M0 cannot be told apart: 1.010x" in of(1.0, 1.01, rounds=1)
    assert "M1 is 1.080x" in of(1.0, 1.08, rounds=1)


def test_what_a_better_backend_does_is_told_from_what_the_machine_does() -> None:
    ours, theirs = a_run(H200, 1.0), a_run(H100, 1.0)
    better = [ok(r.case, "fa4", 600, round=r.round) for r in theirs.records if r.backend == "eager"]
    more = compare([Path("a"), Path("b")], [ours, replace(theirs, records=(*theirs.records, *better))])
    (said,) = answer(more)
    assert re.match(r"H100 is 1\.50x .* With the same backends on both: 1\.000x", said)
    assert "only where its backend is the fastest of the machine that has it" in " ".join(text(more).split())
    assert "same backend" not in of(1.0, 2.0)
    slower = [r if r.backend != "eager" else ok(r.case, "eager", 60, round=r.round, n=10) for r in ours.records]
    alike = compare([Path("a"), Path("b")], [ours, replace(theirs, records=tuple(slower))])
    assert "same backend" not in answer(alike)[0], "each ran triton: that eager differs is not told here"


def test_machines_alike_per_watt_have_no_winner() -> None:
    def of_power(*watts: float) -> str:
        one = [ok(case(), "fa3", 600, sustained=1e-3, sustained_power=w) for w in watts]
        machines = [replace(H200, name=f"M{i}") for i in range(len(watts))]
        runs = [run([record], device=device) for record, device in zip(one, machines, strict=True)]
        (said,) = answer(compare([Path(f"{i}") for i in range(len(runs))], runs))
        return said

    assert "Per watt M1 and M0 are alike" in of_power(700.0, 700.0)
    assert "Most per watt: M1" in of_power(700.0, 600.0)


def test_of_several_machines_the_fastest_is_named() -> None:
    said = of(1.0, 2.0, 3.0)
    assert said.startswith("Fastest is M2 over 4 cases")
    assert said.index("M2 3.00x") < said.index("M1 2.00x")
    assert of(1.0, 0.5, 0.4).startswith("Fastest is M0")
    assert of(1.0, 2.0, 2.0).startswith("Fastest are M1 and M2, not shown to differ,")
    assert of(1.0, 1.0, 1.0).startswith("None of the machines was shown to be faster than another")
    assert of(1.0, 1.01, 1.0, rounds=1).startswith("None of the machines")


def test_a_baseline_of_one_round_has_no_interval_and_says_so() -> None:
    once = a_run(H200, 1.0, rounds=1)
    found = compare([Path("a"), Path("b")], [reduced(once), a_run(H100, 0.5)])
    assert (ratio := found.overall["H100"])
    assert ratio.low is None
    (said,) = [line for line in warnings(found) if "interval" in line]
    assert said.startswith("No intervals of what a baseline with one round measured (H200)")


def test_the_table_has_every_part(comparison: Comparison) -> None:
    out = text(comparison, every=True)
    titles = ["Machines", "Speed by kind of case", "The fastest backend of each case", "Cells that all machines have"]
    titles += ["Missing", "The longest sequence that fits"]
    places = [out.index(f"\n{title}\n") for title in titles]
    assert places == sorted(places)
    assert "H100 lacks 1 cell that another machine has" in out
    assert re.search(r"d128 fwd +eager +at least 4k +2k \(4k\)", out)
    assert "Intervals are 95 %, from rounds." in out
    assert "Cells that all machines have" not in text(comparison)


def test_machines_are_rows_where_columns_would_be_too_wide_to_read() -> None:
    def shown(width: int, machines: int) -> str:
        runs = [a_run(replace(H200, name=f"GPU{i}"), 1 - i / 10) for i in range(machines)]
        console = Console(file=io.StringIO(), width=width)
        terminal.render(console, document(compare([Path(f"{i}") for i in range(machines)], runs)))
        return console.file.getvalue()  # type: ignore[attr-defined]

    wide = shown(160, 2)
    assert re.search(r"case +GPU0 +TFLOP/s +GPU1 +TFLOP/s +speed\n", wide)
    assert re.search(r"1k d128 full fwd +triton +400 +triton +360 +0\.90\dx \(\S+ to \S+\)\n", wide)
    assert "machine  backend" in shown(70, 2)
    assert "machine  backend" in shown(1000, 5)
    narrow = shown(100, 10)
    assert re.search(r"cases of +cases +cells +machine +fastest backends / GPU0 +same backend / GPU0\n", narrow)
    assert re.search(
        r"d128 full fwd +2 +4 +GPU1 +0\.90\dx \(\S+ to \S+\) +0\.90\dx \(\S+ to \S+\)\n +GPU2 +0\.80", narrow
    )
    assert re.search(r"1k d128 full fwd +GPU0 +triton +400 *\n +GPU1 +triton +360 +0\.90", narrow)
    assert all(len(re.findall(rf"^ +GPU{i} +triton ", narrow, re.MULTILINE)) == 4 for i in range(1, 10))


def test_where_intervals_are_from_is_said() -> None:
    single, several = a_run(H200, 1.0, rounds=1), a_run(H100, 1.0)
    said = warnings(compare([Path("a"), Path("b")], [single, several]))[0]
    assert "from rounds, and where a cell has only one from the samples of a single round (H200)" in said
    said = warnings(compare([Path("a"), Path("b")], [single, a_run(H100, 1.0, rounds=1)]))[0]
    assert said.startswith("Intervals are 95 % from the samples of a single round (H200, H100)")


def test_markdown_tables_cannot_be_broken_by_reasons(comparison: Comparison) -> None:
    out = markdown.render(document(comparison, every=True))
    found = [table.splitlines() for table in re.findall(r"(?:^\|.*\n)+", out, re.MULTILINE)]
    assert len(found) == len(tables(comparison, every=True))
    for table in found:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1, table
    assert "<script>" not in out


def test_the_page_stands_alone_and_every_table_has_its_headings(comparison: Comparison) -> None:
    page = html_page.render(document(comparison, every=True))
    assert not re.search(r"<script|<link|<img|url\(|https?:", page)
    assert "default-src 'none'" in unescape(page)

    class Parser(HTMLParser):
        open: list[str] = []  # noqa: RUF012
        tags: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: Any) -> None:
            self.tags.append(tag)
            if tag not in ("meta",):
                self.open.append(tag)
            assert not tag.startswith("h2") or self.open[-2] == "section", attrs

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    parser = Parser()
    parser.feed(page)
    assert parser.open == []
    assert parser.tags.count("table") == len(tables(comparison, every=True))
    names = re.findall(r'href="#([\w-]+)"', page)
    assert len(names) > len(tables(comparison, every=True))
    for name in names:
        assert f'id="{name}"' in page


def test_csv_has_a_row_a_cell_and_machine(comparison: Comparison) -> None:
    found = list(csv.DictReader(io.StringIO(json_and_csv.csv_text(document(comparison)))))
    assert len(found) == 9 * 2
    triton = [r for r in found if (r["machine"], r["backend"], r["status"]) == ("H100", "triton", "ok")]
    assert len(triton) == 4
    assert all(float(r["ratio"]) == pytest.approx(0.5) and r["fastest"] == "True" for r in triton)
    assert {r["interval_from"] for r in triton} == {"rounds"}
    (lost,) = [r for r in found if r["status"] == "oom"]
    assert (lost["machine"], lost["ratio"], lost["reason"]) == ("H100", "", REASON)


def test_json_has_what_the_tables_have(comparison: Comparison) -> None:
    said = json_of(comparison)
    assert [m["name"] for m in said["machines"]] == ["H200", "H100"]
    assert said["machines"][1]["ratio"] == pytest.approx(0.5)
    assert said["machines"][1]["bought"] == pytest.approx(200 * 3600 / 1 / 1000)
    assert said["machines"][1]["tflops_per_watt"] is None
    assert [g["name"] for g in said["groups"]] == ["d128 full fwd", "d128 causal fwd", "all"]
    assert said["missing"][0]["why"] == "OOM"
    assert len(said["cells"]) == 18
    assert said["workload"] is None


def test_cases_of_one_name_are_told_apart_by_their_batch() -> None:
    records = [ok(case(batch=b), "triton", 100) for b in (1, 2)]
    got = compare([Path("a"), Path("b")], [run(records), run(records, device=H100)])
    (block,) = [b for b in tables(got) if b.name == "cases"]
    assert [row[0] for row in block.rows] == ["1k d128 full fwd b1 h16", "1k d128 full fwd b2 h16"]


def test_cases_of_several_dtypes_name_theirs() -> None:
    records = [ok(case(), "triton", 100), ok(case(2048, dtype="fp8"), "triton", 100)]
    got = compare([Path("a"), Path("b")], [run(records), run(records, device=H100)])
    found = {b.name: [row[0] for row in b.rows] for b in tables(got, every=True)}
    assert found["cases"] == ["1k d128 full fwd bf16", "2k d128 full fwd fp8"]
    assert found["cells"] == ["triton 1k d128 full fwd bf16", "triton 2k d128 full fwd fp8"]


def test_a_workload_is_the_answer(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text("name: chat\nparts: [{weight: 70%, seqlen: 1k}, {weight: 30%, seqlen: 2k}]")
    paths, runs = [Path("a"), Path("b")], [a_run(H200, 1.0), a_run(H100, 2.0)]
    got = compare(paths, runs, workload=file, prices=("h200=1000", "h100=1000"))
    (said,) = answer(got)
    assert said.startswith("H100 is 2.00x (1.96 to 2.04) as fast as H200 on the workload 'chat'.")
    assert "TFLOP/s per $1,000" in said
    assert re.search(r"all of chat +100% +4 +2\.00x", text(got))
    assert json_of(got)["workload"]["parts"][0]["share"] == pytest.approx(0.7)


def test_tflops_are_of_the_workload_as_the_ratio_and_the_money_are(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text("name: short\nparts: [{weight: 100%, seqlen: 1k}]")
    ours = run([ok(case(n), "triton", tflops, n=10) for n, tflops in ((1024, 400), (2048, 100))], device=H200)
    prices = ("h200=1000", "h100=1000")
    got = compare([Path("a"), Path("b")], [ours, a_run(H100, 2.0)], workload=file, prices=prices)
    machine = json_of(got)["machines"][0]
    assert machine["tflops"] == machine["bought"] == pytest.approx(400)
    assert machine["tflops_geomean"] == pytest.approx(200)


def test_machines_that_cannot_run_a_workload_are_beside_the_answer(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text("name: chat\nparts: [{weight: 70%, seqlen: 1k}, {weight: 30%, seqlen: 2k}]")
    small = run([ok(case(), "triton", 300)], device=replace(H200, name="M"))
    paths = [Path("a"), Path("b"), Path("c")]
    (said,) = answer(compare(paths, [a_run(H200, 1.0), a_run(H100, 2.0), small], workload=file))
    assert said.startswith("H100 is 2.00x")
    (said,) = answer(compare(paths[:2], [a_run(H200, 1.0), small], workload=file))
    assert said == "No machine but H200 can run all of the workload 'chat'."
    got = compare(paths[:2], [a_run(H200, 1.0), small], workload=file)
    assert "M has no figure for 'part 2', so none for the workload." in text(got)
    assert html_page.render(document(got))
    assert json_of(got)["machines"][1]["ratio"] is None


def test_figures_without_pauses_stand_beside_those_in_bursts() -> None:
    """Each machine with what is fastest so, named where it is another than in bursts."""

    def machine(device: Device, sustained: tuple[float, float]) -> Run:
        names = zip(("fa4", "sdpa-cudnn"), (1.0, 1.05), sustained, strict=True)
        taken = [(n, {"time": (b * 1e-3,) * 10, "sustained": (s * 1e-3,) * 10}) for n, b, s in names]
        return run([ok(case(), name, 300, **of) for name, of in taken], device=device)

    found = compare([Path("a"), Path("b")], [machine(H200, (1.4, 1.25)), machine(H100, (2.5, 2.7))])
    (said,) = answer(found)
    assert "Without pauses: 0.500x (" in said
    (cases,) = [table for table in tables(found) if table.name == "cases"]
    assert [column.heading for column in cases.columns].count("without pauses") == 2
    assert [entry for entry in cases.rows[0] if "sdpa-cudnn" in str(entry)] == ["110 sdpa-cudnn"]
    (changed,) = [line for line in warnings(found) if "rank" in line]
    assert changed.startswith("Bursts and runs without pauses rank backends differently on H200 in 1 pair of cells")
    assert json_of(found)["machines"][1]["sustained_ratio"] == pytest.approx(0.5)
    one_sided = compare(
        [Path("a"), Path("b")], [machine(H200, (1.4, 1.25)), run([ok(case(), "fa4", 300)], device=H100)]
    )
    assert "Without pauses" not in answer(one_sided)[0]
