"""Headless Chromium, driven by selenium. Without it the tests are skipped, and name what to install.

ATTNBENCH_REQUIRE=browser turns the skip into a failure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NoReturn

import pytest
from chromium import Browser, installed, start


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    chromium, chromedriver = installed()
    if not chromium or not chromedriver:
        _without("no Chromium: apt-get install chromium chromium-driver")
    try:
        import selenium  # noqa: F401
    except ImportError:
        _without("no selenium: pip install -e '.[test]'")
    driver = start(chromium, chromedriver)
    try:
        yield Browser(driver)
    finally:
        driver.quit()


def _without(reason: str) -> NoReturn:
    if "browser" in os.environ.get("ATTNBENCH_REQUIRE", "").split(","):
        pytest.fail(reason)
    pytest.skip(reason)
