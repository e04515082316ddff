"""The choice file and its JSON Schema, docs/choice-file.schema.json, which this file writes as a script."""

from __future__ import annotations

import codecs
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from attnbench.analysis.choose import choice_file
from attnbench.analysis.choose.choice_file import ChoiceFile
from attnbench.analysis.choose.document import Choices
from attnbench.core.errors import UserError
from attnbench.results.cells import cells
from attnbench.results.run_file import encoded
from builders import case, ok, run

PUBLISHED = Path(__file__).parents[3] / "docs" / "choice-file.schema.json"


def schema() -> dict[str, Any]:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **TypeAdapter(ChoiceFile).json_schema()}


def choices() -> ChoiceFile:
    records = [
        ok(case(length, causal=True, batch=1, **sizes), name, tflops)  # type: ignore[arg-type]
        for length in (1024, 2048)
        for sizes in ({}, {"seqlen_q": 1})
        for name, tflops in (("fa3", 500), ("sdpa", 400), ("triton", 300))
    ]
    return Choices(cells([run(records)], by_machine=True)).file


def test_the_published_schema_is_current() -> None:
    assert json.loads(PUBLISHED.read_text()) == schema(), "this file, run as a script, renews it"


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = choices()
    file = tmp_path / "c.json"
    file.write_text(choice_file.text(made))
    assert choice_file.is_choice_file(file)
    assert choice_file.read(file) == made
    equal, decode = sorted(made.regions, key=lambda region: "seqlen_q" in region.shape)
    assert ("seqlen_q" in equal.shape, decode.shape["seqlen_q"]) == (False, "1")
    assert (equal.use, equal.alternatives, equal.seqlen_k, equal.worst) == ("fa3", (), (1024, 2048), 1.0)
    first = equal.measured[0]
    assert [one.backend for one in first.backends] == ["fa3", "sdpa", "triton"]
    assert 0 < first.backends[0].between_cards < 0.1
    assert first.gain == pytest.approx(500 / 400)
    assert (first.gain_low or 0) < 500 / 400 < (first.gain_high or 0)


def test_a_file_is_known_by_its_content(tmp_path: Path) -> None:
    """With a byte order mark, in another order or gzipped it is a choice file; a damaged one too, but no run file."""
    made = choices()
    data = json.loads(choice_file.text(made))
    reversed_, plain = json.dumps(dict(reversed(data.items()))), choice_file.text(made).encode()
    for i, content in enumerate((codecs.BOM_UTF8 + plain, reversed_.encode(), gzip.compress(reversed_.encode()))):
        file = tmp_path / f"{i}.json"
        file.write_bytes(content)
        assert choice_file.is_choice_file(file)
        assert choice_file.read(file) == made
    file.write_bytes(plain[:300])
    assert choice_file.is_choice_file(file)
    for content in (gzip.compress(plain)[:-20], encoded(run([ok(case(1024), "fa3", 500)], argv=('"choices": 1',)))):
        file.write_bytes(content)
        assert not choice_file.is_choice_file(file)


def test_all_that_a_file_holds_fits_its_schema() -> None:
    """Each value has a type of the schema: pydantic refuses another one in its strict mode."""
    TypeAdapter(ChoiceFile).validate_json(choice_file.text(choices()), strict=True)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"choices": 1}', '{"choices": "x"}', '{"choices": 1, "gpu": null}'])
def test_other_files_are_refused_in_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.json"
    file.write_text(text)
    with pytest.raises(UserError, match=r"c\.json is no choice file"):
        choice_file.read(file)


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text(choice_file.text(replace(choices(), choices=choice_file.SCHEMA + 1)))
    with pytest.raises(UserError, match="newer attnbench"):
        choice_file.read(file)


if __name__ == "__main__":
    PUBLISHED.write_text(json.dumps(schema(), indent=1) + "\n")
