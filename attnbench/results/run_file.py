"""Run files: results/*.jsonl, one line for the run, then one line a record, flushed as it is made.

So an interrupted run is a shorter run. A truncated last line, as a crash leaves it, is dropped; a damaged line
elsewhere is reported with its number and the rest is read.

Schema 1 (attnbench 0.1): {"type": "run", "schema": 1, ...types.Run without records}, {"type": "record", ...}.
Schema 2: a measurement may have "runs", [value, times] each, in place of "values". A file of schema 1 is read as it
stands and stays one when it is resumed, so that what wrote it can read it still.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from attnbench.core.errors import UserError
from attnbench.core.json import from_json, to_json
from attnbench.core.record import Job, Record, Run
from attnbench.results import columns, decode
from attnbench.results.columns import Columns
from attnbench.results.lines import Lines

SCHEMA = 2
_FIRST = b'{"type":"run",'  # what each begins with


class RunFile:
    """A run file open for appending."""

    def __init__(self, path: Path, file: IO[bytes], schema: int = SCHEMA) -> None:
        self.path = path
        self._file = file
        self._schema = schema

    @classmethod
    def create(cls, path: Path, run: Run) -> RunFile:
        """Writes the first line. Raises UserError where it cannot, or where something is there already."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("xb", buffering=0)
        except OSError as error:
            if os.path.exists(path):
                raise UserError(
                    f"{path} is there already and is not overwritten; choose another --out, or --resume {path}"
                ) from None
            what = f"{path.parent} is not a folder" if isinstance(error, FileExistsError) else error.strerror
            raise UserError(f"cannot write {path}: {what}; choose another place with --out") from None
        _lock(path, file)
        out = cls(path, file)
        try:
            out._write(_head(run))
        except UserError as error:
            out.close()
            path.unlink(missing_ok=True)  # there is nothing in it to resume
            raise UserError(f"{str(error).partition('; ')[0]}; choose another place with --out") from None
        return out

    @classmethod
    def reopen(cls, path: Path) -> RunFile:
        """To append to, a truncated last line cut off first."""
        try:
            file = path.open("r+b", buffering=0)
        except OSError as error:
            raise UserError(f"cannot append to {path}: {error.strerror}") from None
        _lock(path, file)
        content = file.read()
        first, whole, _ = content.partition(b"\n")
        try:
            if not whole:
                raise _cut_off(path, content)
            schema = _schema(path, _first(path, first))
        except UserError:
            file.close()
            raise
        file.truncate(content.rfind(b"\n") + 1)
        file.seek(0, os.SEEK_END)
        return cls(path, file, schema)

    def append(self, record: Record) -> None:
        self._write(_record(record, self._schema))

    def close(self) -> None:
        self._file.close()

    def _write(self, line: bytes) -> None:
        """One line, all or nothing. A full disk is said at once; the file keeps its whole lines."""
        start = self._file.tell()
        try:
            while line:
                line = line[self._file.write(line) or 0 :]
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(start)
            what = "the disk is full" if error.errno == errno.ENOSPC else str(error.strerror)
            raise UserError(
                f"cannot write {self.path}: {what}; what was measured before is in it; "
                f"make room, then attnbench run --resume {self.path}"
            ) from None


def encoded(run: Run) -> bytes:
    """A run as a whole file."""
    return b"".join([_head(run), *map(_record, run.records)])


def _head(run: Run) -> bytes:
    return _line({"type": "run", "schema": SCHEMA, **{k: v for k, v in to_json(run).items() if k != "records"}})


def _record(record: Record, schema: int = SCHEMA) -> bytes:
    data = to_json(record)
    return _line({"type": "record", **(decode.packed(data) if schema > 1 else data)})


def _line(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, separators=(",", ":")) + "\n").encode()


