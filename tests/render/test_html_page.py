"""Pages without a browser: handwritten documents, and a whole report."""

from __future__ import annotations

import hashlib
import re
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hand_made import everywhere
from report_pages import page, small

from attnbench.core.errors import UserError
from attnbench.render.document import (
    Bar,
    Caution,
    Column,
    Document,
    Ending,
    Figure,
    Grid,
    Grids,
    Machine,
    Pairs,
    Paragraphs,
    Reason,
    Section,
    Span,
    Steps,
    Table,
    Verdict,
)
from attnbench.render.html import html_page
from attnbench.render.html.charts import Charts, charts
from attnbench.results.cells import cells
from hostile import live

ASSETS = Path(html_page.__file__).parent / "assets"
CHECKSUMS = {
    "vega.min.js": "8f6a3587cf8d4f42c7e08120e3eb05d067e746d554e39d2dcf52acc0bd5ba28f",
    "vega-lite.min.js": "35a9821df838825b05a6a73e9414b58747a1b18321583858ed903c66393a5c7e",
}
WITHOUT_CLOSING_TAG = {"meta", "input"}

ROWS = (
    ("softmax <1>", (Span("3", "strong"), Span(" us", "quiet")), Bar(0.25, 0.5, 1)),
    ("", Span("slower", "bad"), Steps(((0.0, 0.5), (0.5, 1.0)))),
)
COLUMNS = (Column("kernel", wrap=False), Column("time", "right"), Column("when"))
TABLE = Table("kernels", COLUMNS, ROWS, "Kernels", "In the order in which they ran.", ("measured twice",))
FIGURES = (("1k", (Ending("OOM"), Figure("400", "40%", best=True))),)
GRIDS = Grids("Throughput, TFLOP/s", (Grid("full", "batch 4", "seqlen", ("eager", "triton"), FIGURES),), more="2 more")
DOCUMENT = Document(
    command="gate",
    title="Two runs",
    answer=("Everything is slower.",),
    machines=(Machine("NVIDIA H200", "140 GiB", "CUDA events"), Machine("CPU", "4 threads")),
    lead=(Paragraphs(((Span("Refused: nothing."),),)),),
    blocks=(
        TABLE,
        GRIDS,
        Paragraphs(((Span("first"),), (Span("second", "good"),)), "Ends"),
        Pairs((("threshold", "2%", "as given"), ("metric", "latency", "")), "Settings"),
    ),
    reasons=(Reason("skip", "eager (all)", "needs 512 GiB"),),
    cautions=(Caution("The clock was low.", "It hides differences.", "Lock it."),),
    facts=(Caution("Two rounds."),),
    notes=((Span("attnbench gate --all"), Span(" shows all")),),
    verdict=Verdict("FAIL: 3 slower", "bad"),
    appendix=(Section("reproduce", "Reproduce", (Pairs((("torch", "2.11", ""),), "Versions"),), "attnbench gate A B"),),
)


