"""A document for programs: JSON of all its data, CSV of its rows."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from attnbench.core.json import to_json
from attnbench.core.text import printable
from attnbench.render.document import Document


def json_text(document: Document) -> str:
    """Return `document.data` as JSON; a list has one mapping on each line. What is not known is null."""
    data = to_json(document.data)
    if isinstance(data, list):
        lines = ",\n".join(json.dumps(row, allow_nan=False) for row in data)
        return f"[\n{lines}\n]\n" if lines else "[]\n"
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def csv_text(document: Document) -> str:
    """Return `document.rows` under a line of their keys, None as an empty field; "" where there are neither."""
    rows = document.rows
    keys = rows[0].keys() if rows else document.columns
    if not keys:
        return ""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([keys, *(map(_field, row.values()) for row in rows)])
    return out.getvalue()


def _field(value: Any) -> Any:
    """Return a value that a terminal and a spreadsheet show as it is: text without commands and formulas."""
    if not isinstance(value, str):
        return value
    text = "\n".join(map(printable, value.split("\n")))  # code has lines
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
