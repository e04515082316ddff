"""What several commands share."""

from __future__ import annotations

import sys

import pytest

from attnbench.commands.shared import command_line


@pytest.mark.parametrize("out", [["--out", "mine/run.jsonl"], ["--out=mine/run.jsonl"], []])
def test_the_recorded_command_names_no_place_on_the_machine(monkeypatch: pytest.MonkeyPatch, out: list[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["attnbench", "run", *out, "-b", "eager", "--dry-run"])
    assert command_line() == ("run", "-b", "eager", "--dry-run")
