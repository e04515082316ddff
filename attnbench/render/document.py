"""A document: what a command shows, in any format. Each command builds one, and each format has one renderer.

Everything in it is plain text and typed marks. Renderers (terminal.py, markdown.py, html/, json_and_csv.py) do the
escaping, wrapping, colours and signs. Only an HTML page shows `page`, `charts`, `sheet` and `appendix`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnbench.core.errors import EXIT_DONE
from attnbench.core.text import count, one_line, some

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
    """A measured value in a table: its digits, an aside (utilisation or the unit), and marks."""

    digits: str
    aside: str = ""
    best: bool = False  # whether it is the best of its row or column (Grids.competing)
    held_down: bool = False  # the clock was below its best
    memory_bound: bool = False  # the aside is the share of the roofline
    hardly_known: bool = False  # its uncertainty is too large to show which is best

    @property
    def text(self) -> str:
        """The value without marks."""
        return f"{self.digits} {self.aside}".strip()


@dataclass(frozen=True)
class Ending:
    """The entry of a cell without a value: the word for how it ended ("skip", "OOM"), "-" or nothing."""

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
    interval: tuple[float, float] | None = None  # uncertainty of its end, which a page draws as a thin line
    hatched: bool = False  # drawn hatched, because it was not measured
    label: str = ""  # text for readers who do not see the bar; "" gives its ends in percent of the axis


@dataclass(frozen=True)
class Steps:
    """A step function over an axis from 0 to 1, as pairs of a step's start and its height, from 0 to 1."""

    steps: tuple[tuple[float, float], ...]


Drawing = Bar | Steps
Entry = str | Span | tuple[Span, ...] | Drawing  # an entry of a Table


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, and the side to which its entries are aligned."""

    heading: str
    align: Align = "left"
    wrap: bool = True  # whether entries may wrap where the table is too wide
    optional: int = 0  # above 0: a terminal that is too narrow leaves the column out, the highest number first


@dataclass(frozen=True)
class Table:
    """Text in rows and columns. `name` is unique in its document: a page links to it."""

    name: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Entry, ...], ...]
    title: str = ""
    note: str = ""
    footnotes: tuple[str, ...] = ()  # numbered from 1, as entries refer to them
    narrow: Table | Paragraphs | None = None  # shown in its place where the terminal is too narrow
    labels: int = 1  # number of columns on the left that name a row; a table that is split repeats them in each part


@dataclass(frozen=True)
class Grid:
    """Values by row and column; `corner` names the axis of the rows."""

    title: str
    details: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Figure | Ending, ...]], ...]


@dataclass(frozen=True)
class Grids:
    """The grids of one metric. Their columns of one name are aligned, so that a reader can compare the grids."""

    heading: str
    grids: tuple[Grid, ...]
    competing: Literal["row", "column"] = "row"  # where a value marked as best is the best: in its row or in its column
    more: str = ""  # what is not shown, and how to see it

    @property
    def figures(self) -> list[Figure]:
        """All values of all grids."""
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
    indent: int = 0  # characters by which a terminal indents every second line


@dataclass(frozen=True)
class Pairs:
    """Rows of (label, value, meaning); the meaning may be empty."""

    rows: tuple[tuple[str, str, str], ...]
    title: str = ""


@dataclass(frozen=True)
class Dot:
    """A point of a plot, with its interval if it has one: `x` and up to three heights, all from 0 to 1."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    group: int = 0
    tip: str = ""  # description that a page shows at the pointer


@dataclass(frozen=True)
class Plot:
    """Points and levels over one axis: a small drawing in a page."""

    title: str
    dots: tuple[Dot, ...]
    levels: tuple[tuple[float, float, float], ...] = ()  # lines: (from x, to x, y)
    x_labels: tuple[tuple[float, str], ...] = ()  # (x, text)
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
    """A chart of a page: lines with bands over one axis. A table of the document has the same values."""

    name: str
    title: str
    caption: str
    x_title: str
    y_title: str
    lines: tuple[BandLine, ...]
    marks: tuple[tuple[float, float, str], ...] = ()  # points: (x, y, label)
    level: float | None = None  # x of a dashed vertical line


@dataclass(frozen=True)
class Code:
    """Lines that are shown as they are, such as a traceback."""

    text: str
    title: str = ""


Block = Table | Grids | Paragraphs | Pairs | Code


@dataclass(frozen=True)
class Machine:
    """A machine on which values were measured: its label, its description, and how it was measured, or ""."""

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
    """Why some cells have no value: the word in their entries, the names of the cells, the reason."""

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
    """A shell command that measures a row of a table again, and the name of the row."""

    of: str
    text: str

    @property
    def lines(self) -> str:
        """A comment that names the row, and the command below it."""
        return f"# {one_line(self.of)}\n{self.text}"


@dataclass(frozen=True)
class Section:
    """A part that only a page has, such as the environment or the commands that reproduce it."""

    name: str
    title: str
    blocks: tuple[Pairs | Paragraphs | Plot, ...] = ()
    code: str = ""


@dataclass(frozen=True)
class Document:
    """What a command shows, in the order in which it is read; a terminal shows the verdict last, others first."""

    command: str  # name of the command that made it, such as "report"
    title: str  # title of a page, and of a comment on GitHub
    answer: tuple[str, ...] = ()  # the result in a few sentences
    machines: tuple[Machine, ...] = ()
    lead: tuple[Block, ...] = ()  # before the tables: how it was measured, what was refused
    blocks: tuple[Block, ...] = ()
    reasons: tuple[Reason, ...] = ()
    cautions: tuple[Caution, ...] = ()
    facts: tuple[Caution, ...] = ()  # what a reader should know where nothing is wrong
    reproduce: tuple[Command, ...] = ()  # commands that measure rows again, the worst row first; a terminal shows one
    notes: tuple[Line, ...] = ()  # the last lines
    verdict: Verdict | None = None
    page: Charts | None = None  # charts of a page, and its table to sort and filter
    charts: tuple[LineChart, ...] = ()  # charts of a page
    sheet: Document | None = None  # the page as printed, on one side of A4
    appendix: tuple[Section, ...] = ()
    data: Any = None  # the data of the JSON format, for programs
    rows: Sequence[Mapping[str, Any]] = field(default=(), repr=False)  # rows of the CSV format
    columns: Collection[str] = ()  # the keys of `rows`, needed where there may be no rows
    exit_code: int = EXIT_DONE  # exit code of the command that shows it (core/errors.py)


def with_damage(document: Document, damage: Mapping[Path, str]) -> Document:
    """Return a document with a caution on what cannot be read of its files, `damage`, if there is any.

    For programs, a mapping in the document's JSON gets the key "damage": file -> what is lost.
    """
    if not damage:
        return document
    told = some(what if str(path) in what else f"{path}: {what}" for path, what in damage.items())
    what = f"{count(len(damage), 'file')} cannot be read in whole: {told}."
    caution = Caution(what, "The lost records are missing here.", "Restore the files, or measure again.")
    lost = {str(path): what for path, what in damage.items()}
    data = {**document.data, "damage": lost} if isinstance(document.data, Mapping) else document.data
    return replace(document, cautions=(caution, *document.cautions), data=data)