class Page(HTMLParser):
    """The elements of a page. Raises an error where an element is closed in the wrong order, or not at all."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in WITHOUT_CLOSING_TAG:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data

    def all(self, name: str) -> list[str]:
        """Return the values of an attribute in all elements."""
        return [value or "" for _, attributes in self.elements for key, value in attributes.items() if key == name]


@pytest.fixture(params=["blocks", "charts"])
def document(request: pytest.FixtureRequest) -> Document:
    return DOCUMENT if request.param == "blocks" else replace(DOCUMENT, page=small_charts())


def small_charts() -> Charts:
    return charts(cells([small()]))


def test_every_link_leads_somewhere_and_every_id_is_unique(document: Document) -> None:
    found = Page(html_page.render(document))
    ids = found.all("id")
    assert len(ids) == len({*ids})
    links = [link.removeprefix("#") for link in found.all("href")]
    assert {*links} <= {*ids}
    assert {*found.all("aria-labelledby")} <= {*ids}
    assert {"results", "warnings", "table-kernels", "missing", "facts", "reproduce"} <= {*links}


def test_parts_come_in_the_order_in_which_they_are_read(document: Document) -> None:
    text = Page(html_page.render(document)).text
    main = text[text.index("Two runs", text.index("Skip to")) :]
    header, _, results = main.partition("Reproduce")  # the last entry of the contents, between the two
    above = ["FAIL: 3 slower", "Everything is slower.", "1 warning", "NVIDIA H200"]
    below = ["Refused: nothing.", "Kernels", "Ends", "Settings", "The clock was low.", "Without a figure", "To know"]
    below += ["attnbench gate --all shows all", "Versions", "attnbench gate A B", "Made by attnbench"]
    for part, words in ((header, above), (results, below)):
        places = [part.index(word) for word in words]
        assert places == sorted(places)


def test_scripts_are_only_where_there_are_charts() -> None:
    with_charts = html_page.render(replace(DOCUMENT, page=small_charts()))
    without = html_page.render(DOCUMENT)
    assert "<script" not in without
    assert "script-src" not in without
    assert len(without) < 20_000
    assert "<script" in with_charts
    assert "script-src" in with_charts


def test_grids_are_left_out_where_the_table_has_their_figures() -> None:
    with_charts = html_page.render(replace(DOCUMENT, page=small_charts()))
    assert "Throughput, TFLOP/s" in html_page.render(DOCUMENT)
    assert "Throughput, TFLOP/s" not in with_charts
    assert 'id="table-kernels"' in with_charts
    assert 'id="cells"' in with_charts


@pytest.mark.parametrize("bar", [Bar(0, 0), Bar(1, 1), Bar(0.9999, 1), Bar(0, 1, 7)])
def test_a_bar_is_seen_and_stays_on_its_axis(bar: Bar) -> None:
    table = Table("a", (Column("when"),), ((bar,),))
    found = re.search(r'<rect x="([^"]*)" y="0" width="([^"]*)"', html_page.render(Document("x", "x", blocks=(table,))))
    assert found
    start, width = float(found[1]), float(found[2])
    assert start >= 0
    assert width > 0
    assert start + width == pytest.approx(1000 * bar.end, abs=4.01)
    assert start + width <= 1000


def test_every_text_is_escaped(document: Document) -> None:
    """Every text in every field of a document is escaped. Names are not shown; a command is in code."""
    evil = "</script><script>alert(1)</script><!-- & ' \""
    found = Page(html_page.render(spoiled(document, evil)))
    assert not [tag for tag, _ in found.elements if tag == "script"] or document.page
    assert found.text.count(evil) >= 40
    assert html_page.render(spoiled(document, evil)).count("<script>alert") == 0


def spoiled(value: Any, text: str) -> Any:
    """Return a document with all its texts replaced by one."""
    if isinstance(value, Charts):
        rows = tuple({**row, "mask": text, "reason": text, "case": text} for row in value.rows)
        return replace(value, rows=rows, note=text)
    if isinstance(value, tuple):
        return tuple(spoiled(one, text) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        kept = {"name", "command", "style", "align", "level", "corner", "competing"}
        changes = {f.name: spoiled(getattr(value, f.name), text) for f in fields(value) if f.name not in kept}
        return replace(value, **changes)
    return text if isinstance(value, str) and value else value


def test_too_many_cells_for_a_browser_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_page, "MOST_CELLS", 7)
    with pytest.raises(
        UserError, match=r"--html: a page of 8 cells would be too slow to use \(7 at most\); give fewer"
    ):
        html_page.render(replace(DOCUMENT, page=small_charts()))


# ---- The page of a report.


def test_the_page_asks_for_nothing() -> None:
    """The page makes no requests: it contains no address to load, and its policy forbids loading."""
    text = page(small())
    assert "default-src &#x27;none&#x27;" in text
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


def test_it_says_how_to_do_it_again_and_on_what() -> None:
    text = page(small())
    assert "attnbench run --seqlen 1k,2k" in text
    assert "attnbench report run0.jsonl --html report.html" in text
    assert "/somewhere" not in text
    for known in ("580.82", "2.11.0+cu130", "Intel Xeon", "700 W", "1980 MHz", "2026-07-01"):
        assert known in text
    assert "attnbench report run0.jsonl --flops-convention fa --html" in page(small(), convention="fa")


@pytest.mark.parametrize(
    "name", ["a\u202eb\u2067", "a\x00\x07\x1b[31mb", "<img src=x onerror=a()>", "'\" onload=a() '"]
)
def test_nothing_in_a_name_is_live(name: str) -> None:
    assert not live.in_html(html_page.render(everywhere(name)))
