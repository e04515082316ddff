"""Answers that documents quote, each with the command that gives it: `make tables` renews them.

A document has the call in a comment, and cog (cog.readthedocs.io) writes below it what the call prints.
"""

from __future__ import annotations

import functools
import glob
import itertools
import re
import shlex
import sys
import tempfile
import textwrap
from pathlib import Path
from unittest import mock

import cog  # of the running cog

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from typer.testing import CliRunner  # noqa: E402

from attnbench.commands.command_line import command_line  # noqa: E402
from attnbench.results import run_file  # noqa: E402

WIDTH = 116
read = functools.cache(run_file.read)  # many answers are of the same files


def answer(command: str, *sentences: int) -> None:
    """Print a command, and sentences of its answer by their numbers, from 1 on."""
    said = [re.sub(r"\\(.)", r"\1", one) for one in re.findall(r"^\*\*(.+)\*\*$", _shown(command), re.M)]
    cog.outl(f"\n    attnbench {command}\n\n```text")
    for number in sentences:
        cog.outl(textwrap.fill(said[number - 1], WIDTH, break_on_hyphens=False))
    cog.outl("```\n")


def table(command: str, title: str, *, with_command: bool = True) -> None:
    """Print a command, if asked, and the table of its document below the heading that begins with a title."""
    name = re.escape(title)  # a heading, or words in bold before others
    heading = rf"^(?:#+ {name}.*|\*\*{name}[^*]*\*\* \S.*)\n"
    after = re.split(heading, _shown(command), maxsplit=1, flags=re.M)[1].splitlines()
    rows = itertools.dropwhile(lambda line: line[:1] != "|", after)
    cog.outl(f"\n    attnbench {command}\n" if with_command else "")
    cog.outl("\n".join(itertools.takewhile(lambda line: line[:1] == "|", rows)) + "\n")


def code(command: str) -> None:
    """Print the first block of code of a command's document."""
    cog.outl("\n```python\n" + _shown(command).split("```\n")[1] + "```\n")


@functools.cache
def _shown(command: str) -> str:
    """Return what a command shows, as Markdown; patterns stand for files of the repository."""
    words = [path for word in shlex.split(command) for path in (sorted(glob.glob(str(ROOT / word))) or [word])]
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(run_file, "read", read):
        file = Path(folder) / "md"
        done = CliRunner().invoke(command_line(words[0]), [*words, "-f", f"md={file}"])
        if done.exit_code not in (0, 1, 5):  # 1: a regression, 5: the files have a wrong result
            raise ValueError(f"{command}: {done.output}")
        return file.read_text(encoding="utf-8")
