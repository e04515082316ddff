"""The pages of the documentation site that docs/site/reference.py makes; CI builds the whole site."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_page_of_a_backend_says_all_that_is_known_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The page has install, trials, fastest cells, support, the call and links; its documents and run files exist."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    run = ROOT / "results" / "20261125-194926-libraries-nvidia-h200.jsonl.gz"
    (tmp_path / run.name).symlink_to(run)
    monkeypatch.setattr(importlib.import_module("measured"), "RESULTS", tmp_path)
    page = importlib.import_module("reference").backend_page("fa3")
    headings = re.findall(r"^## (.*)", page, re.M)
    assert headings[:2] == ["Where it was right", "The fastest measured cells"]
    assert headings[-3:] == ["Limits", "The call", "See also"]
    assert "`attnbench env create fa3`" in page
    files = re.findall(r"/blob/main/(results/[^)]+)", page)
    documents = re.findall(r"\(\.\./([\w-]+\.md)\)", page)
    assert files
    assert documents
    assert all((ROOT / file).is_file() for file in files)
    assert all((ROOT / "docs" / name).is_file() for name in documents)
