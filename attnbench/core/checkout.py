"""Questions to git about the working directory, answered without hooks, filters or programs of the folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from attnbench.core.files import working_folder
from attnbench.core.text import printable

SECONDS = 5.0  # the limit of one call of git
FILTERS = ("config", "--null", "--name-only", "--get-regexp", r"^filter\..")
# Without --ignore-submodules=dirty git would run another git in each submodule, with the submodule's own filters. The
# setting diff.ignoreSubmodules does not prevent this, since a folder's submodule.NAME.ignore overrides it. A submodule
# at another commit is still seen.
STATUS = ("status", "--porcelain=v2", "--branch", "--untracked-files=no", "--ignore-submodules=dirty", "-z")
DIRTY = "+dirty"  # follows a commit whose tracked files were changed
_OFF = ("core.fsmonitor=false", f"core.hooksPath={os.devnull}", "status.renames=false", "submodule.recurse=false")
# variables by which CI names the branch of a checked-out commit: a pull request's own branch first
_BRANCH_OF_CI = ("GITHUB_HEAD_REF", "GITHUB_REF_NAME", "CI_COMMIT_REF_NAME")
_EMPTY = "ATTNBENCH_EMPTY"  # name of an empty environment variable, for settings whose names contain "="
# GIT_CONFIG is another file for `git config` alone; GIT_INDEX_FILE is set by a commit whose hook started this process
_NOT_FOR_GIT = ("GIT_CONFIG", "GIT_INDEX_FILE")
# no download of objects that a partial clone lacks; nothing is written
_VARIABLES = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}


class NoAnswerError(Exception):
    """Raised where git has no answer. The message says why."""


class _Seen(NamedTuple):
    """The state of the working directory. git would have to run `filters` to know which files changed."""

    commit: str | None = None
    branch: str | None = None
    filters: tuple[str, ...] = ()


def commit_and_branch() -> tuple[str | None, str | None]:
    """Return the commit of the working directory, with "+dirty" where tracked files differ, and its branch.

    Each is None where there is none. For a commit without a branch, variables of GitHub's and GitLab's CI name it.
    """
    try:
        seen = _look()
    except NoAnswerError:
        return None, None
    return seen.commit, seen.branch


def what_is_not_known() -> str:
    """Return why a checkout's commit is unknown, and what to do; "" where it is known, or there is no checkout."""
    here = working_folder()
    folders = [Path(here), *Path(here).parents] if here else []
    if "GIT_DIR" not in os.environ and not any(os.path.lexists(folder / ".git") for folder in folders):
        return ""
    try:
        seen = _look()
    except NoAnswerError as error:
        return f"the commit is not recorded: {error}"
    if not seen.filters:
        return ""
    return (
        f"whether files differ from commit {seen.commit} is not known: they pass a filter of git "
        f"({printable(', '.join(seen.filters))}), and attnbench runs none; see git status"
    )


def git(*words: str, fine: tuple[int, ...] = (0,), seconds: float | None = None, given: str = "") -> str:
    """Return git's output; no hook or filter that a folder configures is run. Raises NoAnswerError."""
    names = dict.fromkeys(setting.rpartition(".")[0] for setting in _filters())
    off = [word for setting in _OFF for word in ("-c", setting)]
    for setting in (f"{name}.{key}" for name in names for key in ("clean", "smudge", "process", "required")):
        # -c ends a name at its first "="; git before 2.31 refuses the other way
        off += [f"--config-env={setting}={_EMPTY}"] if "=" in setting else ["-c", f"{setting}="]
    return _git(*off, *words, fine=fine, seconds=seconds, given=given)


def without_repository(variables: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables without the ones that name a repository, as git sets them for hooks and aliases.

    Programs that work in another repository need this.
    """
    try:
        names = _git("rev-parse", "--local-env-vars").split()
    except NoAnswerError:  # no git: no program reads these variables
        names = []
    return {name: value for name, value in variables.items() if name not in names}


def _filters() -> list[str]:
    """Return the names of the settings of all filters: "filter.lfs.clean". Raises NoAnswerError."""
    return [name for name in _git(*FILTERS, fine=(0, 1)).split("\0") if name]


def _look() -> _Seen:
    """Return git's view of the working directory. Raises NoAnswerError."""
    said = git(*STATUS).split("\0")
    heads = dict(line.split(" ", 2)[1:] for line in said if line.startswith("# "))
    if not re.match("[0-9a-f]{12}", commit := heads.get("branch.oid", "")[:12]):
        return _Seen()
    branch = heads.get("branch.head", "")
    if branch in ("", "(detached)"):
        branch = next(filter(None, map(os.environ.get, _BRANCH_OF_CI)), "")
    branch = os.fsencode(branch).decode(errors="replace")  # stored only, never given back to git
    # a file of which only the content may differ from the index: "1 .M N... 100644 100644 100644 HASH HASH PATH"
    contents = {line: line.split(" ", 8)[8] for line in said if re.match(r"1 \.M \S+ (\d+) \1 \1 ", line)}
    filters = _filters_of([*contents.values()])
    unknown = {filters[path] for path in contents.values() if path in filters}
    differ = [line for line in said if line and not line.startswith("# ") and contents.get(line) not in filters]
    return _Seen(f"{commit}{DIRTY if differ else ''}", branch or None, () if differ else tuple(sorted(unknown)))


def _filters_of(paths: Sequence[str]) -> dict[str, str]:
    """Return path -> filter, for files whose content git passes through a filter; paths begin at the checkout's top."""
    read_by = [name for name in _filters() if name.endswith((".clean", ".process"))] if paths else []
    if not read_by:
        return {}
    up = git("rev-parse", "--show-cdup").removesuffix("\n")
    said = git("check-attr", "-z", "--stdin", "filter", given="".join(f"{up}{path}\0" for path in paths))
    used = {setting.split(".", 1)[1].rpartition(".")[0] for setting in read_by}
    return {path: name for path, name in zip(paths, said.split("\0")[2::3], strict=False) if name in used}


def _git(*words: str, fine: tuple[int, ...] = (0,), seconds: float | None = None, given: str = "") -> str:
    """Return git's output, byte for byte; `given` is its input.

    Raises NoAnswerError where git ends with a code that is not in `fine`, cannot start, or takes too long.
    """
    seconds = SECONDS if seconds is None else seconds
    try:
        variables = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_GIT}
        variables |= {**_VARIABLES, _EMPTY: ""}
        done = subprocess.run(
            ["git", *words], input=os.fsencode(given), capture_output=True, timeout=seconds, env=variables
        )
    except subprocess.TimeoutExpired:
        raise NoAnswerError(f"git took longer than {seconds:.0f} s") from None
    except OSError as error:
        raise NoAnswerError(f"git cannot be started ({error.strerror}); is it installed and on PATH?") from None
    if done.returncode in fine:
        return os.fsdecode(done.stdout)  # keeps a name that is not UTF-8 as it is, to give it back to git
    said = done.stderr.decode(errors="replace")
    if untrusted := re.search(r"dubious ownership in repository at '(.*)'", said):
        raise NoAnswerError(
            f"git does not trust {untrusted[1]}, which another user owns; "
            f"git config --global --add safe.directory {shlex.quote(untrusted[1])}"
        )
    fatal = re.search(r"(?m)^fatal: (.*)", said)
    raise NoAnswerError(f"git says: {fatal[1]}" if fatal else f"git ended with exit code {done.returncode}")
