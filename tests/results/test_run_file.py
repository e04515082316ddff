"""Run files in all conditions: complete, cut, damaged, newer, of other programs."""

from __future__ import annotations

import codecs
import gzip
import json
import math
import re
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stored_run import CASES, RECORDS, RUN, gzipped

from attnbench.core.errors import UserError
from attnbench.core.record import Forecast, Measurement, Record, Run
from attnbench.results import run_file
from builders import case, ended, job, ok, run

RESULTS = sorted((Path(__file__).parents[2] / "results").glob("*.jsonl*"))


def test_reads_back_what_was_written(path: Path) -> None:
    assert run_file.read(path) == (RUN, [])
    lines = path.read_text().splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["run", "record", "record", "record"]
    assert json.loads(lines[0])["schema"] == run_file.SCHEMA


def test_a_truncated_last_line_is_dropped_and_said(path: Path) -> None:
    whole = path.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    endless = whole[: start + 1] + b'"a":' + b"[" * 200_000
    for content in (whole[: start + 1], whole[: start + 40], whole[:-2], endless):
        path.write_bytes(content)
        found, problems = run_file.read(path)
        assert found.records == RECORDS[:2]
        assert len(problems) == 1
        assert problems[0].startswith(f"{path}:4: truncated last line")


def test_a_last_line_that_lacks_its_end_alone_is_read_and_gone_on_with(path: Path) -> None:
    """A last line that lacks only its end, as after an edit or a copy, is read and continued."""
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert run_file.read(path) == (run_file.read(path)[0], [])
    assert len(run_file.read(path)[0].records) == len(RECORDS)
    file = run_file.RunFile.reopen(path)
    assert path.read_bytes() == whole
    file.append(RECORDS[0])
    file.close()
    assert run_file.read(path)[1] == []


@pytest.mark.parametrize(
    "damage",
    [
        *(b"{", b"\xff\xfe\x00", b"x", b"[]", b"null", b'{"case": 3}', b'{"type": "record", "case": {"shape": 1}}'),
        b'{"type":"note"} {"type":"note"}',
        b"[" * 200_000 + b"]" * 200_000,
        b'{"type":"record","case":' + b'{"a":' * 200_000 + b"1" + b"}" * 200_001,
        b'{"type":"record","x":' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"type":"record","measurements":{"' + b"x" * 10**6 + b'":{"unit":"s","values":["y"]}}}',
        b'{"type":null}',
        *(run_file._record(RECORDS[1]).replace(b'"record"', kind).strip() for kind in (b'"recore"', b'""', b"1")),
    ],
    ids=range(16),
)
def test_a_damaged_line_is_left_out_with_its_number(path: Path, damage: bytes) -> None:
    lines = path.read_bytes().split(b"\n")
    lines[2] = damage
    path.write_bytes(b"\n".join(lines))
    found, problems = run_file.read(path)
    assert found.records == (RECORDS[0], RECORDS[2])
    assert len(problems) == 1
    assert problems[0].startswith(f"{path}:3: damaged line left out")
    assert "\n" not in problems[0]
    assert len(problems[0]) < 5000


@pytest.mark.parametrize("depth", [900, 100_000])
@pytest.mark.parametrize("field", ["type", "plan", "suite"])
def test_a_first_line_that_is_nested_deeply(path: Path, field: str, depth: int) -> None:
    first = {"type": '"run"', "schema": "2", "plan": "[]", field: "[" * depth + "]" * depth}
    path.write_text("{" + ",".join(f'"{name}":{value}' for name, value in first.items()) + "}\n")
    for read in (run_file.read, run_file.head, run_file.RunFile.reopen):
        if read != run_file.RunFile.reopen or field == "type":
            with pytest.raises(UserError, match=r"damaged first line|is not an attnbench run file"):
                read(path)


def test_a_byte_order_mark_is_no_damage(path: Path) -> None:
    """A byte order mark, which editors of Windows put at the start, is no damage."""
    marked = b"\xef\xbb\xbf" + path.read_bytes()
    path.write_bytes(marked)
    assert run_file.read(path) == (RUN, [])
    file = run_file.RunFile.reopen(path)
    file.append(RECORDS[0])
    file.close()
    assert path.read_bytes().startswith(marked)
    assert run_file.read(path)[0].records == (*RECORDS[1:], RECORDS[0])


