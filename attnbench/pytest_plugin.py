"""The pytest plug-in: the fixture `attnbench`, its options, and a table at the end. It imports nothing until used.

def test_my_kernel(attnbench):
    attnbench.assert_right("./mine.py:attention")
    attnbench.assert_not_slower("./mine.py:attention", than="sdpa-flash", seqlen="4k", margin=0.03)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attnbench.api.guard import Guard

PROPERTY = "attnbench"  # of a test's report, which xdist passes on


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("attnbench")
    group.addoption("--attnbench-save", metavar="NAME", help="Keep the measurements of tests in .attnbench/NAME.")
    group.addoption(
        "--attnbench-compare", metavar="NAME", help="Judge the measurements of tests by those kept as NAME."
    )
    group.addoption("--attnbench-budget", metavar="TIME", default="4m", help="Longest time of one comparison: 30s, 5m.")
    group.addoption("--attnbench-device", metavar="DEVICE", default="auto", help="auto, cuda:N, cpu or fake.")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker `attnbench`."""
    config.addinivalue_line("markers", "attnbench: measures a kernel (set by the fixture attnbench)")


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that measure, so that -m attnbench selects them."""
    for item in items:
        if "attnbench" in getattr(item, "fixturenames", ()):
            item.add_marker("attnbench")


@pytest.fixture
def attnbench(request: pytest.FixtureRequest) -> Iterator[Guard]:
    """Assert that kernels are right, and not slower than others: `assert_right`, `assert_not_slower`."""
    from attnbench.api.guard import Guard

    option = request.config.getoption
    guard = Guard(
        request.node.nodeid,
        request.config.rootpath,
        pytest.skip,
        option("--attnbench-save"),
        option("--attnbench-compare"),
        option("--attnbench-budget"),
        option("--attnbench-device"),
    )
    yield guard
    request.node.user_properties.extend((PROPERTY, vars(row)) for row in guard.rows)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write a line for each assertion: the kernel, its rival, the verdict, and the figures."""
    told = (one for of in terminalreporter.stats.values() for one in of if isinstance(one, pytest.TestReport))
    last = (properties for report in told if report.when == "teardown" for properties in report.user_properties)
    found: list[Any] = [row for name, row in last if name == PROPERTY]
    if not found:
        return
    terminalreporter.section("attnbench")
    for row in found:
        than = f" (than {row['than']})" if row["than"] else ""
        terminalreporter.line(f"{row['test']}: {row['what']} is {row['verdict']}{than}")
        if row["detail"]:
            terminalreporter.line(f"    {row['detail']}")
