"""The examples of the README, the docs and the commands' docstrings: each `attnbench ...` that a person may copy."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = sorted((ROOT / "attnbench" / "commands").glob("*.py"))
_STEP = re.compile(r"^(?:- )?(?:time )?(attnbench .*)")  # a call in a job in YAML, or in a line of a shell


@dataclass(frozen=True)
class Example:
    """One call of attnbench in a document."""

    file: str
    line: int
    text: str  # the call with its comment
    arguments: tuple[str, ...]

    @property
    def id(self) -> str:
        return f"{self.file}:{self.line}: {shlex.join(('attnbench', *self.arguments))}"


def examples() -> list[Example]:
    """Return the examples of all documents and docstrings: each line in a block of code."""
    found = []
    for path in (*TEXTS, *COMMANDS):
        for number, line in _code(path):
            found += [Example(path.relative_to(ROOT).as_posix(), number, line, arguments) for arguments in _calls(line)]
    return found


@cache
def quoted() -> set[tuple[str, ...]]:
    """Return the arguments of the examples whose output documents quote: cog runs them (docs/site/answers.py)."""
    call = re.compile(r"^answers\.\w+\('([^']*)'", re.MULTILINE)
    calls = (found for path in TEXTS for found in call.findall(path.read_text()))
    return {tuple(shlex.split(call)) for call in calls}


def mentions() -> list[Example]:
    """Return the calls of attnbench in running text, `attnbench gate A B`, whose words may be placeholders."""
    found = []
    for path in TEXTS:
        text = path.read_text()
        for match in re.finditer(r"`((?:time )?attnbench [a-z][^`]*)`", text):
            line = text.count("\n", 0, match.start()) + 1
            calls = _calls(" ".join(match[1].split()))
            found += [Example(path.relative_to(ROOT).as_posix(), line, match[1], arguments) for arguments in calls]
    return found


def _code(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line of code: indented or fenced in a document, indented in a docstring."""
    if path.suffix == ".md":
        fenced = False
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if line.startswith("```"):
                fenced = not fenced
            elif fenced or line.startswith("    "):
                yield number, line.strip()
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node, clean=False)):
            first = node.body[0].lineno
            for number, line in enumerate(text.splitlines()):
                if number and line.startswith("    attnbench "):
                    yield first + number, line.strip()


def _calls(line: str) -> Iterator[tuple[str, ...]]:
    """Yield the arguments of each call of attnbench in a line of a shell, without its comment and redirection."""
    if "attnbench " not in line:
        return  # another program's call, or the output of a command, in which quotation marks may be open
    words: list[str] = []
    for word in (*shlex.split(line, comments=True), "&&"):
        if word not in ("&&", "|", ">"):
            words.append(word)
            continue
        if match := _STEP.match(shlex.join(words)):
            yield tuple(shlex.split(match[1])[1:])
        if word == ">":
            return
        words = []
