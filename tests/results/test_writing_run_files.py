"""Writing run files: each record at once, never over another file, on full and unusual disks."""

from __future__ import annotations

import errno
import io
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stored_run import CASES, RECORDS, RUN, gzipped

from attnbench.core.errors import Interrupted, UserError
from attnbench.core.record import Search
from attnbench.results import run_file
from attnbench.run.session import check_output_path
from builders import case, ok


def test_each_record_is_on_disk_when_append_returns(tmp_path: Path) -> None:
    file = run_file.RunFile.create(tmp_path / "run.jsonl", RUN)
    for n, record in enumerate(RECORDS, start=1):
        file.append(record)
        assert run_file.read(file.path)[0].records == RECORDS[:n]
    file.close()


def test_reopening_cuts_the_truncated_line_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])
    file = run_file.RunFile.reopen(path)
    file.append(RECORDS[2])
    file.close()
    assert run_file.read(path) == (RUN, [])


def test_a_run_file_has_one_writer_at_a_time(path: Path) -> None:
    first = run_file.RunFile.reopen(path)
    with pytest.raises(UserError, match="being written by another"):
        run_file.RunFile.reopen(path)
    first.close()
    run_file.RunFile.reopen(path).close()


def test_a_gzipped_file_is_not_appended_to(path: Path) -> None:
    packed = gzipped(path)
    before = packed.read_bytes()
    with pytest.raises(UserError, match=r"run.jsonl.gz is gzipped, and a run is written plain; gunzip .*run.jsonl.gz"):
        run_file.RunFile.reopen(packed)
    assert packed.read_bytes() == before


def test_what_is_there_is_not_overwritten(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"is there already.*--resume"):
        run_file.RunFile.create(path, RUN)
    assert path.read_bytes() == before
    path.write_text("name: mine")
    with pytest.raises(UserError, match=r"choose another --out$"):  # it is no run file, so it cannot be resumed
        run_file.RunFile.create(path, RUN)


@pytest.mark.parametrize("name", ["pipe", "link", "/dev/null"])
def test_a_pipe_or_a_device_is_refused_unread(tmp_path: Path, name: str) -> None:
    """A pipe or a device is refused without reading it, because reading would not end."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    out = tmp_path / name
    for refuse in (check_output_path, lambda path: run_file.RunFile.create(path, RUN)):
        with pytest.raises(UserError, match=r"is not a plain file, and a run is written to one; choose another --out$"):
            refuse(out)
    assert not run_file.begins_as_one(out)


def test_places_that_cannot_be_written_or_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for bad in (tmp_path / "file" / "run.jsonl", tmp_path / ("x" * 300)):
        with pytest.raises(UserError, match=r"cannot write .*--out"):
            run_file.RunFile.create(bad, RUN)
    for bad, said in ((tmp_path, "is a folder; give its run files"), (tmp_path / "missing.jsonl", "cannot read")):
        with pytest.raises(UserError, match=said):
            run_file.read(bad)
        with pytest.raises(UserError, match="cannot append to"):
            run_file.RunFile.reopen(bad)


def test_a_disk_that_is_full_from_the_start_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full from the start leaves no file, which could not be resumed and would block the next run."""
    path = tmp_path / "run.jsonl"
    real = os.open

    def limited(*of: Any, **more: Any) -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        return real(*of, **more)

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(os, "open", limited)
    was = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(UserError, match=r"File too large; choose another place with --out$"):
            run_file.RunFile.create(path, RUN)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, was)
    assert not [*tmp_path.iterdir()]


def test_a_signal_during_creation_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise Interrupted(15)

    for place in ((os, "link"), (run_file, "_lock")):
        monkeypatch.setattr(*place, stopped)
        with pytest.raises(Interrupted):
            run_file.RunFile.create(tmp_path / "run.jsonl", RUN)
        assert not [*tmp_path.iterdir()]
        monkeypatch.undo()


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refused)
    path = tmp_path / "run.jsonl"
    run_file.RunFile.create(path, RUN).close()
    assert [*tmp_path.iterdir()] == [path]
    with pytest.raises(UserError, match="is there already"):
        run_file.RunFile.create(path, RUN)


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (lambda path: path.unlink(), "deleted or moved"),
        (lambda path: path.rename(path.with_name("elsewhere.jsonl")), "deleted or moved"),
        (lambda path: path.parent.rename(path.parent.with_name(f"old {path.parent.name}")), "deleted or moved"),
        (lambda path: shutil.copy(path, f"{path}.new") and os.replace(f"{path}.new", path), "replaced"),
        (lambda path: os.truncate(path, 0), "changed"),
    ],
    ids=["deleted", "moved", "folder moved", "replaced", "rotated"],
)
def test_a_file_that_is_taken_away_ends_the_run_and_a_copy_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, happens: Callable[[Path], None], said: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for late in (False, True):
        path = tmp_path / ("late" if late else "early") / f"{'n' * 240}.jsonl"  # a copy's name must not be longer
        file = run_file.RunFile.create(path, RUN)
        file.append(RECORDS[0])
        happens(path)
        with pytest.raises(UserError, match=f"another program {said} {path} during") as error:
            file.close() if late else file.append(RECORDS[1])
        file.close()
        copy = Path(str(error.value).removesuffix(" --trust").rpartition(" ")[2])
        assert run_file.read(copy)[0].records == RECORDS[:1]


