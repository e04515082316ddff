"""A document for a terminal or a pipe: it is complete without colour, and no value is ever cut."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rich.table import Table as RichTable
from rich.text import Text

from attnbench.core.text import no_command, printable
from attnbench.render.characters import BEST, HARDLY_KNOWN, HELD_DOWN, MEMORY_BOUND, NO_FIGURES, drawing, marks
from attnbench.render.console import Console
from attnbench.render.document import (
    Bar,
    Block,
    Caution,
    Code,
    Column,
    Document,
    Drawing,
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
    Table,
)

PROSE = 110  # most characters of a line of text, because longer lines are hard to read
FILE_WIDTH = 160  # characters of a table that goes to a file
LEAST_WRAPPED = 30  # characters of a column with wrapped entries that can still be read with ease
LEAST_FOLDED = 8  # least characters of such a column; below it values wrap too
LONGEST_WORD = 16  # characters; longer words, such as paths, may be broken
BARS = (16, 64)  # least and most characters of a bar chart

_STYLES = {"": "", "strong": "bold", "quiet": "dim", "good": "green", "warning": "yellow", "bad": "bold red"}
_BAR_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")


def render(console: Console, document: Document) -> None:
    """Print a document: machines, tables, why values are missing, cautions, and the verdict last."""
    out = _Writer(console)
    for sentence in document.answer:
        out.paragraph((sentence, "bold"))
    out.begin_part()
    for machine in document.machines:
        out.paragraph((machine.label, "bold"), (machine.description, "dim"))
        out.paragraph((machine.method, "dim"))
    for block in (*document.lead, *document.blocks):
        out.begin_part()
        out.block(block)
    out.reasons(document.reasons)
    out.cautions(document.cautions, "!", "yellow")
    out.cautions(document.facts, "i", "cyan")
    if document.reproduce:
        out.begin_part()
        out.line(out.styled(f"To measure the worst again: {document.reproduce[0].text}", "dim"))
    out.begin_part()
    for line in document.notes:
        out.wrapped(out.joined(line))
    if document.verdict:
        out.begin_part()
        out.paragraph((document.verdict.text, f"bold {_STYLES[document.verdict.level]}"))


def text(document: Document) -> str:
    """Return what `render` prints on a wide terminal, without colours: for a file."""
    file = io.StringIO()
    render(Console(file=file, width=FILE_WIDTH, highlight=False, force_terminal=False), document)
    return file.getvalue()


class _Writer:
    def __init__(self, console: Console) -> None:
        self.console = console
        self.width = max(console.width, 20)
        self.utf = console.encoding.lower().startswith("utf")
        self._began = self._part_begins = False

    def begin_part(self) -> None:
        """Print an empty line before the next line, unless that is the first."""
        self._part_begins = self._began

    def line(self, *lines: Text) -> None:
        """Print lines, after an empty line where a part begins. Everything that is printed comes through here."""
        if self._part_begins:
            self.console.print()
        self._began, self._part_begins = True, False
        for text in lines:
            text.rstrip()
        self.console.print(Text("\n").join(map(_no_command, lines)), soft_wrap=True, highlight=False)

    def styled(self, text: str, style: str = "") -> Text:
        return Text(self.safe(text), style)

    def safe(self, text: str) -> str:
        """Return text that a terminal can show: no control characters, and none that its encoding lacks."""
        return printable(text).encode(self.console.encoding, "replace").decode(self.console.encoding)

    def paragraph(self, *parts: tuple[str, str], indent: int = 0) -> None:
        """Print parts of text, each with a style, wrapped between words; lines but the first are indented."""
        shown = [self.styled(text, style) for text, style in parts if text]
        if shown:
            self.wrapped(Text("  ").join(shown), indent)

    def joined(self, line: Line) -> Text:
        return Text().join(self.styled(span.text, _STYLES[span.style]) for span in line)

    def wrapped(self, text: Text, indent: int = 0, start: Text | None = None) -> None:
        """Print text wrapped between words; the first line begins with `start`, the others with as many spaces."""
        start = start or Text()
        indent += len(start)
        for i, line in enumerate(text.wrap(self.console, max(20, min(self.width, PROSE) - indent))):
            self.line((Text(" " * indent) if i else start) + line)

    def block(self, block: Block) -> None:
        if isinstance(block, Grids):
            self.grids(block)
        elif isinstance(block, Table):
            self.table(block)
        else:
            self.paragraph((block.title, "bold cyan"))
            if isinstance(block, Pairs):
                self.pairs(block)
            elif isinstance(block, Code):
                self.line(*(self.styled(f"  {line}", "dim") for line in block.text.splitlines()))
            else:
                self.paragraphs(block)

    def paragraphs(self, block: Paragraphs) -> None:
        for i, line in enumerate(block.lines):
            if block.indent and i % 2:
                for part in self.joined(line).wrap(self.console, self.width - block.indent):
                    self.line(Text(" " * block.indent) + part)
            else:
                self.wrapped(self.joined(line))

    def pairs(self, block: Pairs) -> None:
        labels, values = (max((len(row[i]) for row in block.rows), default=0) for i in (0, 1))
        aligned = any(meaning for *_, meaning in block.rows)
        for label, value, meaning in block.rows:
            start = self.styled(f"  {label.ljust(labels)}  ", "dim")
            start.append_text(self.styled(value.rjust(values) if aligned else value, "bold"))
            if meaning:
                self.wrapped(self.styled(meaning, "dim"), start=start.append("  "))
            else:
                self.line(start)

    def reasons(self, found: Sequence[Reason]) -> None:
        self.begin_part()
        word = max((len(reason.word) for reason in found), default=0)
        for reason in found:
            text = (f"{reason.who}: {reason.reason}", "")
            self.paragraph((reason.word.ljust(word), _STYLES[Ending(reason.word).style]), text, indent=word + 2)

    def cautions(self, found: Sequence[Caution], sign: str, style: str) -> None:
        self.begin_part()
        for caution in found:
            rest = f"{caution.why} {caution.todo}".strip()
            self.paragraph((sign, style), (caution.what, style), (rest, ""), indent=3)

    # Tables of text, laid out by rich.

    def table(self, table: Table) -> None:
        """Print a table, or its replacement for a narrow terminal; one that is too wide is split into parts."""
        table, left_out = self.without_optional(table)
        entries = [[self.entry(entry) for entry in row] for row in table.rows]
        columns = [[self.styled(column.heading), *own] for column, *own in zip(table.columns, *entries, strict=True)]
        drawn = [any(not isinstance(text, Text) for text in own) for own in columns]
        widths = [max(text.cell_len for text in own if isinstance(text, Text)) for own in columns]

        words = [
            max((len(word) for text in own if isinstance(text, Text) for word in text.plain.split()), default=0)
            for own in columns
        ]

        def least(wrapped: int) -> list[int]:
            """Return the width of each column in characters; a column of bars has its least width.

            A column that may wrap shrinks to `wrapped` or, where that is more, to its longest word.
            """
            each = zip(table.columns, widths, words, drawn, strict=True)
            return [
                BARS[0] if bars else min(width, max(wrapped, min(word, LONGEST_WORD))) if column.wrap else width
                for column, width, word, bars in each
            ]

        if table.narrow and sum(least(LEAST_WRAPPED)) + 2 * (len(widths) - 1) > self.console.width:
            self.block(table.narrow)
        else:
            self.paragraph((table.title, "bold cyan"))
            self.paragraph((table.note, "dim"))
            taken = sum(width + 2 for width, bars in zip(widths, drawn, strict=True) if not bars)
            room = max(BARS[0], min(BARS[1], (self.console.width - taken + 2) // max(1, sum(drawn)) - 2))
            needed = least(LEAST_FOLDED)
            corner, labels = _span(needed[0], needed[1 : table.labels], 2), table.labels
            if corner > self.console.width * 2 // 3:
                corner, labels = needed[0], 1
            others = needed[labels:]
            for i, part in enumerate(_parts(corner, others, 2, self.console.width)):
                if i:
                    self.line(Text())
                places = [*range(labels), *range(labels, len(widths))[part]]
                shown = [table.columns[j] for j in places]
                own = [needed[j] for j in places]
                spare = self.console.width - _span(corner, others[part], 2)
                if spare < 0:
                    shown = [replace(column, wrap=True) for column in shown]  # so that no entry is cut
                else:
                    own = _widened(own, [room if drawn[j] else widths[j] for j in places], spare)
                self.columns(shown, own, [[row[j] for j in places] for row in entries], room)
        if left_out:
            self.paragraph((f"Left out for want of width: {', '.join(left_out)}.", "dim"))
        for number, footnote in enumerate(table.footnotes, start=1):
            self.paragraph((f"{number:>3}", "dim"), (footnote, ""), indent=5)

    def without_optional(self, table: Table) -> tuple[Table, list[str]]:
        """Return a table with the optional columns that fit beside the others, and the headings of those that do not.

        The most important ones are tried first.
        """
        needed = [self.wanted_width(column, [row[i] for row in table.rows]) for i, column in enumerate(table.columns)]
        kept = [i for i, column in enumerate(table.columns) if not column.optional]
        for i in sorted({*range(len(needed))} - {*kept}, key=lambda i: table.columns[i].optional):
            if sum(needed[j] + 2 for j in (*kept, i)) - 2 <= self.console.width:
                kept.append(i)
        if len(kept) == len(needed):
            return table, []
        shown = replace(
            table,
            columns=tuple(column for i, column in enumerate(table.columns) if i in kept),
            rows=tuple(tuple(entry for i, entry in enumerate(row) if i in kept) for row in table.rows),
        )
        return shown, [column.heading for i, column in enumerate(table.columns) if i not in kept]

    def wanted_width(self, column: Column, entries: Sequence[Entry]) -> int:
        """Return the characters that a column needs to be read with ease; without wrapping where it must be shown."""
        texts = [self.styled(column.heading), *map(self.entry, entries)]
        width = max(text.cell_len if isinstance(text, Text) else BARS[0] for text in texts)
        return min(width, LEAST_WRAPPED) if column.wrap and column.optional else width

    def columns(
        self, columns: Sequence[Column], widths: Sequence[int], rows: Sequence[Sequence[Text | Drawing]], room: int
    ) -> None:
        """Print some columns of a table.

        `widths` are their characters, used where all of them fit the terminal; `room` is the width of a bar.
        """
        fits = _span(widths[0], widths[1:], 2) <= self.console.width
        rich = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for column, width in zip(columns, widths, strict=True):
            heading, own = self.styled(column.heading), width if fits else None
            rich.add_column(heading, justify=column.align, overflow="fold", no_wrap=not column.wrap, width=own)
        for row in rows:
            rich.add_row(*(text if isinstance(text, Text) else self.drawing(text, room) for text in row))
        lines = self.console.render_lines(rich, pad=False)
        self.line(*(Text.assemble(*((part.text, part.style or "") for part in line)) for line in lines))

    def entry(self, entry: Entry) -> Text | Drawing:
        if isinstance(entry, Drawing):
            return entry
        if isinstance(entry, str):
            return self.styled(entry)
        return self.joined([entry] if isinstance(entry, Span) else entry)

    def drawing(self, entry: Drawing, width: int) -> Text:
        group = entry.group if isinstance(entry, Bar) else 0
        return Text(drawing(entry, width, utf=self.utf), _BAR_COLOURS[group % len(_BAR_COLOURS)])

    # Grids of values, whose columns are aligned over all grids of a metric.

    def titled(self, title: str, style: str, details: str, details_style: str) -> None:
        """Print a title and its details on one line where they fit, else below each other."""
        parts = [(title, style), (details, details_style)]
        for line in [parts] if len(title) + 2 + len(details) <= self.width else [[part] for part in parts]:
            self.paragraph(*line)

    def grids(self, block: Grids) -> None:
        self.titled(block.heading, "bold cyan", block.legend(BEST, HELD_DOWN, HARDLY_KNOWN), "green")
        if not block.grids:
            self.paragraph((NO_FIGURES, ""))
            return
        found = list(map(self.safe_grid, block.grids))
        entries: dict[str, list[Figure | Ending]] = {}
        for grid in found:
            for i, name in enumerate(grid.columns):
                entries.setdefault(name, []).extend(row[i] for _, row in grid.rows)
        columns = {name: _GridColumn((name,), self.aligned(of_name)) for name, of_name in entries.items()}
        corner = max(len(text) for g in found for text in (g.corner, *(label for label, _ in g.rows)))

        def widest(gap: int) -> int:
            return max(_span(corner, [columns[name].width for name in g.columns], gap) for g in found)

        gap = 3 if widest(3) <= self.width else 2
        if widest(gap) > self.width:
            columns = {name: column.stacked() for name, column in columns.items()}
        for grid in found:
            self.line(Text())
            self.titled(grid.title, "bold", grid.details, "dim")
            widths = [columns[name].width for name in grid.columns]
            for i, part in enumerate(_parts(corner, widths, gap, self.width)):
                if i:
                    self.line(Text())
                self.grid_part(grid, part, corner, [columns[name] for name in grid.columns[part]], " " * gap)
        if block.more:
            self.line(Text())
            self.paragraph((block.more, "yellow"))

    def safe_grid(self, grid: Grid) -> Grid:
        rows = tuple((self.safe(label), figures) for label, figures in grid.rows)
        return replace(grid, corner=self.safe(grid.corner), columns=tuple(map(self.safe, grid.columns)), rows=rows)

    def aligned(self, entries: Sequence[Figure | Ending]) -> dict[Figure | Ending, Text]:
        """Return each entry of a column as text, padded so that decimal points, units and marks are aligned."""
        figures = [entry for entry in entries if isinstance(entry, Figure)]
        units = any(f.aside and not f.aside.endswith("%") for f in figures)  # points are not aligned where units differ
        fractions = {f: 0 if units else len(f.digits) - len(f.digits.partition(".")[0]) for f in figures}
        fraction, aside = max(fractions.values(), default=0), max((len(f.aside) for f in figures), default=0)
        marked = max((len(marks(f)) for f in figures), default=0)
        memory_bound = any(f.memory_bound for f in figures)
        texts: dict[Figure | Ending, Text] = {}
        for entry in entries:
            if isinstance(entry, Ending):
                texts[entry] = self.styled(entry.word, _STYLES[entry.style])
        for figure, own in fractions.items():
            text = Text((BEST if figure.best else "") + figure.digits, "bold green" if figure.best else "")
            text.append(marks(figure))
            text.append(" " * (fraction - own + marked - len(marks(figure))))
            if aside:
                text.append(" " + figure.aside.rjust(aside), "not bold green" if figure.best else "dim")
            if memory_bound:
                text.append(MEMORY_BOUND if figure.memory_bound else " ", "dim")
            texts[figure] = text
        return texts

    def grid_part(self, grid: Grid, part: slice, corner: int, columns: Sequence[_GridColumn], gap: str) -> None:
        """Print some of a grid's columns: their headings, a line, and the rows."""
        height = max(len(column.heading) for column in columns)
        lines = []
        for i in range(height):
            text = Text((grid.corner if i == height - 1 else "").ljust(corner), "dim")
            for column in columns:
                heading = ("",) * (height - len(column.heading)) + column.heading
                text.append(gap + heading[i].rjust(column.width), "not dim")
            lines.append(text)
        span = _span(corner, [column.width for column in columns], len(gap))
        lines.append(Text(("─" if self.utf else "-") * span, "dim"))
        for label, entries in grid.rows:
            text = Text(label.rjust(corner) if grid.corner == "seqlen" else label.ljust(corner))
            for column, entry in zip(columns, entries[part], strict=True):
                figure = column.texts[entry]
                text.append(gap + " " * (column.width - len(figure))).append_text(figure)
            lines.append(text)
        self.line(*lines)


