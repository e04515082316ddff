"""The commits of a range GOOD..BAD, from git, without running a program that the repository configures."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from attnbench.core import checkout
from attnbench.core.errors import UserError
from attnbench.core.text import one_line

SECONDS = 600.0  # the limit of one call of git, which may write all files of a repository
_FORMAT = "--format=%H%x00%P%x00%aI%x00%s"


@dataclass(frozen=True)
class Commit:
    """One commit: its id in 40 digits, its author's date (ISO 8601), and the first line of its message."""

    id: str
    date: str
    subject: str

    @property
    def short(self) -> str:
        """The short id, with enough digits to be unique."""
        return self.id[:12]

    @property
    def title(self) -> str:
        """The commit in a sentence: 1a2b3c4d5e6f "Tune the blocks" of 2026-11-27."""
        return f'{self.short} "{self.subject}" of {self.date[:10]}'


def commits(text: str) -> list[Commit]:
    """Return the commits of "GOOD..BAD": GOOD, then all up to BAD along first parents; "GOOD.." ends at HEAD.

    Raises UserError where the working directory is no checkout, and where GOOD does not lead to BAD.
    """
    good, dots, bad = text.partition("..")
    if not (good and dots) or bad.startswith(".") or ".." in bad:
        raise UserError(f"{text!r} is not a range of commits; write GOOD..BAD, as in v1.2..main")
    first, last = (_id(name) for name in (good, bad or "HEAD"))
    found = _listed("--first-parent", f"{first}..{last}")
    if not found:
        raise UserError(f"{text} has no commits; GOOD is the older one, BAD the newer, as in v1.2..main")
    [(start, _)] = _listed("--no-walk", first)
    oldest = found[-1][1]
    if first not in oldest[:1]:
        line = f"; {oldest[0][:12]} is one of them, before the first commit of the range" if oldest else ""
        where = f"{good} is not among the first parents of {bad or 'HEAD'}, along which bisect goes{line}"
        raise UserError(where + _cut_off())
    return [start, *(commit for commit, _ in reversed(found))]


def add_worktree(folder: Path, commit: Commit) -> None:
    """Write the files of a commit to a new folder, as a worktree of this repository. Raises UserError."""
    _git("worktree", "add", "--quiet", "--detach", str(folder), commit.id)


def remove_worktree(folder: Path) -> None:
    """Remove a worktree and the build in it. Raises UserError."""
    _git("worktree", "remove", "--force", str(folder))


def _git(*words: str, fine: tuple[int, ...] = (0,)) -> str:
    try:
        return checkout.git(*words, fine=fine, seconds=SECONDS)
    except checkout.NoAnswerError as error:
        raise UserError(f"{error}; bisect is run in a checkout of the repository") from None


def _id(name: str) -> str:
    """Return the id of the commit that a name stands for."""
    said = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}", fine=(0, 1)).strip()
    if not re.fullmatch("[0-9a-f]{40,64}", said):
        raise UserError(f"no commit is called {name!r} in this repository{_cut_off()}")
    return said


def _cut_off() -> str:
    """Return the remedy for a repository without its whole history, as in most jobs of CI; else ""."""
    shallow = _git("rev-parse", "--is-shallow-repository").strip() == "true"
    return "; its history is cut off here (a shallow clone): git fetch --unshallow --tags" if shallow else ""


def _listed(*words: str) -> list[tuple[Commit, list[str]]]:
    """Return commits as `git rev-list` lists them, each with the ids of its parents."""
    lines = _git("rev-list", "--encoding=UTF-8", _FORMAT, *words, "--").split("\n")
    fields = [line.split("\0", 3) for line in lines if "\0" in line]
    return [(Commit(id, date, one_line(subject)), parents.split()) for id, parents, date, subject in fields]
