"""Courts for the lies: on the CPU, on a simulated clock, and on the GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from measuring_device import CPU, Clock, MeasuringDevice, measuring_device, switches


@pytest.fixture(autouse=True)
def _switches() -> Iterator[None]:
    with switches():
        yield


@pytest.fixture(scope="module")
def steady_cpu() -> Iterator[MeasuringDevice]:
    """The CPU on a clock by which every call takes the same: whatever the report doubts is not noise."""
    yield from measuring_device(CPU, Clock())


@pytest.fixture(scope="module")
def cpu() -> Iterator[MeasuringDevice]:
    """The CPU on the host's clock."""
    yield from measuring_device(CPU)
