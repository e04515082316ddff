"""The commands whose figures are recomputed run in the tests' process; a new process would import for a second."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from attnbench import cli
from by_hand import audit, page


def run(*arguments: str | Path) -> str:
    """Replace audit.run."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(io.StringIO()) as err,
        patch.object(sys, "argv", ["attnbench", *map(str, arguments)]),
        pytest.raises(SystemExit) as end,
    ):
        cli.main()
    out.flush()
    assert end.value.code in (0, 1), err.getvalue()
    return out.buffer.getvalue().decode()  # type: ignore[attr-defined]


@pytest.fixture(autouse=True, scope="session")
def _in_this_process() -> Iterator[None]:
    with patch.object(audit, "run", run), patch.object(page, "run", run):
        yield
