"""A document for programs: JSON of all its data, CSV of its rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnbench.core.json import to_json
from attnbench.report.document import Document


def json_text(document: Document) -> str:
    """Return `document.data` as JSON; of a list of mappings one a line. What is not known is null."""
    data = to_json(document.data)
    if isinstance(data, list):
        lines = ",\n".join(json.dumps(row, allow_nan=False) for row in data)
        return f"[\n{lines}\n]\n" if lines else "[]\n"
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def csv_text(document: Document) -> str:
    """Return `document.rows` under a line of their keys, which are those of the first row; None is empty."""
    return csv_of(document.rows)


def csv_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return mappings with equal keys under a line of these; nothing for no mapping."""
    return csv_lines([rows[0].keys(), *(row.values() for row in rows)]) if rows else ""


def csv_lines(rows: Iterable[Iterable[Any]]) -> str:
    """Return one line of CSV for each row."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().replace("\r", " ")  # csv leaves it unquoted, and readers take it for the end of a line
