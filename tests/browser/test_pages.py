"""Pages in a real browser: they draw, filter, sort, search and print, make no requests, and open quickly."""

from __future__ import annotations

import base64
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from chromium import Browser

from attnbench.analysis.gate.document import document_of
from attnbench.analysis.gate.findings import Request, judge
from attnbench.analysis.report import document as report_document
from attnbench.analysis.report.document import complete
from attnbench.core.record import Record, Run
from attnbench.render.document import (
    Bar,
    Caution,
    Column,
    Document,
    Figure,
    Grid,
    Grids,
    Machine,
    Pairs,
    Section,
    Span,
    Steps,
    Table,
    Verdict,
)
from attnbench.render.html import html_page, interactive, palette
from attnbench.results import metrics
from attnbench.results.cells import cells
from builders import case, ended, ok, run

BACKENDS = ("eager", "sdpa-flash", "sdpa-cudnn", "triton")
LENGTHS = (1024, 2048, 4096, 8192)


def records(
    backends: Sequence[str] = BACKENDS,
    lengths: Sequence[int] = LENGTHS,
    headdims: Sequence[int] = (64, 128),
    dtypes: Sequence[str] = ("bf16",),
) -> list[Record]:
    """Return records with varying figures; eager has none at the longest length, and some clocks were held down."""
    chance = random.Random(0)
    found = []
    for dtype in dtypes:
        for headdim in headdims:
            for causal in (False, True):
                for direction in ("fwd", "bwd"):
                    for seqlen in lengths:
                        for i, backend in enumerate(backends):
                            which = case(seqlen, dtype=dtype, headdim=headdim, causal=causal, direction=direction)
                            if backend == "eager" and seqlen == lengths[-1]:
                                found.append(ended(which, backend, "skipped", "needs 512 GiB of scores"))
                                continue
                            more = {
                                "memory_peak": 2**20 * (seqlen + i),
                                "clock_held": 1.98e9 if chance.random() < 0.9 else 1.6e9,
                                "power": chance.uniform(200, 700),
                                "first_call": chance.uniform(1e-3, 3),
                            }
                            speed = (30 + 90 * i) * chance.uniform(0.9, 1.1)
                            found.append(ok(which, backend, speed, spread=chance.uniform(1e-4, 0.02), **more))
    return found


