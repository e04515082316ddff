"""Handwritten documents on a terminal or in a pipe."""

from __future__ import annotations

import io
import re

import pytest
from hand_made import everywhere, line
from rich.console import Console

from attnbench.render import terminal
from attnbench.render.document import (
    Bar,
    Block,
    Column,
    Document,
    Ending,
    Figure,
    Grid,
    Grids,
    Level,
    Paragraphs,
    Span,
    Steps,
    Table,
    Verdict,
)

ESCAPE = "\x1b"


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def shown(document: Document, width: int = 80, encoding: str = "utf-8") -> str:
    """Return the output to a pipe of an encoding."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    terminal.render(Console(file=stream, width=width), document)
    stream.flush()
    return raw.getvalue().decode(encoding)


def coloured(document: Document, width: int = 80) -> str:
    """Return the output to a terminal of 16 colours."""
    stream = io.StringIO()
    terminal.render(Console(file=stream, width=width, force_terminal=True, color_system="standard"), document)
    return stream.getvalue()


def blocks(*found: Block, width: int = 80, encoding: str = "utf-8") -> str:
    return shown(Document("test", "", blocks=found), width, encoding)


@pytest.mark.parametrize(("level", "style"), [("good", "1;32"), ("warning", "1;33"), ("bad", "1;31")])
def test_a_verdict_has_the_colour_of_its_level(level: Level, style: str) -> None:
    found = coloured(Document("test", "", verdict=Verdict("the verdict", level)))
    assert found == f"{ESCAPE}[{style}mthe verdict{ESCAPE}[0m\n"


# Paragraphs and pairs.


def test_a_word_longer_than_the_line_is_folded_and_not_cut() -> None:
    found = blocks(Paragraphs((line("k" * 100),)), width=40)
    assert found == f"{'k' * 40}\n{'k' * 40}\n{'k' * 20}\n"


# Tables.

COLUMNS = (Column("case"), Column("speed", "right", wrap=False), Column("reason"))
ROWS = (("triton 1k", "1.00x", "unchanged"), ("sdpa-flash 16k", "12.34x", Span("slower", "bad")))


@pytest.mark.parametrize("width", [36, 40, 60, 75, 100])
def test_columns_that_may_wrap_do_before_figures_are_touched(width: int) -> None:
    reason = "a reason of so many words that it needs several lines beside its figures"
    figures = ("1234.56x", "98.7%", "123 us")
    columns = (*(Column(f"no. {i}", "right", wrap=False) for i in range(3)), Column("reason"))
    heading, first, *others = blocks(Table("t", columns, ((*figures, reason),)), width=width).splitlines()
    assert max(map(len, (heading, first, *others))) <= width
    start = heading.index("reason")
    assert first[:start].split() == ["1234.56x", "98.7%", "123", "us"]
    assert "".join([first[start:], *others]).split() == reason.split() or width < 60
    assert re.sub(r"\s", "", "".join([first[start:], *others])) == reason.replace(" ", "")


@pytest.mark.parametrize("width", range(20, 90, 7))
def test_columns_that_wrap_keep_their_words_whole(width: int) -> None:
    """Columns that wrap keep their words whole, down to a width at which only some columns are side by side."""
    headings = ("case", "stopped by", "growth", "one call")
    row = ("fp32 d64 causal, heads 2", "not reached, unfinished", "quadratic", "980 ms")
    found = blocks(Table("t", tuple(map(Column, headings)), (row, row)), width=width)
    assert all(len(line) <= width for line in found.splitlines())
    assert {*found.split()} == {*" ".join((*headings, *row)).split()}


def test_a_table_too_wide_for_the_terminal_is_shown_by_its_narrow_form() -> None:
    narrow = Paragraphs((line("triton 1k"), line("1.00x")), indent=2)
    table = Table("t", COLUMNS, ROWS, "Speeds", narrow=narrow)
    assert "Speeds" in blocks(table, width=60)
    assert blocks(table, width=24) == "triton 1k\n  1.00x\n"
    other = Table("t", (Column("short"),), (("1.00x",),), "In short")
    assert blocks(Table("t", COLUMNS, ROWS, "Speeds", narrow=other), width=24).split() == [
        "In",
        "short",
        "short",
        "1.00x",
    ]


@pytest.mark.parametrize("width", [20, 24, 30, 36])
def test_a_table_too_wide_for_the_terminal_loses_no_character(width: int) -> None:
    """A table too wide for the terminal loses no character: other columns follow below, each part with the first."""
    found = blocks(Table("t", COLUMNS, ROWS), width=width)
    assert max(map(len, found.splitlines())) <= width
    parts = found.split("\n\n")
    first = [row[0].text if isinstance(row[0], Span) else row[0] for row in ROWS]
    others = [entry.text if isinstance(entry, Span) else entry for row in ROWS for entry in row[1:]]
    expected = "".join(["speedreason", *others, *(["case", *first] * len(parts))])
    assert sorted(re.sub(r"\s", "", found)) == sorted(re.sub(r"\s", "", expected))


@pytest.mark.parametrize("width", [24, 30, 33])
def test_a_heading_longer_than_its_figures_cuts_none(width: int) -> None:
    columns = (Column("machine", wrap=False), Column("for the money / H200 #1", "right", wrap=False))
    found = blocks(Table("t", columns, (("H200 #1", "1.000x"), ("H200 #2", "1.15x"))), width=width)
    assert max(map(len, found.splitlines())) <= width
    expected = "machineforthemoney/H200#1H200#11.000xH200#21.15x"
    assert sorted(re.sub(r"\s", "", found)) == sorted(expected)


def test_wide_characters_count_as_the_two_columns_that_they_take() -> None:
    table = Table(
        "t", (Column("名前", wrap=False), Column("figure", "right", wrap=False)), (("注意カーネル", "1.00x"),)
    )
    assert "注意カーネル   1.00x" in blocks(table, width=20)
    assert "注意カーネル" in re.sub(r"\s|figure|名|前|1.00x", "", blocks(table, width=16))


# Bars and steps.


# Grids.


def grid(*rows: tuple[str, tuple[Figure | Ending, ...]], columns: tuple[str, ...] = ("eager", "triton")) -> Grid:
    return Grid("bf16, fwd", "16 heads", "seqlen", columns, rows)


FIGURES = (
    ("1k", (Figure("32.1", "3%"), Figure("300", "30%", best=True, held_down=True))),
    ("16k", (Ending("skip"), Figure("12.0", "63%", memory_bound=True))),
    ("64k", (Ending(), Ending("-"))),
)


@pytest.mark.parametrize("width", [20, 30, 45, 60, 100])
def test_no_width_cuts_a_figure(width: int) -> None:
    names = tuple(f"library-{name}" for name in "abcdefgh")
    figures = tuple(Figure(f"{100 + i}", f"{i + 10}%", best=i == 3) for i in range(8))
    found = blocks(Grids("Throughput", (grid(("1k", figures), ("16k", figures), columns=names),)), width=width)
    assert max(map(len, found.splitlines())) <= width
    for figure in figures:
        assert len(re.findall(rf"(?<!\d){figure.digits} {figure.aside}", found)) == 2


# Names from outside.

HOSTILE = "a|b `c` *d* [red]e[/red] <b>\n::error title=x::boom\r\x1b[31mf\x07\x1b]0;g\x07 \ud800 _h_"
SHOWN = "a|b `c` *d* [red]e[/red] <b> ::error title=x::boom f"


@pytest.mark.parametrize("width", [20, 60, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_name_controls_no_terminal(width: int, encoding: str) -> None:
    found = shown(everywhere(HOSTILE), width, encoding)
    assert all(character.isprintable() or character == "\n" for character in found)
    assert SHOWN in shown(everywhere(HOSTILE), 1000)
    assert "\x1b[31m" not in coloured(everywhere(HOSTILE)).replace("\x1b[1;31m", "")


@pytest.mark.parametrize("name", [HOSTILE, "::error::boom", "x " * 40 + "::error::boom", f"{'x' * 80}::error::boom"])
@pytest.mark.parametrize("width", [20, 40, 80])
def test_no_line_is_a_command_to_the_runner_of_github(name: str, width: int) -> None:
    """No line is a command to GitHub's runner, such as `::error::` at the start of a line, after spaces too."""
    assert not [text for text in shown(everywhere(name), width).splitlines() if text.lstrip().startswith("::")]


def test_ascii_gets_ascii() -> None:
    table = Table("t", (Column("x"), Column("µs")), ((Bar(0.0, 1.0), "5 × 3"), (Steps(((0.0, 1.0),)), "—")))
    document = Document("test", "", blocks=(Grids("Throughput", (grid(*FIGURES),)), table))
    found = shown(document, encoding="ascii")
    assert "-----" in found
    assert "=====" in found
    assert "#####" in found
    assert "5 ? 3" in found


def test_optional_columns_are_left_out_where_they_do_not_fit_and_named() -> None:
    columns = (Column("case"), Column("seen", optional=2), Column("memory", optional=1), Column("use"))
    table = Table("t", columns, (("16k d128", "a" * 12, "64.0 MiB", "triton"),))
    assert "Left out" not in blocks(table, width=60)
    assert "aaaa" in blocks(table, width=60)
    narrow = blocks(table, width=30)
    assert "64.0 MiB" in narrow
    assert "aaaa" not in narrow
    assert "Left out for want of width: seen." in " ".join(narrow.split())
    least = blocks(table, width=20)
    assert least.splitlines()[1].split() == ["16k", "d128", "triton"]
    assert "Left out for want of width: seen, memory." in " ".join(least.split())
