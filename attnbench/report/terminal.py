"""Tables for a terminal, or for a pipe: nothing is lost without colour, and no figure is ever cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.text import Text

from attnbench.analysis.summary import cautions, no_figure, tables
from attnbench.analysis.summary.contents import Contents
from attnbench.analysis.summary.tables import HELD_DOWN, MEMORY, NO_FIGURES, Entry, Table

STAR = "*"
PROSE = 110  # characters; longer lines are hard to read
_STYLES = {
    "skip": "dim",
    "WRONG": "bold red",
    "KERNEL!": "bold red",
    "FAIL": "red",
    "OOM": "yellow",
    "TIMEOUT": "yellow",
}


@dataclass(frozen=True)
class _Column:
    """The widths of a column, of every table in which its name appears, so that tables stand in line."""

    header: tuple[str, ...]  # its lines
    whole: int  # characters before the decimal point, the star included
    fraction: int  # from the point on
    held_down: bool  # some entries have that mark
    aside: int
    memory: bool  # some asides have that mark
    width: int  # of all

    @classmethod
    def fit(cls, name: str, entries: Sequence[Entry]) -> _Column:
        points = [len(e.digits.partition(".")[0]) for e in entries]
        if any(e.aside and not e.aside.endswith("%") for e in entries):  # points do not line up across units
            points = [len(e.digits) for e in entries]
        whole = max(point + e.best for point, e in zip(points, entries, strict=True))
        fraction = max(len(e.digits) - point for point, e in zip(points, entries, strict=True))
        held_down = any(e.held_down for e in entries)
        aside = max(len(e.aside) for e in entries)
        memory = any(e.memory for e in entries)
        figures = whole + fraction + held_down + (aside + 1 if aside else 0) + memory
        width = max(figures, len(name), *(len(e.word) for e in entries))
        return cls((name,), whole, fraction, held_down, aside, memory, width)

    def stacked(self, entries: Sequence[Entry]) -> _Column:
        """Its name on two lines, where it has a space or a hyphen: sdpa- / efficient."""
        name = self.header[0]
        separator = " " if " " in name else "-"
        first, found, rest = name.partition(separator)
        bare = _Column.fit("", entries)
        header = (first + separator.strip(), rest) if found else (name,)
        return replace(bare, header=header, width=max(bare.width, *map(len, header)))


def render(console: Console, contents: Contents) -> None:
    """Prints how it was measured, the tables, reasons and warnings."""
    out = _Writer(console)
    if not contents.setups:
        out.paragraph((no_figure.NOTHING, ""))
    for s in contents.setups:
        out.paragraph((s.device, "bold"), (s.machine, "dim"))
        out.paragraph((s.method, "dim"))
    for heading, section in contents.sections:
        out.blank()
        out.section(section, heading)
    out.reasons(contents.notes)
    out.remarks(contents.cautions, "!", "yellow")
    out.remarks(contents.facts, "i", "cyan")


class _Writer:
    def __init__(self, console: Console) -> None:
        self.console = console
        self.width = max(console.width, 20)
        self.rule = "─" if console.encoding.lower().startswith("utf") else "-"

    def line(self, *lines: Text) -> None:
        for text in lines:
            text.rstrip()
        self.console.print(Text("\n").join(lines), soft_wrap=True, highlight=False)

    def blank(self) -> None:
        self.line(Text())

    def paragraph(self, *parts: tuple[str, str], indent: int = 0) -> None:
        """Parts of text, each with a style, wrapped between words; lines but the first are indented."""
        text = Text("  ").join(Text(self.printable(text), style) for text, style in parts if text)
        for i, line in enumerate(text.wrap(self.console, min(self.width, PROSE) - indent)):
            self.line(Text(" " * indent if i else "") + line)

    def printable(self, text: str) -> str:
        """Without what the console's encoding lacks: a reason may quote anything."""
        return text.encode(self.console.encoding, "replace").decode(self.console.encoding)

    def titled(self, title: str, style: str, details: str, details_style: str) -> None:
        """Side by side where they fit, else below each other."""
        if len(title) + 2 + len(details) <= self.width:
            self.paragraph((title, style), (details, details_style))
        else:
            self.paragraph((title, style))
            self.paragraph((details, details_style))

    def section(self, section: tables.Section, heading: str) -> None:
        self.titled(heading, "bold cyan", section.legend(STAR), "green")
        if not section.tables:
            self.paragraph((NO_FIGURES, ""))
            return
        entries: dict[str, list[Entry]] = {}
        for table in section.tables:
            for i, name in enumerate(table.columns):
                entries.setdefault(name, []).extend(row[i] for _, row in table.rows)
        columns = {name: _Column.fit(name, of_name) for name, of_name in entries.items()}
        corner = max(len(text) for t in section.tables for text in (t.corner, *(label for label, _ in t.rows)))

        def widest(gap: int) -> int:
            return max(_span(corner, [columns[name] for name in t.columns], gap) for t in section.tables)

        gap = 3 if widest(3) <= self.width else 2
        if widest(gap) > self.width:
            columns = {name: column.stacked(entries[name]) for name, column in columns.items()}
        for table in section.tables:
            self.blank()
            self.titled(table.title, "bold", table.details, "dim")
            for i, part in enumerate(_chunks(corner, [columns[name] for name in table.columns], gap, self.width)):
                if i:
                    self.blank()
                self.chunk(table, corner, columns, part, gap)
        if more := section.more():
            self.blank()
            self.paragraph((more, "yellow"))

    def chunk(self, table: Table, corner: int, columns: dict[str, _Column], part: slice, gap: int) -> None:
        """Some of a table's columns."""
        space = " " * gap
        shown = [columns[name] for name in table.columns[part]]
        height = max(len(c.header) for c in shown)
        lines = []
        for i in range(height):
            text = Text((table.corner if i == height - 1 else "").ljust(corner), "dim")
            for column in shown:
                header = ("",) * (height - len(column.header)) + column.header
                text.append(space + header[i].rjust(column.width), "not dim")
            lines.append(text)
        lines.append(Text(self.rule * _span(corner, shown, gap), "dim"))
        for label, entries in table.rows:
            text = Text(label.rjust(corner) if table.corner == "seqlen" else label.ljust(corner))
            for column, entry in zip(shown, entries[part], strict=True):
                text.append(space)
                text.append_text(_figure(column, entry))
            lines.append(text)
        self.line(*lines)

    def reasons(self, found: Sequence[no_figure.Note]) -> None:
        if not found:
            return
        self.blank()
        word = max(len(n.word) for n in found) + 2
        for note in found:
            style = _STYLES.get(note.word, "")
            self.paragraph((note.word.ljust(word - 2), style), (f"{note.who}: {note.reason}", ""), indent=word)

    def remarks(self, found: Sequence[cautions.Caution], sign: str, style: str) -> None:
        if found:
            self.blank()
        for caution in found:
            rest = f"{caution.why} {caution.todo}".strip()
            self.paragraph((sign, style), (caution.what, style), (rest, ""), indent=3)