@dataclass(frozen=True)
class _GridColumn:
    """A column of every grid in which its name appears, so that grids are aligned."""

    heading: tuple[str, ...]  # lines of its heading
    texts: Mapping[Figure | Ending, Text]

    @property
    def width(self) -> int:
        return max(*map(len, self.heading), *map(len, self.texts.values()))

    def stacked(self) -> _GridColumn:
        """Return the column with its name on two lines, if the name has a space or a hyphen: sdpa- / efficient."""
        separator = " " if " " in self.heading[0] else "-"
        first, found, rest = self.heading[0].partition(separator)
        return replace(self, heading=(first + separator.strip(), rest)) if found else self


def _no_command(line: Text) -> Text:
    shown = no_command(line.plain)
    return line if shown == line.plain else Text(shown)


def _span(corner: int, widths: Sequence[int], gap: int) -> int:
    """Return the characters of a first column and of others, including the gaps between them."""
    return corner + sum(gap + width for width in widths)


def _widened(needed: Sequence[int], wanted: Sequence[int], spare: int) -> list[int]:
    """Return the widths of columns that each need some characters and want more; spare characters are shared.

    Where characters are lacking, the widest columns get fewer.
    """
    room, widest = sum(needed) + spare, max(1, *wanted)
    for most in range(widest, 0, -1):
        widths = [max(need, min(want, most)) for need, want in zip(needed, wanted, strict=True)]
        if sum(widths) <= room:
            break
    return widths


def _parts(corner: int, widths: Sequence[int], gap: int, width: int) -> list[slice]:
    """Return as few parts of columns as fit a width, each beside the columns that name rows, of about equal size.

    A column that is too wide for any part is alone.
    """
    for number in range(1, max(2, len(widths) + 1)):
        each, more = divmod(len(widths), number)
        ends = [each * (i + 1) + min(i + 1, more) for i in range(number)]
        parts = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        if all(_span(corner, widths[part], gap) <= width for part in parts):
            break
    return parts
