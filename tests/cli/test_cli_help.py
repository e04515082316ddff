"""`--help` is fast, lists every command and shows no types; `-m help` is the same in all commands."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import typer
from tool import Tool
from typer.testing import CliRunner

from attnbench.analysis.gate.margins import RULES
from attnbench.commands.command_line import COMMANDS, command_line
from attnbench.results.metrics import METRICS


def test_the_help_of_the_program_lists_every_command_with_its_whole_first_sentence(tool: Tool) -> None:
    shown = tool("--help").out
    after = shown.partition("\nCommands:\n")[2]
    listed = [line.split()[0] for line in after.splitlines() if line[:2] == "  " and line[2:3].strip()]
    assert tuple(listed[: len(COMMANDS)]) == COMMANDS
    assert "..." not in after


def every_command() -> list[tuple[str, ...]]:
    """Return the words of each command and subcommand."""
    program: Any = typer.main.get_command(command_line())
    found: list[tuple[str, ...]] = []
    for name, command in program.commands.items():
        found += [(name,), *((name, inner) for inner in getattr(command, "commands", ()))]
    return found


def test_the_help_of_a_command_shows_no_type() -> None:
    for name, *inner in every_command():
        shown = CliRunner().invoke(command_line(name), [name, *inner, "--help"], prog_name="attnbench").output
        assert f"attnbench {' '.join([name, *inner])}" in shown
        assert not re.findall(r"<[\w\[\], |]+>|(?i:\bbool)", shown)


def test_the_metrics_are_listed_and_refused_alike_in_all_commands(tool: Tool) -> None:
    report = tool("report", "-m", "help").out.splitlines()
    assert [line.split()[0] for line in report] == [*METRICS]
    gate = tool("gate", "-m", "help").out.splitlines()
    assert gate == tool("ab", "-m", "latency,help").out.splitlines()
    assert [line.split()[0] for line in gate] == [*RULES]
    assert {*gate} <= {*report}
    refused = [tool(command, "-m", "latncy", code=2).err for command in ("report", "gate", "ab")]
    assert refused == ["attnbench: --metric: unknown 'latncy'; did you mean \"latency\"?\n"] * 3
    assert "unknown 'tflops'; known: latency, cycles, " in tool("gate", "-m", "tflops", code=2).err


def test_the_help_of_the_program_imports_neither_rich_nor_a_library_for_data() -> None:
    """The program's help imports neither rich, 90 ms of the 250 ms that --help may take, nor a library for data."""
    code = """
import sys
from attnbench.cli import main
sys.argv = ["attnbench", "--help"]
try:
    main()
except SystemExit:
    pass
print("loaded:", *sorted({"rich", "pydantic", "numpy", "pandas", "yaml", "msgspec", "torch"} & {*sys.modules}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "loaded:", done.stdout
