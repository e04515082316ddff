"""`attnbench report`: formats, files, widths, colours, and the time to start."""

from __future__ import annotations

import json
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tool import COMMAND, FAKE, SMALL, Tool

from attnbench.analysis.report.grids import BY, BY_OPTION

ESCAPE = "\x1b"
RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Tool:
    """Return a folder to read only, with run.jsonl: two lengths, two headdims, both masks, one length wrong."""
    tool = Tool(tmp_path_factory.mktemp("measured"))
    tool.fake("--seqlen", "1k,4k", "--pass", "fwd", script="wrong@1k", code=5)
    return tool


def test_the_table_has_a_row_a_length_and_the_reasons_below(measured: Tool) -> None:
    out = measured("report", "run.jsonl").out
    assert out.count("bf16, headdim 64, causal, fwd") == 1
    rows = [line.split() for line in out.splitlines() if line.split()[:1] in (["1k"], ["4k"])]
    assert rows.count(["1k", "WRONG"]) >= 4
    speeds = [float(row[1]) for row in rows if row[0] == "4k" and len(row) == 2]
    assert len(speeds) == 4
    assert all(100 < speed < 600 for speed in speeds)
    assert "WRONG  fake (4 cases: 1k): out is off by 1" in out
    assert "4 results wrong" in out


def test_what_run_prints_is_what_report_prints(tool: Tool) -> None:
    said = tool(*FAKE, "--seqlen", "1k", *SMALL, "--out", "run.jsonl").out
    assert tool("report", "run.jsonl").out.strip() in said


def test_folders_are_read_and_made_and_a_run_counts_once(measured: Tool, tmp_path: Path) -> None:
    one = measured("report", "-f", "csv", "run.jsonl").out
    (tmp_path / "copy.jsonl").write_bytes((measured.folder / "run.jsonl").read_bytes())
    again = measured("report", "-f", "csv", "run.jsonl", "run.jsonl", str(tmp_path))
    assert again.out == one
    assert "left out: 2 files of a run that was given already" in again.err
    (tmp_path / "C.JSONL").write_bytes((measured.folder / "run.jsonl").read_bytes())
    (tmp_path / "b.jsonl.xz").write_bytes(b"xz")
    strange = measured("report", "-f", "csv", str(tmp_path))
    assert strange.out == one
    assert "not read, as their names end in neither .jsonl nor .jsonl.gz: " in strange.err
    assert "b.jsonl.xz\n" in strange.err
    measured("report", "run.jsonl", "--html", str(tmp_path / "new" / "page.html"))
    assert (tmp_path / "new" / "page.html").exists()


def test_a_file_of_searches_or_steps_is_shown_as_its_own_command_does(tmp_path: Path) -> None:
    tool = Tool(tmp_path)
    for kind in ("capacity", "step"):
        file = max(str(path) for path in RESULTS.glob(f"*-{kind}-nvidia-h200.jsonl.gz"))
        assert tool("report", file).out == tool(kind, file).out
    searched = max(map(str, RESULTS.glob("*-capacity-nvidia-h200.jsonl.gz")))
    mixed = tool("report", file, searched)
    assert "left out: 1 run that searched what fits, which attnbench capacity shows" in mixed.err
    assert "shown as cells: 1 run of whole steps of models, of which attnbench step shows more" in mixed.err
    assert "Tokens per second" in mixed.out
    both = tool("report", searched, "-f", "table", "-f", "csv=cells.csv")
    assert both.out.startswith(tool("capacity", searched).out), "whatever else is written"
    assert (tmp_path / "cells.csv").read_text().startswith("device,suite,")


