"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from attnbench.core.files import write_whole


def test_what_was_there_stays_until_the_new_content_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    write_whole(path, b"old")

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [path]


def test_permissions_and_links_are_kept(tmp_path: Path) -> None:
    path, link = tmp_path / "folder" / "page.html", tmp_path / "link.html"
    mask = os.umask(0o027)
    try:
        write_whole(path, b"1")
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o604)
    link.symlink_to(path)
    write_whole(link, b"2")
    assert link.is_symlink()
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"2", 0o604)


def test_a_file_system_without_permissions_takes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", refused)
    write_whole(tmp_path / "page.html", b"1")
    assert (tmp_path / "page.html").read_bytes() == b"1"


def test_a_link_that_another_person_planted_under_a_guessed_name_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"theirs")
    for name in ("page.new", "page.html.new", "page.html.tmp", ".page.html.new"):
        (tmp_path / name).symlink_to(victim)
    write_whole(tmp_path / "page.html", b"ours")
    assert victim.read_bytes() == b"theirs"


def test_a_pipe_is_written_to_as_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, b"content")
    reader.join(10)
    assert got == [b"content"]


@pytest.mark.parametrize("through", ["/dev/fd/{}", "/proc/self/fd/{}", "/proc/{pid}/fd/{}", "{folder}/link"])
@pytest.mark.parametrize("mode", ["ab", "wb"])
def test_what_is_open_is_written_on(tmp_path: Path, through: str, mode: str) -> None:
    """Output is appended to an open file, as between other outputs of a shell to one file."""
    path = tmp_path / "log"
    path.write_bytes(b"old,")
    with open(path, mode, buffering=0) as log:
        (tmp_path / "link").symlink_to(f"/dev/fd/{log.fileno()}")
        log.write(b"table,")
        write_whole(Path(through.format(log.fileno(), pid=os.getpid(), folder=tmp_path)), b"page,")
        log.write(b"end")
    assert path.read_bytes() == (b"old," if mode == "ab" else b"") + b"table,page,end"
