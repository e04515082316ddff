"""The page of a comparison prints as exactly one side of A4, and draws its chart without an error."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chromium import Browser

from attnbench.analysis.compare.document import document
from attnbench.analysis.compare.findings import compare
from attnbench.render.html import html_page
from attnbench.results import run_file
from builders import H200, case, decode, ok, run

RESULTS = Path(__file__).parents[2] / "results"
PAIR = ("20261123-141732-sustained-nvidia-h200", "20261123-141048-sustained-nvidia-h100")
A4 = (595, 842)  # points


def page_of(paths: list[Path], runs: list[Any], to: Path, *prices: str) -> Path:
    to.write_text(html_page.render(document(compare(paths, runs, prices=prices), every=True)))
    return to


def real(folder: Path, *prices: str) -> Path:
    paths = [RESULTS / f"{name}.jsonl.gz" for name in PAIR]
    return page_of(paths, [run_file.read(path)[0] for path in paths], folder / "page.html", *prices)


def many(folder: Path) -> Path:
    """Return a page of twelve machines with long names, each with a price."""
    devices = [
        replace(H200, name=f"NVIDIA H{i}00 of a product with a long name", memory=80 << 30) for i in range(1, 13)
    ]
    runs = [
        run([*(ok(case(n), "triton", 300 + 9 * i) for n in (1024, 4096, 16384)), decode(8192, "triton", 2)], device=of)
        for i, of in enumerate(devices)
    ]
    prices = [f"{of.name.removeprefix('NVIDIA ')}={i + 2}.50/h" for i, of in enumerate(devices)]
    return page_of([Path(f"{i}") for i in range(len(runs))], runs, folder / "page.html", *prices)


@pytest.mark.parametrize("kind", ["priced", "without prices", "many machines"])
def test_it_prints_as_one_side_of_a4(browser: Browser, tmp_path: Path, kind: str) -> None:
    prices = ("h200=3.40/h", "h100=2.20/h") if kind == "priced" else ()
    browser.load(many(tmp_path) if kind == "many machines" else real(tmp_path, *prices))
    pdf = base64.b64decode(browser.cdp("Page.printToPDF", preferCSSPageSize=True)["data"])
    sizes = re.findall(rb"/MediaBox\s*\[\s*0 0 ([\d.]+) ([\d.]+)\s*\]", pdf)
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) == 1
    assert {tuple(round(float(side)) for side in size) for size in sizes} == {A4}


def test_the_chart_is_drawn_on_screen_and_on_paper_alone_stands_the_sheet(browser: Browser, tmp_path: Path) -> None:
    browser.cdp("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=False)
    try:
        browser.load(real(tmp_path, "h200=3.40/h", "h100=2.20/h"))
        assert browser.js(
            "[...document.querySelectorAll('.chart svg')].every((e) => e.querySelectorAll('path').length > 10)"
        )
        assert len(browser.all(".chart svg")) == 2
        assert browser.js("document.documentElement.scrollWidth") <= 390
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
