"""`--help`: it is there at once, lists every command, and shows no type for options that take no value."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tool import Tool

from attnbench.cli import COMMANDS


def test_the_help_of_the_program_lists_every_command_with_its_whole_first_sentence(tool: Tool) -> None:
    shown = tool("--help").out
    after = shown.partition("\nCommands:\n")[2]
    listed = [line.split()[0] for line in after.splitlines() if line[:2] == "  " and line[2:3].strip()]
    assert tuple(listed[: len(COMMANDS)]) == COMMANDS
    assert "..." not in after


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_shows_no_type_for_a_flag(tool: Tool, command: str) -> None:
    shown = tool(command, "--help").out
    assert f"attnbench {command}" in shown
    assert "bool" not in shown.lower()


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
