"""Handwritten documents as GitHub-flavoured markdown, which shows names unchanged."""

from __future__ import annotations

import re

import pytest
from hand_made import everywhere, line

from attnbench.render import markdown
from attnbench.render.document import (
    Bar,
    Block,
    Caution,
    Code,
    Column,
    Document,
    Pairs,
    Paragraphs,
    Steps,
    Table,
)
from hostile.live import MARKDOWN, in_markdown

WIDE = "\N{GREEK SMALL LETTER MU}" * 20  # two bytes a character


def blocks(*found: Block) -> str:
    return markdown.render(Document("test", "", blocks=found))


def test_parts_that_are_not_there_leave_no_free_lines() -> None:
    assert markdown.render(Document("test", "title")) == "\n"
    assert markdown.render(Document("test", "", answer=("Nothing was measured.",))) == "**Nothing was measured.**\n"
    assert blocks(Paragraphs(()), Pairs(()), Paragraphs((line("here"),))) == "- here\n"


@pytest.mark.parametrize("rows", [300, 900, 5000])
def test_a_document_longer_than_a_comment_is_cut_at_a_row(rows: int) -> None:
    """A document longer than a comment is cut at a row: rows are whole or counted as left out, cautions stay."""
    entries = tuple((f"cell {i}", WIDE) for i in range(rows))
    two = tuple(Table(name, (Column("cell"), Column("why")), entries, title=name) for name in ("first", "second"))
    document = Document("gate", "", blocks=two, cautions=(Caution("The clock fell."),), notes=(line("Last."),))
    text = markdown.render(document)
    assert len(text.encode()) <= markdown.LIMIT < 65536
    assert text.endswith("- **The clock fell.**\n\n- Last.\n")
    shown = [entry for entry in text.split("\n") if entry.startswith("| cell ") and entry != "| cell | why |"]
    assert all(entry.endswith(f"{WIDE} |") for entry in shown)
    left = re.search(r"\*\*(\d+) rows left out", text)
    titles = 1 - text.count("### second")
    assert len(shown) + (int(left[1]) - titles if left else 0) == 2 * rows
    assert bool(left) == (rows > 300)
    assert [token.type for token in MARKDOWN.parse(text)].count("table_open") == text.count("| cell | why |")


def test_code_is_not_cut_in_its_midst() -> None:
    code = Code("\n".join(["x = 1"] * 11000))
    found = blocks(Paragraphs((line("before"),)), code)
    assert found.startswith("- before\n\n**11002 rows left out")


def test_bars_and_steps_are_characters_of_one_width() -> None:
    rows = ((Bar(0.0, 0.5), Steps(((0.5, 1.0),))),)
    found = blocks(Table("t", (Column("bar"), Column("steps")), rows))
    half = markdown.BAR // 2
    assert f"| `{'━' * half}{' ' * half}` | `{' ' * half}{'█' * half}` |" in found


HOSTILE = "a|b `c` *d* _e_ [f](g) <b>~~h~~</b> \\| &lt; $x$\n\n# i\n| j |\r::error::k\x1b[31ml\x07"


def unescaped(text: str) -> str:
    """Return the text that markdown interprets, without escaped characters and the words between them."""
    return re.sub(r"\\.", "", text)


def test_a_name_is_no_markdown() -> None:
    """A name is shown as text: markdown's active characters are the same as with a plain name."""
    left = unescaped(markdown.safe(HOSTILE))
    assert not set("`*_[]<>|~&$\x1b\x07\r\n") & set(left)
    assert unescaped(markdown.render(everywhere(HOSTILE))).replace(left, "n") == markdown.render(everywhere("n"))


def test_every_column_of_a_table_stays_one() -> None:
    found = markdown.render(everywhere(HOSTILE)).split("\n\n")
    (table,) = [part for part in found if part.startswith("| a\\|b") and ":---" in part and "---:" not in part]
    assert {unescaped(row).count("|") for row in table.splitlines()} == {3}


def test_a_name_reads_as_it_is() -> None:
    assert markdown.safe("sdpa-flash 16k d128 (causal) 50%") == "sdpa-flash 16k d128 (causal) 50%"
    assert markdown.safe("flash_fwd<128, 64>") == "flash\\_fwd\\<128, 64\\>"
    assert markdown.row("a", "b") == "| a | b |"


LIVE = (
    *("@team", "see @org/team.", "mail a.b@c.example", "https://x.example", "HTTP://x.example/y", "www.x.example"),
    *("#12", "org/repo#12", "org/repo@deadbeef", "GH-12", "<https://x.example>", "[a](b)", "![a](b)", "<img src=x>"),
    *("# a", "- a", "1. a", "> a", "***", "&#64;team", "a\n\n# b", "a\r\n- b", "\\@team", "\u202egnp.exe", "\u2067a"),
)
BESIDE = (
    *(":tada:", "###### a", "#", "+ a", "12) a", "===", "---", "~~~", "| a |", "&lt;img&gt;", "`@team`", "`` ` ``"),
    *("\x1b]8;;https://x.example\x07y", "##[error]x", "::error::x", " ".join(LIVE), HOSTILE),
)


@pytest.mark.parametrize("name", [*LIVE, *BESIDE])
def test_nothing_in_a_name_is_live(name: str) -> None:
    """Nothing in a name is active, in any place: no link, no mention, no part of another document."""
    text = markdown.render(everywhere(name))
    assert not in_markdown(text)
    blocks = [token.type for token in MARKDOWN.parse(text)]
    assert blocks == [token.type for token in MARKDOWN.parse(markdown.render(everywhere("n")))]