def test_an_ok_without_its_time_is_damage_but_in_a_search_where_a_time_is(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"time":', b'"times":', 1))
    found, (problem,) = run_file.read(path)
    assert found.records == RECORDS[1:]
    assert problem == f"{path}:2: damaged line left out (ValueError: its status is ok, but it has no time)"
    path.write_bytes(path.read_bytes().replace(b'"schema":2,', b'"schema":2,"search":{"of":"batch","call_limit":1.0},'))
    (problem,) = run_file.read(path)[1]
    assert problem == f"{path}:3: damaged line left out (ValueError: it has a time, and the file is a search's)"


@pytest.mark.parametrize(
    ("part", "by"), [(b'"accuracy":', b'"exactness":'), (b'"rows":64', b'"rows":0'), (b'"heads":4', b'"heads":0')]
)
def test_an_ok_without_a_check_is_damage(path: Path, part: bytes, by: bytes) -> None:
    path.write_bytes(path.read_bytes().replace(part, by, 1))
    found, (problem,) = run_file.read(path)
    assert found.records == RECORDS[1:]
    assert problem.endswith(
        ":2: damaged line left out (ValueError: its status is ok, but no row of its result was checked)"
    )


def test_a_record_that_no_plan_holds_is_damage(path: Path) -> None:
    text = path.read_text()
    first = text.splitlines()[1]
    path.write_text(f"{text}{first.replace(RECORDS[0].backend, 'other')}\n")
    found, (problem,) = run_file.read(path)
    assert found.records == RECORDS
    assert problem.endswith("(ValueError: the run's plan has no such cell, so the line is another run's)")


def test_records_of_another_run_of_the_same_cells_are_damage(tmp_path: Path) -> None:
    """Records of another run of the same cells, joined without their first line, are damage, by their forecasts."""
    records = (*RECORDS[:2], replace(ok(CASES[0], "triton", 310.0), forecast=Forecast(9.0, 1e-3, 2**30)))
    foreign = tuple(replace(record, forecast=Forecast(1.0, 1.1e-3, 2**30)) for record in RECORDS[:2])
    path = tmp_path / "joined.jsonl"
    path.write_bytes(run_file.encoded(replace(RUN, records=(*records, *foreign))))
    found, problems = run_file.read(path)
    assert found.records == records[1:], "what was measured again counts"
    why = "ValueError: the run's plan has another forecast of the cell, so the line is another run's"
    assert problems == [f"{path}:{number}: damaged line left out ({why})" for number in (5, 6)]


@pytest.fixture
def real() -> list[bytes]:
    """Return the lines of the smallest real run file of 20 kB or more, and the empty one after the last newline."""
    paths = (path for path in RESULTS if "default" in path.stem and path.stat().st_size > 20_000)
    return b"".join(run_file.lines(min(paths, key=lambda path: path.stat().st_size))).split(b"\n")


def test_damage_is_reported_by_its_line_wherever_it_is(tmp_path: Path, real: list[bytes]) -> None:
    """Damage is reported by its line, at the start, in the middle and at the end, also beside lines that msgspec
    refuses.
    """
    real[2] = b"{"
    real[len(real) // 3] = b"x"
    real[len(real) // 2] = b'{"type": "note"}'
    odd = next(i for i, line in enumerate(real) if i > len(real) // 2 + 1 and b'"max_error":' in line)
    real[odd] = re.sub(b'"max_error":[^,]+', b'"max_error":"inf"', real[odd], count=1)
    real[odd] = real[odd].replace(b'"status":"ok"', b'"status":"wrong"')
    real[-3] = b"null"
    path = tmp_path / "damaged.jsonl"
    path.write_bytes(b"\n".join(real)[:-200])
    found, problems = run_file.read(path)
    numbers = [int(problem.removeprefix(f"{path}:").partition(":")[0]) for problem in problems]
    assert numbers == [3, len(real) // 3 + 1, len(real) - 2, len(real) - 1]
    assert len(found.records) == len(real) - 2 - 5  # without the header, the empty line and five damaged lines
    errors = [error.max_error for r in found.records if r.accuracy for error in r.accuracy.errors.values()]
    assert errors.count(math.inf) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"a,b,c\n" * 10_000,
        b"[1]\n",
        b'{"type": "record"}\n',
        b'{"type": "run", "schema": 0}\n',
        b'{"type": "run", "schema": "two"}\n',
        b'{"type": "run", "schema": 1e400}\n',
        b"\x89PNG\r\n\x1a\n",
        b"{",
    ],
)
def test_what_is_not_a_run_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match="is not an attnbench run file" + (r" \(it is empty\)" if not content else "")):
        run_file.read(path)
    with pytest.raises(UserError, match="is not an attnbench run file"):
        run_file.head(path)


def test_a_file_of_empty_lines_is_not_read_to_its_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_file, "MOST_OTHERS", 100)
    with path.open("ab") as file:
        file.write(b"\n" * 101)
    with pytest.raises(UserError, match="over 100 of its lines are not records"):
        run_file.head(path)


@pytest.mark.parametrize("left", [40, -1])
def test_a_file_cut_off_in_its_first_line_says_so_and_stays(path: Path, left: int) -> None:
    path.write_bytes(path.read_bytes().partition(b"\n")[0][:left])
    before = path.read_bytes()
    for open_ in (run_file.read, run_file.RunFile.reopen):
        with pytest.raises(UserError, match="cut off in its first line and has no result"):
            open_(path)
    assert path.read_bytes() == before


def test_a_gzipped_file_is_read_whatever_its_name(path: Path) -> None:
    packed = gzipped(path)
    odd = packed.with_name("odd.jsonl")
    odd.write_bytes(packed.read_bytes() + gzip.compress(b"{\n"))  # two gzip files in one, as gzip appends
    assert run_file.read(packed) == (RUN, [])
    assert run_file.head(packed) == run_file.head(path)
    found, problems = run_file.read(odd)
    assert found == RUN
    assert [problem.partition("(")[0] for problem in problems] == [f"{odd}:5: damaged line left out "]
    assert run_file.name(packed) == run_file.name(path) == "run"


def test_of_a_gzipped_file_that_is_cut_off_the_whole_lines_are_read(path: Path, real: list[bytes]) -> None:
    path.write_bytes(b"\n".join(real))
    packed = gzipped(path)
    whole, content = run_file.read(path)[0], packed.read_bytes()
    said = [f"{packed}: the gzip file is cut off; the whole lines before the cut were read"]
    counts = []
    for left in (len(content) // 2, len(content) - 20, len(content) - 3):  # the last lacks part of the checksum
        packed.write_bytes(content[:left])
        found, problems = run_file.read(packed)
        assert (found, problems) == (replace(whole, records=whole.records[: len(found.records)]), said)
        counts.append(len(found.records))
    assert 0 < counts[0] < counts[1] <= counts[2] == len(whole.records)
    for left in (2, 40):
        packed.write_bytes(content[:left])
        with pytest.raises(UserError, match="cut off in its first line and has no result"):
            run_file.read(packed)


@pytest.mark.parametrize("place", [2, 0.5, -6])
def test_a_damaged_gzipped_file_is_one_line(path: Path, place: float) -> None:
    packed = gzipped(path)
    content = bytearray(packed.read_bytes())
    content[place if isinstance(place, int) else int(len(content) * place)] ^= 4
    packed.write_bytes(content)
    for open_ in (run_file.read, run_file.head):
        with pytest.raises(
            UserError, match=r"run.jsonl.gz is a damaged gzip file \(.*\), whose figures cannot"
        ) as error:
            open_(packed)
        assert "\n" not in str(error.value)


def test_what_is_said_of_a_damaged_line_is_short(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"unit":"s"', b'"unit":"' + b"s m " * 2000 + b'"', 1))
    (problem,) = run_file.read(path)[1]
    assert len(problem) < 500 + len(str(path))


def test_of_a_file_one_line_is_held_at_a_time(path: Path) -> None:
    path.write_bytes(gzip.compress(path.read_bytes() + (bytes(2**22) + b"\n") * 16, 1))
    tracemalloc.start()
    try:
        found, problems = run_file.read(path)
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()
    assert (len(found.records), len(problems)) == (len(RECORDS), 16)


@pytest.mark.parametrize(("head", "damaged"), [("x", 0), ('record","x":NaN,"y":"', 1), ('x","y":{"type":"run', 0)])
def test_a_line_of_many_small_values_does_not_fill_the_memory(path: Path, head: str, damaged: int) -> None:
    line = f'{{"type":"{head}","a":[{"[]," * 2**21}[]]{"}" * (1 + head.count("{"))}\n'.encode()
    with path.open("ab") as file:
        file.write(line)
    tracemalloc.start()
    try:
        found, problems = run_file.read(path)
        assert tracemalloc.get_traced_memory()[1] < 6 * len(line)
    finally:
        tracemalloc.stop()
    assert (len(found.records), len(problems)) == (len(RECORDS), damaged)


def test_a_gzipped_file_of_something_else_is_not_unpacked_whole(tmp_path: Path) -> None:
    packed = tmp_path / "log.jsonl.gz"
    packed.write_bytes(gzip.compress(bytes(10**7))[:5000])  # the missing end is not reached
    for open_ in (run_file.read, run_file.head):
        with pytest.raises(UserError, match=r"log.jsonl.gz is not an attnbench run file"):
            open_(packed)


def test_a_huge_file_is_not_read_whole(path: Path) -> None:
    """A huge file is not read whole, but refused by its first bytes or by a line that no run file has."""
    with path.open("r+b") as file:
        file.truncate(2**40)  # null bytes that take no space on the disk
    with pytest.raises(UserError, match="32 MiB in a line, so it is not a run file"):
        run_file.read(path)
    with path.open("r+b") as file:
        file.write(b"\0")
    with pytest.raises(UserError, match="not an attnbench run file"):
        run_file.read(path)


def change_header(path: Path, **changes: object) -> None:
    first, rest = path.read_text().split("\n", 1)
    path.write_text(json.dumps({**json.loads(first), **changes}) + "\n" + rest)


def test_a_newer_schema_is_refused(path: Path) -> None:
    change_header(path, schema=run_file.SCHEMA + 1)
    with pytest.raises(UserError, match=f"newer attnbench .schema {run_file.SCHEMA + 1}.*upgrade"):
        run_file.read(path)


def test_fields_of_a_newer_version_are_passed_over(path: Path) -> None:
    change_header(path, fleet=["a", "b"], policy={"power": "capped"})
    assert run_file.read(path) == (RUN, [])


def test_a_device_without_a_name_has_one_to_be_called_by(path: Path) -> None:
    environment = json.loads(path.read_text().splitlines()[0])["environment"]
    change_header(path, environment={**environment, "device": {**environment["device"], "name": " "}})
    assert run_file.head(path).environment.device.name == "unnamed device"


def test_a_start_in_another_time_zone_is_read_as_utc(path: Path) -> None:
    """A start in another time zone, as from another program, is read as UTC, because starts are sorted as text."""
    for started, read in (("2026-01-09T03:17:22+09:00", "2026-01-08T18:17:22+00:00"), *[(w, w) for w in ("once", "")]):
        change_header(path, started=started)
        assert run_file.head(path).started == read


@pytest.mark.parametrize(
    "changes", [{"plan": None}, {"environment": 3}, {"environment": {"device": []}}, {"plan": [{"case": 1}]}]
)
def test_a_damaged_header_says_its_line(path: Path, changes: dict[str, object]) -> None:
    change_header(path, **changes)
    with pytest.raises(UserError, match=r":1: damaged first line"):
        run_file.read(path)


@pytest.mark.parametrize("cut", [0, 1, 200], ids=["whole", "without its newline", "cut off"])
def test_files_that_were_joined_are_refused(path: Path, cut: int) -> None:
    """Joined files are refused, because the second's records would count for the first's device."""
    one = path.read_bytes()
    path.write_bytes(one[: len(one) - cut] + one)
    for read in (run_file.read, run_file.head):
        with pytest.raises(UserError, match=r"run\.jsonl:[45]: a second run begins here"):
            read(path)
    spelled = [json.dumps(json.loads(line)) for line in one.splitlines()]  # with spaces, as from other programs
    for second in ("\n".join(spelled), '{"schema":2,"type":"run"}', '{"type":"record","type":"run"}'):
        path.write_bytes(one + second.encode() + b"\n")
        with pytest.raises(UserError, match=r"run\.jsonl:5: a second run begins here"):
            run_file.read(path)
    path.write_bytes(gzip.compress(one) + gzip.compress(one))
    with pytest.raises(UserError, match=r"run\.jsonl:5: a second run begins here"):
        run_file.read(path)


@pytest.mark.parametrize("spelling", [{"sort_keys": True}, {"separators": (" ,", "\t: ")}, {"indent": 1}])
def test_a_second_run_behind_the_last_line_of_the_first_is_refused(path: Path, spelling: dict[str, Any]) -> None:
    """A second run after the last line of the first is refused, also where another program has rewritten its JSON."""
    one = path.read_bytes()
    first, *rest = (json.dumps(json.loads(line), **spelling).encode() for line in one.splitlines())
    second = b"\n".join([first, *rest, b""])
    for behind in (second, codecs.BOM_UTF8 + second, first):
        path.write_bytes(one[:-200] + behind)
        with pytest.raises(UserError, match=r"run\.jsonl:\d: a second run begins here"):
            run_file.read(path)


def test_lines_in_utf_16_are_damaged_ones(path: Path) -> None:
    """Lines in UTF-16, as from PowerShell, are damaged ones."""
    one = path.read_text()
    path.write_bytes(one.encode() + one.encode("utf-16"))
    found, problems = run_file.read(path)
    assert (found, len(problems)) == (RUN, 5)


def test_the_file_of_a_command_to_copy_is_one_word(tmp_path: Path) -> None:
    path = tmp_path / "a; b.jsonl"
    path.write_bytes(2 * run_file.encoded(RUN))
    with pytest.raises(UserError, match=re.escape(f"head -n 4 '{path}'")):
        run_file.read(path)
    with pytest.raises(UserError, match=re.escape(f"--resume '{path}'")):
        run_file.RunFile.create(path, RUN)
    assert run_file.resume_command(RUN, path) == f"attnbench run --resume '{path}' --trust"


def test_a_command_to_go_on_trusts_own_masks() -> None:
    own = run([], specs={"flex": "attnbench.backends:Flex"}, plan=[job(replace(case(), mask="m.py:f@0"), "flex")])
    assert run_file.resume_command(own, "a.jsonl") == "attnbench run --resume a.jsonl --trust"
    assert not run_file.trust(replace(own, plan=()))


def test_lines_that_are_no_records_have_an_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading ends after many lines that are no records, of which some kilobytes of gzip may hold millions."""
    monkeypatch.setattr(run_file, "MOST_OTHERS", 100)
    content = path.read_bytes()
    for line in (b'{"type":"x"}\n', b'{"type":"rounds","rounds":3}\n', b"\n"):
        path.write_bytes(content + 10 * line)
        assert run_file.read(path)[1] == []
        path.write_bytes(content + 101 * line)
        with pytest.raises(UserError, match="over 100 of its lines are not records; restore the file"):
            run_file.read(path)


@pytest.mark.parametrize("number", [40, 400])
def test_masks_and_lengths_that_take_minutes_are_refused(path: Path, number: int) -> None:
    """Masks and lengths that would take minutes are refused, in a few kilobytes of records."""
    square = case(2**18, batch=1)
    masked = [replace(square, mask=f"random:{i / 1000}") for i in range(1, number)]
    batches = [((4095, 1, 1), (1, n, n)) for n in range(2, number + 2)]
    ragged = [replace(case(of[-1][1], batch=4096), lengths=of) for of in batches]
    for cases, said in ((masked, "blocks of different random masks"), (ragged, "sequences in different lengths")):
        path.write_bytes(run_file.encoded(run([ended(one, "triton", "failed", "x") for one in (*cases, *cases)])))
        if number == 40:
            found, _ = run_file.read(path)
            assert len(found.records) == len(found.replaced) == len(cases)
            continue
        with pytest.raises(UserError, match=rf"run\.jsonl: [\d,]+ {said}, more than the"):
            run_file.read(path)


@pytest.mark.parametrize("line", [0, 2, 4])
def test_a_conflict_of_a_merge_is_refused(path: Path, line: int) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:line], "<<<<<<< HEAD\n", *lines[line:]]))
    for read in (run_file.read, run_file.head):
        with pytest.raises(UserError, match="an unresolved conflict of a merge"):
            read(path)


def test_a_pointer_of_git_lfs_is_called_one(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n")
    with pytest.raises(UserError, match="git lfs pull"):
        run_file.read(path)


def test_a_file_of_damaged_lines_is_given_up(path: Path) -> None:
    path.write_bytes(gzip.compress(path.read_bytes() + b"x\n" * 1_100))
    with pytest.raises(UserError, match="over 1,000 of its lines are damaged"):
        run_file.read(path)


@pytest.mark.parametrize(("name", "unit"), [("time", "ms"), ("time", "xyz"), ("memory_peak", "GiB"), ("power", "")])
def test_a_unit_that_a_measurement_does_not_have_makes_its_line_a_damaged_one(path: Path, name: str, unit: str) -> None:
    odd = replace(RECORDS[1], measurements={**RECORDS[1].measurements, name: Measurement(unit, (1.0,))})
    path.write_bytes(run_file.encoded(replace(RUN, records=(RECORDS[0], odd))))
    found, (problem,) = run_file.read(path)
    assert found.records == RECORDS[:1]
    assert f"{name}: its unit is" in problem


def with_records(*records: Record) -> Run:
    return run(records, plan=RUN.plan)


def test_missing_is_what_has_no_record() -> None:
    assert [j.case for j in run_file.missing(RUN)] == CASES[3:]
    assert run_file.missing(with_records(*(ok(c, "triton", 1.0) for c in CASES))) == []


def test_failures_are_not_measured_again_but_skips_for_time_are() -> None:
    ends = [ended(CASES[0], "triton", s, "x") for s in ("failed", "oom", "timeout", "wrong", "skipped")]
    for record in ends:
        assert CASES[0] not in [j.case for j in run_file.missing(with_records(record))]
    skip = ended(CASES[0], "triton", "skipped", "time limit", resumable=True)
    assert CASES[0] in [j.case for j in run_file.missing(with_records(skip))]
    assert CASES[0] not in [j.case for j in run_file.missing(with_records(skip, ok(CASES[0], "triton", 1.0)))]


def test_a_line_of_further_jobs_plans_them_and_a_senseless_one_is_damage(tmp_path: Path) -> None:
    """Jobs that a run adds to its plan are measured, resumed and repeated in rounds like those of its first line."""
    further = [case(length, causal=True) for length in (3072, 5120)]
    first = replace(RUN, records=())
    file = run_file.RunFile.create(tmp_path / "r.jsonl", first)
    file.add_jobs([job(one, "triton") for one in further])
    file.append(replace(ok(further[0], "triton", 100), version=None))
    file.add_jobs([job(further[1], "triton")])  # of a job that is planned already
    file.add_rounds(2)
    file.close()
    found, problems = run_file.read(file.path)
    assert [problem.partition(" (")[0] for problem in problems] == [f"{file.path}:4: damaged line left out"]
    assert [one.case for one in found.plan if not one.round] == [*(one.case for one in first.plan), *further]
    assert {one.case for one in found.plan if one.round} == {one.case for one in found.plan if not one.round}
    assert [record.case for record in found.records] == [further[0]]
    assert further[0] not in [one.case for one in run_file.missing(found) if not one.round]


def test_a_line_of_more_rounds_plans_them_and_a_senseless_one_is_damage(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"rounds": 3, "type": "rounds"}\n{"type":"rounds","rounds":2}\n')
        file.write(b'{"type":"rounds","rounds":1000000000}\n{"type":"rounds","rounds":"9"}\n{"type":"rounds",}\n')
    found, problems = run_file.read(path)
    assert [problem.partition(" (")[0] for problem in problems] == [
        f"{path}:{n}: damaged line left out" for n in (7, 8, 9)
    ]
    assert found.plan[: len(CASES)] == RUN.plan
    assert {(j.case, j.backend, j.round) for j in found.plan} == {(c, "triton", n) for c in CASES for n in range(3)}
    orders = [[j.case for j in found.plan if j.round == n] for n in range(3)]
    assert orders[1] != orders[2], "each round has an order of its own"
    assert len(run_file.missing(found)) == len(CASES) - len(RECORDS) + 2 * len(CASES)
