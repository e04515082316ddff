"""The commit of the working directory, asked of git so that nothing that the folder configures is run."""

from __future__ import annotations

import os
import re
import subprocess

DESCRIBE = ("describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+dirty")
SECONDS = 5.0  # for one call of git
_OFF = ("core.fsmonitor=false", f"core.hooksPath={os.devnull}", "diff.ignoreSubmodules=all")
# no transport, which a partial clone would start for what it lacks; nothing is written
_VARIABLES = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}


def commit() -> str | None:
    """Return the commit of the working directory, with "+dirty" where tracked files differ; None without one."""
    configured = _git("config", "--name-only", "--get-regexp", r"^filter\..").stdout
    filters = dict.fromkeys(re.findall(r"(?m)^(filter\..*)\.[^.\n]+$", configured))
    off = [*_OFF, *(f"{name}.{key}=" for name in filters for key in ("clean", "smudge", "process"))]
    off += [f"{name}.required=false" for name in filters]
    return _git(*(word for setting in off for word in ("-c", setting)), *DESCRIBE).stdout.strip() or None


def why_no_commit() -> str:
    """Return why a checkout tells no commit, and what to do; "" where there is no checkout, or it tells one."""
    said = _git("rev-parse", "HEAD").stderr
    found = re.search(r"dubious ownership in repository at '(.*)'", said)
    if not found:
        return ""
    return (
        f"the commit is not recorded: git does not trust {found[1]}, which another user owns; "
        f"git config --global --add safe.directory {found[1]}"
    )


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    """Return what git said; nothing where it is not there, takes too long, or the working directory is gone."""
    try:
        return subprocess.run(
            ["git", *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            env={**os.environ, **_VARIABLES},
        )
    except (OSError, subprocess.TimeoutExpired):
        return subprocess.CompletedProcess(words, 1, "", "")
