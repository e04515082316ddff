"""The options that say in which formats and where a command writes its document, the same for all commands."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.commands.options import files
from attnbench.commands.shared import put, tell
from attnbench.core.errors import EXIT_CANNOT_WRITE, EXIT_DONE, UserError, one_of
from attnbench.core.files import RUN_FILES
from attnbench.core.text import no_command

if TYPE_CHECKING:
    from attnbench.render.document import Document

FORMATS = ("table", "md", "html", "json", "csv")
CHOICES = ("choice", "module")  # what programs load (analysis/choose), of tune and recommend
MADE = b'"""Attention by measured choice:'  # how a module begins, which the next one may overwrite
PROGRAMS = (b"\x7fELF", b"#!")  # the first bytes of an interpreter or another program
Wanted = Sequence[tuple[str, "Path | None"]]  # (format, its file; None for standard output)
Writers = Mapping[str, "Callable[[], str | bytes]"]  # format that only this command has -> function that makes its text


def formats(help: str) -> Any:
    """Return the field of --format."""
    return files("FORMAT[=FILE]", help, None, "--format", "-f")


@dataclass(frozen=True, kw_only=True)
class Output:
    """The options that say in which formats and where a command writes its document."""

    format: list[str] | None = formats(
        "table (default), md, html, json, csv. Several may be given, all but one to a file: -f md=report.md."
    )
    html: Path | None = files("FILE", "Short for -f html=FILE: a page of its own.")
    json: bool = files.flag("Short for -f json: everything, for programs, on stdout.")

    def wanted(self, known: Sequence[str] = FORMATS) -> list[tuple[str, Path | None]]:
        """Return the outputs to write: (format, file, or None for standard output), one of them to standard output.

        Where only files were asked for, the table is printed too. Raises UserError for an unknown format, for a file
        that cannot be written, and for two formats that would both be printed. These errors come before anything is
        measured.
        """
        found: list[tuple[str, Path | None]] = []
        short = [*(["json"] if self.json else []), *([f"html={self.html}"] if self.html else [])]
        for text in [*(self.format or ()), *short]:
            name, _, file = text.partition("=")
            if "," in name:
                each = " ".join(f"-f {one.strip()}" for one in name.split(","))
                raise UserError(f"--format: {name} are several; give {each}, all but one with a file: -f FORMAT=FILE")
            one_of("--format", name, known)
            if not file and (name, None) in found:  # both --json and -f json are given
                continue
            found.append((name, Path(file) if file else None))
            if file:
                check_file(f"--format {name}={file}", Path(file), [path for _, path in found[:-1]])
        if all(file for _, file in found):
            found.insert(0, ("table", None))
        printed = {name for name, file in found if not file}
        if len(printed) > 1:
            names = " and ".join(sorted(printed))
            last = found[-1][0] if not found[-1][1] else max(printed)
            raise UserError(f"--format: {names} cannot both be printed; write one to a file: -f {last}=FILE")
        return found


def check_file(option: str, file: Path, others: Sequence[Path | None] = ()) -> None:
    """Raise UserError where an output cannot be written, or would overwrite one of the `others`, or an input.

    An input is recognised by its content: a document never overwrites a file that attnbench reads or runs (run files,
    code, YAML, interpreters). Its name is no run file's, because this command may write a run file of that name.
    `option` is how the file was given: "--svg x.svg".
    """
    target = os.path.realpath(file)
    if target in [os.path.realpath(other) for other in others if other] and not file.is_char_device():
        raise UserError(f"{option.partition(' ')[0]}: {file} is given twice; one would overwrite the other")
    if file.is_file() and (kind := _input_kind(file)):
        raise UserError(f"{option}: that is {kind}, which would be overwritten; choose another name")
    if file.name.endswith(RUN_FILES) or target.endswith(RUN_FILES):
        raise UserError(f"{option}: that is the name of a run file; choose another")
    there = file if file.exists() else next(folder for folder in file.absolute().parents if folder.exists())
    if why := _refusal(file, there):
        raise UserError(f"{option}: cannot be written: {why}; choose another place")


def _refusal(file: Path, there: Path) -> str:
    """Return why a file cannot be written; "" where it can. `there` is the file, or its nearest folder that exists."""
    if file.is_dir():
        return "it is a folder"
    if there != file and not there.is_dir():
        return f"{there} is not a folder"
    if os.access(there, os.W_OK):
        return ""
    is_read_only = os.statvfs(there).f_flag & os.ST_RDONLY
    return f"{'a read-only file system' if is_read_only else 'no permission to write'} at {there}"


def _input_kind(file: Path) -> str:
    """Return the kind of a file that attnbench reads or runs: "a run file"; "" for any other file."""
    from attnbench.results import run_file

    target = Path(os.path.realpath(file))  # writing follows a link
    if file.name.endswith(RUN_FILES) or target.name.endswith(RUN_FILES) or run_file.begins_as_one(file):
        return "a run file"
    with contextlib.suppress(OSError), file.open("rb") as opened:
        content = opened.read(len(MADE))
        if content == MADE:
            return ""
        if content.startswith(PROGRAMS):
            return "a program"
    kinds = {".py": "Python code", ".yaml": "YAML", ".yml": "YAML"}
    return kinds.get(file.suffix) or kinds.get(target.suffix, "")


def write(document: Document, wanted: Wanted, writers: Writers | None = None) -> int:
    """Write a document to where `Output.wanted` says, files first; `writers` make formats of the command's own.

    Returns the exit code of the command: the document's; where that is 0 and an output could not be written, the code
    of that error, which stderr names.
    """
    failed = []
    for name, file in sorted(wanted, key=lambda output: output[1] is None):
        try:
            _write(document, name, file, writers or {})
            sys.stdout.flush()
        except BrokenPipeError:  # the reader of standard output has seen enough
            raise
        except (UserError, OSError) as error:
            failed.append(error if isinstance(error, UserError) else f"cannot write: {error.strerror}")
        else:
            if file and not file.is_char_device():
                tell(f"{name}: {file}")
    for what in failed:
        tell(f"attnbench: {what}")
    return document.exit_code or (EXIT_CANNOT_WRITE if failed else EXIT_DONE)


def _write(document: Document, name: str, file: Path | None, writers: Writers) -> None:
    if name == "table" and not file:
        from attnbench.render import terminal
        from attnbench.render.console import Console

        terminal.render(Console(highlight=False), document)
        return
    if file and file.is_file() and (kind := _input_kind(file)):  # it may have become one since the first check
        raise UserError(f"{file} is {kind}, which would be overwritten; it was not written")
    text = writers[name]() if name in writers else _text(document, name)
    if not file and name != "github" and not isinstance(text, bytes):
        text = map(no_command, [text] if isinstance(text, str) else text)
    put(text, file)


def _text(document: Document, name: str) -> str | Iterator[str]:
    """Return a document in a format, or the pieces of a long one; only that format's renderer is imported."""
    if name == "html":
        from attnbench.render.html import html_page

        return html_page.render(document)
    if name == "md":
        from attnbench.render import markdown

        return markdown.render(document)
    if name == "table":
        from attnbench.render import terminal

        return terminal.text(document)
    from attnbench.render import json_and_csv

    return json_and_csv.csv_pieces(document) if name == "csv" else json_and_csv.json_pieces(document)