def write(path: Path, whole: Run) -> Path:
    """Write the page of a report."""
    found = cells([whole])
    document = complete(report_document.document(found, [whole]), {"html"}, found, [whole], [Path("run.jsonl")])
    path.write_text(html_page.render(document), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def whole() -> Run:
    return run(records())


@pytest.fixture(scope="module")
def page(whole: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("page") / "report.html", whole)


@pytest.fixture
def shown(browser: Browser, page: Path) -> Browser:
    """Return the opened page, which a test must not change."""
    browser.show(page)
    return browser


@pytest.fixture
def opened(browser: Browser, page: Path) -> Browser:
    """Open the page anew, without the choices of an earlier test. Figures below the window may not be drawn."""
    browser.open(page, "opened")
    return browser


def rows(browser: Browser) -> list[list[str]]:
    found: list[list[str]] = browser.js(
        "[...document.querySelectorAll('#cells tbody tr')].map((r) => [...r.children].map((c) => c.textContent))"
    )
    return found


def rgb(color: str) -> str:
    """Return a colour such as #1f2328 in the form of computed styles."""
    return f"rgb({', '.join(str(int(color[i : i + 2], 16)) for i in (1, 3, 5))})"


def column(browser: Browser, title: str) -> list[str]:
    at = [text.rstrip(" ▲▼") for text in browser.texts("#cells th")].index(title)
    return [row[at] for row in rows(browser)]


def marks(browser: Browser, figure: str = "throughput") -> int:
    return int(browser.js(f"document.querySelectorAll('#{figure} .drawing .mark-symbol path').length"))


def panels(browser: Browser, figure: str) -> int:
    return int(browser.js(f"document.querySelectorAll('#{figure} .drawing g.cell > g').length"))


def test_it_asks_for_nothing(shown: Browser, page: Path) -> None:
    assert shown.requests() == [page.as_uri()]
    assert shown.complaints() == []


def test_it_draws_every_figure_and_every_cell(shown: Browser) -> None:
    figures = shown.js("[...document.querySelectorAll('.figure')].map((f) => f.id)")
    assert {"throughput", "utilization", "speedup", "latency", "memory", "roofline", "spread", "clock"} <= {*figures}
    for figure in figures:
        box = shown.js(f"document.querySelector('#{figure} .drawing svg').getBoundingClientRect().toJSON()")
        assert box["width"] > 600, figure
        assert box["height"] > 120, figure
    measured = len([r for r in records() if r.status == "ok"])
    for figure in ("throughput", "latency", "memory", "roofline", "clock"):
        assert marks(shown, figure) == measured, figure
    assert len(shown.texts("#throughput .mark-text.role-mark text")) >= 8
    assert shown.js("document.body.innerText.match(/✕/g).length") > 1
    assert "NaN" not in shown.js("document.querySelector('main').innerHTML")


def test_the_table_writes_figures_as_python_does(shown: Browser, whole: Run) -> None:
    texts = {title: column(shown, title) for title in ("backend", "latency", "±", "TFLOP/s", "memory", "over eager")}
    texts |= {title: column(shown, title) for title in ("of peak", "SM clock", "first call", "error")}
    titles = {
        "latency": "latency",
        "ci": "±",
        "tflops": "TFLOP/s",
        "utilization": "of peak",
        "speedup": "over eager",
        "memory_peak": "memory",
        "clock_held": "SM clock",
        "first_call": "first call",
        "error": "error",
    }
    found = cells([whole])
    assert texts["backend"] == [c.backend for c in found]
    for name, title in titles.items():
        values = [c.value(name) for c in found]
        expected = ["" if v is None else metrics.METRICS[name].format(v) for v in values]
        assert [text.removesuffix("~") for text in texts[title]] == expected, title
    assert [text.endswith("~") for text in texts["TFLOP/s"]] == [c.held_down for c in found]


@pytest.mark.parametrize("value", [0, 1e-5, 0.000123456, 0.5, 0.9996, 9.996, 99.96, 999.6, 1234.0, 12500.0])
@pytest.mark.parametrize("name", ["latency", "memory_peak", "tflops", "utilization", "ci", "speedup"])
def test_edges_of_formats(value: float, name: str, shown: Browser) -> None:
    kinds = {c[0]: c[2] for c in interactive.COLUMNS}
    written = shown.js(f"attnbench.write.{kinds[name]}({value!r})")
    assert written == metrics.METRICS[name].format(value)


def test_controls_have_names(shown: Browser) -> None:
    nameless = shown.js(
        "[...document.querySelectorAll('button, input, a, section')]"
        ".filter((e) => !(e.labels?.length ? e.labels[0].textContent : e.textContent).trim()).map((e) => e.outerHTML)"
    )
    assert nameless == []


def test_a_mark_tells_what_it_is(shown: Browser) -> None:
    from selenium.webdriver import ActionChains

    shown.js("document.querySelector('#throughput').scrollIntoView()")
    ActionChains(shown.driver).move_to_element(shown.all("#throughput .drawing .mark-symbol path")[0]).perform()
    shown.wait("!document.querySelector('#tip').hidden")
    tip = shown.js("document.querySelector('#tip').innerText")
    assert "d64 full fwd" in tip
    assert "TFLOP/s" in tip
    ActionChains(shown.driver).move_to_element(shown.all("#throughput h2")[0]).perform()
    shown.wait("document.querySelector('#tip').hidden")


def test_filters_reach_figures_and_table(opened: Browser) -> None:
    before, drawn = len(rows(opened)), marks(opened)
    opened.click("input[name=backend][value=triton]")
    assert "triton" not in column(opened, "backend")
    assert len(rows(opened)) == before * 3 // 4
    opened.wait(f"{drawn} > document.querySelectorAll('#throughput .drawing .mark-symbol path').length")
    opened.click("input[name=mask][value=full]")
    assert set(column(opened, "mask")) == {"causal"}
    assert opened.texts("#shown") == [f"{len(rows(opened))} of {before} cells shown"]
    opened.js("document.querySelector('#speedup').scrollIntoView()")
    drawing = "document.querySelector('#speedup .drawing').textContent"  # empty until it is drawn
    opened.wait(f"{drawing}.includes('d64 causal fwd') && !{drawing}.includes('full')")
    opened.click("#reset")
    assert len(rows(opened)) == before
    opened.js("document.querySelector('#throughput').scrollIntoView()")
    opened.wait(f"{drawn} == document.querySelectorAll('#throughput .drawing .mark-symbol path').length")
    assert opened.complaints() == []


def test_filtering_all_away_is_said(opened: Browser) -> None:
    for backend in BACKENDS:
        opened.click(f"input[name=backend][value={backend}]")
    assert rows(opened) == []
    opened.js("document.querySelector('#throughput').scrollIntoView()")
    opened.wait("document.querySelector('#throughput .drawing').textContent == 'No cell passes the filters.'")
    assert opened.complaints() == []


def test_sorting(opened: Browser) -> None:
    def order() -> str | None:
        found: str | None = opened.js("document.querySelector('th[data-field=tflops]').getAttribute('aria-sort')")
        return found

    def figures() -> list[float]:
        return [float(text.rstrip("~")) for text in column(opened, "TFLOP/s") if text]

    report = column(opened, "TFLOP/s")
    opened.click("th[data-field=tflops] button")
    assert order() == "descending"  # the best is first
    assert figures() == sorted(figures(), reverse=True)
    assert column(opened, "TFLOP/s")[-1] == ""  # rows without a figure are last
    opened.click("th[data-field=tflops] button")
    assert order() == "ascending"
    assert figures() == sorted(figures())
    assert column(opened, "TFLOP/s")[-1] == ""
    opened.click("th[data-field=tflops] button")
    assert order() is None
    assert column(opened, "TFLOP/s") == report
    opened.click("th[data-field=latency] button")
    assert opened.js("document.querySelector('th[data-field=latency]').getAttribute('aria-sort')") == "ascending"
    opened.click("th[data-field=seqlen] button")
    assert column(opened, "seqlen") == sorted(column(opened, "seqlen"), key=lambda t: int(t[:-1]))


def test_finding(opened: Browser) -> None:
    box = opened.all("#find")[0]
    box.send_keys("2k causal TRITON")
    assert {tuple(row[:1]) for row in rows(opened)} == {("triton",)}
    assert set(column(opened, "seqlen")) == {"2k"}
    assert opened.texts("#count") == ["4 of 128 cells"]
    box.clear()
    box.send_keys("skip")
    assert set(column(opened, "remark")) == {"skip: needs 512 GiB of scores"}


def test_the_keyboard_is_enough(opened: Browser) -> None:
    from selenium.webdriver.common.keys import Keys

    def focus() -> Any:
        return opened.driver.switch_to.active_element

    def press(*keys: str) -> None:
        for key in keys:
            focus().send_keys(key)

    press(Keys.TAB)
    assert focus().text == "Skip to the results"
    assert opened.js("document.activeElement.getBoundingClientRect().left") >= 0  # visible with the focus
    press(Keys.TAB)
    assert focus().text.endswith("warnings")
    press(Keys.TAB)
    assert focus().get_attribute("value") == "eager"
    assert opened.js("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    press(Keys.SPACE)
    assert "eager" not in column(opened, "backend")
    note = "(e) => passed.push(e.target.id || e.target.textContent)"
    opened.driver.execute_script(f"self.passed = []; document.addEventListener('focusin', {note})")
    for _ in range(14):
        press(10 * Keys.TAB)
        if "TFLOP/s" in (seen := opened.js("passed")):
            break
    assert "find" in seen
    press(Keys.SHIFT + (len(seen) - 1 - seen.index("TFLOP/s")) * Keys.TAB)
    press(Keys.ENTER)
    assert opened.js("document.querySelector('th[data-field=tflops]').getAttribute('aria-sort')") == "descending"
    assert focus().text.startswith("TFLOP/s")  # the focus stays


def test_dark_mode_needs_no_second_drawing(opened: Browser) -> None:
    def colors() -> list[str]:
        ground = "getComputedStyle(document.body).backgroundColor"
        mark = "getComputedStyle(document.querySelector('#throughput .mark-symbol path')).stroke"
        return [opened.js(ground), opened.js(mark)]

    def hollow() -> bool:
        marks = "[...document.querySelectorAll('#throughput .mark-symbol path')]"
        return bool(
            opened.js(
                f"{marks}.some((m) => getComputedStyle(m).fill == getComputedStyle(document.body).backgroundColor)"
            )
        )

    features = {"light": palette.LIGHT, "dark": palette.DARK}
    for name, theme in features.items():
        opened.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])
        assert colors() == [rgb(theme["paper"]), rgb(theme["c0"])], name
        assert hollow(), name
    opened.cdp("Emulation.setEmulatedMedia", features=[])


