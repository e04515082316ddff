"""The values in documents are those of the run files named beside them (docs/site/tables.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
from cogapp import Cog

ROOT = Path(__file__).parents[1]
DOCUMENTS = [str(path) for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")) if "[[[cog" in path.read_text()]


def test_tables_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert len(DOCUMENTS) > 5
    assert Cog().main(["cog", "--check", "--diff", "-I", "docs/site", *DOCUMENTS]) == 0, "make tables renews them"
