"""A document for programs: JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass

import pytest

from attnbench.render import json_and_csv
from attnbench.render.document import Document


@dataclass(frozen=True)
class Finding:
    name: str
    value: float
    note: str | None = None


def test_json_is_of_all_the_data() -> None:
    found = Document("gate", "", data={"verdict": "pass", "findings": [Finding("a", 1.0), Finding("b", 2.0, "x")]})
    assert json.loads(json_and_csv.json_text(found)) == {
        "verdict": "pass",
        "findings": [{"name": "a", "value": 1.0}, {"name": "b", "value": 2.0, "note": "x"}],
    }
    assert json_and_csv.json_text(found).endswith("\n}\n")


def test_json_of_rows_has_one_a_line() -> None:
    rows = [{"a": 1, "b": None}, {"a": 2, "b": "x"}]
    assert (
        json_and_csv.json_text(Document("report", "", data=rows)) == '[\n{"a": 1, "b": null},\n{"a": 2, "b": "x"}\n]\n'
    )
    assert json_and_csv.json_text(Document("report", "", data=[])) == "[]\n"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_json_has_no_number_that_json_lacks(number: float) -> None:
    found = json.loads(json_and_csv.json_text(Document("report", "", data=[{"a": number}])))
    assert found == [{"a": str(number)}]


def test_a_document_without_data() -> None:
    assert json_and_csv.json_text(Document("test", "")) == "null\n"
    assert json_and_csv.csv_text(Document("test", "")) == ""
    assert json_and_csv.csv_text(Document("test", "", columns=("a", "b"))) == "a,b\n"


def test_csv_reads_back_whatever_a_name_holds_and_gives_no_orders() -> None:
    """CSV reads back any name, and has no commands for a terminal (clipboard) or a spreadsheet (formulas)."""
    names = ('comma, quote " and\nnewline', "a\rb", "ü µ \x1b[31m\x1b]52;c;eA==\x07", "=1+1", "@a", "\t=1+1", "\uff1d1")
    shown = ['comma, quote " and\nnewline', "a b", "ü µ ", "'=1+1", "'@a", "' =1+1", "'\uff1d1"]
    rows = [{"name": name, "value": i, "none": None} for i, name in enumerate(names)]
    text = json_and_csv.csv_text(Document("report", "", rows=rows))
    assert text.startswith("name,value,none\n")
    found = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [row["name"] for row in found] == shown
    assert [row["value"] for row in found] == ["0", "1", "2", "3", "4", "5", "6"]
    assert {row["none"] for row in found} == {""}
