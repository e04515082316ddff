"""The builds of commits: each has a worktree, in which the person's command is run once."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from attnbench.core.checkout import without_repository
from attnbench.core.errors import UserError
from attnbench.core.sizes import format_duration
from attnbench.core.text import one_line, shortened
from attnbench.run.commits import Commit, add_worktree, remove_worktree
from attnbench.run.process import forget, if_killed


class NotBuiltError(UserError):
    """A commit cannot be built, or lacks the code to measure. The message says why."""


@dataclass
class Builds:
    """Builder of commits, each in a worktree of its own in a temporary folder, which `close` removes.

    Nothing of the repository is run except by the person's command and by the measurement of its result.
    """

    command: str  # the shell command in the worktree; "" without a build
    seconds: float  # its time limit
    code: str  # "FILE.py:function" in the worktree, or ""
    python: str  # an interpreter in the worktree, or ""
    logs: Path  # the folder for the command's output
    say: Callable[[str], None]
    _root: Path | None = None
    _left: subprocess.Popen[bytes] | None = None
    _made: dict[Commit, str | NotBuiltError] = field(default_factory=dict)

    def build(self, commit: Commit) -> str:
        """Return the build of a commit for `ab`: code, or the path of an interpreter. Raises NotBuiltError."""
        if commit not in self._made:
            try:
                self._made[commit] = self._build(commit)
            except NotBuiltError as error:
                self._made[commit] = error
        made = self._made[commit]
        if isinstance(made, NotBuiltError):
            raise made
        return made

    def close(self) -> None:
        """Remove all worktrees."""
        for folder in self._root.iterdir() if self._root else ():
            with contextlib.suppress(UserError):
                remove_worktree(folder)
        if self._root:
            shutil.rmtree(self._root, ignore_errors=True)
        forget(self._left)

    def _build(self, commit: Commit) -> str:
        if self._root is None:
            self._root = Path(os.path.realpath(tempfile.mkdtemp(prefix="attnbench-bisect-")))
            self._left = if_killed("rm", "-rf", "--", str(self._root))  # git drops worktrees without a folder
        folder = self._root / commit.short
        self.say(f"building {commit.title}")
        add_worktree(folder, commit)
        if self.command:
            self._run(commit, folder)
        file = self.python or self.code.rpartition(":")[0]
        there = folder / file
        if not (os.access(there, os.X_OK) if self.python else there.is_file()):
            raise NotBuiltError(f"it has no {file}" + (" after the build" if self.command else ""))
        return str(there) + self.code[len(file) :] if self.code else str(there)

    def _run(self, commit: Commit, folder: Path) -> None:
        """Run the person's command in a worktree, and end all processes that it started. Raises NotBuiltError."""
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"build-{commit.short}.log"
        with (
            log.open("wb") as out,
            subprocess.Popen(
                self.command,
                shell=True,
                cwd=folder,
                env=without_repository(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as process,
        ):
            try:
                code = process.wait(self.seconds)
            except subprocess.TimeoutExpired:
                longest = format_duration(self.seconds)
                raise NotBuiltError(f"the build took longer than {longest} (--build-limit); {log}") from None
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
        if code:
            lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
            last = shortened(one_line(next((line for line in reversed(lines) if line.strip()), "it printed nothing")))
            raise NotBuiltError(f"the build ended with exit code {code} ({last}); {log}")
