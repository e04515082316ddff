"""The answers that docs/compare.md quotes: each is made by the command above it, from results/.

Below a command stands `<!-- answer: 1, 3 -->` (these sentences of its answer) or `<!-- table: NAME -->` (the table of
that title), and `<!-- end -->` after what is quoted. After a change of figures write all of them again:

    python tests/answers.py
"""

from __future__ import annotations

import glob
import json
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from attnbench.commands.command_line import command_line

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "compare.md"
QUOTE = re.compile(
    r"(    attnbench (?P<command>[^\n]*)\n\n<!-- (?P<what>answer|table): (?P<which>[^\n]*) -->\n).*?(?=<!-- end -->)",
    re.DOTALL,
)


def commands() -> set[tuple[str, ...]]:
    """Return the arguments of the commands whose answers are quoted."""
    return {tuple(shlex.split(found["command"])) for found in QUOTE.finditer(FILE.read_text())}


def renewed(text: str) -> str:
    """Return a document with its quotes made again."""
    return QUOTE.sub(
        lambda found: found[1] + "\n".join(quote(found["command"], found["what"], found["which"])) + "\n", text
    )


def quote(command: str, what: str, which: str) -> Iterator[str]:
    """Yield the lines of a quote: sentences, with a blank line between them, or a table."""
    data, markdown = shown(command)
    if what == "table":
        rows = markdown.partition(f"{which}\n")[2].partition("\n|")[2].partition("\n\n")[0]
        yield from ["", *f"|{rows}".rstrip().splitlines(), ""]
        return
    sentences = [data["answer"][int(n) - 1] for n in which.split(",")]
    yield from "\n>\n".join(f"> {sentence}" for sentence in sentences).splitlines()


def shown(command: str) -> tuple[Any, str]:
    """Return what a command shows, as JSON and as Markdown. Files are named as a shell names them."""
    with tempfile.TemporaryDirectory() as folder:
        words = [path for word in shlex.split(command) for path in (sorted(glob.glob(str(ROOT / word))) or [word])]
        files = {of: Path(folder) / of for of in ("json", "md")}
        options = [word for of, file in files.items() for word in ("-f", f"{of}={file}")]
        done = CliRunner().invoke(command_line(words[0]), [*words, *options])
        assert done.exit_code == 0, f"{command}: {done.output}"
        return json.loads(files["json"].read_text()), files["md"].read_text()


if __name__ == "__main__":
    FILE.write_text(renewed(FILE.read_text()))
