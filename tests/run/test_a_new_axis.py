"""A new axis is a field of Case and an entry of the table: options, suites, names, columns and refusals follow."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import attnbench

PACKAGE = Path(attnbench.__file__).parent
# The axis is a bias added to each score, not for fp8: (file, text to insert, text that follows it).
EDITS = (
    ("core/case.py", "    bias: float = 0.0\n\n", "    def __post_init__(self) -> None:\n        rules"),
    ("core/axes.py", '    _field("bias", "A bias: none,2.", "A bias."),\n', '    _field(\n        "ranks"'),
    ("core/rules.py", '    "bias": Trait(lambda c: c.bias, "bias", "a bias"),\n', '    "ranks": Trait('),
    ("core/rules.py", '    "bias": ("fp8",),\n', '    "lengths": ("dropout"'),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a copy of attnbench that has the axis."""
    shutil.copytree(PACKAGE, tmp_path / "attnbench", ignore=shutil.ignore_patterns("*.pyc"))
    (tmp_path / "suites").symlink_to(PACKAGE.parent / "suites")
    for name, inserted, before in EDITS:
        path = tmp_path / "attnbench" / name
        text = path.read_text()
        assert text.count(before) == 1
        path.write_text(text.replace(before, inserted + before))
    return tmp_path


def test_a_field_and_an_entry_make_an_axis(folder: Path) -> None:
    def call(*args: str, code: int = 0) -> str:
        environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"}
        command = [sys.executable, "-m", "attnbench", *args]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    measure = ("run", "--seqlen", "1k", "--causal", "--pass", "fwd", "--headdim", "128")
    fake = (*measure, "--device", "fake", "-b", "fake")
    assert "bias: fp8 with a bias cannot be measured" in call(*fake, "--bias", "2", "--dtype", "fp8", code=2)
    call(*fake, "--bias", "none,2", "--out", "x.jsonl")
    shown = call("report", "x.jsonl", "-f", "table", "-f", "csv=x.csv", "-f", "html=x.html")
    assert "bias 2" in shown
    assert "bias 2" in (folder / "x.html").read_text()
    with (folder / "x.csv").open() as file:
        assert [row["bias"] for row in csv.DictReader(file)] == ["0.0", "2.0"]
    assert "no bias" in call(*measure, "--device", "cpu", "-b", "eager", "--bias", "2", "--dry-run")
