"""Behaviour that several commands share."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tool import Tool
from typer.testing import CliRunner

from attnbench.backends.fake import Fake, busy_with_others
from attnbench.commands import options
from attnbench.commands.command_line import command_line as program
from attnbench.commands.shared import command_line
from attnbench.core.errors import UserError
from attnbench.render.document import Document, with_damage
from attnbench.results import run_file
from attnbench.results.run_file import lines

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize(
    "out",
    [
        ["--out", "mine/run.jsonl"],
        ["--out=mine/run.jsonl", "--html", "x.html"],
        ["-f", "module=mine/x.py", "--format=json=x.json"],
        [],
    ],
)
def test_the_recorded_command_names_no_place_on_the_machine(monkeypatch: pytest.MonkeyPatch, out: list[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["attnbench", "run", *out, "-b", "eager", "--dry-run"])
    assert command_line() == ("run", "-b", "eager", "--dry-run")


READ = {"capacity": "capacity", "claims": "claims", "step": "step"} | dict.fromkeys(
    ("report", "recommend", "compare", "history", "cluster report"), "own-kernels"
)


@pytest.mark.parametrize(("command", "kind"), READ.items())
def test_every_command_that_reads_run_files_takes_a_folder(tool: Tool, command: str, kind: str) -> None:
    """Every command that reads run files takes a folder, and shows the same as for the files in it."""
    there = sorted(RESULTS.glob(f"*-{kind}-*.jsonl.gz"))[:2]
    (tool.folder / "here").mkdir()
    for file in there:
        (tool.folder / "here" / file.name).symlink_to(file)
    of_folder, of_files = (tool(*command.split(), *given, "-f", "md", code=None) for given in (["here"], there))
    assert of_folder.code in (0, 3), of_folder.err
    assert of_folder.out.replace("here/", "") == of_files.out.replace(f"{RESULTS}/", "")


@pytest.mark.parametrize(("command", "kind"), READ.items())
def test_what_cannot_be_read_is_in_what_is_shown(tmp_path: Path, command: str, kind: str) -> None:
    """The output reports unreadable files; JSON lines of another program in a folder are not damage."""
    content = [*lines(next(RESULTS.glob(f"*-{kind}-nvidia-h100.jsonl.gz")))]
    (tmp_path / "0.jsonl").write_bytes(b"".join([*content[:40], b"lost\n"]))
    if command == "compare":
        (tmp_path / "1.jsonl").write_bytes(content[0].replace(b"H100", b"H200") + b"".join(content[1:40]))
    (tmp_path / "log.jsonl").write_text('{"level": "info"}\n')
    done = CliRunner().invoke(program(command.split()[0]), [*command.split(), str(tmp_path), "-f", "md"])
    shown = " ".join(done.stdout.split())
    if command == "cluster report":
        assert "Readable in part: 0." in shown
        assert "Not readable" not in shown
    else:
        assert "1 file cannot be read in whole: " in shown
        assert "/0.jsonl: 1 line of it cannot be read." in shown


@dataclass(frozen=True, kw_only=True)
class Options(options.WhatToMeasure):
    number: int = options.how("N", "A number.", 1)


def test_the_options_reach_the_command_as_one_value() -> None:
    @options.command
    def command(given: Options) -> None:
        found.append(given)

    found: list[Options] = []
    values = {name: p.default for name, p in inspect.signature(command).parameters.items()}
    command(**{**values, "seqlen": "1k", "number": 2})
    assert found == [Options(axes={"seqlen": "1k"}, number=2)]
    assert options.changed(found[0], ("axes", "number", "suite")) == {"--seqlen": "1k", "--number": 2}


def test_what_is_lost_of_files_is_in_the_json_of_a_document() -> None:
    damage = {Path("a.jsonl"): "1 line of it cannot be read"}
    shown = with_damage(Document("claims", "", data={"value": 1}), damage)
    assert shown.data == {"value": 1, "damage": {"a.jsonl": "1 line of it cannot be read"}}
    assert "a.jsonl: 1 line of it cannot be read" in str(shown.cautions[0])


@pytest.mark.parametrize("speed", ["-1", "0", "nan", "inf", "x"])
def test_a_simulated_device_has_a_speed(speed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNBENCH_FAKE", f"speed={speed}")
    with pytest.raises(UserError, match=f"speed={speed} is no number from 1e-6 to 1e6"):
        Fake()


@pytest.mark.parametrize("busy", ["-1", "nan", "x"])
def test_others_use_a_share_of_a_simulated_device(busy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNBENCH_FAKE", f"busy={busy}")
    with pytest.raises(UserError, match=f"busy={busy} is no number from 0 to 1"):
        busy_with_others()


def test_an_empty_file_is_said_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").touch()
    for read in (run_file.read, run_file.head):
        with pytest.raises(UserError, match="it is empty"):
            read(tmp_path / "x.jsonl")
