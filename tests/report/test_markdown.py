"""Documents made by hand as GitHub-flavoured markdown, and that a browser's markdown shows names as they are."""

from __future__ import annotations

import re

import pytest
from hand_made import everywhere, line

from attnbench.report import markdown
from attnbench.report.document import (
    Bar,
    Block,
    Caution,
    Code,
    Column,
    Document,
    Ending,
    Figure,
    Grid,
    Grids,
    Level,
    Machine,
    Pairs,
    Paragraphs,
    Reason,
    Span,
    Steps,
    Table,
    Verdict,
)
from hostile.live import MARKDOWN, in_markdown

WIDE = "\N{GREEK SMALL LETTER MU}" * 20  # two bytes a character


def blocks(*found: Block) -> str:
    return markdown.render(Document("test", "", blocks=found))


def test_the_parts_of_a_document_with_the_verdict_first() -> None:
    document = Document(
        command="gate",
        title="The title is of a page",
        answer=("All is well.",),
        machines=(Machine("H200", "140 GiB, 700 W", "latency = median of 9 samples"), Machine("B200", "180 GiB")),
        lead=(Paragraphs((line("Measured by hand."),)),),
        blocks=(Pairs((("cells", "12", "of 14"), ("rounds", "3", "")), "Counts"),),
        reasons=(Reason("OOM", "eager (2 cases: 16k)", "needs 137 GiB"),),
        cautions=(Caution("The clock fell.", "Figures are low.", "Run again."),),
        facts=(Caution("Two runs."),),
        notes=(line("Nothing was written."),),
        verdict=Verdict("PASS: 12 unchanged", "good"),
    )
    assert markdown.render(document).split("\n\n") == [
        "### ✅ attnbench gate: PASS: 12 unchanged",
        "**All is well.**",
        "**H200** 140 GiB, 700 W  \nlatency = median of 9 samples",
        "**B200** 180 GiB",
        "- Measured by hand.",
        "### Counts",
        "- **cells** 12: of 14\n- **rounds** 3",
        "- OOM: eager (2 cases: 16k): needs 137 GiB",
        "- **The clock fell.** Figures are low. Run again.",
        "- **Two runs.**",
        "- Nothing was written.\n",
    ]


def test_parts_that_are_not_there_leave_no_free_lines() -> None:
    assert markdown.render(Document("test", "title")) == "\n"
    assert markdown.render(Document("test", "", answer=("Nothing was measured.",))) == "**Nothing was measured.**\n"
    assert blocks(Paragraphs(()), Pairs(()), Paragraphs((line("here"),))) == "- here\n"


@pytest.mark.parametrize(("level", "sign"), markdown.SIGNS.items())
def test_a_verdict_has_the_sign_of_its_level(level: Level, sign: str) -> None:
    found = markdown.render(Document("gate", "", verdict=Verdict("the verdict", level)))
    assert found == f"### {sign} attnbench gate: the verdict\n"


def test_a_table_with_its_notes() -> None:
    table = Table(
        "t",
        (Column("case"), Column("speed", "right", wrap=False)),
        (("triton 1k", "1.00x"), ("eager 1k", Span("0.90x", "bad")), ((Span("a "), Span("b ", "strong")), "2.00x")),
        "Speeds",
        "of two builds",
        ("one round", "another"),
    )
    assert blocks(table) == (
        "### Speeds\n\n"
        "of two builds\n\n"
        "| case | speed |\n| :--- | ---: |\n"
        "| triton 1k | 1.00x |\n| eager 1k | **0.90x** |\n| a **b**  | 2.00x |\n\n"
        "1. one round\n2. another\n"
    )


@pytest.mark.parametrize("rows", [300, 900, 5000])
def test_a_document_longer_than_a_comment_is_cut_at_a_row(rows: int) -> None:
    """Each row is there whole or counted as left out, and the cautions, which hold for all, are there."""
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


def test_a_table_without_rows_is_its_headings() -> None:
    assert blocks(Table("t", (Column("case"),), ())) == "| case |\n| :--- |\n"


def test_a_table_is_never_narrow() -> None:
    table = Table("t", (Column("x" * 500),), (("1",),), narrow=Paragraphs((line("narrow"),)))
    assert "narrow" not in blocks(table)


def test_bars_and_steps_are_characters_of_one_width() -> None:
    rows = ((Bar(0.0, 0.5), Steps(((0.5, 1.0),))),)
    found = blocks(Table("t", (Column("bar"), Column("steps")), rows))
    half = markdown.BAR // 2
    assert f"| `{'━' * half}{' ' * half}` | `{' ' * half}{'█' * half}` |" in found


def test_styles_never_touch_a_space() -> None:
    spans = (Span("so ", ""), Span(" very ", "strong"), Span("fast", "good"), Span(" ", "bad"), Span("!", "quiet"))
    assert blocks(Paragraphs((spans,))) == "- so  **very** fast !\n"


def test_grids() -> None:
    grid = Grid(
        "bf16, fwd",
        "16 heads",
        "seqlen",
        ("eager", "triton"),
        (
            ("1k", (Figure("32.1", "3%"), Figure("300", "30%", best=True, held_down=True))),
            ("16k", (Ending("KERNEL!"), Figure("12.0", "63%", memory_bound=True))),
            ("64k", (Ending(), Ending("-"))),
        ),
    )
    assert blocks(Grids("Throughput", (grid,), more="2 more tables")) == (
        "### Throughput (bold: best of its row, \\~ clock held down)\n\n"
        "**bf16, fwd** 16 heads\n\n"
        "| seqlen | eager | triton |\n| ---: | ---: | ---: |\n"
        "| 1k | 32.1 3% | **300**\\~ 30% |\n"
        "| 16k | KERNEL! | 12.0 63%m |\n"
        "| 64k |  | - |\n\n"
        "2 more tables\n"
    )
    assert blocks(Grids("Speedup", ())) == "### Speedup\n\nNo cell has a figure for this.\n"
    rows = Grid("bf16", "", "backend", ("1k",), (("eager", (Figure("1"),)),))
    assert blocks(Grids("Throughput", (rows,), "column")).startswith(
        "### Throughput\n\n**bf16**\n\n| backend | 1k |\n| :---"
    )


HOSTILE = "a|b `c` *d* _e_ [f](g) <b>~~h~~</b> \\| &lt; $x$\n\n# i\n| j |\r::error::k\x1b[31ml\x07"


def unescaped(text: str) -> str:
    """What is left for markdown to read: neither escaped characters nor the words between them."""
    return re.sub(r"\\.", "", text)


def test_a_name_is_no_markdown() -> None:
    """What is left once escaped characters are taken away is the document of a plain name."""
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
    """Neither a link nor a mention, nor a part of another document, wherever it stands."""
    text = markdown.render(everywhere(name))
    assert not in_markdown(text)
    blocks = [token.type for token in MARKDOWN.parse(text)]
    assert blocks == [token.type for token in MARKDOWN.parse(markdown.render(everywhere("n")))]


def test_what_is_live_is_found() -> None:
    assert all(in_markdown(name) for name in LIVE if not name.startswith(("- ", "1. ")))
