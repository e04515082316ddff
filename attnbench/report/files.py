"""What several writers of files share: a case's fields in columns of their own, rows as CSV, tables as plain text."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnbench.core.case import Case

if TYPE_CHECKING:
    from rich.console import Console

FILE_WIDTH = 160


CASE_FIELDS = (
    *("batch", "seqlen_q", "seqlen_k", "nheads", "nheads_k", "headdim", "headdim_v"),
    *("dtype", "direction", "causal", "window_left", "window_right", "softcap", "dropout_p", "case"),
)


def case_fields(case: Case) -> dict[str, Any]:
    """By the names of CASE_FIELDS. A window's open side is None; `case` is the key."""
    return {
        **vars(case.shape),
        "dtype": case.dtype,
        "direction": case.direction,
        "causal": case.causal,
        "window_left": case.window_size[0],
        "window_right": case.window_size[1],
        "softcap": case.softcap,
        "dropout_p": case.dropout_p,
        "case": case.key,
    }


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Under a line of the keys, which are those of the first row in all; None is empty."""
    return csv_lines([rows[0].keys(), *(row.values() for row in rows)]) if rows else ""


def csv_lines(rows: Iterable[Iterable[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def plain(render: Callable[[Console], None]) -> str:
    """What `render` prints, without colours."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=FILE_WIDTH, highlight=False)
    render(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
