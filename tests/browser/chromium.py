"""A Chromium window, driven by selenium."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--window-size=1400,1000",
)
SAVED = (  # a script: what a page would save as a file is collected in `saved`
    "window.saved = []; HTMLAnchorElement.prototype.click = function () {};"
    "URL.createObjectURL = (blob) => { blob.text().then((text) => saved.push(text)); return 'blob:none'; };"
)


def installed() -> tuple[str | None, str | None]:
    """Return the paths of Chromium and of its driver, None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None), shutil.which("chromedriver")


def start(chromium: str, chromedriver: str) -> Any:
    """Return the driver of a new window, which records its console and its requests."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for option in OPTIONS:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(chromedriver))


@dataclass
class Browser:
    """A browser window, with its console and its requests since its page was opened."""

    driver: Any
    unchanged: Path | None = None  # the page in the window, if no test has changed its display

    def show(self, page: Path) -> None:
        """Show a complete page, opened anew only if it is not shown unchanged. The caller must not change it."""
        if self.unchanged != page:
            self.open(page)
            self.unchanged = page

    def open(self, page: Path, until: str = "complete") -> None:
        """Open a page with charts and wait until it is `opened` (can be used) or `complete` (all drawn)."""
        self.load(page)
        self.wait(f"document.documentElement.dataset.{until}")

    def load(self, page: Path) -> None:
        """Open a page."""
        self.unchanged = None
        for log in ("browser", "performance"):
            self.driver.get_log(log)  # discards the log of the page before
        self.driver.get(page.as_uri())

    def js(self, expression: str) -> Any:
        return self.driver.execute_script(f"return {expression}")

    def wait(self, expression: str, seconds: float = 60) -> None:
        """Wait until an expression in JavaScript is true."""
        end = time.monotonic() + seconds
        while not self.js(expression):
            assert time.monotonic() < end, f"{expression} never came; console: {self.driver.get_log('browser')}"
            time.sleep(0.02)

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.driver.find_elements("css selector", selector)
        return found

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.js(f"[...document.querySelectorAll({selector!r})].map((e) => e.textContent)")
        return found

    def click(self, selector: str) -> None:
        self.js(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center', inline: 'center'}})")
        self.all(selector)[0].click()

    def cdp(self, command: str, **parameters: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, parameters)

    def cpu(self) -> float:
        """Return CPU seconds of the page's main thread; needs Performance.enable(timeDomain="threadTicks")."""
        found = self.cdp("Performance.getMetrics")["metrics"]
        return float(next(m["value"] for m in found if m["name"] == "TaskDuration"))

    def requests(self) -> list[str]:
        """Return the addresses that were requested since the page was opened."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """Return the messages on the console since the page was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser")]
