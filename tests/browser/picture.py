"""Take a picture of a page with charts, as README.md shows one: its first 1,280 x 1,425 pixels.

python tests/browser/picture.py PAGE.html PICTURE.png
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path

from chromium import Browser, installed, start

WIDTH, HEIGHT = 1280, 1425


def main(page: Path, picture: Path) -> None:
    """Open a page, wait until all of it is drawn, and write what the window shows as PNG."""
    chromium, chromedriver = installed()
    if not chromium or not chromedriver:
        raise SystemExit("no Chromium: apt-get install chromium chromium-driver")
    browser = Browser(start(chromium, chromedriver))
    try:
        size = {"width": WIDTH, "height": HEIGHT}
        browser.cdp("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=False)
        browser.cdp("Emulation.setScrollbarsHidden", hidden=True)
        browser.open(page.resolve())
        picture.write_bytes(base64.b64decode(browser.cdp("Page.captureScreenshot", format="png")["data"]))
    finally:
        browser.driver.quit()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
