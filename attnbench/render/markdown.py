"""A document as GitHub-flavoured markdown, for an issue, a pull request or a README."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

from attnbench.core.documents import SITE
from attnbench.core.text import count, one_line, printable
from attnbench.render.characters import HARDLY_KNOWN, HELD_DOWN, MEMORY_BOUND, NO_FIGURES, drawing, marks
from attnbench.render.document import (
    Block,
    Caution,
    Code,
    Command,
    Document,
    Drawing,
    Ending,
    Entry,
    Figure,
    Grid,
    Grids,
    Line,
    Pairs,
    Span,
    Table,
)

SIGNS = {"good": "✅", "warning": "❔", "bad": "❌"}
BAR = 32  # characters
MOST_COMMANDS = 10
LIMIT = 60_000  # bytes; a comment on GitHub holds 65,536 characters, and may have other text besides the document
LEFT_OUT = "left out, as a comment on GitHub holds no more; the whole is in -f html=FILE and -f json=FILE"
_RULE = re.compile(r"\| :?---")  # matches the line below the headings of a table
_MARKUP = {"strong": "**", "bad": "**"}
# Where a zero-width space keeps GitHub from making links and mentions: @name, #12, GH-12, https://, www., :emoji:. The
# address of attnbench's own documents stays a link.
_LIVE = re.compile(
    r"(?<=@)(?=\S)|(?<=#)(?=\d)|(?<=\bGH-)(?=\d)|(?<=:)(?=//)(?!"
    + re.escape(SITE.removeprefix("https:"))
    + r"[\w-]+/)|(?<=www)(?=\.)|(?<=:)(?=[a-z+-][^\s:]*:)",
    re.I,
)
# The beginning of a heading, of an item of a list, or of a line that underlines a heading.
_BLOCK = re.compile(r"^(\d{0,9})(?=[-+.)] |#+( |$)|=+$|--+$)")


def render(document: Document) -> str:
    """Return the document, with the verdict first. Beyond LIMIT it loses rows at the end, and says how many."""
    parts = []
    if document.verdict:
        sign = SIGNS[document.verdict.level]
        parts.append(f"### {sign} attnbench {document.command}: {safe(document.verdict.text)}")
    parts += [f"**{safe(sentence)}**" for sentence in document.answer]
    for machine in document.machines:
        method = f"  \n{safe(machine.method)}" if machine.method else ""
        parts.append(f"**{safe(machine.label)}** {safe(machine.description)}{method}")
    for block in (*document.lead, *document.blocks):
        parts += _block(block)
    if document.reasons:
        parts.append(_list(f"{safe(r.word)}: {safe(r.who)}: {safe(r.reason)}" for r in document.reasons))
    ending = [_list(map(_caution, found)) for found in (document.cautions, document.facts)]
    ending.append(_list(map(_spans, document.notes)))
    for commands in (_folded(document.reproduce), ""):
        text = _joined(*parts, commands, *ending) + "\n"
        if _nbytes(text) <= LIMIT:
            return text
    last = _cut(_joined(*ending), LIMIT // 4)  # rows are cut first, because cautions hold for the rows that stay
    return _joined(_cut(_joined(*parts), LIMIT - _nbytes(last) - 3), last) + "\n"


def _folded(commands: Sequence[Command]) -> str:
    """Return the first commands in a block that a click opens; "" where there are none."""
    shown = commands[:MOST_COMMANDS]
    more = f" (the first {len(shown)} of {len(commands)})" if len(shown) < len(commands) else ""
    title = f"<details><summary>To measure these again{more}</summary>"
    return _joined(title, _code("\n".join(command.lines for command in shown)), "</details>") if shown else ""


def _joined(*parts: str) -> str:
    return "\n\n".join(filter(None, parts))


def _cut(text: str, limit: int) -> str:
    """Return the start of a text that fits into `limit` bytes, cut before a row, and a line that counts the rest."""
    if _nbytes(text) <= limit:
        return text
    lines = text.split("\n")
    ends = [*accumulate(_nbytes(line) + 1 for line in lines)]
    kept = bisect_right(ends, limit - len(LEFT_OUT) - 20)
    fences = [i for i, line in enumerate(lines[:kept]) if line.startswith("```")]
    if len(fences) % 2:  # the cut is within code
        kept = fences[-1]
    if _RULE.match(lines[kept]):  # without it the headings above are no table
        kept -= 1
    left = lines[kept:]
    rows = sum(map(bool, left)) - 2 * sum(bool(_RULE.match(line)) for line in left)
    return _joined("\n".join(lines[:kept]).rstrip("\n"), f"**{count(rows, 'row')} {LEFT_OUT}**")


def _nbytes(text: str) -> int:
    return len(text.encode())


def safe(text: str) -> str:
    """Return text that markdown shows as it is, on one line, and in which nothing is live: no link, nobody mentioned.

    GitHub makes links and mentions also after a backslash (github.com/github/cmark-gfm/issues/181).
    """
    text = one_line(text)
    for character in "\\`*_[]<>|~&$":  # "&" begins an entity, "$" a formula
        text = text.replace(character, "\\" + character)
    return _LIVE.sub("\u200b", _BLOCK.sub(r"\1\\", text))


def row(*entries: str) -> str:
    """Return one line of a table: its headings, their alignments (":---"), or a row."""
    return f"| {' | '.join(entries)} |"


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _caution(caution: Caution) -> str:
    return f"**{safe(caution.what)}** {safe(f'{caution.why} {caution.todo}'.strip())}".strip()


def _spans(line: Line) -> str:
    return "".join(_span(span) for span in line)


def _span(span: Span) -> str:
    """Return a span in its style; spaces at its ends stay outside of the markup, which cannot stand beside a space."""
    inner = safe(span.text)
    mark = _MARKUP.get(span.style, "") if inner else ""
    before, after = (" " if end == " " else "" for end in (span.text[:1], span.text[-1:] if inner else ""))
    shown = f"{mark}{inner}{mark}"
    return f"{before}[{shown}](<{span.link}>){after}" if span.link and inner else f"{before}{shown}{after}"


def _block(block: Block) -> list[str]:
    if isinstance(block, Grids):
        return _grids(block)
    title = [f"### {safe(block.title)}"] if block.title else []
    if isinstance(block, Table):
        return title + _table(block)
    if isinstance(block, Pairs):
        rows = (f"**{safe(label)}** {safe(value)}" + (f": {safe(m)}" if m else "") for label, value, m in block.rows)
        return [*title, _list(rows)]
    if isinstance(block, Code):
        return [*title, _code(block.text)]
    return [*title, _list(map(_spans, block.lines))]


def _code(text: str) -> str:
    """Return lines between fences that are longer than any run of backticks in them."""
    lines = "\n".join(map(printable, text.splitlines()))
    fence = "```"
    while fence in lines:
        fence += "`"
    return f"{fence}\n{lines}\n{fence}"


def _table(table: Table) -> list[str]:
    parts = [safe(table.note)] if table.note else []
    columns = [(column.heading, column.align == "right") for column in table.columns]
    parts.append(_lines(columns, (map(_entry, entries) for entries in table.rows)))
    if table.footnotes:
        parts.append("\n".join(f"{number}. {safe(text)}" for number, text in enumerate(table.footnotes, start=1)))
    return parts


def _entry(entry: Entry) -> str:
    if isinstance(entry, str):
        return safe(entry)
    if isinstance(entry, Drawing):
        return f"`{drawing(entry, BAR, utf=True)}`"
    return _spans([entry] if isinstance(entry, Span) else entry)


def _grids(block: Grids) -> list[str]:
    legend = safe(block.legend("bold:", HELD_DOWN, HARDLY_KNOWN))
    parts = [f"### {safe(block.heading)}" + (f" ({legend})" if legend else "")]
    parts += [_grid(grid) for grid in block.grids] or [NO_FIGURES]
    return parts + ([safe(block.more)] if block.more else [])


def _grid(grid: Grid) -> str:
    title = f"**{safe(grid.title)}**" + (f" {safe(grid.details)}" if grid.details else "")
    columns = [(grid.corner, grid.corner == "seqlen"), *((name, True) for name in grid.columns)]
    return f"{title}\n\n" + _lines(columns, ((safe(label), *map(_figure, entries)) for label, entries in grid.rows))


def _lines(columns: Sequence[tuple[str, bool]], rows: Iterable[Iterable[str]]) -> str:
    """Return a table. A column is its heading, and whether its entries are aligned to the right."""
    headings = row(*(safe(heading) for heading, _ in columns))
    sides = row(*("---:" if right else ":---" for _, right in columns))
    return "\n".join([headings, sides, *(row(*entries) for entries in rows)])


def _figure(entry: Figure | Ending) -> str:
    if isinstance(entry, Ending):
        return safe(entry.word)
    figure = f"**{safe(entry.digits)}**" if entry.best else safe(entry.digits)
    figure += safe(marks(entry))
    return f"{figure} {safe(entry.aside)}{MEMORY_BOUND if entry.memory_bound else ''}".strip()