def _lock(path: Path, file: IO[bytes]) -> None:
    """One writer at a time; the lock goes with the process."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise UserError(f"{path} is being written by another attnbench; wait for it, or stop it") from None
    except OSError:
        pass  # a file system without locks


def read(path: Path, ahead: Sequence[str] = (), meanwhile: Callable[[], object] | None = None) -> tuple[Run, list[str]]:
    """A run file, and what is wrong with it, one phrase a line. Raises UserError when it is not one.

    Its records are columns.Columns, which has the samples of the measurements `ahead` at once. `meanwhile`: to be done
    here while other processes read, of a file that is large enough for some.
    """
    try:
        content = _content(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    start, end = content.find(b"\n") + 1, content.rfind(b"\n") + 1
    if not start:
        raise _cut_off(path, content)
    lines = Lines(path, content, start, end)
    records = Columns(lines=lines)
    with lines.parts(ahead, reduced=True, meanwhile=meanwhile) as parts:
        run = _header(path, memoryview(content)[: start - 1])
        number, problems = records.read(parts)
    if end < len(content):  # no newline at the end: the last write did not finish
        problems.insert(0, f"{path}:{number + 1}: truncated last line dropped (an interrupted write)")
    return replace(run, records=records), problems


def _content(path: Path) -> bytes | mmap.mmap:
    """A file as it lies in the system's cache: a copy of many megabytes takes as long as what is read of it."""
    with path.open("rb") as file:
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):  # a pipe, or empty
            return file.read()


def head(path: Path) -> Run:
    """How a run file was made, without its records. Raises UserError as `read` does."""
    try:
        with path.open("rb") as file:
            return _header(path, file.readline())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def _header(path: Path, line: decode.Line) -> Run:
    raw = _first(path, line)
    _schema(path, raw)
    try:
        plan = decode.jobs(raw.pop("plan")) if "plan" in raw else None
        data = {name: json.loads(bytes(value)) for name, value in raw.items() if name not in ("type", "schema")}
        run = from_json(Run, {"policy": {}, "plan": (), **data})
        return run if plan is None else replace(run, plan=plan)
    except decode.DAMAGE as error:
        raise _damaged(path, str(error)) from None


def _first(path: Path, line: decode.Line) -> dict[str, Any]:
    """The fields of a first line, unread. UserError where it is none."""
    try:
        return decode.fields(line)
    except ValueError:
        raise _damaged(path) if bytes(line).startswith(_FIRST) else _not_ours(path) from None


def _schema(path: Path, header: Mapping[str, Any]) -> int:
    """Of a first line. UserError where it is none, or newer than what is read here."""
    try:
        kind, schema = json.loads(bytes(header["type"])), int(json.loads(bytes(header["schema"])))
    except (ValueError, KeyError, TypeError):
        raise _not_ours(path) from None
    if kind != "run" or schema < 1:
        raise _not_ours(path)
    if schema > SCHEMA:
        raise UserError(f"{path} was written by a newer attnbench (schema {schema}, this one reads {SCHEMA}); upgrade")
    return schema


def _not_ours(path: Path, why: str = "its first line does not say so") -> UserError:
    return UserError(f"{path} is not an attnbench run file ({why})")


def _cut_off(path: Path, content: bytes | mmap.mmap) -> UserError:
    """Of a file without a whole line."""
    if content[: len(_FIRST)] == _FIRST:
        return UserError(f"{path} is cut off in its first line: there is no result in it; delete it and run again")
    return _not_ours(path) if content else _not_ours(path, "it is empty")


def _damaged(path: Path, why: str = "it is not JSON") -> UserError:
    return UserError(f"{path}:1: damaged first line ({why}); restore the file, its records cannot be read without it")


def missing(run: Run) -> list[Job]:
    """The planned jobs that have no record, or one that only a want of time made a skip. The last record counts."""
    return [job for job, _ in unfinished(run)]


def unfinished(run: Run) -> list[tuple[Job, bool]]:
    """The same, and whether they have a record."""
    records, (cases, backends, rounds) = columns.of(run.records), decode.keys(run.plan)
    if (cases, backends, rounds) == (records.cases, records.backends, records.rounds) and not records.resumable:
        return []  # as a run ends: each job has left its record, in their order
    same = {number: id(records.same(case)) for number, case in {id(case): case for case in cases}.items()}
    keys = zip(map(same.__getitem__, map(id, cases)), backends, rounds, strict=True)
    places = map(records.last.get, keys)
    return [(run.plan[j], i is not None) for j, i in enumerate(places) if i is None or i in records.resumable]
