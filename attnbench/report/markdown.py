"""The same tables as GitHub-flavoured markdown, for an issue, a pull request or a README."""

from __future__ import annotations

from attnbench.analysis.summary import no_figure, tables
from attnbench.analysis.summary.contents import Contents
from attnbench.analysis.summary.tables import HELD_DOWN, MEMORY, Entry, Table


def render(contents: Contents) -> str:
    blocks = [f"**{safe(s.device)}** {safe(s.machine)}  \n{safe(s.method)}" for s in contents.setups]
    if not contents.setups:
        blocks.append(no_figure.NOTHING)
    for heading, section in contents.sections:
        legend = safe(section.legend("bold:"))
        blocks.append(f"### {heading} ({legend})" if legend else f"### {heading}")
        blocks += [_table(table) for table in section.tables] or [tables.NO_FIGURES]
        blocks += filter(None, [safe(section.more())])
    if contents.notes:
        blocks.append("\n".join(f"- {n.word}: {safe(n.who)}: {safe(n.reason)}" for n in contents.notes))
    for found in (contents.cautions, contents.facts):
        if found:
            blocks.append("\n".join(f"- **{safe(w.what)}** {safe(f'{w.why} {w.todo}'.strip())}" for w in found))
    return "\n\n".join(blocks) + "\n"


def _table(table: Table) -> str:
    title = f"**{safe(table.title)}**" + (f" {safe(table.details)}" if table.details else "")
    lines = [
        row(table.corner, *map(safe, table.columns)),
        row("---:" if table.corner == "seqlen" else ":---", *["---:"] * len(table.columns)),
    ]
    lines += [row(safe(label), *map(_entry, entries)) for label, entries in table.rows]
    return f"{title}\n\n" + "\n".join(lines)


def row(*entries: str) -> str:
    """Of a table; the second says how each column is aligned."""
    return f"| {' | '.join(entries)} |"


def _entry(entry: Entry) -> str:
    if entry.word or not entry.digits:
        return entry.word
    figure = f"**{entry.digits}**" if entry.best else entry.digits
    figure += safe(HELD_DOWN) if entry.held_down else ""
    return f"{figure} {entry.aside}{MEMORY if entry.memory else ''}".strip()


def safe(text: str) -> str:
    """Text that markdown leaves as it is."""
    for character in "\\`*_[]<>|~":
        text = text.replace(character, "\\" + character)
    return text
