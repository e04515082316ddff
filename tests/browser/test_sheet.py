"""The page of a comparison prints as exactly one side of A4, and draws its charts without an error."""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from chromium import SAVED, Browser

from attnbench.analysis.compare import sheet
from attnbench.analysis.compare.break_even_tables import MOST_LINES
from attnbench.analysis.compare.document import document
from attnbench.analysis.compare.findings import compare
from attnbench.render.document import Caution, Table
from attnbench.render.html import html_page
from attnbench.results import run_file

RESULTS = Path(__file__).parents[2] / "results"
PAIR = ("20261123-141732-sustained-nvidia-h200", "20261123-141048-sustained-nvidia-h100")
SERVING = (
    *("20261125-195215-serving-nvidia-h200", "20261126-091040-models-nvidia-h200"),
    *("20261123-170511-serving-nvidia-h100", "20261126-091952-models-nvidia-h100"),
)
PRICES = ("h200=3.40/h", "h100=2.20/h")
REQUESTS = "chat: 4k in, 300 out, llama-3.1-8b, batch 32"
A4 = (595, 842)  # points
WIDTH = 703  # pixels: of A4 within its margins


def real(folder: Path, *prices: str, names: Sequence[str] = PAIR, workload: str | None = None) -> Path:
    paths = [RESULTS / f"{name}.jsonl.gz" for name in names]
    found = compare(paths, [run_file.read(path)[0] for path in paths], prices=prices, workload=workload)
    (folder / "page.html").write_text(html_page.render(document(found, every=True)))
    return folder / "page.html"


def full(folder: Path) -> Path:
    """Return a page whose sheet holds as much as it may: rows, lines of the chart, sentences and cautions."""
    paths = [RESULTS / f"{name}.jsonl.gz" for name in PAIR]
    c = compare(paths, [run_file.read(path)[0] for path in paths], prices=PRICES)
    shown = document(c, every=True)
    assert shown.sheet
    by_work, *others = shown.sheet.blocks
    assert isinstance(by_work, Table)
    assert by_work.rows
    (chart,) = shown.charts
    longest = [f"{word}{' many words' * 80}" for word in ("First", "Second", "Third", "Fourth")]
    filled = sheet.sheet(c, longest, [Caution(f"What{' is doubtful' * 40}")] * 9)
    assert filled
    chart = replace(chart, lines=tuple(replace(chart.lines[0], label=f"a kind of work {i}") for i in range(MOST_LINES)))
    blocks = (replace(by_work, rows=(by_work.rows * 9)[: sheet.MOST_ROWS]), *others)
    machines = (shown.sheet.machines * 4)[: sheet.MOST_MACHINES]
    shown = replace(shown, charts=(chart,), sheet=replace(filled, charts=(chart,), blocks=blocks, machines=machines))
    (folder / "page.html").write_text(html_page.render(shown))
    return folder / "page.html"


@pytest.mark.parametrize("kind", ["priced", "without prices", "whole model", "full"])
def test_it_prints_as_one_side_of_a4(browser: Browser, tmp_path: Path, kind: str) -> None:
    if kind == "full":
        page = full(tmp_path)
    elif kind == "whole model":
        page = real(tmp_path, *PRICES, names=SERVING, workload=REQUESTS)
    else:
        page = real(tmp_path, *(PRICES if kind == "priced" else ()))
    browser.load(page)
    pdf = base64.b64decode(browser.cdp("Page.printToPDF", preferCSSPageSize=True)["data"])
    sizes = re.findall(rb"/MediaBox\s*\[\s*0 0 ([\d.]+) ([\d.]+)\s*\]", pdf)
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) == 1
    assert {tuple(round(float(side)) for side in size) for size in sizes} == {A4}
    browser.cdp("Emulation.setDeviceMetricsOverride", width=WIDTH, height=1000, deviceScaleFactor=1, mobile=False)
    browser.cdp("Emulation.setEmulatedMedia", media="print")
    try:
        left = "['.sheet'].map((name) => document.querySelector(name)).map((e) => e.clientHeight - e.scrollHeight)[0]"
        assert browser.js(left) >= 0, "the side is too small for what stands on it"
        assert browser.js("document.documentElement.scrollWidth") <= WIDTH
        tables = "[...document.querySelectorAll('.sheet .scroll')].map((e) => e.scrollWidth - e.clientWidth)"
        assert max(browser.js(tables)) <= 0, "a column of a table is cut off"
    finally:
        browser.cdp("Emulation.setEmulatedMedia", media="")
        browser.cdp("Emulation.clearDeviceMetricsOverride")


def test_charts_are_drawn_on_screen_and_on_paper_alone_stands_the_sheet(browser: Browser, tmp_path: Path) -> None:
    browser.cdp("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=False)
    try:
        browser.load(real(tmp_path, *PRICES, names=SERVING, workload=REQUESTS))
        assert browser.js(
            "[...document.querySelectorAll('.chart svg')].every((e) => e.querySelectorAll('path').length > 10)"
        )
        assert len(browser.all(".chart svg")) == 3, "two on the page, and that of the sheet"
        assert browser.js("document.documentElement.scrollWidth") <= 390
        browser.driver.execute_script(SAVED)
        for n, kind in enumerate(("csv", "svg"), 1):
            browser.js(f"document.querySelector('[data-save-chart=interactivity-chart][data-as={kind}]').click()")
            browser.wait(f"saved.length === {n}")
        table, svg = browser.js("saved")
        first = next(csv.DictReader(io.StringIO(table)))
        assert (first["line"], first["point"][:1]) == ("H200", "1")
        assert float(first["low"]) <= float(first["generated tokens/s a GPU"]) <= float(first["high"])
        assert svg.startswith("<svg")
        assert "var(--" not in svg
    finally:
        browser.cdp("Emulation.clearDeviceMetricsOverride")
    shown = "['main', '.sheet'].map((name) => getComputedStyle(document.querySelector(name)).display)"
    assert browser.js(shown) == ["grid", "none"]
    browser.cdp("Emulation.setEmulatedMedia", media="print")
    try:
        assert browser.js(shown) == ["none", "block"]
    finally:
        browser.cdp("Emulation.setEmulatedMedia", media="")
    assert browser.complaints() == []
