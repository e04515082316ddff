"""`--help`: it is there at once, lists every command, and shows no types. `-m help` is the same in all commands."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from typing import Any

import pytest
import typer
from tool import Tool

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
    """Return the words of each command and of each command within a command."""
    program: Any = typer.main.get_command(command_line())
    found: list[tuple[str, ...]] = []
    for name, command in program.commands.items():
        found += [(name,), *((name, inner) for inner in getattr(command, "commands", ()))]
    return found


@pytest.mark.parametrize("command", every_command(), ids=" ".join)
def test_the_help_of_a_command_shows_no_type(tool: Tool, command: tuple[str, ...]) -> None:
    shown = tool(*command, "--help").out
    assert f"attnbench {' '.join(command)}" in shown
    assert not re.findall(r"<[\w\[\], |]+>|(?i:\bbool)", shown)


@pytest.mark.parametrize("command", every_command(), ids=" ".join)
def test_the_help_of_a_command_fills_the_lines_of_a_terminal(tool: Tool, command: tuple[str, ...]) -> None:
    """However the docstring is broken into lines; examples keep theirs."""
    lines = [line.rstrip() for line in tool(*command, "--help").out.splitlines()]
    text, width = lines[: next(i for i, line in enumerate(lines) if line.startswith("╭"))], max(map(len, lines))
    blocks = "\n".join(line[1:] for line in text).split("\n\n")
    for prose in (block for block in blocks if not block.lstrip().startswith(("attnbench ", "Usage:"))):
        for line, following in itertools.pairwise(prose.splitlines()):
            assert len(line) + len(following.split()[0]) + 2 > width - 1, prose


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
    """rich alone takes 90 ms of the 250 that --help may take."""
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
