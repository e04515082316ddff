"""The fast decoder of run files agrees with core.json, on real lines and on damaged ones."""

from __future__ import annotations

import copy
import itertools
import json
import math
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnbench.core.errors import UserError
from attnbench.core.json import from_json, to_json
from attnbench.core.record import Accuracy, Forecast, Measurement, Record, TensorError
from attnbench.results import bounds, decode, run_file
from builders import UNITS, case, ok, run

RESULTS = sorted((Path(__file__).parents[2] / "results").glob("*.jsonl*"))
LATEST = next(path for path in RESULTS if path.name.startswith("20261126-091952-models-"))  # has the present schema


def text(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


def lines(path: Path) -> Iterator[bytes]:
    return itertools.islice(run_file.lines(path), 1, None)


def plainly(line: bytes) -> Record:
    """Return the record of a line as core.json reads it, without fields that no reader knows."""
    data = json.loads(line)
    assert data.pop("type") == "record"
    if isinstance(data.get("measurements"), dict):
        data["measurements"] = {name: decode._unpacked(found) for name, found in data["measurements"].items()}
    found = from_json(Record, data)
    bounds.check_record(found)
    return found


def test_both_readers_agree_on_records_of_every_file() -> None:
    """Both readers agree on the first line of every file, and on every hundredth other line."""
    for path in RESULTS:
        for line in itertools.islice(lines(path), 0, None, 100):
            expected = repr(plainly(line))  # as text, because the error of a result that is not finite equals nothing
            assert repr(decode.record(line)) == expected, path
            packed = {"type": "record", **decode.packed(to_json(plainly(line)))}
            assert repr(decode.record(text(packed))) == repr(plainly(text(packed))) == expected, path


def test_a_regular_line_is_read_by_msgspec() -> None:
    """A field of Record without a default in the fast decoder sends every line to core.json, five times as slow."""
    found = decode.record(text({"type": "record", **to_json(ok(case(), "triton", 300.0))}))
    assert isinstance(getattr(found, "measurements", None), decode.Samples)


def test_both_readers_agree_on_every_plan() -> None:
    for path in RESULTS[::4]:
        header, run = json.loads(next(run_file.lines(path))), run_file.head(path)
        assert [to_json(job) for job in run.plan] == header["plan"], path
        assert {**to_json(run), "plan": 0, "records": 0} == {
            **{k: v for k, v in header.items() if k not in ("type", "schema") and v != {}},
            "plan": 0,
            "records": 0,
            "policy": header.get("policy", {}),
        }, path


def test_repetition_is_packed_and_nothing_is_lost() -> None:
    record = ok(case(), "triton", 300.0)
    clocks = Measurement("Hz", (1.98e9,) * 40 + (1.965e9,) * 2 + (1.98e9,))
    record = Record(**{**vars(record), "measurements": {**record.measurements, "clock_sm": clocks}})
    data = decode.packed(to_json(record))
    assert data["measurements"]["clock_sm"] == {"unit": "Hz", "runs": [[1.98e9, 40], [1.965e9, 2], [1.98e9, 1]]}
    assert data["measurements"]["time"] == to_json(record)["measurements"]["time"]  # hardly any sample repeats
    found = decode.record(text({"type": "record", **data}))
    assert found == record
    read = found.measurements["clock_sm"].values
    assert (len(read), read[0], read[40], read[-1]) == (43, 1.98e9, 1.965e9, 1.98e9)
    assert [*read[39:42]] == [1.98e9, 1.965e9, 1.965e9]
    assert [*reversed(read)] == [*reversed(clocks.values)]


def test_what_has_no_word_in_json_is_read_too() -> None:
    data = next(data for data in map(json.loads, lines(LATEST)) if "accuracy" in data)
    data["accuracy"]["errors"]["out"]["max_error"] = "nan"
    with pytest.raises(ValueError, match="its status is ok, but its result is wrong: out is off by nan"):
        decode.record(text(data))
    found = decode.record(text({**data, "status": "wrong"}))
    assert found is not None
    assert found.accuracy is not None
    assert not found.accuracy.ok


def test_a_field_of_the_case_that_is_not_known_makes_it_another() -> None:
    data = json.loads(next(lines(LATEST)))
    with pytest.raises(ValueError, match="a newer attnbench's case, with sinks"):
        decode.record(text({**data, "case": {**data["case"], "sinks": 4}}))
    with pytest.raises(ValueError, match="shape: a newer attnbench's shape, with sinks"):
        decode.record(text({**data, "case": {**data["case"], "shape": {**data["case"]["shape"], "sinks": 4}}}))
    assert decode.record(text({**data, "sinks": 4})) == decode.record(text(data))
    assert decode.record(b'{"type":"note","text":"of a newer attnbench"}') is None


def test_half_of_a_surrogate_pair_is_replaced() -> None:
    """Half of a surrogate pair in a record's text is replaced, so that the record is kept and can be written."""
    data = json.loads(next(lines(LATEST)))
    read = decode.record(json.dumps({**data, "reason": "a \ud800 b", "kernels": {"\udfff": 1}}).encode())
    assert (read.reason, dict(read.kernels)) == ("a \ufffd b", {"\ufffd": 1})
    header = json.loads(next(run_file.lines(LATEST)))
    header["plan"][0]["backend"] = header["suite"] = "a \ud800"
    found = decode.run(decode.fields(json.dumps(header).encode()))
    assert found.suite == found.plan[0].backend == "a \ufffd"


def test_both_readers_refuse_the_same_damaged_lines() -> None:
    """For real lines with random changes both readers return the same record, or raise one of DAMAGE."""
    chance = random.Random(0)
    whole = [line for line in lines(LATEST) if len(line) < 6000][:20]
    refused = 0
    for _ in range(600):
        line = bytearray(chance.choice(whole))
        line[chance.randrange(len(line))] = chance.choice(b'0123456789.e-"[]{},: x\xff')
        try:
            expected = plainly(bytes(line))
        except (*decode.DAMAGE, AssertionError):
            expected = None
        try:
            found = decode.record(bytes(line))
        except decode.DAMAGE:
            found = None
        refused += found is None
        assert found == expected
    assert 0 < refused < 600


def test_a_byte_that_is_no_utf_8_is_damage_in_a_field_that_is_not_known_too(tmp_path: Path) -> None:
    """A byte that is not UTF-8 is damage in an unknown field too, whose name could be a known one's."""
    file, content = tmp_path / "run.jsonl", run_file.encoded(run([ok(case(), "triton", 300.0)]))
    file.write_bytes(content.replace(b'"status":', b'"ski\xff":1,"status":'))
    assert f"{file}:2: {run_file.DAMAGED}" in run_file.read(file)[1][0]
    file.write_bytes(content.replace(b'"plan":[{', b'"plan":[{"ski\xff":1,'))
    with pytest.raises(UserError, match=r":1: damaged first line"):
        run_file.read(file)


MEASUREMENT = {
    '"values":["five"]': 'measurements: time: values: "five" is no number',
    '"values":[true]': "measurements: time: values: true is no number",
    '"more":1': "measurements: time: a measurement without values",
    '"runs":[[5.0,"x"]]': 'runs: "x" is not a number of samples',
    '"runs":[[5.0,2.5]]': "runs: 2.5 is not a number of samples",
    '"runs":[[5.0,0]]': "runs: 0 is not a number of samples",
    '"runs":[[5.0,9000000],[6.0,9000000]]': "runs: 18000000 is not a number of samples",
    '"values":[]': "time: no samples",
    '"runs":[]': "time: no samples",
    '"runs":5': "runs: not a list of [value, times]",
    '"runs":[[5.0]]': "runs: not a list of [value, times]",
    '"values":7,"runs":[[1.0,2]]': "measurements: time: values: 7 is no list",
}


@pytest.mark.parametrize(("damage", "problem"), MEASUREMENT.items())
def test_a_damaged_measurement_says_where_it_is(damage: str, problem: str) -> None:
    line = text({"type": "record", **to_json(Record(case(), "triton", 0, "ok"))})[:-1]
    with pytest.raises(ValueError, match=rf"^{re.escape(problem)}$"):
        decode.record(line + b',"measurements":{"time":{"unit":"s",' + damage.encode() + b"}}}")


@pytest.mark.parametrize("number", [1e308, -1.0, float("nan")])
@pytest.mark.parametrize(
    "place", ["seconds", "round", "phases/x", "kernels/x", "ecc_errors", "forecast/seconds", "forecast/nbytes",
              "accuracy/rows", "case/softcap", "case/shape/batch"]
)  # fmt: skip
def test_both_readers_refuse_a_number_that_nothing_can_have_measured(place: str, number: float) -> None:
    """Both readers refuse impossible numbers, in lines for msgspec and in lines for core.json (infinite errors)."""
    record = ok(case(), "triton", 300.0)
    forecast, accuracy = Forecast(1.0, 1e-3, 2**20), Accuracy({"out": TensorError(1.0, 1.0, 1.0, 1.0)}, 4, 4)
    data = to_json(replace(record, forecast=forecast, accuracy=accuracy, seconds=1.0, phases={"y": 1.0}))
    holder, (*path, last) = data, place.split("/")
    for name in path:
        holder = holder.setdefault(name, {})
    holder[last] = number if math.isfinite(number) else str(number)
    whole = {"type": "record", **data}
    infinite = copy.deepcopy(whole)
    infinite["accuracy"]["errors"]["out"].update(max_error="inf", tolerance="inf")
    for line in (whole, infinite):
        with pytest.raises(ValueError, match=last):
            decode.record(text(line))


@pytest.mark.parametrize("number", [-1.0, "-inf"])
@pytest.mark.parametrize("field", ["max_error", "eager_error", "tolerance", "relative"])
def test_an_error_below_0_is_damage(field: str, number: float | str) -> None:
    """Errors are magnitudes: one below 0 would be within each tolerance, and better than any baseline."""
    line = {"type": "record", **to_json(replace(ok(case(), "triton", 300.0), status="wrong"))}
    line["accuracy"] = {
        "rows": 4,
        "heads": 4,
        "errors": {"out": {**to_json(TensorError(1.0, 1.0, 1.0, 1.0)), field: number}},
    }
    with pytest.raises(ValueError, match="errors: out: a number below 0 is no error"):
        decode.record(text(line))


@pytest.mark.parametrize("place", ["round", "ecc_errors", "kernels"])
def test_a_count_of_64_bits_is_none(place: str) -> None:
    """Bytes, tokens and rounds beyond 2**48 are damage, although msgspec takes them up to 2**63."""
    line = {"type": "record", **to_json(Record(case(), "triton", 0, "ok"))}
    for number, why in ((2**62, f"{2**62} is outside the possible range"), (2**64, "is beyond 64 bits")):
        with pytest.raises(ValueError, match=rf"{place}.*{why}"):
            decode.record(text({**line, place: {"x": number} if place == "kernels" else number}))


@pytest.mark.parametrize(
    ("unit", "value"), [("s", 1e308), ("s", 1e-300), ("B", -1.0), ("W", "nan"), ("Hz", "-inf"), ("FLOP/s", 0.0)]
)
def test_a_sample_that_nothing_can_have_measured_is_damage(unit: str, value: float | str) -> None:
    line = {"type": "record", **to_json(ok(case(), "triton", 300.0))}
    for values in ([value], [1.0, value, 2.0], ["nan", value]):
        found = {"of_a_newer_attnbench": {"unit": unit, "values": values}}
        with pytest.raises(ValueError, match="cannot have been measured"):
            decode.record(text({**line, "measurements": found}))


def test_a_clock_of_a_few_hertz_is_damage_and_of_none_is_missing() -> None:
    line = {"type": "record", **to_json(ok(case(), "triton", 300.0))}

    for hertz in (0.0, 1.0):
        for samples in ({"values": [1.98e9, hertz]}, {"runs": [[1.98e9, 40], [hertz, 2]]}):
            found = text({**line, "measurements": {"clock_held": {"unit": "Hz", **samples}}})
            if not hertz:
                assert decode.record(found)
                continue
            with pytest.raises(ValueError, match="clock_held: 1 Hz cannot have been measured"):
                decode.record(found)


@pytest.mark.parametrize(
    ("mask", "pairs", "why"),
    [
        ("mine.py:near@0a1b2c3d", -1.0, "cannot have been measured"),
        ("mine.py:near@0a1b2c3d", 1e30, "are more than the case can have"),
        ("", 1.0, "counted only for a person's own mask"),
    ],
)
def test_pairs_that_no_case_has_are_damage(mask: str, pairs: float, why: str) -> None:
    record = ok(replace(case(), mask=mask, causal=not mask), "eager", 300.0)
    found = {**record.measurements, "pairs": Measurement("", (pairs,))}
    with pytest.raises(ValueError, match=why):
        decode.record(text({"type": "record", **to_json(replace(record, measurements=found))}))


@pytest.mark.parametrize("place", ["backend", "reason", "notes", "kernels", "stderr", "version"])
def test_a_text_that_no_attnbench_writes_is_damage(place: str) -> None:
    line = {"type": "record", **to_json(ok(case(), "triton", 300.0))}
    for length in (bounds.MOST_OF_TEXT, bounds.MOST_OF_TEXT + 1):
        word = "x" * length
        found = text({**line, place: {"notes": [word], "kernels": {word: 1}}.get(place, word)})
        if length <= bounds.MOST_OF_TEXT:
            assert decode.record(found)
            continue
        with pytest.raises(ValueError, match="a text of 10,001 characters is longer than any"):
            decode.record(found)


def test_a_first_line_with_a_text_that_no_attnbench_writes_is_refused(tmp_path: Path) -> None:
    header = json.loads(next(run_file.lines(RESULTS[0])))
    header["environment"]["device"]["name"] = "H100 " * 20_000
    (path := tmp_path / "run.jsonl").write_text(json.dumps(header) + "\n")
    with pytest.raises(UserError, match=r"damaged first line \(environment: device: name: a text of 100,000 char"):
        run_file.read(path)


def test_repeated_samples_do_not_fill_the_memory(tmp_path: Path) -> None:
    """Repeated samples do not fill the memory: many in one measurement, or few in many measurements or lines."""
    record = to_json(Record(case(), "triton", 0, "wrong"))
    runs = {"unit": "W", "runs": [[5.0, 600_000]]}
    with pytest.raises(ValueError, match="runs: 1200000 is not a number of samples"):
        decode.record(text({"type": "record", **record, "measurements": {"power": runs, "clock_sm": runs}}))
    lines = [text({"type": "record", **record, "round": i, "measurements": {"power": runs}}) for i in range(50)]
    path = tmp_path / "many.jsonl"
    path.write_bytes(b"".join([*run_file.encoded(run([])).splitlines(keepends=True), *(x + b"\n" for x in lines)]))
    found, problems = run_file.read(path)
    assert (len(found.records), len(problems)) == (8, 42)
    assert "has more repeated samples than fit the memory" in problems[0]


@pytest.mark.parametrize(
    "place", ["environment/device/memory", "environment/device/copy", "environment/power_limit_w", "policy/burst_s",
              "method", "peak/bf16", "plan/0/round", "plan/0/forecast/seconds", "plan/0/case/shape/batch"]
)  # fmt: skip
def test_a_first_line_with_a_number_that_nobody_can_have_planned_is_refused(place: str, tmp_path: Path) -> None:
    header = json.loads(next(run_file.lines(RESULTS[0])))
    path = tmp_path / "odd.jsonl"
    for number in (1e308, -1, "nan", *[1e9] * place.startswith("policy")):
        changed = copy.deepcopy(header)
        holder, (*names, last) = changed, place.split("/")
        for name in names:
            holder = holder[int(name)] if name.isdigit() else holder.setdefault(name, {})
        holder[last] = number
        path.write_bytes(text(changed) + b"\n")
        with pytest.raises(UserError, match=rf"odd.jsonl:1: damaged first line \(.*{last}"):
            run_file.read(path)


def test_a_file_of_schema_1_stays_one_when_it_is_resumed(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    content = [*run_file.lines(RESULTS[0])]
    assert json.loads(content[0])["schema"] == 1
    path.write_bytes(b"".join(content[:3]))
    before, _ = run_file.read(path)
    file = run_file.RunFile.reopen(path)
    file.append(before.records[0])
    file.close()
    assert b'"runs"' not in path.read_bytes()
    after, problems = run_file.read(path)
    assert (after.records, problems) == ((*before.records[1:], before.records[0]), [])
    (tmp_path / "notes").write_text("hello\n")
    with pytest.raises(UserError, match="is not an attnbench run file"):
        run_file.RunFile.reopen(tmp_path / "notes")


def test_the_unit_of_each_measurement_that_is_made_is_known() -> None:
    assert {name: bounds.unit(name) for name in UNITS} == UNITS
