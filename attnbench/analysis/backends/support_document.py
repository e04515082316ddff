"""The document of `attnbench backends --matrix`: what each backend supports, and where; docs/backends.md holds it too.

Reasons are footnotes: a number beside a cell stands for its reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from attnbench.core.errors import UserError
from attnbench.core.files import read_plain
from attnbench.core.text import listed
from attnbench.render import markdown
from attnbench.render.document import Column, Document, Entry, Span, Style, Table
from attnbench.results.case_names import headdim
from attnbench.results.where_tried import UNVERIFIED, Trial, features, right_on_gpus, trials
from attnbench.run.shipped_backends import install_commands
from attnbench.run.support_matrix import (
    FEATURES,
    GROUPS,
    LEGEND,
    OWN_GROUP,
    PLAIN,
    Answer,
    Row,
    Support,
    SupportMatrix,
    matrices_by_architecture,
    named_device,
    support_matrix,
)

BEGIN, END = "<!-- matrix: made by `attnbench backends --matrix --into FILE` -->", "<!-- end of the matrix -->"
DOCUMENTED = "Hopper"  # the GPU of the matrix by feature in docs/backends.md
STYLES: dict[Answer, Style] = {"yes": "good", "fwd": "warning", "bwd": "warning", "no": "quiet"}
MORE = "Feature by feature: attnbench backends --matrix --gpu h100 (or sm_90, ampere, ..., cpu)"


def document(matrices: Sequence[SupportMatrix]) -> Document:
    """Return the support feature by feature on each GPU; without GPUs, on which GPUs each backend runs."""
    of_all = matrices or matrices_by_architecture()
    rows = list(_csv_rows(of_all))
    tables = [table for matrix in matrices for table in by_feature(matrix)] or [by_architecture(of_all)]
    return Document(
        command="backends",
        title="What each backend supports",
        blocks=tuple(tables),
        notes=((Span(LEGEND if matrices else MORE, "quiet"),),),
        data=rows,
        rows=rows,
    )


def by_architecture(matrices: Sequence[SupportMatrix]) -> Table:
    """Return a table of the backends by generation of GPUs, each of which has a matrix."""
    footnotes: dict[str, int] = {}
    rows = [
        (row.backend, "" if row.backend in trials() else UNVERIFIED, [matrix.rows[i].overall for matrix in matrices])
        for i, row in enumerate(matrices[0].rows)
    ]
    table = _table("Where each runs", [matrix.device.name for matrix in matrices], rows, footnotes)
    return replace(table, footnotes=tuple(footnotes))


def where_right() -> Iterator[Table]:
    """Yield a table of where each backend gave right results: on one device, and over several devices."""
    for title, several in (("Where each was right", False), ("Where each was right over several devices", True)):
        found = {name: of for name, of in trials().items() if of[0].device[0].isdigit() == several}
        devices = sorted({one.device for of in found.values() for one in of})
        rows = [
            ((Span(name),), *((Span(_passes([one for one in of if one.device == device])),) for device in devices))
            for name, of in found.items()
        ]
        columns = (Column("backend", wrap=False), *map(Column, devices))
        yield Table(title.lower().replace(" ", "-"), columns, tuple(rows), title=title)


def how_to_install() -> Table:
    """Return a table of the commands that install the libraries of backends."""
    rows = tuple(((Span(command),), (Span(", ".join(names)),)) for command, names in install_commands().items())
    columns = (Column("command"), Column("backends"))
    return Table("how-to-install-each", columns, rows, title="How to install each")


def _passes(found: Sequence[Trial]) -> str:
    """Return the features with which a backend was right on a device; the forward-only ones stand apart."""
    backward = dict.fromkeys(name for one in found for name in one.backward)
    forward = dict.fromkeys(name for one in found for name in one.forward if name not in backward)
    return "; ".join(filter(None, (", ".join(backward), "forward: " + ", ".join(forward) if forward else "")))


def by_feature(matrix: SupportMatrix) -> list[Table]:
    """Return a table for each group of features.

    The first table has every backend of softmax attention, and the table of another kind every backend of it. The
    others omit backends without support. All tables share the footnotes, which stand below the last one.
    """
    tables: list[Table] = []
    footnotes: dict[str, int] = {}
    for group in GROUPS:
        columns = [i for i, f in enumerate(FEATURES) if f.group == group]
        rows = [
            (row.backend, _remark(row, group), [row.cells[i] for i in columns])
            for row in matrix.rows
            if row.takes(group) or group == OWN_GROUP.get(row.backend, GROUPS[0])
        ]
        title = f"{matrix.device.name}, {group}"
        if rows:
            tables.append(_table(title, [FEATURES[i].name for i in columns], rows, footnotes))
    return [*tables[:-1], replace(tables[-1], footnotes=tuple(footnotes))]


def _table(
    title: str,
    columns: Sequence[str],
    backends: Sequence[tuple[str, str, Sequence[Support]]],
    footnotes: dict[str, int],
) -> Table:
    """Return a table of backends, each with a remark and a cell for each column.

    A number after an entry stands for its reason: footnotes maps the text of each, in the order of their use, to its
    number, and takes in those of this table.
    """

    def entry(text: str, footnote: str, style: Style = "") -> tuple[Span, ...]:
        if not footnote:
            return (Span(text, style),)
        return Span(text, style), Span(f" {footnotes.setdefault(footnote, len(footnotes) + 1)}", "quiet")

    rows: list[tuple[Entry, ...]] = []
    for name, remark, cells in backends:
        answers = [entry(cell.answer, cell.reason, STYLES[cell.answer]) for cell in cells]
        rows.append((entry(name, remark), *answers))
    headings = [Column(column, wrap=False) for column in ("backend", *columns)]
    name = title.lower().replace(",", "").replace(" ", "-")
    return Table(name, tuple(headings), tuple(rows), title=title)


def _remark(row: Row, group: str) -> str:
    """Return the remark that holds for all cells of a backend in a group of features."""
    parts = []
    if row.plain is not None and (row.plain.dtype, row.plain.shape) != (PLAIN.dtype, PLAIN.shape):
        parts.append(f"its other features in {row.plain.dtype}, headdim {headdim(row.plain)}")
    takes = [f for f, cell in zip(FEATURES, row.cells, strict=True) if cell.answer != "no" and f.group == group]
    if row.runtime_checker and takes:
        parts.append(f"{row.runtime_checker} may refuse more, depending on its version, when a case is run")
    named = dict.fromkeys(name for f in takes for name in features(f.of(row.plain or PLAIN)))
    untried = [name for name in named if name not in right_on_gpus(row.backend)]
    if row.backend not in trials():
        parts.append(UNVERIFIED)
    elif untried:
        parts.append(f"{listed(untried)} not verified on a GPU")
    return "; ".join(parts)


def _csv_rows(matrices: Sequence[SupportMatrix]) -> Iterator[dict[str, str]]:
    """Yield one mapping for each device, backend and feature."""
    for matrix in matrices:
        capability = ".".join(map(str, matrix.device.capability or ()))
        for backend in matrix.rows:
            for feature, cell in zip(FEATURES, backend.cells, strict=True):
                yield {
                    "device": matrix.device.name,
                    "capability": capability,
                    "backend": backend.backend,
                    "feature": feature.name,
                    "support": cell.answer,
                    "reason": cell.reason,
                }


def put_into(path: Path) -> None:
    """Replace the text between the marks BEGIN and END of a markdown file by the matrix.

    Raises UserError where the file has no such marks, or cannot be read or written.
    """
    try:
        text = read_plain(path).decode()
    except OSError as error:
        raise UserError(f"--into: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"--into: {path} is not text ({error.reason})") from None
    before, begin, rest = text.partition(f"{BEGIN}\n")
    _, end, after = rest.partition(f"{END}\n")
    if not begin or not end:
        raise UserError(f"--into: {path} has no place for the matrix; put these two lines where it goes: {BEGIN} {END}")
    try:
        path.write_text(before + documented() + after, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--into: cannot write {path}: {error.strerror}") from None


def documented() -> str:
    """Return the text of docs/backends.md from BEGIN to END."""
    tables = [
        how_to_install(),
        *where_right(),
        by_architecture(matrices_by_architecture()),
        *by_feature(support_matrix(named_device(DOCUMENTED))),
    ]
    parts = [BEGIN, *map(_in_docs, tables), markdown.safe(LEGEND)]
    return "\n\n".join(parts) + f"\n\n{END}\n"


def _in_docs(table: Table) -> str:
    """Return a table as it stands in docs/backends.md: names as code, footnote numbers raised."""

    def entry(spans: Entry, code: str = "") -> str:
        assert isinstance(spans, tuple)
        text, *marks = (span.text.strip() for span in spans)
        return f"{code}{text}{code}" + "".join(f" <sup>{mark}</sup>" for mark in marks)

    lines = [f"### {table.title}", "", markdown.row(*(markdown.safe(column.heading) for column in table.columns))]
    lines.append("|---" * len(table.columns) + "|")
    lines += (markdown.row(entry(name, "`"), *map(entry, cells)) for name, *cells in table.rows)
    footnotes = [f"{number}. {markdown.safe(text)}" for number, text in enumerate(table.footnotes, start=1)]
    return "\n".join([*lines, "", *footnotes] if footnotes else lines)