def _figure(column: _Column, entry: Entry) -> Text:
    if entry.word or not entry.digits:
        return Text(entry.word.rjust(column.width), _STYLES.get(entry.word, "dim"))
    style = "bold green" if entry.best else ""
    text = Text((STAR if entry.best else "") + entry.digits + (HELD_DOWN if entry.held_down else ""), style)
    fraction = len(entry.digits) - len(entry.digits.partition(".")[0]) if column.fraction else 0
    text.append(" " * (column.fraction - fraction + column.held_down - entry.held_down))
    if column.aside:
        text.append(" " + entry.aside.rjust(column.aside), "not bold green" if entry.best else "dim")
    if column.memory:
        text.append(MEMORY if entry.memory else " ", "dim")
    return Text(" " * (column.width - len(text))) + text


def _span(corner: int, columns: Sequence[_Column], gap: int) -> int:
    return corner + sum(gap + c.width for c in columns)


def _chunks(corner: int, columns: Sequence[_Column], gap: int, width: int) -> list[slice]:
    """As few parts as fit the width, of about equal numbers of columns; a column that fits nowhere stands alone."""
    for number in range(1, len(columns) + 1):
        each, more = divmod(len(columns), number)
        ends = [each * (i + 1) + min(i + 1, more) for i in range(number)]
        parts = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        if all(_span(corner, columns[part], gap) <= width for part in parts):
            break
    return parts
