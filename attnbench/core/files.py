"""Files that are written whole or not at all, and streams that no longer take output."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from attnbench.core.errors import UserError

_LONGEST_NAME = 255  # bytes of the name of a file or folder
_MOST_BYTES = 2**24  # of a file that is read whole
_MOST_LINKS = 40  # the longest chain of links, as in Linux
_DESCRIPTORS = re.compile(r"/proc/\d+(/task/\d+)?/fd")
RUN_FILES = (".jsonl", ".jsonl.gz")  # endings of the names of run files
GONE = "the working directory is gone; change to another one"


def this_python() -> str:
    """Return the path of the running Python, to start child processes. Raises UserError where it is not known."""
    if not sys.executable:
        raise UserError("sys.executable names no program; set it to a Python that has attnbench")
    return sys.executable


def write_whole(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file so that a reader sees the old content or the new. Its folder is made where there is none.

    A symbolic link stays a link. Pipes and devices are written to as they are, and so are the open files that
    /dev/stdout and /dev/fd/N name. Raises OSError.
    """
    pieces = [content] if isinstance(content, bytes) else content
    if opened := _opened(path):
        with opened as file:
            file.writelines(pieces)
        return
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        os.stat(target.parent)  # raises OSError with the cause: links in a circle
        raise
    if target.exists() and not (target.is_file() and os.access(target.parent, os.W_OK)):
        with target.open("wb") as file:
            file.writelines(pieces)
        return
    handle, fresh = tempfile.mkstemp(prefix=".attnbench-", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(pieces)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
        with contextlib.suppress(OSError):  # a file system without permissions: FAT, shares of Windows and Azure
            os.chmod(fresh, mode)
        os.replace(fresh, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise


def write_file(path: Path, content: bytes | str | Iterable[str]) -> Path:
    """Write a file as `write_whole` does, text in UTF-8, and return its path. Raises UserError where that fails."""
    pieces = [content] if isinstance(content, str) else content
    try:
        write_whole(path, pieces if isinstance(pieces, bytes) else (text.encode("utf-8", "replace") for text in pieces))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    return path


def read_plain(path: Path) -> bytes:
    """Return the content of a file. Raises OSError, also for a pipe, a device and a huge file."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
        raise OSError(errno.EFBIG, "it is no plain file, or a huge one")
    return path.read_bytes()


def working_folder() -> str:
    """Return the path of the working directory; "" where it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def is_text(text: str) -> bool:
    """Return whether a text has no null character and no half of a surrogate pair."""
    with contextlib.suppress(UnicodeEncodeError):
        return b"\0" not in os.fsencode(text)
    return False


def can_name_a_file(text: str) -> bool:
    """Return whether a text can name a file: it is text (`is_text`), and no part of it is too long for a name."""
    return is_text(text) and all(len(part) <= _LONGEST_NAME for part in os.fsencode(text).split(os.sep.encode()))


def below_home(*parts: str) -> Path | None:
    """Return a path below the user's home folder; None for a user without one, as containers have."""
    try:
        return Path.home().joinpath(*parts)
    except RuntimeError:
        return None


def drop_rest(stream: IO[Any]) -> None:
    """Discard the buffer of a stream and all later output, which would fail again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _opened(path: Path) -> IO[bytes] | None:
    """Return the open file that a path such as /dev/stdout, /dev/fd/N or /proc/PID/fd/N names; None for other paths.

    Output is appended. A descriptor of this process is used as it is: its file, opened again, would be written from the
    beginning.
    """
    at = os.path.abspath(path)
    for _ in range(_MOST_LINKS):
        folder, name = os.path.realpath(os.path.dirname(at)), os.path.basename(at)
        if folder in ("/dev/fd", os.path.realpath("/proc/self/fd")) and name.isdecimal():
            os.set_blocking(int(name), True)
            return open(int(name), "wb", closefd=False)
        if _DESCRIPTORS.fullmatch(folder):
            return open(at, "ab")
        if not os.path.islink(at):
            return None
        at = os.path.join(folder, os.readlink(at))
    return None


def _umask() -> int:
    """Return the permissions that new files must not have; the system's umask can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
