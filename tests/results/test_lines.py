"""Run files read in parts by several processes: the same values and the same words, whatever becomes of a process."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest

from attnbench.core.errors import UserError
from attnbench.results import batch, columns, derive, lines, run_file
from attnbench.results.columns import ERRORS, PRESENT, REPORT, Columns

RESULTS = sorted((Path(__file__).parents[2] / "results").glob("*.jsonl"))
AHEAD = (*REPORT, ERRORS)
SOURCE = min((path for path in RESULTS if "default" in path.stem), key=lambda path: path.stat().st_size)


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file in four parts, three of them in other processes."""
    monkeypatch.setattr(lines, "_processes", lambda size: 4)


def every(found: Columns) -> dict[str, object]:
    """All that columns tell of their records."""
    lists = {name: getattr(found, name) for name in ("cases", *columns._EVERY.values(), *columns._FEW.values())}
    samples = {
        name: [(i, [*values]) for i, values in found.samples(name)] for name in ("time", *derive.CEILINGS, "first_call")
    }
    figures = {name: [None if v != v else v for v in batch.array(name, found).tolist()] for name in batch.FORMULAS}
    figures |= {"spans": batch.spans(found), "error": found.values["error"]}
    return {**lists, "samples": samples, "present": {name: found.present[name] for name in PRESENT}, **figures}


def in_one(path: Path) -> dict[str, object]:
    with pytest.MonkeyPatch.context() as one:
        one.setattr(lines, "_processes", lambda size: 1)
        run, problems = run_file.read(path, AHEAD)
        assert isinstance(run.records, Columns)
        return {**every(run.records), "problems": problems, "records": [*run.records], "left": run_file.unfinished(run)}


def in_parts(path: Path) -> dict[str, object]:
    run, problems = run_file.read(path, AHEAD)
    assert isinstance(run.records, Columns)
    return {**every(run.records), "problems": problems, "records": [*run.records], "left": run_file.unfinished(run)}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