def test_a_file_that_was_overwritten_is_told_at_the_end(path: Path) -> None:
    file = run_file.RunFile.reopen(path)
    file.append(RECORDS[0])
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(UserError, match=f"another program changed {path} during") as error:
        file.close()
    copy = Path(str(error.value).removesuffix(" --trust").rpartition(" ")[2])
    assert run_file.read(copy)[0].records == (*RECORDS[1:], RECORDS[0])


class FullDisk(io.FileIO):
    """A file on a disk with few bytes left: a short write, as by the kernel, then ENOSPC."""

    left = 0
    code = errno.ENOSPC

    def write(self, data: bytes) -> int:
        if not self.left:
            raise OSError(self.code, "No space left on device")
        written = super().write(bytes(data)[: self.left])
        self.left -= written
        return written


@pytest.mark.parametrize("left", [0, 1, 100])
def test_a_full_disk_is_said_and_whole_lines_are_kept(path: Path, left: int) -> None:
    disk = FullDisk(path, "r+b")
    disk.seek(0, io.SEEK_END)
    disk.left = left
    before = path.read_bytes()
    file = run_file.RunFile(path, disk)
    with pytest.raises(UserError) as error:
        file.append(ok(CASES[3], "triton", 1.0))
    file.close()
    assert "disk is full" in str(error.value)
    assert f"attnbench run --resume {path}" in str(error.value)
    assert path.read_bytes() == before
    assert run_file.read(path) == (RUN, [])


@pytest.mark.parametrize(
    ("changes", "command"),
    [
        ({}, "attnbench run --resume {} --trust"),
        ({"search": Search("seqlen", 1.0)}, "attnbench capacity --resume {} --trust"),
        ({"turns": "ab"}, "start attnbench ab anew"),
    ],
)
def test_a_full_disk_names_the_command_that_goes_on(path: Path, changes: dict[str, Any], command: str) -> None:
    path.write_bytes(run_file.encoded(replace(RUN, records=(), specs={"mine": "/home/mine.py:f"}, **changes)))
    with pytest.raises(UserError) as error, closing(run_file.RunFile(path, FullDisk(path, "a+b"))) as file:
        file.append(RECORDS[0])
    assert str(error.value).endswith("make room, then " + command.format(path))


def test_room_is_asked_for_only_where_it_lacks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FullDisk, "code", errno.EPERM)  # as after chattr +i
    path.write_bytes(run_file.encoded(replace(RUN, records=())))
    with pytest.raises(UserError) as error, closing(run_file.RunFile(path, FullDisk(path, "a+b"))) as file:
        file.append(RECORDS[0])
    assert f"put that right, then attnbench run --resume {path}" in str(error.value)


def test_what_no_reader_takes_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.jsonl"
    with pytest.raises(UserError, match=r"softcap: 1e\+31 is outside the possible range"):
        run_file.RunFile.create(path, replace(RUN, plan=(replace(RUN.plan[0], case=case(softcap=1e31)),)))
    monkeypatch.setattr(run_file, "MOST_OF_LINE", 200)
    with pytest.raises(UserError, match=r"the plan of .* jobs? takes .*; measure fewer cases or rounds at a time"):
        run_file.RunFile.create(path, RUN)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("returned", [0, None])
def test_a_file_that_takes_no_bytes_is_given_up(path: Path, returned: int | None) -> None:
    class Full(io.FileIO):
        def write(self, data: bytes) -> Any:
            return returned

    before = path.read_bytes()
    said = f"cannot write {path}: the file takes no more bytes"
    with pytest.raises(UserError, match=said), closing(run_file.RunFile(path, Full(path, "a+b"))) as file:
        file.append(RECORDS[0])
    assert path.read_bytes() == before


def test_short_writes_are_continued(tmp_path: Path) -> None:
    class Slow(io.FileIO):
        def write(self, data: bytes) -> int:
            return super().write(bytes(data)[:50])

    path = tmp_path / "run.jsonl"
    run_file.RunFile.create(path, RUN).close()
    file = run_file.RunFile(path, Slow(path, "a+b"))
    file.append(RECORDS[0])
    file.close()
    assert run_file.read(path)[0].records == RECORDS[:1]