def test_it_prints_in_the_light_with_legends_and_without_controls(opened: Browser) -> None:
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    opened.cdp("Emulation.setEmulatedMedia", media="print", features=dark)
    try:
        assert opened.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert opened.js("getComputedStyle(document.querySelector('aside')).display") == "none"
        assert opened.js("getComputedStyle(document.querySelector('#throughput .legend')).display") == "flex"
        assert opened.texts("#throughput .legend") == [" eager  sdpa-flash  sdpa-cudnn  triton"]
    finally:
        opened.cdp("Emulation.setEmulatedMedia", media="", features=[])
    pdf = base64.b64decode(opened.cdp("Page.printToPDF", printBackground=True)["data"])
    assert pdf.startswith(b"%PDF")
    assert 4 <= pdf.count(b"/Type /Page\n") <= 14
    assert opened.complaints() == []


def test_a_narrow_window_scrolls_one_way(browser: Browser, page: Path) -> None:
    browser.cdp("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=False)
    try:
        browser.open(page)
        assert browser.js("document.documentElement.scrollWidth") <= 400
        assert browser.js("document.querySelector('#throughput .drawing svg').getBoundingClientRect().width") > 250
    finally:
        browser.cdp("Emulation.clearDeviceMetricsOverride")


def test_no_records(browser: Browser, tmp_path: Path) -> None:
    browser.open(write(tmp_path / "empty.html", run([])))
    assert "Nothing was measured" in browser.js("document.querySelector('main').innerText")
    assert browser.complaints() == []


def test_5000_records_open_in_two_seconds(browser: Browser, tmp_path: Path) -> None:
    """A page of 5000 records takes at most two CPU seconds of its thread until the window is drawn.

    CPU time, because other processes may use the cores. Drawing while idle is off, because an unknown part of it would
    count.
    """
    lengths = [2**n for n in range(8, 18)]
    backends = [f"backend-{i:02}" for i in range(21)]
    many = records(backends, lengths, (64, 128), ("bf16", "fp16", "fp32"))[:5000]
    assert len(many) == 5000
    file = write(tmp_path / "many.html", run(many))
    assert file.stat().st_size < 4e6
    browser.cdp("Performance.enable", timeDomain="threadTicks")
    browser.driver.get("about:blank")
    idle = "requestIdleCallback = () => 0;"
    script = browser.cdp("Page.addScriptToEvaluateOnNewDocument", source=idle)["identifier"]
    before = browser.cpu()
    browser.open(file, "opened")
    spent = browser.cpu() - before
    browser.cdp("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
    assert spent < 2.0
    near = "[...document.querySelectorAll('.figure')].map((f) => f.querySelectorAll('.drawing svg').length)"
    assert browser.js(near) == [1] + [0] * (len(browser.all(".figure")) - 1)  # other figures are below the window
    assert browser.texts("#count") == ["5000 of 5000 cells, the first 200 shown"]
    browser.click("#more")
    assert browser.js("document.querySelectorAll('#cells tbody tr').length") == 5000
    browser.js("document.querySelector('#throughput').scrollIntoView()")
    browser.wait("document.querySelector('#throughput .drawing svg')")
    assert panels(browser, "throughput") == 24  # all panels
    assert browser.complaints() == []


# ---- The page of a document without charts.

LONG = "the fastest backend of this case was measured in fewer rounds than the others were " * 3
DOCUMENT = Document(
    command="gate",
    title="Two runs",
    answer=("Three cells are slower.",),
    machines=(Machine("NVIDIA H200", "140 GiB", "CUDA events"),),
    blocks=(
        Table(
            "cells",
            (Column("cell", wrap=False), Column("change", "right"), Column("when"), Column("reason")),
            (
                *((f"triton {n}k", (Span("+3.1%", "bad"),), Bar(0.1 * n, 0.1 * n + 0.2), LONG) for n in range(8)),
                ("eager 1k", Span("none", "quiet"), Steps(((0.1, 0.5), (0.6, 1.0))), ""),
            ),
            title="Changes",
        ),
        Grids(
            "Throughput, TFLOP/s",
            (Grid("bf16", "", "seqlen", ("eager", "triton"), (("1k", (Figure("40"), Figure("400", best=True))),)),),
        ),
        Pairs((("threshold", "2%", "as given"),), "Settings"),
    ),
    cautions=(Caution("The clock was low.", "It hides differences.", "Lock it."),),
    verdict=Verdict("FAIL: 3 slower", "bad"),
    appendix=(Section("reproduce", "Reproduce", code="attnbench gate " + "a-long-name-of-a-file.jsonl " * 20),),
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "gate.html"
    path.write_text(html_page.render(DOCUMENT), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["light", "dark"])
def test_a_page_without_charts_has_no_script_and_the_colours_of_its_verdict(
    name: str, browser: Browser, plain: Path
) -> None:
    theme = {"light": palette.LIGHT, "dark": palette.DARK}[name]
    browser.load(plain)
    browser.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])
    try:
        assert browser.js("getComputedStyle(document.querySelector('.verdict')).color") == rgb(theme["bad"])
        assert browser.js("getComputedStyle(document.body).backgroundColor") == rgb(theme["paper"])
        assert browser.js("getComputedStyle(document.querySelector('.bar rect')).fill") == rgb(theme["c3"])
    finally:
        browser.cdp("Emulation.setEmulatedMedia", features=[])
    assert browser.js("document.scripts.length") == 0
    assert browser.requests() == [plain.as_uri()]
    assert browser.complaints() == []


def test_bars_and_steps_are_drawn_on_one_axis(browser: Browser, plain: Path) -> None:
    browser.load(plain)
    boxes = browser.js("[...document.querySelectorAll('.bar, .steps')].map((e) => e.getBoundingClientRect().toJSON())")
    assert len(boxes) == 9
    assert len({(box["left"], box["width"]) for box in boxes}) == 1
    assert boxes[0]["width"] > 200
    first = "document.querySelector('.bar rect').getBoundingClientRect().width"
    assert browser.js(first) == pytest.approx(0.2 * boxes[0]["width"], rel=0.01)


def test_a_page_without_charts_is_used_by_keyboard(browser: Browser, plain: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.load(plain)
    seen = []
    for _ in range(12):
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
        seen.append(browser.js("document.activeElement.ariaLabel || document.activeElement.textContent"))
    assert seen[0] == "Skip to the results"
    assert seen[1:7] == ["1 warning", "Changes", "Throughput, TFLOP/s", "Settings", "Warnings", "Reproduce"]
    assert seen[7:9] == ["Changes: table", "Throughput, TFLOP/s"]  # the tables, which can be scrolled
    browser.click("nav a[href='#table-cells']")
    assert browser.js("location.hash") == "#table-cells"


def test_a_page_without_charts_in_a_narrow_window_and_on_paper(browser: Browser, plain: Path) -> None:
    browser.cdp("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=False)
    try:
        browser.load(plain)
        assert browser.js("document.documentElement.scrollWidth") <= 400
        assert browser.js("getComputedStyle(document.querySelector('nav')).display") == "block"
    finally:
        browser.cdp("Emulation.clearDeviceMetricsOverride")
    browser.cdp("Emulation.setEmulatedMedia", media="print")
    try:
        assert browser.js("getComputedStyle(document.querySelector('aside')).display") == "none"
        assert browser.js("getComputedStyle(document.querySelector('.scroll')).overflow") == "visible"
    finally:
        browser.cdp("Emulation.setEmulatedMedia", media="")
    pdf = base64.b64decode(browser.cdp("Page.printToPDF")["data"])
    assert 1 <= pdf.count(b"/Type /Page\n") <= 3


# ---- Many backends.

MANY = (*palette.case_names.BACKEND_ORDER[:16], *(f"mine-{i}" for i in range(8)))
STANDS_OUT = (  # the backends whose marks do not fade
    "[...new Set([...document.querySelectorAll('#throughput .drawing .mark-symbol path')]"
    ".filter((m) => +(m.getAttribute('opacity') ?? 1) == 1).map((m) => m.__data__.datum.backend))]"
)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of 24 backends in bf16, two of them also in fp8, which is twice as fast.

    Their speeds are invented and beyond the datasheet's peaks, so these are given as by --peak.
    """
    fast = [ok(case(s, dtype="fp8"), b, 2500 + i, memory_peak=2**20) for s in LENGTHS for i, b in enumerate(MANY[6:8])]
    every = [*records(MANY, headdims=(128,)), *fast]
    return write(tmp_path_factory.mktemp("crowd") / "report.html", run(every, peak={"bf16": 989e12, "fp8": 1979e12}))


@pytest.fixture
def crowded(browser: Browser, crowd: Path) -> Browser:
    """Return the opened page, which a test restores."""
    browser.show(crowd)
    browser.js("document.querySelector('#throughput').scrollIntoView()")
    browser.wait("document.querySelector('#throughput .drawing .mark-symbol path')")
    return browser


def pointer_to(browser: Browser, selector: str) -> None:
    from selenium.webdriver import ActionChains

    ActionChains(browser.driver).move_to_element(browser.all(selector)[0]).perform()


def test_24_backends_are_drawn_in_24_ways(crowded: Browser) -> None:
    """24 backends differ in colour, dash or shape, in the legend and in the lines of a panel."""
    entries = crowded.js(
        "[...document.querySelectorAll('#throughput .legend button')].map((b) => b.querySelector('svg').innerHTML)"
    )
    assert len(entries) == len(set(entries)) == 24
    lines = crowded.js(
        "[...document.querySelector('#throughput .drawing g.cell > g').querySelectorAll('.mark-line path')]"
        ".map((m) => [getComputedStyle(m).stroke, getComputedStyle(m).strokeDasharray].join())"
    )
    assert len(lines) == len(set(lines)) == 24
    assert crowded.complaints() == []


def test_a_legend_entry_makes_its_backend_stand_out(crowded: Browser) -> None:
    assert len(crowded.js(STANDS_OUT)) == 24
    pointer_to(crowded, "#throughput .legend button[data-backend=triton]")
    crowded.wait(f"{STANDS_OUT}.join() == 'triton'")
    pointer_to(crowded, "#throughput h2")
    crowded.wait(f"{STANDS_OUT}.length == 24")
    pointer_to(crowded, "#filter-backend label[data-backend=flex]")  # the filters are a legend too
    crowded.wait(f"{STANDS_OUT}.join() == 'flex'")
    pointer_to(crowded, "#throughput h2")
    crowded.wait(f"{STANDS_OUT}.length == 24")


def test_clicks_on_the_legend_keep_backends_and_let_them_go(crowded: Browser) -> None:
    for name in ("triton", "mine-0"):
        crowded.click(f"#throughput .legend button[data-backend={name}]")
    pointer_to(crowded, "#throughput h2")
    crowded.wait(f"{STANDS_OUT}.sort().join() == 'mine-0,triton'")
    pressed = "[...document.querySelectorAll('#latency .legend [aria-pressed=true]')].map((b) => b.dataset.backend)"
    assert sorted(crowded.js(pressed)) == ["mine-0", "triton"]  # in every figure
    for name in ("triton", "mine-0"):
        crowded.click(f"#throughput .legend button[data-backend={name}]")
    pointer_to(crowded, "#throughput h2")
    crowded.wait(f"{STANDS_OUT}.length == 24")
    assert crowded.complaints() == []


def test_a_mark_under_the_pointer_makes_its_backend_stand_out(crowded: Browser) -> None:
    pointer_to(crowded, "#throughput .drawing .mark-symbol path:last-child")
    crowded.wait(f"{STANDS_OUT}.length == 1")
    pointer_to(crowded, "#throughput h2")
    crowded.wait(f"{STANDS_OUT}.length == 24")


def ranking(browser: Browser) -> list[str]:
    found: list[str] = browser.js(
        "[...document.querySelectorAll('#ranking .drawing .role-axis-label text')].map((t) => t.textContent)"
        f".filter((t) => {[*MANY]}.includes(t))"
    )
    return found


def test_the_ranking_has_one_shape_the_best_first_with_intervals_and_marks(crowded: Browser) -> None:
    assert crowded.js("document.querySelector('#shape').value") == "bf16 d128 full fwd 4k"  # eager has no figure at 8k
    found = crowded.js("JSON.parse(document.querySelector('#data').textContent)")
    by_field = found["fields"] | {name: [of["of"][i] for i in of["at"]] for name, of in found["coded"].items()}
    rows = [dict(zip(by_field, values, strict=True)) for values in zip(*by_field.values(), strict=True)]
    of_shape = [r for r in rows if r["shape"] == "bf16 d128 full fwd 4k"]
    best_first = sorted(of_shape, key=lambda r: -r["tflops"])
    assert ranking(crowded) == [r["backend"] for r in best_first]
    assert len(crowded.all("#ranking .mark-rule.role-mark line")) >= 24  # the intervals and the peak
    ends = [text for text in crowded.texts("#ranking .drawing .role-mark text") if "%" in text]
    assert ["best" in text for text in ends] == [r["best"] is not None for r in best_first]
    assert ["~" in text for text in ends] == [r["held"] for r in best_first]


def test_panels_without_a_figure_are_not_drawn(crowded: Browser) -> None:
    assert panels(crowded, "throughput") == 5
    crowded.js("document.querySelector('#speedup').scrollIntoView()")
    crowded.wait("document.querySelector('#speedup .drawing svg')")
    assert panels(crowded, "speedup") == 4  # eager has no fp8


def test_results_come_before_warnings(crowded: Browser) -> None:
    order = crowded.js("[...document.querySelectorAll('#results > section')].map((s) => s.id)")
    assert order.index("ranking") < order.index("throughput") < order.index("table") < order.index("warnings")


def test_the_ranking_of_another_shape_and_of_fp8_alone(browser: Browser, crowd: Path) -> None:
    browser.open(crowd, "opened")
    from selenium.webdriver.support.select import Select

    shapes = browser.texts("#shape option")
    assert len(shapes) == len(set(shapes)) == 4 * 4 + 4
    Select(browser.all("#shape")[0]).select_by_visible_text("fp8 d128 full fwd 2k")
    assert ranking(browser) == [MANY[7], MANY[6]]
    Select(browser.all("#shape")[0]).select_by_visible_text("bf16 d128 causal fwd 8k")
    assert len(ranking(browser)) == 24
    assert [text for text in browser.texts("#ranking .drawing .role-mark text") if "skip" in text] == ["✕ skip"]
    browser.click("input[name=mask][value=causal]")  # another shape replaces one that a filter hides
    assert browser.js("document.querySelector('#shape').value") == "bf16 d128 full fwd 4k"
    assert browser.complaints() == []


def test_dtypes_are_not_ranked_together(browser: Browser, crowd: Path) -> None:
    browser.open(crowd, "opened")
    browser.click("th[data-field=tflops] button")
    dtypes, figures = column(browser, "dtype"), column(browser, "TFLOP/s")
    assert dtypes == sorted(dtypes)  # bf16 before fp8, although fp8's figures are higher
    first = [float(text.rstrip("~")) for text, dtype in zip(figures, dtypes, strict=True) if dtype == "bf16" and text]
    assert first == sorted(first, reverse=True)
    assert browser.texts("#count")[0].endswith("each dtype by itself")


@pytest.mark.parametrize("width", [390, 1200])
def test_pages_of_any_width_scroll_one_way_and_begin_with_the_answer(
    width: int, browser: Browser, crowd: Path, gate: Path
) -> None:
    browser.cdp("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    try:
        for file in (gate, crowd):
            browser.load(file)
            assert browser.js("document.documentElement.scrollWidth") <= width
            wider = (
                "[...document.querySelectorAll('#results *')].filter((e) => !e.closest('.scroll, pre, svg')"
                f" && e.getBoundingClientRect().right > {width}).map((e) => e.outerHTML.slice(0, 80))"
            )
            assert browser.js(wider) == []
            if file == gate:
                assert browser.js("document.querySelector('.scroll').offsetParent === null") == (width == 390)
                assert browser.js("document.querySelector('.narrow').offsetParent !== null") == (width == 390)
        browser.wait("document.documentElement.dataset.opened")
        answer = browser.js("document.querySelector('.answer').getBoundingClientRect().bottom")
        filters = browser.js("document.querySelector('#filtering').getBoundingClientRect().top")
        assert answer < filters or width == 1200
        assert browser.js("document.querySelector('#filtering').open") == (width == 1200)
    finally:
        browser.cdp("Emulation.clearDeviceMetricsOverride")


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a gate that fails."""
    before = run([ok(case(s), "triton", 400, round=i) for s in LENGTHS for i in range(5)])
    after = run([ok(case(s), "triton", 350, round=i) for s in LENGTHS for i in range(5)])
    path = tmp_path_factory.mktemp("gate") / "gate.html"
    path.write_text(html_page.render(document_of(judge(before, after, Request(("latency",))))), encoding="utf-8")
    return path