@pytest.mark.usefixtures("split")
def test_parts_make_the_whole(path: Path) -> None:
    assert in_parts(path) == in_one(path)
    assert not multiprocessing.active_children()


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Path, list[int]]:
    """A file with something odd at its start, in its midst and at its end, and the numbers of what is damaged."""
    text = SOURCE.read_bytes().split(b"\n")
    text[2] = b"{"
    text[len(text) // 3] = b""
    text[len(text) // 2] = b'{"type": "note"}'
    timed = [i for i, line in enumerate(text) if b'"time":{"unit":"s","values":[' in line]
    odd = timed[len(timed) * 3 // 4]
    text[odd] = text[odd].replace(b'"values":[', b'"values":["inf",', 1)  # a record, but none that msgspec takes
    text[-3] = b"null"
    path = tmp_path / "damaged.jsonl"
    path.write_bytes(b"\n".join(text)[:-200])
    return path, [len(text) - 1, 3, len(text) // 3 + 1, len(text) - 2]  # the truncated one is said first


@pytest.mark.usefixtures("split")
def test_damage_is_said_by_its_line_wherever_it_is(damaged: tuple[Path, list[int]]) -> None:
    path, numbers = damaged
    assert in_parts(path) == in_one(path)
    _, problems = run_file.read(path, AHEAD)
    assert [int(problem.removeprefix(f"{path}:").partition(":")[0]) for problem in problems] == numbers


@pytest.mark.parametrize("glue", [b"", b" "])
def test_what_a_decoder_takes_for_lines_is_none_where_the_file_has_others(tmp_path: Path, glue: bytes) -> None:
    """Two records in one line and a blank line behind them: as many as there are lines, and none in its place."""
    text = SOURCE.read_bytes().split(b"\n")
    text[5:8] = [text[5] + glue + text[6], b"", text[7]]
    path = tmp_path / "joined.jsonl"
    path.write_bytes(b"\n".join(text))
    run, problems = run_file.read(path, AHEAD)
    said = [problem.partition(" (")[0] for problem in problems]
    assert said == [f"{path}:{number}: damaged line left out" for number in (6, 7)]
    whole = run_file.read(SOURCE, AHEAD)[0].records
    assert [*run.records] == [*whole[:4], *whole[6:]]


def test_a_record_in_two_lines_is_none(tmp_path: Path) -> None:
    """Nor where two others in one line make up for it."""
    text = SOURCE.read_bytes().split(b"\n")
    text[5:9] = [text[5] + text[6], *text[7].replace(b'"case":', b'"case":\n', 1).split(b"\n"), text[8]]
    path = tmp_path / "two.jsonl"
    path.write_bytes(b"\n".join(text))
    run, problems = run_file.read(path, AHEAD)
    said = [problem.partition(" (")[0] for problem in problems]
    assert said == [f"{path}:{number}: damaged line left out" for number in (6, 7, 8)]
    whole = run_file.read(SOURCE, AHEAD)[0].records
    assert [*run.records] == [*whole[:4], *whole[7:]]


@pytest.mark.parametrize("share", [0, 1 << 40], ids=["as much as others", "nothing of its own"])
def test_what_is_to_be_done_meanwhile_is_done_once(monkeypatch: pytest.MonkeyPatch, share: int) -> None:
    expected, done = in_one(SOURCE), []
    monkeypatch.setattr(lines, "MEANWHILE", share)
    run, problems = run_file.read(SOURCE, AHEAD, lambda: done.append(os.getpid()))
    assert done == []  # no other process reads
    monkeypatch.setattr(lines, "_processes", lambda size: 4)
    run, problems = run_file.read(SOURCE, AHEAD, lambda: done.append(os.getpid()))
    assert done == [os.getpid()]
    assert isinstance(run.records, Columns)
    assert every(run.records).items() <= expected.items()
    assert problems == expected["problems"]


@pytest.mark.usefixtures("split")
def test_samples_that_are_none_are_said_by_their_line(tmp_path: Path) -> None:
    text = SOURCE.read_bytes().split(b"\n")
    last = max(i for i, line in enumerate(text) if b'"time":{"unit":"s","values":[' in line)
    text[last] = text[last].replace(b'"values":[', b'"values":["five",', 1)
    path = tmp_path / "refused.jsonl"
    path.write_bytes(b"\n".join(text))
    said = rf"^{path}:{last + 1}: measurement 'time' cannot be read \(values: \"five\" is no number\); delete that line"
    with pytest.raises(UserError, match=said):
        run_file.read(path, AHEAD)
    assert not multiprocessing.active_children()
    run, problems = run_file.read(path)  # no samples asked for
    assert problems == []
    with pytest.raises(UserError, match=said):
        [len(record.measurements["time"].values) for record in run.records if "time" in record.measurements]


@pytest.mark.parametrize("damage", [b'"max_error":"x"', b'"max_error":null'])
def test_a_record_that_turns_out_damaged_is_said_by_its_line(tmp_path: Path, damage: bytes) -> None:
    text = SOURCE.read_bytes().split(b"\n")
    text[3] = text[3].replace(b'"max_error":', damage + b',"was":', 1)
    path = tmp_path / "accuracy.jsonl"
    path.write_bytes(b"\n".join(text))
    records = run_file.read(path)[0].records
    with pytest.raises(UserError, match=rf"^{path}:4: its record cannot be read \(accuracy: .*\); delete that line"):
        records[2]
    run, problems = run_file.read(path, [ERRORS])
    assert len(run.records) == len(records) - 1
    assert [problem.partition(" (")[0] for problem in problems] == [f"{path}:4: damaged line left out"]
    assert isinstance(run.records, Columns)
    times = [(i, [*derive.values(record, "time")]) for i, record in enumerate(run.records)]
    assert [(i, [*values]) for i, values in run.records.samples("time")] == [(i, own) for i, own in times if own]


@pytest.mark.usefixtures("split")
def test_a_process_that_dies_costs_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    here, read = os.getpid(), lines.Part.read

    def die(*arguments: object) -> None:
        if os.getpid() != here:
            os._exit(9)
        read(*arguments)  # type: ignore[arg-type]

    expected = in_one(SOURCE)
    monkeypatch.setattr(lines.Part, "read", die)
    assert in_parts(SOURCE) == expected


@pytest.mark.usefixtures("split")
def test_where_no_process_is_to_be_had_one_reads_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: ForkProcess) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(ForkProcess, "start", refuse)
    assert in_parts(SOURCE) == in_one(SOURCE)


@pytest.mark.usefixtures("split")
def test_what_is_not_ours_leaves_no_process_behind(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(b"a,b,c\n" * 10_000)
    with pytest.raises(UserError, match="is not an attnbench run file"):
        run_file.read(path)
    assert not multiprocessing.active_children()


def test_lines_longer_than_a_part_and_files_without_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_processes", lambda size: 5)
    text = SOURCE.read_bytes().split(b"\n")
    for number in (1, 2, 3):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(b"\n".join([*text[:number], b""]))
        found = in_parts(path)
        assert found == in_one(path)
        assert len(found["records"]) == number - 1  # type: ignore[arg-type]


def test_small_files_are_read_by_one_process() -> None:
    assert lines._processes(2 * lines.LEAST - 1) == 1
    assert 1 <= lines._processes(100 * lines.LEAST) <= lines.MOST
