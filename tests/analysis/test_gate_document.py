"""The document of a judgement in every format: table, markdown, page, JSON, and the gate's JUnit and GitHub."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from attnbench.analysis.gate import github, junit
from attnbench.analysis.gate.document import COLUMNS, document_of, headline
from attnbench.analysis.gate.findings import Judgement, Request, judge
from attnbench.analysis.gate.more_rounds import with_command
from attnbench.core.record import Record, Run
from attnbench.render import json_and_csv, markdown, terminal
from attnbench.render.html import html_page
from builders import H200, case, ended, environment, ok, run
from hostile import live

WOBBLE = (0.0, 0.001, -0.001, 0.0005, -0.0005)
REASON = "out | of *memory*:\n50 % <script>\x07"


def cells(factors: dict[str, float], **changes: float) -> list:  # type: ignore[type-arg]
    return [
        ok(case(), backend, 300 / factor * (1 + WOBBLE[i]), round=i, n=3, **changes)
        for backend, factor in factors.items()
        for i in range(5)
    ]


@pytest.fixture
def judgement() -> Judgement:
    """Return a judgement with one cell of each verdict, from newly failing to unchanged."""
    names = ("dead", "gone", "slow", "open", "fast", "calm")
    before = [*cells(dict.fromkeys(names, 1.0)), ended(case(), "back", "oom", REASON)]
    after = cells({"slow": 1.1, "open": 1.03, "fast": 0.9, "calm": 1.0, "back": 1.0})
    after.append(ended(case(), "dead", "oom", REASON))
    return judge(run(before), run(after), Request(("latency",)))


def printed(judgement: Judgement, width: int = 200, every: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    terminal.render(console, document_of(judgement, every))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_what_does_not_count_stands_apart(judgement: Judgement) -> None:
    lenient = replace(judgement, request=replace(judgement.request, inconclusive="pass", missing="pass"))
    assert headline(lenient) == (
        "FAIL: 1 result newly-failing, 1 regressed, 1 improved, 1 newly-working, 1 unchanged "
        "(not counted: 1 missing, 1 inconclusive)"
    )
    found = json.loads(json_and_csv.json_text(document_of(lenient)))
    assert found["not_counted"] == {"missing": 1, "inconclusive": 1}
    new = replace(lenient, findings=tuple(f for f in lenient.findings if f.verdict == "newly-working"))
    assert document_of(new).answer[0].startswith("PASS: no figure of 1 cell was compared; 1 of 1 cell newly-working: ")
    only = replace(lenient, findings=tuple(f for f in lenient.findings if f.verdict == "inconclusive"))
    passes = "PASS (inconclusive, which --inconclusive pass lets pass): "
    assert headline(only) == f"{passes}nothing was decided (not counted: 1 inconclusive)"
    assert document_of(only).answer[0].startswith(f"{passes}none of 1 cell is shown to be worse")


def test_every_row_has_the_command_that_measures_it_again(judgement: Judgement) -> None:
    found = json.loads(json_and_csv.json_text(document_of(judgement)))["findings"]
    commands = {f["backend"]: f["command"] for f in found}
    assert all(f" -b {backend} " in f"{command} " for backend, command in commands.items())
    assert len(commands) == 7
    assert f"To measure the worst again: {commands['dead']}\n" in printed(judgement, 60)  # it can be pasted
    counted = [commands[name] for name in ("dead", "gone", "slow")]  # more rounds do not decide "open"
    comment = markdown.render(document_of(judgement))
    assert [line for line in comment.splitlines() if line.startswith("attnbench run")] == counted
    for verdict in ("improved", "inconclusive"):
        alone = replace(judgement, findings=tuple(f for f in judgement.findings if f.verdict == verdict))
        assert "To measure the worst again" not in printed(alone)


def test_cells_that_no_rounds_settle_have_the_command_that_measures_them_in_turns(judgement: Judgement) -> None:
    gate = ("attnbench", "gate", "main", "new.jsonl", "--margin=2%")
    only = tuple(f for f in judgement.findings if f.verdict == "inconclusive")
    near = replace(judgement, findings=only, heading=(), notes=())
    turns = "attnbench gate main new.jsonl --margin=2% --settle 5m --a BUILD"
    (note,) = with_command(near, Path("new.jsonl.gz"), gate).notes  # no rounds can be added to a compressed file
    assert note.startswith(f"To settle 1 of 1 inconclusive result in turns with the baseline: {turns} (BUILD: ")
    known = replace(near, baseline=replace(near.baseline, specs={"open": "/a.py:f"}))
    (note,) = with_command(known, Path("new.jsonl.gz"), gate).notes
    assert note.endswith(f"{turns.removesuffix('--a BUILD')}--trust.")
    assert not with_command(near, Path("new.jsonl.gz")).notes  # it has been measured in turns
    assert not with_command(judgement, Path("new.jsonl.gz"), gate).commands
    assert not any("--settle" in note for note in with_command(judgement, Path("new.jsonl.gz"), gate).notes)  # it fails


def test_a_wrong_cell_is_in_every_output_with_its_error() -> None:
    wrong = ended(case(), "new", "wrong", "out is off by 1")
    after = [*cells({"calm": 1.0}), wrong]
    old = [*cells({"calm": 1.0}), ended(case(), "new", "oom", "too large")]
    alike = judge(run(old), run(after), Request(("latency",)))
    other = replace(run(after), environment=environment(driver="590.10"))
    for judgement in (alike, judge(run(old), other, Request(("latency",)))):
        assert "1 result wrong" in headline(judgement)
        for text in (
            printed(judgement),
            markdown.render(document_of(judgement)),
            github.workflow_commands(judgement),
            junit.render(judgement),
            html_page.render(document_of(judgement)),
            json_and_csv.json_text(document_of(judgement)),
        ):
            assert "new 1k d128 full fwd bf16 b16 h16" in text
            assert "out is off by 1" in text
        failures = [f.get("type") for f in ElementTree.fromstring(junit.render(judgement)).iter("failure")]
        assert "wrong" in failures
        if judgement.refused:
            for text in (github.workflow_commands(judgement), junit.render(judgement), printed(judgement)):
                assert "driver was 580.82 and is 590.10" in text
                assert "--expect driver" in text
            assert printed(judgement).splitlines()[-1].startswith("NOT COMPARABLE")


def test_a_narrow_terminal_gets_lines_that_can_be_read(judgement: Judgement) -> None:
    lines = printed(judgement, 80).splitlines()
    at = lines.index("regressed  slow 1k d128 full fwd bf16 b16 h16")
    assert re.match(r" {4}latency \+10\.0% \(\+9\.\d+% to \+10\.\d+% at 99\.50%, margin 3%\), .* us -> ", lines[at + 1])
    assert max(map(len, (line for line in lines if "attnbench run" not in line))) <= 80


def test_cells_without_time_are_one_line_that_counts_them() -> None:
    late = [
        ended(case(2**i), "triton", "skipped", "no room for it within the time limit of 1m00s", resumable=True)
        for i in range(6, 11)
    ]
    made = [run([*cells({"calm": 1.0}), *late], turns="together") for _ in range(2)]
    judgement = judge(made[0], made[1], Request(("latency",)))
    assert "no room for it" not in printed(judgement)
    assert "5 cells left out for want of time, which is no pass: triton 64 d128" in printed(judgement)
    warnings = [line for line in github.workflow_commands(judgement).splitlines() if line.startswith("::warning")]
    assert warnings == ["::warning title=not measured::5 cells left out for want of time; see the step's summary"]
    assert printed(judgement, every=True).count("no room for it within the time limit") == 5
    assert judgement.exit_code == 3
    assert judge(made[0], made[1], Request(("latency",), inconclusive="pass")).exit_code == 0


def test_markdown_is_one_table_that_reasons_cannot_break(judgement: Judgement) -> None:
    text = markdown.render(document_of(judgement))
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(lines) == 2 + 6
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(COLUMNS) + 1}


def test_markdown_stays_small(judgement: Judgement) -> None:
    many = replace(judgement, findings=tuple(judgement.findings) * 100)
    text = markdown.render(document_of(many))
    assert len(text.encode()) <= 60_000
    assert "rows left out" in text


def test_junit_has_a_test_a_cell_and_metric(judgement: Judgement) -> None:
    root = ElementTree.fromstring(junit.render(judgement))
    suites = {s.get("name"): s for s in root.iter("testsuite")}
    assert {name: (s.get("tests"), s.get("failures")) for name, s in suites.items()} == {
        "cell": ("3", "2"),
        "latency": ("4", "2"),
    }
    failed = {c.get("name", "").split()[0]: c.find("failure") for c in root.iter("testcase")}
    kinds = {backend: f.get("type") for backend, f in failed.items() if f is not None}
    assert kinds == {"dead": "newly-failing", "gone": "missing", "slow": "regressed", "open": "inconclusive"}
    lenient = replace(judgement, request=replace(judgement.request, inconclusive="pass", missing="pass"))
    root = ElementTree.fromstring(junit.render(lenient))
    assert len(list(root.iter("failure"))) == 2
    assert len(list(root.iter("skipped"))) == 2


def test_github_annotations_are_one_line_each_and_escaped(judgement: Judgement) -> None:
    lines = github.workflow_commands(judgement).splitlines()
    assert [line.split(" ")[0] for line in lines] == ["::error"] * 3 + ["::warning", "::notice"]
    assert "50 %25 <script>" in lines[0]
    assert all(line.count("::") == 2 for line in lines)


def test_github_shows_ten_of_a_level(judgement: Judgement) -> None:
    many = replace(judgement, findings=tuple(f for f in judgement.findings if f.verdict == "regressed") * 25)
    errors = [line for line in github.workflow_commands(many).splitlines() if line.startswith("::error")]
    assert len(errors) == 10
    assert "and 16 more" in errors[-1]


HOSTILE = (
    *("x\n::error title=a::b", "::error::a", "##[error]a", "@team https://x.example", "<img src=x onerror=a()>", "a|b"),
    *("\x00\x1b[31m\x9b1m\ufffe\ud800", "\u202egnp.exe", "]]>&amp;<b>", "%0A::error::x", "`a` [b](c)", "x\r\n\r\n# y"),
)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_and_reasons_are_data_in_every_format(name: str) -> None:
    """Names and reasons with markup are escaped where cells change, where one is wrong, and where all is refused."""

    def made(speed: float, *more: Record, **changes: str) -> Run:
        whole = run([*(ok(case(), name, speed * (1 + w), round=i) for i, w in enumerate(WOBBLE)), *more])
        there = environment(replace(H200, name=f"{name} GPU"), **changes)
        return replace(whole, suite=name, environment=there, versions={name: name}, started=name)

    before = made(300.0, ended(case(2048), name, "failed", name))
    judged = judge(before, made(250.0, ended(case(2048), name, "wrong", name)), Request(("latency",)))
    refused = judge(before, made(300.0, driver=name), Request(("latency",)))
    assert (judged.exit_code, refused.exit_code) == (5, 4)
    for judgement in (judged, refused):
        document = document_of(judgement, every=True)
        assert not live.in_markdown(markdown.render(document))
        assert not live.in_html(html_page.render(document))
        assert not live.in_xml(junit.render(judgement))
        commands = github.workflow_commands(judgement)
        assert not live.in_log(commands, annotations=True)
        assert len(commands.splitlines()) == len(judgement.findings) + len(judgement.refused) + 1
        for width in (40, 200):
            console = Console(file=io.StringIO(), width=width, highlight=False)
            terminal.render(console, document)
            assert not live.in_log(console.file.getvalue())  # type: ignore[attr-defined]


def test_junit_has_times(judgement: Judgement) -> None:
    """JUnit reports the time of a cell's measurement in one of the cell's tests only."""
    current = judgement.current
    records = tuple(replace(r, seconds=0.5) for r in current.records)
    timed = replace(judgement, current=replace(current, records=records, started="2026-11-21T14:10:28+02:00"))
    root = ElementTree.fromstring(junit.render(timed))
    assert {suite.get("timestamp") for suite in root} == {"2026-11-21T12:10:28"}
    assert sum(float(suite.get("time", "")) for suite in root) == 0.5 * len(records)
    for odd in ("x", "0001-01-01T00:00:00+23:59"):  # not a date in UTC
        unknown = replace(timed, current=replace(current, started=odd))
        assert {suite.get("timestamp") for suite in ElementTree.fromstring(junit.render(unknown))} == {None}
