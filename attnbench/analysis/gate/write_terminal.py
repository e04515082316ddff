"""The verdict of a gate as a table for a person, the gravest first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from attnbench.analysis.gate import write_rows
from attnbench.analysis.gate.gate import Judgement
from attnbench.report.files import plain
from attnbench.report.rich_table import filled, width

STYLES = {
    "newly-failing": "bold red",
    "missing": "bold red",
    "regressed": "red",
    "inconclusive": "yellow",
    "improved": "green",
    "newly-working": "green",
    "unchanged": "dim",
}
REASON = 30  # characters that a table leaves for the reasons, which go on in the next line
HEADLINES = {0: "bold green", 1: "bold red", 3: "bold yellow", 4: "bold red"}


def render(console: Console, judgement: Judgement, every: bool = False) -> None:
    for line in judgement.heading:
        console.print(Text(line, "dim"))
    for difference in judgement.refused:
        console.print(Text(difference.what).append(f"; if that is what is under test: {difference.remedy}", "bold"))
    for difference in judgement.meant:
        console.print(Text(f"as expected: {difference.what}", "dim"))
    found = write_rows.listed(judgement, every)
    if found:
        _findings(console, found)
    if (left := write_rows.rest(judgement)) and not every:
        console.print(Text(left))
    for note in judgement.notes:
        console.print(Text(note, "dim"))
    console.print(Text(write_rows.headline(judgement), HEADLINES[judgement.exit_code]))


def _findings(console: Console, found: list[write_rows.Row]) -> None:
    """A table, where the console is wide enough for it and for the beginning of the longest reason."""
    reasons = min(REASON, max(len(row.entries[-1]) for row in found))
    used = [i for i in range(len(write_rows.HEADINGS)) if any(row.entries[i] for row in found)]  # not what no row fills
    styles = [STYLES[row.finding.verdict] for row in found]
    texts = [[Text(row.entries[i], "" if i else style) for i in used] for row, style in zip(found, styles, strict=True)]
    figures = [i for i in used if write_rows.HEADINGS[i]]
    bare = [row[: len(figures)] for row in texts]
    if width(console, partial(_empty, figures), bare) + 2 + reasons <= console.width:
        console.print(filled(console, partial(_empty, used), texts))
    else:
        _list(console, found)


def _empty(columns: Sequence[int]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in (write_rows.HEADINGS[i] for i in columns):
        right = heading in ("baseline", "current", "change", "margin")
        table.add_column(heading, justify="right" if right else "left", overflow="fold", no_wrap=bool(heading))
    return table


def _list(console: Console, found: list[write_rows.Row]) -> None:
    """Two lines a finding, where a table would be too wide to read."""
    lines: list[RenderableType] = []
    for row in found:
        finding = row.finding
        lines.append(Text(finding.verdict, STYLES[finding.verdict]).append(f"  {finding.name}", "default"))
        lines.append(Padding(Text(write_rows.figures(finding)), (0, 0, 0, 4)))
    console.print(Group(*lines))


def text(judgement: Judgement, every: bool = False) -> str:
    """The same without colours, for a file."""
    return plain(lambda console: render(console, judgement, every))
