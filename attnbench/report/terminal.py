"""A document for a terminal, or for a pipe: nothing is lost without colour, and no figure is ever cut."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment, SegmentLines
from rich.table import Table as RichTable
from rich.text import Text

from attnbench.report.characters import BEST, HELD_DOWN, MEMORY_BOUND, NO_FIGURES, bar, heights, printable
from attnbench.report.document import (
    Bar,
    Block,
    Caution,
    Column,
    Document,
    Ending,
    Entry,
    Figure,
    Grid,
    Grids,
    Line,
    Pairs,
    Paragraphs,
    Reason,
    Span,
    Steps,
    Table,
)

PROSE = 110  # characters; longer lines are hard to read
FILE_WIDTH = 160  # characters of a table that goes to a file
LEAST_WRAPPED = 30  # characters of a column whose entries go on in the next line, to be read with ease
LEAST_FOLDED = 8  # characters of such a column, before figures too go on in the next line
BARS = (16, 64)  # characters of a bar chart, at least and at most

_STYLES = {"": "", "strong": "bold", "quiet": "dim", "good": "green", "warning": "yellow", "bad": "bold red"}
_VERDICTS = {"good": "bold green", "info": "bold", "warning": "bold yellow", "bad": "bold red"}
_ENDINGS = {
    "skip": "dim",
    "WRONG": "bold red",
    "KERNEL!": "bold red",
    "FAIL": "red",
    "OOM": "yellow",
    "TIMEOUT": "yellow",
}
_BAR_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")


def render(console: Console, document: Document) -> None:
    """Print a document: what it is of, its tables, why figures are missing, what to doubt, and the verdict last."""
    out = _Writer(console)
    for sentence in document.answer:
        out.paragraph((sentence, "bold"))
    if document.answer:
        out.begin_part()
    for machine in document.machines:
        out.paragraph((machine.label, "bold"), (machine.description, "dim"))
        if machine.method:
            out.paragraph((machine.method, "dim"))
    for block in (*document.lead, *document.blocks):
        out.begin_part()
        out.block(block)
    out.reasons(document.reasons)
    out.cautions(document.cautions, "!", "yellow")
    out.cautions(document.facts, "i", "cyan")
    if document.notes:
        out.begin_part()
    for line in document.notes:
        out.spans(line)
    if document.verdict:
        out.begin_part()
        out.paragraph((document.verdict.text, _VERDICTS[document.verdict.level]))


def text(document: Document) -> str:
    """Return what `render` prints on a wide terminal, without colours: for a file."""
    console = Console(file=io.StringIO(), width=FILE_WIDTH, highlight=False)
    render(console, document)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


class _Writer:
    def __init__(self, console: Console) -> None:
        self.console = console
        self.width = max(console.width, 20)
        self.utf = console.encoding.lower().startswith("utf")
        self._began = self._part_begins = False

    def line(self, *lines: Text) -> None:
        """Print lines, after a free line where a part begins."""
        self.begin_line()
        for text in lines:
            text.rstrip()
        shown = (Text(_no_command(text.plain)) if _is_command(text.plain) else text for text in lines)
        self.console.print(Text("\n").join(shown), soft_wrap=True, highlight=False)

    def begin_line(self) -> None:
        if self._part_begins:
            self.console.print()
        self._began, self._part_begins = True, False

    def begin_part(self) -> None:
        """Leave a line free before the next one, unless that is the first."""
        self._part_begins = self._began

    def styled(self, text: str, style: str = "") -> Text:
        return Text(self.safe(text), style)

    def safe(self, text: str) -> str:
        """Return text that a terminal shows as it is, without what its encoding lacks: a reason may quote anything."""
        return printable(text).encode(self.console.encoding, "replace").decode(self.console.encoding)

    def paragraph(self, *parts: tuple[str, str], indent: int = 0) -> None:
        """Print parts of text, each with a style, wrapped between words; lines but the first are indented."""
        self.wrapped(Text("  ").join(self.styled(text, style) for text, style in parts if text), indent)

    def spans(self, line: Line, indent: int = 0) -> None:
        self.wrapped(self.joined(line), indent)

    def joined(self, line: Line) -> Text:
        return Text().join(self.styled(span.text, _STYLES[span.style]) for span in line)

    def wrapped(self, text: Text, indent: int) -> None:
        for i, line in enumerate(text.wrap(self.console, max(20, min(self.width, PROSE) - indent))):
            self.line(Text(" " * indent if i else "") + line)

    def block(self, block: Block) -> None:
        if isinstance(block, Grids):
            self.grids(block)
        elif isinstance(block, Table):
            self.table(block)
        elif isinstance(block, Pairs):
            self.pairs(block)
        else:
            self.paragraphs(block)

    def paragraphs(self, block: Paragraphs) -> None:
        if block.title:
            self.paragraph((block.title, "bold cyan"))
        for i, line in enumerate(block.lines):
            if block.indent and i % 2:
                for part in self.joined(line).wrap(self.console, self.width - block.indent):
                    self.line(Text(" " * block.indent) + part)
            else:
                self.spans(line)

    def pairs(self, block: Pairs) -> None:
        if block.title:
            self.paragraph((block.title, "bold cyan"))
        labels, values = (max((len(row[i]) for row in block.rows), default=0) for i in (0, 1))
        aligned = any(meaning for *_, meaning in block.rows)
        for label, value, meaning in block.rows:
            start = self.styled(f"  {label.ljust(labels)}  ", "dim")
            start.append_text(self.styled(value.rjust(values) if aligned else value, "bold"))
            if not meaning:
                self.line(start)
                continue
            start.append("  ")
            room = max(20, min(self.width, PROSE) - len(start))
            for i, line in enumerate(self.styled(meaning, "dim").wrap(self.console, room)):
                self.line((Text(" " * len(start)) if i else start) + line)

    def reasons(self, found: Sequence[Reason]) -> None:
        if not found:
            return
        self.begin_part()
        word = max(len(reason.word) for reason in found)
        for reason in found:
            text = (f"{reason.who}: {reason.reason}", "")
            self.paragraph((reason.word.ljust(word), _ENDINGS.get(reason.word, "")), text, indent=word + 2)

    def cautions(self, found: Sequence[Caution], sign: str, style: str) -> None:
        if found:
            self.begin_part()
        for caution in found:
            rest = f"{caution.why} {caution.todo}".strip()
            self.paragraph((sign, style), (caution.what, style), (rest, ""), indent=3)

    # Tables of text, laid out by rich.

    def table(self, table: Table) -> None:
        """Print a table, or what it has for a narrow terminal; one that is too wide goes on below, column by column."""
        entries = [[self.entry(entry) for entry in row] for row in table.rows]
        columns = [[self.styled(column.heading), *own] for column, *own in zip(table.columns, *entries, strict=True)]
        drawn = [any(not isinstance(text, Text) for text in own) for own in columns]
        widths = [max(text.cell_len for text in own if isinstance(text, Text)) for own in columns]

        def least(wrapped: int) -> list[int]:
            """Return the characters that each column needs, if entries that may wrap have so many."""
            each = zip(table.columns, widths, drawn, strict=True)
            return [BARS[0] if bars else min(width, wrapped) if column.wrap else width for column, width, bars in each]

        if table.narrow and sum(least(LEAST_WRAPPED)) + 2 * (len(widths) - 1) > self.console.width:
            self.block(table.narrow)
        else:
            if table.title:
                self.paragraph((table.title, "bold cyan"))
            if table.note:
                self.paragraph((table.note, "dim"))
            taken = sum(width + 2 for width, bars in zip(widths, drawn, strict=True) if not bars)
            room = max(BARS[0], min(BARS[1], (self.console.width - taken + 2) // max(1, sum(drawn)) - 2))
            for i, part in enumerate(_column_parts(least(LEAST_FOLDED), self.console.width)):
                if i:
                    self.line(Text())
                self.columns([table.columns[j] for j in part], [[row[j] for j in part] for row in entries], room)
        for number, footnote in enumerate(table.footnotes, start=1):
            self.paragraph((f"{number:>3}", "dim"), (footnote, ""), indent=5)

    def columns(self, columns: Sequence[Column], rows: Sequence[Sequence[Text | Bar | Steps]], room: int) -> None:
        """Print some columns of a table; bars have `room` characters."""
        rich = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for column in columns:
            rich.add_column(self.styled(column.heading), justify=column.align, overflow="fold", no_wrap=not column.wrap)
        for row in rows:
            rich.add_row(*(text if isinstance(text, Text) else self.drawing(text, room) for text in row))
        endless = self.console.options.update(width=10_000)
        if self.console.measure(rich, options=endless).minimum > self.console.width:
            for own in rich.columns:
                own.no_wrap = False  # so that entries go on in the next line, and none is cut
        self.begin_line()
        lines = []
        for segments in self.console.render_lines(rich, pad=False):
            text = "".join(segment.text for segment in segments).rstrip()
            kept = Segment.split_and_crop_lines(segments, cell_len(text), pad=False, include_new_lines=False)
            lines.append([Segment(_no_command(text))] if _is_command(text) else next(iter(kept), []))
        self.console.print(SegmentLines(lines, new_lines=True), end="")

    def entry(self, entry: Entry) -> Text | Bar | Steps:
        if isinstance(entry, Bar | Steps):
            return entry
        if isinstance(entry, str):
            return self.styled(entry)
        return self.joined([entry] if isinstance(entry, Span) else entry)

    def drawing(self, entry: Bar | Steps, width: int) -> Text:
        if isinstance(entry, Bar):
            return Text(bar(entry, width, utf=self.utf), _BAR_COLOURS[entry.group % len(_BAR_COLOURS)])
        return Text(heights(entry, width, utf=self.utf), "blue")

    # Grids of figures, whose columns stand in line over all grids of a metric.

    def titled(self, title: str, style: str, details: str, details_style: str) -> None:
        """Print both side by side where they fit, else below each other."""
        if len(title) + 2 + len(details) <= self.width:
            self.paragraph((title, style), (details, details_style))
        else:
            self.paragraph((title, style))
            self.paragraph((details, details_style))

    def grids(self, block: Grids) -> None:
        self.titled(block.heading, "bold cyan", block.legend(BEST, HELD_DOWN), "green")
        if not block.grids:
            self.paragraph((NO_FIGURES, ""))
            return
        found = list(map(self.safe_grid, block.grids))
        entries: dict[str, list[Figure | Ending]] = {}
        for grid in found:
            for i, name in enumerate(grid.columns):
                entries.setdefault(name, []).extend(row[i] for _, row in grid.rows)
        columns = {name: _GridColumn.fit(name, of_name) for name, of_name in entries.items()}
        corner = max(len(text) for g in found for text in (g.corner, *(label for label, _ in g.rows)))

        def widest(gap: int) -> int:
            return max(_span(corner, [columns[name] for name in g.columns], gap) for g in found)

        gap = 3 if widest(3) <= self.width else 2
        if widest(gap) > self.width:
            columns = {name: column.stacked(entries[name]) for name, column in columns.items()}
        for grid in found:
            self.line(Text())
            self.titled(grid.title, "bold", grid.details, "dim")
            for i, part in enumerate(_chunks(corner, [columns[name] for name in grid.columns], gap, self.width)):
                if i:
                    self.line(Text())
                self.chunk(grid, corner, columns, part, gap)
        if block.more:
            self.line(Text())
            self.paragraph((block.more, "yellow"))

    def safe_grid(self, grid: Grid) -> Grid:
        rows = tuple((self.safe(label), figures) for label, figures in grid.rows)
        return replace(grid, corner=self.safe(grid.corner), columns=tuple(map(self.safe, grid.columns)), rows=rows)

    def chunk(self, grid: Grid, corner: int, columns: dict[str, _GridColumn], part: slice, gap: int) -> None:
        """Print some of a grid's columns."""
        space = " " * gap
        shown = [columns[name] for name in grid.columns[part]]
        height = max(len(c.header) for c in shown)
        lines = []
        for i in range(height):
            text = Text((grid.corner if i == height - 1 else "").ljust(corner), "dim")
            for column in shown:
                header = ("",) * (height - len(column.header)) + column.header
                text.append(space + header[i].rjust(column.width), "not dim")
            lines.append(text)
        lines.append(Text(("─" if self.utf else "-") * _span(corner, shown, gap), "dim"))
        for label, entries in grid.rows:
            text = Text(label.rjust(corner) if grid.corner == "seqlen" else label.ljust(corner))
            for column, entry in zip(shown, entries[part], strict=True):
                text.append(space)
                text.append_text(_figure(column, entry))
            lines.append(text)
        self.line(*lines)


