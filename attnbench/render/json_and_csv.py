"""A document for programs: JSON of all its data, CSV of its rows."""

from __future__ import annotations

import csv
import io
import json
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from attnbench.core.json import to_json
from attnbench.core.text import printable
from attnbench.render.document import Document


def json_text(document: Document) -> str:
    """Return `document.data` as JSON; a list has one mapping on each line. Unknown values are null."""
    return "".join(json_pieces(document))


def json_pieces(document: Document) -> Iterator[str]:
    """Yield the parts of `json_text`: of a list, one for each mapping."""
    data = document.data
    if not isinstance(data, Sequence) or isinstance(data, str):
        yield json.dumps(to_json(data), indent=1, allow_nan=False) + "\n"
        return
    separator = "[\n"
    for row in data:
        yield separator + _line(row)
        separator = ",\n"
    yield "[]\n" if separator == "[\n" else "\n]\n"


def _line(row: Any) -> str:
    """Return a row as JSON. Most rows hold plain values and are encoded at once."""
    try:
        return json.dumps(row, allow_nan=False)
    except (TypeError, ValueError):  # it holds a dataclass, or NaN
        return json.dumps(to_json(row), allow_nan=False)


def csv_text(document: Document) -> str:
    """Return `document.rows` under a line of their keys, None as an empty field; "" where there are neither."""
    return "".join(csv_pieces(document))


def csv_pieces(document: Document) -> Iterator[str]:
    """Yield the lines of `csv_text`."""
    rows = iter(document.rows)
    first = next(rows, None)
    if keys := document.columns if first is None else first.keys():
        out = io.StringIO()
        for fields in chain([keys], (map(_field, row.values()) for row in chain([first] if first else [], rows))):
            csv.writer(out, lineterminator="\n").writerow(fields)
            yield out.getvalue()
            out.seek(0)
            out.truncate()


def _field(value: Any) -> Any:
    """Return a value that a terminal and a spreadsheet show as text: without commands and formulas."""
    if not isinstance(value, str):
        return value
    text = "\n".join(map(printable, value.split("\n")))  # code has several lines
    first = unicodedata.normalize("NFKC", text.lstrip()[:1])  # spreadsheets also take full-width signs
    return f"'{text}" if first in ("=", "+", "-", "@") else text