def test_one_call_writes_several_formats_to_files(measured: Tool, tmp_path: Path) -> None:
    formats = ("md", "csv", "json", "html", "table", "bmf", "github-action-benchmark", "pytest-benchmark", "parquet")
    wanted = [word for name in formats for word in ("-f", f"{name}={tmp_path / name}")]
    done = measured("report", *wanted, "run.jsonl")
    assert done.out == measured("report", "run.jsonl").out  # the table, because nothing else is printed
    assert sorted(done.err.split("\n")[:-1]) == sorted(f"{name}: {tmp_path / name}" for name in formats)
    for name in ("md", "csv", "json", "bmf"):
        assert (tmp_path / name).read_text() == measured("report", "-f", name, "run.jsonl").out
    assert "4k" in (tmp_path / "table").read_text()
    assert ESCAPE not in (tmp_path / "table").read_text()
    assert (tmp_path / "html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "parquet").read_bytes()[:4] == b"PAR1"
    assert len(json.loads((tmp_path / "pytest-benchmark").read_text())["benchmarks"]) == 4


def test_json_and_html_are_formats_too(measured: Tool, tmp_path: Path) -> None:
    rows = measured("report", "-f", "json", "run.jsonl").out
    page = tmp_path / "page.html"
    assert measured("report", "--json", "run.jsonl").out == rows
    assert measured("report", "--json", "-f", "json", "run.jsonl").out == rows
    done = measured("report", "--html", str(page), "run.jsonl")
    assert (done.out, done.err) == ("", f"html: {page}\n")
    assert page.read_text() == measured("report", "-f", "html", "run.jsonl").out
    done = measured("report", "--html", str(page), "--json", "run.jsonl")
    assert (done.out, done.err) == (rows, f"html: {page}\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--json", "-f", "bmf"), "--format: bmf and json cannot both be printed"),
        (("-f", "md=run.jsonl/report.md"), "--format md=run.jsonl/report.md: cannot be written: /"),
        (("--html", "."), "--format html=.: cannot be written: it is a folder; choose another place"),
        (("-f", "csv=/proc/sys/kernel/x.csv"), "--format csv=/proc/sys/kernel/x.csv: cannot be written: "),
        (("-f", "md=same", "-f", "csv=same"), "--format: same is given twice; one would overwrite the other"),
        (("-f", "csv", "-m", "latency"), "--metric: for tables only (--format table, md)"),
        (("--html", "page.html", "--all"), "--all: for tables only"),
        (("--cell", "fake 2k"), "--cell: no cell 'fake 2k'; the nearest is \"fake"),
        (("--cell", "fake", "-m", "latency"), "--metric: not with --cell"),
        (("--cell", "fake", "-f", "bmf"), "-f bmf: not with --cell"),
        (("--by", "heads"), "--by: unknown 'heads'; did you mean \"nheads\"?"),
    ],
)
def test_what_a_person_gets_wrong_is_one_line(measured: Tool, options: tuple[str, ...], said: str) -> None:
    done = measured("report", *options, "run.jsonl", code=2)
    assert done.out == ""
    (line,) = done.err.splitlines()
    assert line.startswith(f"attnbench: {said}")
    assert not (measured.folder / "same").exists()


def test_a_file_that_cannot_be_written_costs_no_other(measured: Tool, tmp_path: Path) -> None:
    done = measured("report", "-f", "md=/dev/full", "-f", f"csv={tmp_path / 'run.csv'}", "run.jsonl", code=2)
    assert "attnbench: cannot write /dev/full: No space left on device" in done.err
    assert (tmp_path / "run.csv").read_text() == measured("report", "-f", "csv", "run.jsonl").out
    assert "4k" in done.out


def test_bytes_go_to_a_file_and_not_on_a_terminal(measured: Tool) -> None:
    assert measured("report", "-f", "parquet", "run.jsonl").out.startswith("PAR1")
    code, said = measured.terminal("report", "-f", "parquet", "run.jsonl")
    assert code == 2
    assert "this format is not text; write it to a file: -f FORMAT=FILE" in said