@dataclass(frozen=True)
class _GridColumn:
    """The widths of a column, of every grid in which its name appears, so that grids stand in line."""

    header: tuple[str, ...]  # its lines
    whole: int  # characters before the decimal point, the mark of the best included
    fraction: int  # from the point on
    held_down: bool  # some figures have that mark
    aside: int
    memory_bound: bool  # some asides have that mark
    width: int  # of all

    @classmethod
    def fit(cls, name: str, entries: Sequence[Figure | Ending]) -> _GridColumn:
        figures = [e for e in entries if isinstance(e, Figure)]
        points = [len(f.digits.partition(".")[0]) for f in figures]
        if any(f.aside and not f.aside.endswith("%") for f in figures):  # points do not line up across units
            points = [len(f.digits) for f in figures]
        whole = max((point + f.best for point, f in zip(points, figures, strict=True)), default=0)
        fraction = max((len(f.digits) - point for point, f in zip(points, figures, strict=True)), default=0)
        held_down = any(f.held_down for f in figures)
        aside = max((len(f.aside) for f in figures), default=0)
        memory_bound = any(f.memory_bound for f in figures)
        own = whole + fraction + held_down + (aside + 1 if aside else 0) + memory_bound
        width = max(own, len(name), *(len(e.word) for e in entries if isinstance(e, Ending)), 0)
        return cls((name,), whole, fraction, held_down, aside, memory_bound, width)

    def stacked(self, entries: Sequence[Figure | Ending]) -> _GridColumn:
        """Return the column with its name on two lines, where that has a space or a hyphen: sdpa- / efficient."""
        name = self.header[0]
        separator = " " if " " in name else "-"
        first, found, rest = name.partition(separator)
        bare = _GridColumn.fit("", entries)
        header = (first + separator.strip(), rest) if found else (name,)
        return replace(bare, header=header, width=max(bare.width, *map(len, header)))


