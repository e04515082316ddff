"""Take a picture of a page, for README.md and docs/profiling.md.

python tests/browser/picture.py PAGE.html PICTURE.png              its first 1,280 x 1,425 pixels
python tests/browser/picture.py PAGE.html PICTURE.png '#roofline'  the elements of a CSS selector, from first to last
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path

from chromium import Browser, installed, start

WIDTH, HEIGHT = 1280, 1425
BOX = """(() => {{
  const boxes = [...document.querySelectorAll({selector!r})].map((e) => e.getBoundingClientRect());
  const [top, bottom] = [Math.min(...boxes.map((b) => b.top)), Math.max(...boxes.map((b) => b.bottom))];
  return [boxes[0].left, top + window.scrollY, boxes[0].width, bottom - top];
}})()"""


def main(page: Path, picture: Path, selector: str | None = None) -> None:
    """Open a page, wait until any charts are drawn, and write its picture as PNG."""
    chromium, chromedriver = installed()
    if not chromium or not chromedriver:
        raise SystemExit("no Chromium: apt-get install chromium chromium-driver")
    browser = Browser(start(chromium, chromedriver))
    try:
        size = {"width": WIDTH, "height": HEIGHT}
        browser.cdp("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=False)
        browser.cdp("Emulation.setScrollbarsHidden", hidden=True)
        if "<script" in page.read_text(encoding="utf-8"):
            browser.open(page.resolve())
        else:
            browser.driver.get(page.resolve().as_uri())
        wanted = {}
        if selector is not None:
            box = dict(zip(("x", "y", "width", "height"), browser.js(BOX.format(selector=selector)), strict=True))
            wanted = {"clip": {**box, "scale": 1}, "captureBeyondViewport": True}
        picture.write_bytes(base64.b64decode(browser.cdp("Page.captureScreenshot", format="png", **wanted)["data"]))
    finally:
        browser.driver.quit()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:4])