def test_figures_are_drawn_as_pictures(measured: Tool, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    picture = tmp_path / "latency.svg"
    done = measured("report", "--svg", str(picture), "--figure", "latency", "--panel", "d64 causal", "run.jsonl")
    assert (done.out, done.err) == ("", f"svg: {picture}\n")
    assert picture.read_text().startswith("<svg")


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of address space")
def test_a_picture_that_a_limit_of_memory_forbids_is_one_line(measured: Tool, tmp_path: Path) -> None:
    """A picture that a limit of memory forbids is one line; the renderer exceeds the limit and ends its process."""
    pytest.importorskip("vl_convert")
    (picture := tmp_path / "latency.svg").write_text("the old one")
    words = shlex.join([*COMMAND, "report", "run.jsonl", "--figure", "latency", "--svg", str(picture)])
    limited = ["bash", "-c", f"ulimit -v 4000000; exec {words}"]
    done = subprocess.run(limited, cwd=measured.folder, env=measured.env(), capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("attnbench: --svg: vl-convert, which draws it, crashed; raise the limit of memory")
    assert done.stderr.count("\n") == 1
    assert picture.read_text() == "the old one"


@pytest.fixture(scope="module")
def odd_reason(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a run file whose reason has a lone surrogate, an escape sequence and a command to GitHub's runner."""
    tool = Tool(tmp_path_factory.mktemp("odd"))
    tool.fake("--seqlen", "1k", *SMALL, script="error@1k", code=1)
    header, record = (tool.folder / "run.jsonl").read_text().splitlines()
    record = json.dumps({**json.loads(record), "reason": "5 µs\n::error::x \ud800 \x1b[31m|`<b>"})
    return f"{header}\n{record}\n"


@pytest.mark.parametrize("format", ["table", "md", "csv", "json", "html"])
def test_a_reason_of_odd_characters_ends_no_format(tool: Tool, format: str, odd_reason: str) -> None:
    tool.write("run.jsonl", odd_reason)
    done = tool("report", "-f", format, "run.jsonl", PYTHONIOENCODING="ascii")
    assert "FAIL" in done.out or '"failed"' in done.out or ",failed," in done.out
    if format in ("table", "md", "html"):
        assert ESCAPE not in done.out
        assert not [line for line in done.out.splitlines() if line.lstrip().startswith("::")]
    tool("report", "-f", f"{format}=out", "run.jsonl")
    assert (tool.folder / "out").stat().st_size > 100


@pytest.mark.parametrize("format", ["md", "html", "csv"])
def test_a_failing_cell_in_every_format(tool: Tool, format: str) -> None:
    """A failing cell is shown in every format with its traceback, whose markup is escaped."""
    tool.fake("--seqlen", "1k", *SMALL, script="error@1k", code=1)
    out = tool("report", "run.jsonl", "--cell", "fake", "-f", format).out
    assert "RuntimeError: scripted error" in out
    if format != "csv":
        assert "Traceback (most recent call last):" in out
    if format == "md":
        fenced = out.partition("```\n")[2].partition("```")[0]
        assert "fake.py" in fenced


def test_the_columns_may_be_called_as_run_calls_them(measured: Tool) -> None:
    out = measured("report", "--by", "window", "run.jsonl").out
    assert next(line.split() for line in out.splitlines() if line.startswith("seqlen")) == ["seqlen", "full", "causal"]
    assert set(BY_OPTION.values()) < {*BY}


def test_a_peak_given_on_the_command_line_gives_utilisation(tool: Tool) -> None:
    result = tool(*FAKE, "--seqlen", "4k", *SMALL, "--peak", "766", "--out", "run.jsonl")
    (row,) = json.loads(tool("report", "-f", "json", "run.jsonl").out)
    assert row["utilization"] == pytest.approx(row["tflops"] / 766)
    assert "50%" in result.out


EMPTY = """
import rich.console, rich.table, typer
app = typer.Typer()

@app.command()
def empty(text: str = "") -> None:
    pass

app([], standalone_mode=False)
"""


def seconds(command: list[str], tool: Tool) -> float:
    """Return the CPU seconds of a command."""

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    began = spent()
    subprocess.run(command, cwd=tool.folder, env=tool.env(), stdout=subprocess.DEVNULL, check=True)
    return spent() - began


@pytest.mark.parametrize("args", [["--help"], ["report", "run.jsonl"]])
def test_it_is_there_at_once(measured: Tool, args: list[str]) -> None:
    """A command starts in 0.4 CPU seconds, or in twice an empty command of typer and rich on a slow machine.

    One try of several suffices, because other work may share the machine.
    """
    empty = [sys.executable, "-c", EMPTY]
    assert any(
        (taken := seconds([*COMMAND, *args], measured)) < 0.4 or taken < 2 * seconds(empty, measured) for _ in range(5)
    )


def test_what_the_plan_skips_is_counted_and_not_told_line_by_line(tool: Tool) -> None:
    result = tool("run", "--device", "fake", "-b", "fake,eager", "--seqlen", "1k,2k", *SMALL)
    assert "2 jobs to measure, forecast" in result.err
    assert "1 backend cannot run them" in result.err
    assert [line[:5] for line in result.err.splitlines() if line.startswith("[")] == ["[1/2]", "[2/2]"]
    assert "skip  eager (all): the simulated device runs simulated backends only" in result.out


def test_a_pipe_gets_plain_lines(tool: Tool) -> None:
    result = tool(*FAKE, "--seqlen", "1k-4k", *SMALL, fake="error@2k")
    assert ESCAPE not in result.out + result.err
    assert "\r" not in result.out + result.err
    jobs = [line for line in result.err.splitlines() if line.startswith("[")]
    assert [line[:5] for line in jobs] == ["[1/3]", "[2/3]", "[3/3]"]
    assert any("fake 2k d128 full fwd  FAIL RuntimeError: scripted error" in line for line in jobs)
    assert "suite default: 3 jobs" in result.err
    assert "forecast " in result.err  # in the header; simulated seconds are not compared with the forecast


@pytest.mark.parametrize("columns", [50, 80, 200])
def test_every_width_shows_every_figure(measured: Tool, columns: int) -> None:
    out = measured("report", "run.jsonl", COLUMNS=str(columns)).out
    assert max(map(len, out.splitlines())) <= columns
    assert out.count("WRONG") >= 5
    assert "…" not in out
    figures = [line for line in out.splitlines() if line.strip().startswith("4k ")]
    assert all(line.split()[1].replace(".", "").isdigit() for line in figures)


def test_a_terminal_gets_colours_and_a_line_that_lives(tool: Tool) -> None:
    options = ("--seqlen", "1k-8k", *SMALL, "--timeout", "1s")  # long enough to draw the line several times
    code, said = tool.terminal(*FAKE, *options, fake="hang@2k")
    assert code == 0
    assert f"{ESCAPE}[?25l" in said  # the cursor is hidden,
    assert said.rindex(f"{ESCAPE}[?25h") > said.rindex(f"{ESCAPE}[?25l")  # and shown again at the end
    assert "/4]" in said
    assert f"{ESCAPE}[31mTIMEOUT" in said
    assert "[4/4] fake" not in said  # no line for each job
    assert " left" in said


def test_no_color_means_none(tool: Tool) -> None:
    code, said = tool.terminal(*FAKE, "--seqlen", "1k", *SMALL, NO_COLOR="1", fake="error@1k")
    assert code == 1
    assert "FAIL" in said
    assert f"{ESCAPE}[3" not in said


def test_report_on_a_terminal_is_coloured(measured: Tool) -> None:
    _, said = measured.terminal("report", "run.jsonl")
    assert f"{ESCAPE}[1;31mWRONG" in said


def test_version_and_help(tool: Tool) -> None:
    assert tool("--version").out.startswith("attnbench 0.")
    said = tool("run", "--help", COLUMNS="100").out
    for word in ("--seqlen", "1k-64k", "--backend", "sdpa-*", "--time-limit", "--resume", "--dry-run", "attnbench run"):
        assert word in said
