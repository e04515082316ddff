"""A site in a real browser, opened from the disk: shared scripts run, narrow screens show answers, links work."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from chromium import SAVED, Browser

RESULTS = Path(__file__).parents[2] / "results"
NAMES = ("20261123-141253-default-nvidia-h200", "20261123-140542-default-nvidia-h100")
PHONE = 390


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a site of two machines."""
    made = tmp_path_factory.mktemp("site") / "site"
    files = [str(RESULTS / f"{name}.jsonl.gz") for name in NAMES]
    command = [sys.executable, "-m", "attnbench", "site", *files, "--out", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    return made


@pytest.fixture
def phone(browser: Browser) -> Iterator[Browser]:
    browser.cdp("Emulation.setDeviceMetricsOverride", width=PHONE, height=844, deviceScaleFactor=1, mobile=True)
    yield browser
    browser.cdp("Emulation.clearDeviceMetricsOverride")


def test_no_page_complains_or_asks_elsewhere(browser: Browser, folder: Path) -> None:
    own = folder.as_uri()
    for page in sorted(folder.glob("*.html")):
        with_charts = 'id="data"' in page.read_text()
        browser.open(page) if with_charts else browser.load(page)
        assert browser.complaints() == [], page.name
        assert all(address.startswith((own, "data:")) for address in browser.requests()), page.name
        assert browser.js("getComputedStyle(document.querySelector('nav.site')).display") == "flex", page.name
        if with_charts:
            assert browser.js("document.querySelectorAll('.drawing svg').length") > 3


@pytest.mark.parametrize(
    ("page", "of"),
    [
        ("index.html", "fastest"),
        ("index.html", "speed-h100-80gb-hbm3-against-h200"),
        ("gpu-h200.html", "prefill"),
        ("work-prefill.html", "prefill"),
    ],
)
def test_a_phone_shows_what_answers(phone: Browser, folder: Path, page: str, of: str) -> None:
    phone.load(folder / page)
    until = time.monotonic() + 10
    while phone.js("window.innerWidth") != PHONE and time.monotonic() < until:  # the width is set beside the page
        time.sleep(0.05)
    assert phone.js("document.documentElement.scrollWidth") == PHONE
    ends = phone.js(
        f"[...document.querySelectorAll('#table-{of} th[scope=col]')].map((e) => e.getBoundingClientRect())"
        ".filter((box) => box.width).map((box) => box.right)"
    )
    assert len(ends) >= 3
    assert max(ends) <= PHONE


def test_the_address_keeps_what_was_chosen(browser: Browser, folder: Path) -> None:
    page = folder / f"run-{NAMES[0]}.html"
    browser.open(page, "opened")
    backend = browser.js("document.querySelector('#filters input[name=backend]').value")
    browser.js(f"document.querySelector('#filters input[value=\"{backend}\"]').click()")
    browser.js("document.querySelector('#cells th[data-field=tflops] button').click()")
    shown = browser.texts("#cells tbody tr")
    address = browser.js("location.href")
    assert "#?" in address
    browser.driver.get("about:blank")
    browser.driver.get(address)
    browser.wait("document.documentElement.dataset.opened")
    assert browser.texts("#cells tbody tr") == shown
    assert browser.js(f"document.querySelector('#filters input[value=\"{backend}\"]').checked") is False
    assert browser.complaints() == []


@pytest.mark.parametrize(
    ("page", "table", "off", "place"),
    [
        ("index.html", "fastest", "work:Training", 4),
        ("gpu-h200.html", "prefill", "mask:causal", 2),
        ("work-prefill.html", "prefill", "GPU:H200", 3),
        ("backend-triton.html", "training", "GPU:H200", 2),
        ("pair-h100-80gb-hbm3-against-h200.html", "cells", "pass:bwd", 3),
    ],
)
def test_the_address_of_each_page_keeps_filters_and_order(
    browser: Browser, folder: Path, page: str, table: str, off: str, place: int
) -> None:
    """A filter hides rows and leaves each its name; a click on a heading puts the largest number first."""
    browser.load(folder / page)
    own = f"#table-{table} .scroll"
    rows = f"[...document.querySelectorAll('{own} tbody tr')].filter((r) => r.checkVisibility())"
    names = browser.js(f"{rows}.map((r) => r.cells[0].textContent)")
    name, _, value = off.partition(":")
    browser.js(f"document.querySelector('#filters input[name={name}][value=\"{value}\"]').click()")
    shown = browser.js(f"{rows}.map((r) => r.cells[0].textContent)")
    assert 0 < len(shown) < len(names)
    assert shown[0] in names
    browser.js(f"document.querySelector('{own} thead').rows[0].cells[{place}].querySelector('button').click()")
    figures = browser.js(f"{rows}.map((r) => parseFloat(r.cells[{place}].textContent)).filter((n) => n === n)")
    assert figures[0] == max(figures)
    after, address = browser.js(f"{rows}.map((r) => r.textContent)"), browser.js("location.href")
    browser.driver.get("about:blank")
    browser.driver.get(address)
    browser.wait("document.readyState === 'complete' && document.querySelector('#find')")
    assert browser.js(f"{rows}.map((r) => r.textContent)") == after
    assert browser.complaints() == []


def test_rows_of_long_tables_are_found_and_saved(browser: Browser, folder: Path) -> None:
    """A search in a long table finds a row together with the row above that it continues; it can be saved."""
    browser.load(folder / "work-prefill.html")
    browser.driver.execute_script(SAVED)
    every = browser.js("document.querySelectorAll('#table-prefill tbody tr').length")
    browser.all("input[type=search]")[0].send_keys("16k causal")
    shown = browser.js(
        "[...document.querySelectorAll('#table-prefill tbody tr')].filter((r) => !r.hidden).map((r) => r.textContent)"
    )
    assert 1 < len(shown) < every
    assert "16k" in shown[0]
    assert any("H100" in text and "16k" not in text for text in shown)
    assert browser.js("location.hash") == "#?find=16k+causal"
    browser.js("document.querySelector('#table-prefill .tools button').click()")
    browser.wait("saved.length === 1")
    assert len(browser.js("saved[0]").splitlines()) == 1 + len(shown)
    browser.js("document.querySelectorAll('#table-prefill .tools button')[1].click()")
    browser.wait("saved.length === 2")
    bars = ElementTree.fromstring(browser.js("saved[1]"))
    assert len(bars.findall("{*}svg")) == len(shown)
    assert "var(--" not in browser.js("saved[1]")
    address = browser.js("location.href")
    browser.driver.get("about:blank")
    browser.driver.get(address)
    assert browser.js("[...document.querySelectorAll('tbody tr')].filter((r) => !r.hidden).length") == len(shown)


def test_figures_and_table_can_be_saved(browser: Browser, folder: Path) -> None:
    browser.open(folder / f"run-{NAMES[0]}.html")
    browser.driver.execute_script(SAVED)
    browser.js("document.querySelector('#save').click()")
    browser.wait("saved.length === 1")
    browser.js("document.querySelector('[data-save=throughput]').click()")
    browser.wait("saved.length === 2")
    table, svg = browser.js("saved")
    header, *rows = table.splitlines()
    assert {"case", "backend", "latency", "tflops", "status"} <= {*header.split(",")}
    assert len(rows) == browser.js("JSON.parse(document.querySelector('#data').textContent).number")
    assert svg.startswith("<svg")
    assert "var(--" not in svg, "colours stand for themselves"


def test_a_figure_is_read_by_keys(browser: Browser, folder: Path) -> None:
    browser.open(folder / f"run-{NAMES[0]}.html")
    drawing = browser.all("#throughput .drawing")[0]
    read = []
    for _ in range(2):
        drawing.send_keys("\ue014")  # arrow to the right
        read.append(browser.texts("#tip b")[0])
    assert len({*read}) == 2
    assert "TFLOP/s" in browser.texts("#tip dl")[0]


def test_a_figure_says_its_finding(browser: Browser, folder: Path) -> None:
    browser.open(folder / f"run-{NAMES[0]}.html", "opened")
    label = browser.js("document.querySelector('#throughput .drawing').getAttribute('aria-label')")
    most = browser.js("Math.max(...JSON.parse(document.querySelector('#data').textContent).fields.tflops)")
    assert f"Most: {most:.0f} TFLOP/s with" in label
