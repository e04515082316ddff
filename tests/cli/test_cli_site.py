"""`attnbench site` writes its own files, and no others, whatever a folder says of itself."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tool import Tool


def test_files_of_others_stay(tool: Tool) -> None:
    tool("run", "--device", "fake", "-b", "fake", "--seqlen", "1k", "--out", "run.jsonl")
    site = tool.folder / "site"
    tool("site", "run.jsonl")
    pages = {path.name for path in site.glob("*.html")}
    (site / "notes.html").write_text("mine")
    (site / "page-of-before.html").write_text("<html><title>attnbench: old</title>")
    listed = json.loads((site / "site.json").read_text())["files"]
    (site / "site.json").write_text(
        json.dumps({"files": [*listed, "notes.html", "page-of-before.html", "../run.jsonl"]})
    )
    tool("site", "run.jsonl")
    assert {path.name for path in site.glob("*.html")} == {*pages, "notes.html"}
    assert (tool.folder / "run.jsonl").is_file()


@pytest.mark.parametrize("name", ["index.html", "assets", "site.json"])
def test_links_in_the_folder_are_not_followed(tool: Tool, name: str) -> None:
    tool("run", "--device", "fake", "-b", "fake", "--seqlen", "1k", "--out", "run.jsonl")
    site, precious = tool.folder / "site", tool.folder / "precious"
    site.mkdir()
    (site / "site.json").write_text('{"files": ["index.html"]}')
    precious.write_text('{"files": []}')
    (site / name).unlink(missing_ok=True)
    (site / name).symlink_to(precious)
    assert "is a link; remove it" in tool("site", "run.jsonl", code=2).err
    assert precious.read_text() == '{"files": []}'


@pytest.mark.parametrize(
    "make",
    [lambda path: path.write_text("[" * 200_000), os.mkfifo, lambda path: os.symlink("/dev/zero", path),
     lambda path: path.touch() or os.truncate(path, 2**40)],
    ids=["nested", "pipe", "device", "huge"],
)  # fmt: skip
def test_a_list_of_files_that_cannot_be_read_is_of_others(tool: Tool, make: Callable[[Path], object]) -> None:
    tool("run", "--device", "fake", "-b", "fake", "--seqlen", "1k", "--out", "run.jsonl")
    (tool.folder / "site").mkdir()
    make(tool.folder / "site" / "site.json")
    assert "files that attnbench site did not write" in tool("site", "run.jsonl", "--out", "site", code=2).err
