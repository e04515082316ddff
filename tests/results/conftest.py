"""Fixtures of the tests of run files."""

from __future__ import annotations

from pathlib import Path

import pytest
from stored_run import RECORDS, RUN

from attnbench.results import run_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a finished run file with three records."""
    where = tmp_path / "results" / "run.jsonl"
    file = run_file.RunFile.create(where, RUN)
    for record in RECORDS:
        file.append(record)
    file.close()
    return where