def _is_command(line: str) -> bool:
    """Return whether GitHub's runner, which reads what a step prints, would take a line for a command to itself."""
    return line.lstrip().startswith("::")


def _no_command(line: str) -> str:
    """Return a line that it prints."""
    return line.replace("::", ": :", 1)


def _figure(column: _GridColumn, entry: Figure | Ending) -> Text:
    if isinstance(entry, Ending):
        return Text(entry.word.rjust(column.width), _ENDINGS.get(entry.word, "dim"))
    style = "bold green" if entry.best else ""
    text = Text((BEST if entry.best else "") + entry.digits + (HELD_DOWN if entry.held_down else ""), style)
    fraction = len(entry.digits) - len(entry.digits.partition(".")[0]) if column.fraction else 0
    text.append(" " * (column.fraction - fraction + column.held_down - entry.held_down))
    if column.aside:
        text.append(" " + entry.aside.rjust(column.aside), "not bold green" if entry.best else "dim")
    if column.memory_bound:
        text.append(MEMORY_BOUND if entry.memory_bound else " ", "dim")
    return Text(" " * (column.width - len(text))) + text


def _column_parts(widths: Sequence[int], width: int) -> list[list[int]]:
    """Return places of columns in parts that fit a width, the first column in each; one that fits nowhere is alone."""
    parts = [[0]]
    for place in range(1, len(widths)):
        taken = sum(widths[i] + 2 for i in parts[-1])
        if taken + widths[place] > width and len(parts[-1]) > 1:
            parts.append([0])
        parts[-1].append(place)
    return parts


def _span(corner: int, columns: Sequence[_GridColumn], gap: int) -> int:
    return corner + sum(gap + c.width for c in columns)


def _chunks(corner: int, columns: Sequence[_GridColumn], gap: int, width: int) -> list[slice]:
    """Return as few parts as fit the width, of about equal numbers of columns; a column that fits nowhere is alone."""
    for number in range(1, len(columns) + 1):
        each, more = divmod(len(columns), number)
        ends = [each * (i + 1) + min(i + 1, more) for i in range(number)]
        parts = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        if all(_span(corner, columns[part], gap) <= width for part in parts):
            break
    return parts
