"""Facts of the host can be read."""

from __future__ import annotations

import json
import os

import pytest

from attnbench.run import host_facts
from attnbench.run.host_facts import cpu_load, read_host_facts


def test_host_facts_can_be_read_here() -> None:
    found = read_host_facts()
    assert found["load"] >= 0
    assert found["cores"] == os.cpu_count()
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    ("average", "now", "load"),
    [
        (0.5, None, 0.5),  # load on 4 cores: low enough
        (3.6, 0.9, 3.6),  # other work continues
        (3.6, 0.05, 0.2),  # the average of the last minute includes a run that has just ended
        (3.6, None, 3.6),  # other systems than Linux
    ],
)
def test_the_load_of_a_cpu_is_not_that_of_the_run_before(
    monkeypatch: pytest.MonkeyPatch, average: float, now: float | None, load: float
) -> None:
    times, clock = iter([1000.0, 1000.0 + 0.4 * (now or 0.0)]), iter([50.0, 50.1])
    monkeypatch.setattr(os, "getloadavg", lambda: (average, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(host_facts, "NOW", 0.0)
    monkeypatch.setattr(host_facts.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(host_facts, "core_seconds", lambda: None if now is None else next(times))
    assert cpu_load() == pytest.approx(load)
