"""A document: what a command shows, whatever the format. Each question builds one; each format has one renderer.

Everything in it is plain text and typed marks. Escaping, wrapping, colours and signs are the renderers' (terminal.py,
markdown.py, html/, json_and_csv.py); nothing here is written for one format alone but `page`, `charts`,
`sheet` and `appendix`, which only a page has room for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from attnbench.core.errors import EXIT_DONE
from attnbench.core.text import one_line

if TYPE_CHECKING:
    from attnbench.render.html.charts import Charts

Level = Literal["good", "warning", "bad"]
Style = Literal["", "strong", "quiet", "good", "warning", "bad"]
Align = Literal["left", "right"]

NOTHING_MEASURED = "Nothing was measured: there are no records."


@dataclass(frozen=True)
class Span:
    """A stretch of text in one style, and the address that it links to, if any: of another page of the same site.

    A page shows `folded`, more text, when a reader opens it.
    """

    text: str
    style: Style = ""
    link: str = ""
    folded: tuple[Span, ...] = ()


Line = Sequence[Span]  # one line, or one paragraph, of text


@dataclass(frozen=True)
class Figure:
    """A measured value in a table: its digits, an aside (utilisation, or the unit), and marks."""

    digits: str
    aside: str = ""
    best: bool = False  # whether it is the best of those that it competes with
    held_down: bool = False  # the clock was below its best
    memory_bound: bool = False  # the aside is the share of the roofline
    hardly_known: bool = False  # its uncertainty is too large to show which is best

    @property
    def text(self) -> str:
        """The figure without marks."""
        return f"{self.digits} {self.aside}".strip()


@dataclass(frozen=True)
class Ending:
    """Stands where a figure would: the word for how the cell ended ("skip", "OOM"), "-" or nothing."""

    word: str = ""

    @property
    def style(self) -> Style:
        return _ENDING_STYLES.get(self.word, "quiet")


_ENDING_STYLES: Mapping[str, Style] = {
    **dict.fromkeys(("WRONG", "KERNEL!", "FAIL"), "bad"),
    **dict.fromkeys(("OOM", "TIMEOUT"), "warning"),
}


@dataclass(frozen=True)
class Bar:
    """A bar from `start` to `end` on an axis from 0 to 1. Bars of one group have one colour."""

    start: float
    end: float
    group: int = 0
    interval: tuple[float, float] | None = None  # uncertainty of its end: a page draws it as a thin line
    hatched: bool = False  # what was not measured
    label: str = ""  # the text for readers who do not see the bar; else its ends in percent of the axis


@dataclass(frozen=True)
class Steps:
    """A step function over an axis from 0 to 1: (from where on, its height from 0 to 1)."""

    steps: tuple[tuple[float, float], ...]


Drawing = Bar | Steps
Entry = str | Span | tuple[Span, ...] | Drawing  # of a Table


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, and on which side its entries stand."""

    heading: str
    align: Align = "left"
    wrap: bool = True  # whether entries may go on in the next line, where the table is too wide
    optional: int = 0  # above 0: a terminal that is too narrow leaves it out, of several the highest first


@dataclass(frozen=True)
class Table:
    """Text in rows and columns. `name` is unique in its document: a page links to it."""

    name: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Entry, ...], ...]
    title: str = ""
    note: str = ""
    footnotes: tuple[str, ...] = ()  # numbered from 1, as entries refer to them
    narrow: Table | Paragraphs | None = None  # in place of it, where the terminal is too narrow for it
    labels: int = 1  # columns on the left that name a row; each part of a table that is split repeats them


@dataclass(frozen=True)
class Grid:
    """Figures by row and column; `corner` names what the rows are."""

    title: str
    details: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Figure | Ending, ...]], ...]


@dataclass(frozen=True)
class Grids:
    """The grids of one metric. A reader compares them, so equal columns of all stand in line."""

    heading: str
    grids: tuple[Grid, ...]
    competing: Literal["row", "column"] = "row"  # along which a best figure is the best
    more: str = ""  # what is not shown, and how to see it

    @property
    def figures(self) -> list[Figure]:
        """All figures of all grids."""
        return [f for grid in self.grids for _, row in grid.rows for f in row if isinstance(f, Figure)]

    def legend(self, best: str, held_down: str, hardly_known: str) -> str:
        """Return the meaning of the marks that occur; the arguments are the renderer's own marks."""
        parts = [f"{best} best of its {self.competing}"] if any(f.best for f in self.figures) else []
        parts += [f"{held_down} clock held down"] if any(f.held_down for f in self.figures) else []
        parts += [f"{hardly_known} hardly known"] if any(f.hardly_known for f in self.figures) else []
        return ", ".join(parts)


