"""Questions to git about the working directory, asked so that nothing that the folder configures is run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

from attnbench.core.files import working_folder

SECONDS = 5.0  # for one call of git
FILTERS = ("config", "--null", "--name-only", "--get-regexp", r"^filter\..")
# Submodules are left out here and not by diff.ignoreSubmodules, which a folder's submodule.NAME.ignore beats: git would
# run another git in them, with their own filters.
STATUS = ("status", "--porcelain=v2", "--branch", "--untracked-files=no", "--ignore-submodules=all")
_OFF = ("core.fsmonitor=false", f"core.hooksPath={os.devnull}", "status.renames=false", "submodule.recurse=false")
# what CI says of the branch where it has checked out a commit: a pull request's own branch first
_BRANCH_OF_CI = ("GITHUB_HEAD_REF", "GITHUB_REF_NAME", "CI_COMMIT_REF_NAME")
_EMPTY = "ATTNBENCH_EMPTY"  # a variable that holds nothing, for settings whose names hold a "="
# no transport, which a partial clone would start for what it lacks; nothing is written
_VARIABLES = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}


class NoAnswerError(Exception):
    """Raised where git has no answer. The message says why."""


def commit_and_branch() -> tuple[str | None, str | None]:
    """Return the commit of the working directory, with "+dirty" where tracked files differ, and its branch.

    Each is None where there is none. On a commit without a branch the variables of GitHub's and GitLab's CI tell it.
    """
    try:
        return _look()
    except NoAnswerError:
        return None, None


def why_no_commit() -> str:
    """Return why a checkout tells no commit, and what to do; "" where there is no checkout, or it tells one."""
    here = working_folder()
    folders = [Path(here), *Path(here).parents] if here else []
    if "GIT_DIR" not in os.environ and not any(os.path.lexists(folder / ".git") for folder in folders):
        return ""
    try:
        _look()
    except NoAnswerError as error:
        return f"the commit is not recorded: {error}"
    return ""


def git(*words: str, fine: tuple[int, ...] = (0,), seconds: float | None = None) -> str:
    """Return what git printed, without a hook or a filter that a folder configures. Raises NoAnswerError."""
    names = dict.fromkeys(name.rpartition(".")[0] for name in _git(*FILTERS, fine=(0, 1)).split("\0") if name)
    off = [word for setting in _OFF for word in ("-c", setting)]
    for setting in (f"{name}.{key}" for name in names for key in ("clean", "smudge", "process", "required")):
        # -c ends a name at its first "="; the other way is not known to git before 2.31, which then refuses
        off += [f"--config-env={setting}={_EMPTY}"] if "=" in setting else ["-c", f"{setting}="]
    return _git(*off, *words, fine=fine, seconds=seconds)


def _look() -> tuple[str | None, str | None]:
    """Return what `commit_and_branch` does. Raises NoAnswerError."""
    said = git(*STATUS)
    found = re.search(r"(?m)^# branch\.oid ([0-9a-f]{12})", said)
    changed = re.search(r"(?m)^[^#]", said)
    if not found:
        return None, None
    head = re.search(r"(?m)^# branch\.head (?!\(detached\)$)(.+)", said)
    branch = head[1] if head else next(filter(None, map(os.environ.get, _BRANCH_OF_CI)), None)
    return f"{found[1]}{'+dirty' if changed else ''}", branch


def _git(*words: str, fine: tuple[int, ...] = (0,), seconds: float | None = None) -> str:
    """Return what git printed, byte for byte. Raises NoAnswerError where it ends otherwise than with a `fine` code."""
    seconds = SECONDS if seconds is None else seconds
    try:
        variables = {**os.environ, **_VARIABLES, _EMPTY: ""}
        variables.pop("GIT_CONFIG", None)  # another file for `git config` alone
        done = subprocess.run(["git", *words], capture_output=True, timeout=seconds, env=variables)
    except subprocess.TimeoutExpired:
        raise NoAnswerError(f"git took longer than {seconds:.0f} s") from None
    except OSError as error:
        raise NoAnswerError(f"git cannot be started ({error.strerror}); is it installed and on PATH?") from None
    if done.returncode in fine:
        return os.fsdecode(done.stdout)  # a name that is not UTF-8 goes back to git as it came
    said = done.stderr.decode(errors="replace")
    if untrusted := re.search(r"dubious ownership in repository at '(.*)'", said):
        raise NoAnswerError(
            f"git does not trust {untrusted[1]}, which another user owns; "
            f"git config --global --add safe.directory {shlex.quote(untrusted[1])}"
        )
    fatal = re.search(r"(?m)^fatal: (.*)", said)
    raise NoAnswerError(f"git says: {fatal[1]}" if fatal else f"git ended with exit code {done.returncode}")
