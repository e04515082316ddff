"""The fast reader of run files reads what jsonable does, of real files and of damaged ones."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from multiplied import multiply

from attnbench.core.errors import UserError
from attnbench.core.json import from_json, to_json
from attnbench.core.record import Measurement, Record
from attnbench.results import decode, run_file
from builders import case, ok

RESULTS = sorted((Path(__file__).parents[2] / "results").glob("*.jsonl"))
DAMAGE = (ValueError, KeyError, TypeError, AttributeError)


def text(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


def lines(path: Path) -> Iterator[bytes]:
    return iter(path.read_bytes().splitlines()[1:])


def plainly(line: bytes) -> Record:
    """As jsonable reads a line of schema 1."""
    data = json.loads(line)
    assert data.pop("type") == "record"
    return from_json(Record, data)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_both_readers_agree_on_every_record(path: Path) -> None:
    for line in lines(path):
        data = json.loads(line)
        if "runs" in line.decode():
            data["measurements"] = {n: decode._unpacked(m) for n, m in data["measurements"].items()}
        expected = plainly(text(data))
        found = decode.record(line)
        assert found == expected
        assert decode.record(text(decode.packed(data))) == expected


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_both_readers_agree_on_every_plan(path: Path) -> None:
    header = json.loads(path.read_bytes().partition(b"\n")[0])
    run, _ = run_file.read(path)
    assert [to_json(job) for job in run.plan] == header["plan"]
    assert {**to_json(run), "plan": 0, "records": 0} == {
        **{k: v for k, v in header.items() if k not in ("type", "schema") and v != {}},
        "plan": 0,
        "records": 0,
        "policy": header.get("policy", {}),
    }


def test_repetition_is_packed_and_nothing_is_lost() -> None:
    record = ok(case(), "triton", 300.0)
    clocks = Measurement("Hz", (1.98e9,) * 40 + (1.965e9,) * 2 + (1.98e9,))
    record = Record(**{**vars(record), "measurements": {**record.measurements, "clock_sm": clocks}})
    data = decode.packed(to_json(record))
    assert data["measurements"]["clock_sm"] == {"unit": "Hz", "runs": [[1.98e9, 40], [1.965e9, 2], [1.98e9, 1]]}
    assert data["measurements"]["time"] == to_json(record)["measurements"]["time"]  # hardly repeats
    assert decode.record(text({"type": "record", **data})) == record


def test_what_has_no_word_in_json_is_read_too() -> None:
    line = next(lines(RESULTS[-1]))
    data = json.loads(line)
    data["accuracy"]["errors"]["out"]["max_error"] = "nan"
    found = decode.record(text(data))
    assert found is not None
    assert found.accuracy is not None
    assert not found.accuracy.ok


def test_a_field_of_the_case_that_is_not_known_makes_it_another() -> None:
    data = json.loads(next(lines(RESULTS[-1])))
    with pytest.raises(ValueError, match="a newer attnbench's case, with sinks"):
        decode.record(text({**data, "case": {**data["case"], "sinks": 4}}))
    with pytest.raises(ValueError, match="shape: a newer attnbench's shape, with sinks"):
        decode.record(text({**data, "case": {**data["case"], "shape": {**data["case"]["shape"], "sinks": 4}}}))
    assert decode.record(text({**data, "sinks": 4})) == decode.record(text(data))
    assert decode.record(b'{"type":"note","text":"of a newer attnbench"}') is None


def test_damage_is_seen_by_both_or_when_the_samples_are_asked_for() -> None:
    """Bytes of real lines changed at random: nothing but the errors that store.read knows, and no other record."""
    chance = random.Random(0)
    whole = [line for line in lines(RESULTS[-1]) if len(line) < 6000][:20]
    refused = 0
    for _ in range(600):
        line = bytearray(chance.choice(whole))
        line[chance.randrange(len(line))] = chance.choice(b'0123456789.e-"[]{},: x\xff')
        try:
            expected = plainly(bytes(line))
        except (*DAMAGE, AssertionError):
            expected = None
        try:
            found = decode.record(bytes(line))
            read = dict(found.measurements) if found else {}
        except (*DAMAGE, UserError):
            found = None
        refused += found is None
        if found and expected:
            assert found == expected
            assert read == expected.measurements
    assert 0 < refused < 600  # either way round is seen


def test_a_file_of_schema_1_stays_one_when_it_is_resumed(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    content = RESULTS[0].read_bytes().splitlines(keepends=True)
    assert json.loads(content[0])["schema"] == 1
    path.write_bytes(b"".join(content[:3]))
    before, _ = run_file.read(path)
    file = run_file.RunFile.reopen(path)
    file.append(before.records[0])
    file.close()
    assert b'"runs"' not in path.read_bytes()
    after, problems = run_file.read(path)
    assert (after.records, problems) == ((*before.records, before.records[0]), [])
    (tmp_path / "notes").write_text("hello\n")
    with pytest.raises(UserError, match="is not an attnbench run file"):
        run_file.RunFile.reopen(tmp_path / "notes")


def test_a_new_file_is_of_schema_2_and_half_as_long(tmp_path: Path) -> None:
    source = next(path for path in RESULTS if b'"schema":1' in path.read_bytes()[:100])
    run, _ = run_file.read(source)
    file = run_file.RunFile.create(tmp_path / "new.jsonl", run)
    for record in run.records:
        file.append(record)
    file.close()
    assert run_file.read(file.path) == (run, [])
    assert file.path.stat().st_size < 0.6 * source.stat().st_size


def test_multiplied_runs_are_real_ones(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    multiply(next(path for path in RESULTS if "default" in path.stem), path, 700, rounds=2)
    run, problems = run_file.read(path)
    assert not problems
    assert len(run.records) == 700
    assert len({r.id for r in run.records}) == 700
    assert run_file.missing(run) == [j for j, r in zip(run.plan, run.records, strict=True) if r.resumable]