@dataclass(frozen=True)
class Paragraphs:
    """Lines of text below each other, under a title if it has one."""

    lines: tuple[Line, ...]
    title: str = ""
    indent: int = 0  # characters by which a terminal shows every second line further in


@dataclass(frozen=True)
class Pairs:
    """Labels, what each stands for, and what that means (or nothing): (label, value, meaning)."""

    rows: tuple[tuple[str, str, str], ...]
    title: str = ""


@dataclass(frozen=True)
class Dot:
    """A point of a plot, with its interval if it has one. `x` and the three heights are from 0 to 1."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    group: int = 0
    tip: str = ""  # what it is, as a page shows it below the pointer


@dataclass(frozen=True)
class Plot:
    """Points and levels over one axis: a small figure of a page."""

    title: str
    dots: tuple[Dot, ...]
    levels: tuple[tuple[float, float, float], ...] = ()  # lines: (from x, to x, y)
    x_labels: tuple[tuple[float, str], ...] = ()  # (place, text)
    y_labels: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True)
class BandLine:
    """A line of a chart: its label, and its points in order as (x, y, low, high), with the ends of a band at the point.

    `names` are the names of its points, which are then drawn; without them a line is drawn without points.
    """

    label: str
    points: tuple[tuple[float, float, float, float], ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class LineChart:
    """Lines with bands over one axis: a chart of a page. A table of the document has the same figures."""

    name: str
    title: str
    caption: str
    x_title: str
    y_title: str
    lines: tuple[BandLine, ...]
    marks: tuple[tuple[float, float, str], ...] = ()  # points: (x, y, label)
    level: float | None = None  # a dashed line upwards from here


@dataclass(frozen=True)
class Code:
    """Lines that are shown as they are, such as a traceback."""

    text: str
    title: str = ""


Block = Table | Grids | Paragraphs | Pairs | Code


@dataclass(frozen=True)
class Machine:
    """A machine that figures are of: its label, what it is, and how it was measured (or nothing)."""

    label: str
    description: str
    method: str = ""


@dataclass(frozen=True)
class Caution:
    """What happened, why it matters, what to do."""

    what: str
    why: str = ""
    todo: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.what, self.why, self.todo)))


@dataclass(frozen=True)
class Reason:
    """Why some cells have no figure: the word that stands in their place, which cells, the reason."""

    word: str
    who: str
    reason: str


@dataclass(frozen=True)
class Verdict:
    """The end of a judgement in one line, such as "PASS: 12 unchanged"."""

    text: str
    level: Level


@dataclass(frozen=True)
class Command:
    """A command for a shell, and which row of a table it measures again."""

    of: str
    text: str

    @property
    def lines(self) -> str:
        """A comment that names the row, and the command below it."""
        return f"# {one_line(self.of)}\n{self.text}"


@dataclass(frozen=True)
class Section:
    """A part of a page alone, such as the environment or the commands that make it again."""

    name: str
    title: str
    blocks: tuple[Pairs | Paragraphs | Plot, ...] = ()
    code: str = ""


@dataclass(frozen=True)
class Document:
    """What a command shows, in the order in which it is read; a terminal shows the verdict last, others first."""

    command: str  # the command that made it, such as "report"
    title: str  # of a page, and of a comment
    answer: tuple[str, ...] = ()  # the result in a few sentences
    machines: tuple[Machine, ...] = ()
    lead: tuple[Block, ...] = ()  # before the tables: how it was measured, what was refused
    blocks: tuple[Block, ...] = ()
    reasons: tuple[Reason, ...] = ()
    cautions: tuple[Caution, ...] = ()
    facts: tuple[Caution, ...] = ()  # what a reader should know where nothing is wrong
    reproduce: tuple[Command, ...] = ()  # that measure rows again, the worst row first; a terminal shows one
    notes: tuple[Line, ...] = ()  # the last lines
    verdict: Verdict | None = None
    page: Charts | None = None  # figures, and a table to sort and filter, for a page
    charts: tuple[LineChart, ...] = ()  # charts of a page
    sheet: Document | None = None  # what paper shows in place of the page, on one side of A4
    appendix: tuple[Section, ...] = ()
    data: Any = None  # the same for programs, as JSON has it
    rows: Sequence[Mapping[str, Any]] = field(default=(), repr=False)  # of CSV: mappings with equal keys
    columns: Collection[str] = ()  # the keys of `rows`, needed where there may be no rows
    exit_code: int = EXIT_DONE  # of the command that shows it (core/errors.py)
