"""Fixtures for the tests of wrong kernels: the CPU on a simulated clock and on the host's clock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from measuring_device import CPU, Clock, MeasuringDevice, measuring_device


@pytest.fixture(scope="session")
def steady_cpu() -> Iterator[MeasuringDevice]:
    """The CPU on a simulated clock by which every call takes the same time, so that the report sees no noise."""
    yield from measuring_device(CPU, Clock())


@pytest.fixture(scope="session")
def cpu() -> Iterator[MeasuringDevice]:
    """The CPU on the host's clock."""
    yield from measuring_device(CPU)
