"""Answers that documents quote, each with the command that gives it: `make tables` renews them.

A document has the call in a comment, and cog (cog.readthedocs.io) writes below it what the call prints.
"""

from __future__ import annotations

import glob
import itertools
import json
import shlex
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import cog  # of the running cog

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from typer.testing import CliRunner  # noqa: E402

from attnbench.commands.command_line import command_line  # noqa: E402

WIDTH = 116


def answer(command: str, *sentences: int) -> None:
    """Print a command, and sentences of its answer by their numbers, from 1 on."""
    said = _shown(command)[0]["answer"]
    cog.outl(f"\n    attnbench {command}\n\n```text")
    for number in sentences:
        cog.outl(textwrap.fill(said[number - 1], WIDTH, break_on_hyphens=False))
    cog.outl("```\n")


def table(command: str, title: str) -> None:
    """Print a command, and the table of its document that has a title."""
    after = _shown(command)[1].partition(f" {title}\n")[2].splitlines()
    rows = itertools.dropwhile(lambda line: line[:1] != "|", after)
    cog.outl(f"\n    attnbench {command}\n")
    cog.outl("\n".join(itertools.takewhile(lambda line: line[:1] == "|", rows)) + "\n")


def _shown(command: str) -> tuple[Any, str]:
    """Return what a command shows, as JSON and as Markdown; patterns stand for files of the repository."""
    with tempfile.TemporaryDirectory() as folder:
        words = [path for word in shlex.split(command) for path in (sorted(glob.glob(str(ROOT / word))) or [word])]
        files = {of: Path(folder) / of for of in ("json", "md")}
        options = [word for of, file in files.items() for word in ("-f", f"{of}={file}")]
        done = CliRunner().invoke(command_line(words[0]), [*words, *options])
        if done.exit_code:
            raise ValueError(f"{command}: {done.output}")
        return json.loads(files["json"].read_text()), files["md"].read_text()
