"""The cores that other processes leave: a busy process is found, the process' own threads do not count."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnbench.core.other_work import core_seconds
from attnbench.worker.measure import core_watch
from attnbench.worker.measure.core_watch import CoreWatch

pytestmark = pytest.mark.skipif(core_seconds() is None, reason="needs /proc/stat")


def left_while(seconds: float) -> float:
    """Return the cores left while one thread of this process works."""
    watch, until = CoreWatch(), time.monotonic() + seconds
    while time.monotonic() < until:
        pass
    left = watch.cores_left()
    assert left is not None
    return left


def test_a_busy_process_takes_a_core_from_this_one() -> None:
    os.sched_setaffinity(0, own := {min(all_cores := os.sched_getaffinity(0))})
    try:
        assert left_while(0.2) <= len(own)
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:  # on the same core
            try:
                time.sleep(0.3)
                assert left_while(1.0) < 0.75, "both have a half, or less where more runs here"
            finally:
                other.kill()
    finally:
        os.sched_setaffinity(0, all_cores)


def test_what_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    file = tmp_path / "stat"
    assert core_seconds(file) is None
    file.write_text("cpu  1 2 3\nintr 5\n")
    assert core_seconds(file) is None
    core = min(os.sched_getaffinity(0))
    file.write_text(f"cpu{core} 100 20 30 1000 500 1 2 47 0 0\ncpu{core + 1000} 9 9 9 9 9 9 9 9 0 0\n")
    assert core_seconds(file) == pytest.approx(200 / os.sysconf("SC_CLK_TCK"))


def test_a_clock_that_has_not_moved_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_watch, "perf_counter", lambda: 1.0)
    assert CoreWatch().cores_left() is None
