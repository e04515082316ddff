"""Run files: results/*.jsonl, one line for the run, then one for each record, flushed as it is made.

An interrupted run is therefore a shorter run. A truncated last line, as a crash leaves it, is dropped; a damaged line
elsewhere is reported with its number, and the rest is read. A gzipped file, recognised by its first bytes and not by
its name, is read as its content. A run is written plain, because records cannot be appended and flushed one by one in
gzip.

Schema 1 (attnbench 0.1): {"type": "run", "schema": 1, ...the fields of Run but its records}, {"type": "record", ...}.
Schema 2: a measurement may have "runs", [value, times] each, in place of "values". A file of schema 1 keeps its schema
when it is resumed, so that the attnbench that wrote it can still read it. A line {"type": "rounds", "rounds": 9} among
the records sets the number of planned rounds; an attnbench that does not know it reads only the records. A line
{"type": "jobs", "plan": [...]} adds jobs to the plan, whose records follow it.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import gc
import gzip
import io
import json
import os
import random
import re
import secrets
import shlex
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from attnbench.core import masks
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.json import to_json
from attnbench.core.record import Forecast, Job, Record, Run
from attnbench.core.sizes import format_bytes
from attnbench.core.text import count, without_long_words
from attnbench.results import bounds, decode

SCHEMA = 2
_OF_RECORDS = ("records", "replaced")  # fields of Run that the first line lacks
FIRST = b'{"type":"run",'  # how a first line begins
MOST_JOBS = 50_000  # most jobs of a plan; making and storing them takes five seconds
_RUN = re.compile(rb'"type"\s*:\s*"run"')  # in any spelling; inside a string the quotes would be escaped
MOST_BYTES, MOST_OF_LINE = 2**30, 2**25  # most bytes of an unpacked file, and of a line
_PIECE = 2**18  # bytes read at once
LONGEST_STEM = 60  # most characters of a file's name that the name of its copy has; each has up to four bytes
DAMAGED = "damaged line left out"
INTERRUPTED = "truncated last line dropped (an interrupted write)"  # not counted as damage: the run is only shorter
MOST_OF_WHY = 400  # most characters of the reason for a damaged line
MOST_DAMAGED = 1000  # most damaged lines of a file that is still read
MOST_OTHERS = 100_000  # most lines that set rounds, or have types that a newer attnbench may write
GZIP = b"\x1f\x8b"  # the beginning of a gzip file
_CONFLICT = (b"<<<<<<< ", b"=======\n", b">>>>>>> ", b"||||||| ")  # lines around a conflict in git
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_POINTER = b"version https://git-lfs.github.com/spec/"


class ForeignFileError(UserError):
    """A file of another program: its first line is a JSON object of another kind."""


class RunFile:
    """A run file open for appending."""

    def __init__(self, path: Path, file: IO[bytes], schema: int = SCHEMA) -> None:
        self.path = path
        self._file = file
        self._schema = schema
        self._content = bytearray(_whole(file))  # the content, unless another program changes it
        self.lost = False  # whether another program removed the file

    @classmethod
    def create(cls, path: Path, run: Run) -> RunFile:
        """Create a run file with its first line.

        Raises UserError where this fails, where the file exists, and for a run that `read` would refuse.
        """
        line = _head(run)
        if len(line) > MOST_OF_LINE:
            raise UserError(
                f"the plan of {count(len(run.plan), 'job')} takes {format_bytes(len(line))}, and a line of a run file "
                f"holds {format_bytes(MOST_OF_LINE)}; measure fewer cases or rounds at a time"
            )
        try:
            bounds.check_run(run)
        except ValueError as error:
            raise UserError(f"{error}; a run file cannot hold it") from None
        return cls.begin(path, line)

    @classmethod
    def begin(cls, path: Path, line: bytes) -> RunFile:
        """Create a run file with a given first line. Raises UserError where this fails, and for an existing file."""
        aside = path.with_name(f".attnbench-{secrets.token_hex(8)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            file = open(aside, "x+b", buffering=0, opener=_appending)  # noqa: SIM115  (it stays open)
        except OSError as error:
            raise _not_created(path, error) from None
        try:
            _lock(path, file)
            out = cls(path, file)
            out._put(line)
            _name(aside, path)
        except BaseException as error:
            file.close()
            if isinstance(error, OSError):
                raise _not_created(path, error) from None
            raise
        finally:
            with contextlib.suppress(OSError):
                os.unlink(aside)
        return out

    @classmethod
    def reopen(cls, path: Path) -> RunFile:
        """Open a run file for appending, without a truncated last line. Raises UserError where it is no run file."""
        try:
            file = open(path, "r+b", buffering=0, opener=_appending)  # noqa: SIM115  (it stays open)
        except OSError as error:
            raise UserError(f"cannot append to {path}: {error.strerror}") from None
        _lock(path, file)
        content = file.read()
        first, whole, _ = content.removeprefix(codecs.BOM_UTF8).partition(b"\n")
        try:
            if content.startswith(GZIP):
                raise UserError(f"{path} is gzipped, and a run is written plain; gunzip {path}, then resume that file")
            if not whole:
                raise _cut_off(path, content)
            schema = _schema(path, _fields(path, first))
        except UserError:
            file.close()
            raise
        last = content.rfind(b"\n") + 1
        if is_whole(content[last:]):  # an editor or a copy removed the line's end
            file.write(b"\n")
        else:
            file.truncate(last)
        return cls(path, file, schema)

    def append(self, record: Record) -> None:
        """Append a record, which is in the file when this returns.

        Raises UserError where it cannot be written, and where the file is no longer at its path.
        """
        self.add_lines(_record(record, self._schema))

    def add_rounds(self, rounds: int) -> None:
        """Append a new number of planned rounds. Raises UserError as `append` does."""
        self.add_lines(_line({"type": "rounds", "rounds": rounds}))

    def add_jobs(self, jobs: Sequence[Job]) -> None:
        """Append further jobs of the plan. Raises UserError as `append` does."""
        self.add_lines(_line({"type": "jobs", "plan": to_json(tuple(jobs))}))

    def add_lines(self, lines: bytes) -> None:
        """Append lines unchanged. Raises UserError as `append` does."""
        self._check_place()
        try:
            self._put(lines)
        except OSError as error:
            mend = "make room" if error.errno in _NO_ROOM else "put that right"
            raise UserError(
                f"cannot write {self.path}: {_what(error)}; it has all earlier records; "
                f"{mend}, then {self._going_on(self.path)}"
            ) from None

    def close(self) -> None:
        """Close the file. Raises UserError where it is no longer at its path, unless `append` has raised it."""
        try:
            if not self.lost:
                self._check_place(closing=True)
        finally:
            self._file.close()

    def _check_place(self, closing: bool = False) -> None:
        """Raise UserError, which names a copy, where another program deleted, moved, replaced or changed the file.

        A change that keeps the size is found when the file is closed.
        """
        try:
            there = os.path.samestat(os.stat(self.path), os.fstat(self._file.fileno()))
            what = "" if there else "replaced"
        except OSError:
            what = "deleted or moved"
        if not what:
            unlike = os.fstat(self._file.fileno()).st_size != len(self._content)
            if not (unlike or (closing and _whole(self._file) != self._content)):
                return
            what = "changed"
        self.lost = True
        raise UserError(f"another program {what} {self.path} during the measurement; {self._copied()}")

    def _copied(self) -> str:
        """Write the content to a new file, and return a phrase that names it."""
        for folder in (self.path.parent, Path(tempfile.gettempdir())):
            with contextlib.suppress(OSError):
                handle, name = tempfile.mkstemp(".jsonl", f"{self.path.stem[:LONGEST_STEM]}-kept-", folder)
                with os.fdopen(handle, "wb") as copy:
                    copy.write(self._content)
                return f"what was measured is kept in {name}; {self._going_on(Path(name))}"
        return "a copy of what was measured could not be written"

    def _going_on(self, path: Path) -> str:
        """Return the command that continues a run with a file of this content."""
        try:
            run = _header(path, bytes(self._content.partition(b"\n")[0]))
        except UserError:  # the first line is of a newer attnbench
            return f"attnbench run --resume {shlex.quote(str(path))}"
        return "start attnbench ab anew" if run.turns else resume_command(run, path)

    def _put(self, line: bytes) -> None:
        """Append one line, or nothing. Raises OSError where the file takes no more; it then has whole lines only."""
        rest = line
        try:
            while rest:
                written = self._file.write(rest)
                if not written:  # 0, or None where the file does not block
                    raise OSError(errno.EAGAIN, "the file takes no more bytes")
                rest = rest[written:]
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(len(self._content))
            raise
        self._content += line


def _whole(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _appending(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_APPEND, 0o666)


def _name(aside: Path, path: Path) -> None:
    """Give a new file its name. Raises OSError where another file has it."""
    try:
        os.link(aside, path)
    except FileExistsError:
        raise
    except OSError as error:  # the file system has no links
        if os.path.lexists(path) or error.errno == errno.ENAMETOOLONG:
            raise
        os.rename(aside, path)


def _what(error: OSError) -> str:
    return "the disk is full" if error.errno == errno.ENOSPC else str(error.strerror)


def _not_created(path: Path, error: OSError) -> UserError:
    if os.path.lexists(path):
        return there_already(path)
    what = f"{path.parent} is not a folder" if isinstance(error, FileExistsError) else _what(error)
    return UserError(f"cannot write {path}: {what}; choose another place with --out")


def there_already(path: Path) -> UserError:
    """Return the error for a new run whose file already exists."""
    if path.exists() and not path.is_file():
        return UserError(f"{path} is not a plain file, and a run is written to one; choose another --out")
    again = f", or --resume {shlex.quote(str(path))}" if begins_as_one(path) else ""
    return UserError(f"{path} is there already and is not overwritten; choose another --out{again}")


def encoded(run: Run) -> bytes:
    """Return a run as the content of a run file."""
    return b"".join([_head(run), *map(_record, run.records)])


def _head(run: Run) -> bytes:
    return _line({"type": "run", "schema": SCHEMA, **{k: v for k, v in to_json(run).items() if k not in _OF_RECORDS}})


def _record(record: Record, schema: int = SCHEMA) -> bytes:
    data = to_json(record)
    return _line({"type": "record", **(decode.packed(data) if schema > 1 else data)})


def _line(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, separators=(",", ":")) + "\n").encode()


def _lock(path: Path, file: IO[bytes]) -> None:
    """Lock a file for one writer; the lock ends with the process. Raises UserError where another process has it."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise UserError(f"{path} is being written by another attnbench; wait for it, or stop it") from None
    except OSError:
        pass  # the file system has no locks


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Keep Python's cyclic garbage collector off: it would visit all records repeatedly, and none is in a cycle."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@without_collector()
def read(path: Path) -> tuple[Run, list[str]]:
    """Return a run and the faults of its file, one phrase for each damaged line.

    Raises UserError where it is not a run file, or is several run files joined.
    """
    problems, gzip_cut_off = list[str](), list[str]()
    found = lines(path, gzip_cut_off)
    first = next(found)
    if not first.endswith(b"\n"):
        raise _cut_off(path, first)
    run, records, repeated, others, rounds = _header(path, first), list[Record](), 0, 0, 0
    jobs = max(1, jobs_with(run, 1))  # jobs of one round
    planned = {} if run.search else {(job.case, job.backend): job.forecast for job in run.plan}
    for number, line in enumerate(found, start=2):
        is_empty = not line.strip()  # editors leave empty lines
        _check_not_joined(path, number, line)
        if not is_empty and not line.endswith(b"\n") and not is_whole(line):  # the last write did not finish
            problems += [] if gzip_cut_off else [f"{path}:{number}: {INTERRUPTED}"]
            break
        record = None
        try:
            if is_empty:
                pass
            elif record := decode.record(line):
                _check_of_run(record, run, planned)
                repeated += max(0, decode.samples(record) - len(line))
                if repeated > bounds.MOST_OF_FILE:
                    raise ValueError("the file has more repeated samples than fit the memory")
                records.append(record)
            elif (kind := decode.type_of(line)) == "rounds":
                rounds = max(rounds, _rounds(line, MOST_JOBS // jobs))
            elif kind == "jobs":
                run = _with_jobs(run, decode.jobs(line))
                jobs = jobs_with(run, 1)
                planned |= {(job.case, job.backend): job.forecast for job in run.plan} if planned else {}
        except decode.DAMAGE as error:
            why = without_long_words(str(error))[:MOST_OF_WHY]  # the error may quote a long line
            problems.append(f"{path}:{number}: {DAMAGED} ({type(error).__name__}: {why})")
            if len(problems) > MOST_DAMAGED:
                raise UserError(f"{path}: over {MOST_DAMAGED:,} of its lines are damaged; restore the file") from None
        else:
            others += record is None
            if others > MOST_OTHERS:
                raise _too_many_others(path)
    problems = [*gzip_cut_off, *problems]
    run = with_rounds(run, rounds)
    if planned and not run.turns:  # the plan of an ab run has only the first round
        most = run.planned_rounds
        if beyond := sum(record.round >= most for record in records):
            problems.append(f"{path}: {count(beyond, 'record')} of unplanned rounds left out")
            records = [record for record in records if record.round < most]
    try:
        bounds.check_cases({job.case for job in run.plan} | {record.case for record in records})
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return with_records(run, records), problems


def is_whole(line: bytes) -> bool:
    """Return whether a line lacks only its end, which means that it is a whole JSON object."""
    try:
        decode.fields(line)
    except decode.DAMAGE:
        return False
    return True


def with_records(run: Run, records: Sequence[Record]) -> Run:
    """Return the run with these records. Of a job the last record counts, except in a search, which repeats jobs."""
    if run.search:
        return replace(run, records=tuple(records))
    last = {*{record.id: i for i, record in enumerate(records)}.values()}
    replaced = (record for i, record in enumerate(records) if i not in last)
    kept = tuple(record for i, record in enumerate(records) if i in last)
    return replace(run, records=kept, replaced=(*run.replaced, *replaced))


def _check_of_run(record: Record, run: Run, planned: Mapping[tuple[Case, str], Forecast]) -> None:
    """Raise ValueError for a record without its time or its check, a timed record in a search, or one of another run.

    Another run has other cells, or other forecasts, because the rates of its device differ. The forecast seconds of a
    job are not compared, because the first job of a round takes longer.
    """
    if record.status == "ok" and "time" not in record.measurements and not run.search:
        raise ValueError("its status is ok, but it has no time")
    if record.status == "ok" and not _is_checked(record):
        raise ValueError("its status is ok, but no row of its result was checked")
    if run.search and not record.measurements.keys().isdisjoint(("time", "sustained")):
        raise ValueError("it has a time, and the file is a search's")
    if not planned:
        return
    if not (plan := planned.get((record.case, record.backend))):
        raise ValueError("the run's plan has no such cell, so the line is another run's")
    if (had := record.forecast) and (had.call, had.nbytes) != (plan.call, plan.nbytes):
        raise ValueError("the run's plan has another forecast of the cell, so the line is another run's")


def _is_checked(record: Record) -> bool:
    """Return whether rows of a result were compared, or checksums: a backward with dropout may show no row."""
    found = record.accuracy
    return found is not None and bool((found.rows and found.heads) or (record.case.dropout_p and found.errors))


def _rounds(line: bytes, most: int) -> int:
    """Return the number of rounds that a line plans. Raises ValueError for more than a plan may have."""
    rounds = json.loads(line)["rounds"]
    if not isinstance(rounds, int) or rounds > most:
        raise ValueError("not a number of rounds")
    return rounds


def _with_jobs(run: Run, jobs: Sequence[Job]) -> Run:
    """Return the run with further planned jobs. Raises ValueError for more than a plan may have, and for known ones."""
    if len(run.plan) + len(jobs) > MOST_JOBS or {job.id for job in jobs} & {job.id for job in run.plan}:
        raise ValueError("not further jobs of the plan")
    bounds.check_run(replace(run, plan=tuple(jobs)))
    return replace(run, plan=(*run.plan, *jobs))


def with_rounds(run: Run, rounds: int) -> Run:
    """Return the run with `rounds` planned rounds, if it has fewer.

    Each further round has the jobs of the first in another random order: the cases, and the backends within a case.
    """
    plan, first = list(run.plan), dict[Case, list[Job]]()
    for job in plan:
        if not job.round:
            first.setdefault(job.case, []).append(job)
    for number in range(run.planned_rounds, rounds):
        order = random.Random(f"{run.policy.seed}/{number}")
        for jobs in order.sample([*first.values()], len(first)):
            plan += (replace(job, round=number) for job in order.sample(jobs, len(jobs)))
    return replace(run, plan=tuple(plan))


def jobs_with(run: Run, rounds: int) -> int:
    """Return the number of jobs that the plan of a run has with `rounds` rounds."""
    return sum(not job.round for job in run.plan) * rounds


def _check_not_joined(path: Path, number: int, line: bytes) -> None:
    """Raise UserError for a later line that begins another run, or that git's merge left in the file."""
    if line.startswith(_CONFLICT):
        raise UserError(f"{path}:{number}: an unresolved conflict of a merge; restore one of its two files")
    if b'"run"' not in line or not _RUN.search(line) or (is_whole(line) and decode.type_of(line) != "run"):
        return
    file = shlex.quote(str(path))
    first = f"zcat {file} | head -n {number - 1}" if path.suffix == ".gz" else f"head -n {number - 1} {file}"
    raise UserError(
        f"{path}:{number}: a second run begins here, and a run file has one; give each run a file of its own "
        f"({first} has the first)"
    )


def _too_many_others(path: Path) -> UserError:
    return UserError(f"{path}: over {MOST_OTHERS:,} of its lines are not records; restore the file")


def head(path: Path) -> Run:
    """Return the run of a file without its records. Raises UserError as `read` does."""
    found = lines(path)
    run = _header(path, next(found))
    others = 0
    for number, line in enumerate(found, start=2):
        _check_not_joined(path, number, line)
        others += b'"record"' not in line
        if others > MOST_OTHERS:
            raise _too_many_others(path)
    return run


def lines(path: Path, cut_off: list[str] | None = None) -> Iterator[bytes]:
    """Yield the lines of a file, at least one, unpacked if it is gzipped; one line is held at a time.

    A gzip file that is cut off yields its remaining lines, and `cut_off` gets a phrase. Raises UserError for a file
    that cannot be read, for a file or a line that is too large, for a gzip file of another kind of file, and for a
    damaged one, whose content cannot be trusted.
    """
    total, held = 0, io.BytesIO()  # bytes so far; the incomplete line
    is_first = True
    try:
        if path.is_char_device():  # a device such as /dev/zero has no end
            raise _not_ours(path, "it is a device")
        with path.open("rb") as plain:
            file = gzip.GzipFile(fileobj=plain) if plain.peek(2).startswith(GZIP) else plain
            while piece := file.read1(_PIECE):  # in pieces, so that a file that is cut off yields the rest
                piece = piece if total else piece.removeprefix(codecs.BOM_UTF8)
                if not total and piece.lstrip()[:1] not in (b"", b"{"):
                    raise _not_ours(path, content=piece)  # raised before it fills the memory, as it may be any file
                total += len(piece)
                for part in io.BytesIO(piece):
                    held.write(part)
                    if max(total / MOST_BYTES, held.tell() / MOST_OF_LINE) > 1:
                        raise UserError(f"{path} has more than 1 GiB, or 32 MiB in a line, so it is not a run file")
                    if part.endswith(b"\n"):
                        yield held.getvalue()
                        held, is_first = io.BytesIO(), False
    except EOFError:
        if cut_off is not None:
            cut_off.append(f"{path}: the gzip file is cut off; the whole lines before the cut were read")
        if is_first and not held.tell():  # the file is cut off in gzip's header
            held.write(FIRST)
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            f"{path} is a damaged gzip file ({error}), whose figures cannot be trusted; restore it"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        if os.path.isdir(path):  # not Path.is_dir, which raises for a name that is too long
            raise UserError(f"{path} is a folder; give its run files: {path / '*.jsonl*'}") from None
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if is_first or held.tell():
        yield held.getvalue()


def begins_as_one(path: Path) -> bool:
    """Return whether a file begins as a run file, plain or gzipped, or as a run file that was cut off."""
    try:
        if not path.is_file():  # reading a pipe would wait for another process
            return False
        with path.open("rb") as file:
            start = file.peek().removeprefix(codecs.BOM_UTF8)
            if start.startswith((FIRST, GZIP)) or not start.lstrip().startswith(b"{"):
                return start.startswith((FIRST, GZIP))
            return bool(
                json.loads(decode.fields(file.readline(MOST_OF_LINE).removeprefix(codecs.BOM_UTF8))["type"]) == "run"
            )
    except (OSError, *decode.DAMAGE):
        return False


def name(path: Path) -> str:
    """Return the name of a run file without its ending, which a plain and a gzipped file share."""
    return path.name.removesuffix(".gz").removesuffix(".jsonl")


def _header(path: Path, line: bytes) -> Run:
    fields = _fields(path, line)
    _schema(path, fields)
    try:
        return decode.run(fields)
    except decode.DAMAGE as error:
        raise _damaged(path, str(error)) from None


def _fields(path: Path, line: bytes) -> dict[str, bytes]:
    try:
        return decode.fields(line)
    except decode.DAMAGE:
        error = _damaged(path) if line.startswith(FIRST) else _not_ours(path, content=line)
        raise (error if line else _cut_off(path, line)) from None


def _schema(path: Path, header: Mapping[str, bytes]) -> int:
    """Return the schema that a first line names.

    Raises ForeignFileError where the line is not a run's, and UserError where the schema is newer than SCHEMA.
    """
    try:
        kind, schema = json.loads(header["type"]), int(json.loads(header["schema"]))
    except (*decode.DAMAGE, OverflowError):
        kind, schema = None, 0
    if kind != "run" or schema < 1:
        raise ForeignFileError(str(_not_ours(path)))
    if schema > SCHEMA:
        raise UserError(f"{path} was written by a newer attnbench (schema {schema}, this one reads {SCHEMA}); upgrade")
    return schema


def _not_ours(path: Path, why: str = "its first line does not say so", content: bytes = b"") -> UserError:
    if content.startswith(_POINTER):
        return UserError(f"{path} is a pointer of Git LFS, not the run file; fetch that by git lfs pull")
    if content.startswith(_CONFLICT):
        return UserError(f"{path} has an unresolved conflict of a merge; restore one of its two files")
    return UserError(f"{path} is not an attnbench run file ({why})")


def _cut_off(path: Path, content: bytes) -> UserError:
    """Return the error for a file without a whole line."""
    if content[: len(FIRST)] == FIRST:
        if b"\r" in content:
            return UserError(f"{path} has lines that end with a carriage return alone; convert it by tr '\\r' '\\n'")
        return UserError(f"{path} is cut off in its first line and has no result; delete it and run again")
    return _not_ours(path) if content else _not_ours(path, "it is empty")


def _damaged(path: Path, why: str = "it is not JSON") -> UserError:
    return UserError(f"{path}:1: damaged first line ({why}), without which records cannot be read; restore the file")


def resume_command(run: Run, path: Path | str | None) -> str:
    """Return the command that measures a run's missing jobs, with the option that allows own code and interpreters."""
    command = "capacity" if run.search else "tune" if run.argv[:1] == ("tune",) else "run"
    words = ["attnbench", command, "--resume", str(path), *trust(run)]
    return shlex.join(words)


def trust(*runs: Run) -> list[str]:
    """Return the option that allows the own code and interpreters that runs name; [] where they name none."""
    for run in runs:
        own = any(not of.startswith("attnbench.") for of in run.specs.values())
        if own or run.interpreters or masks.own_of(job.case.mask for job in run.plan):
            return ["--trust"]
    return []


def missing(run: Run) -> list[Job]:
    """Return the planned jobs without a final record: without any, or with a skip for lack of time as the last one."""
    return [job for job, _ in unfinished(run)]


def unfinished(run: Run) -> list[tuple[Job, bool]]:
    """Return the jobs of `missing`, each with whether it has a record."""
    last = {(r.case, r.backend, r.round): r for r in run.records}
    found = [(job, last.get((job.case, job.backend, job.round))) for job in run.plan]
    return [(job, record is not None) for job, record in found if record is None or record.resumable]


def undecided(damage: str, lost: str) -> UserError:
    """Return the error for a verdict that `lost`, in what is lost of a file ("FILE: ..."), could turn."""
    return UserError(f"{damage}, and {lost} may be in what is lost; restore the file, or measure again")
