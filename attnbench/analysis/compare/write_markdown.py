"""A comparison as GitHub-flavoured markdown."""

from __future__ import annotations

from attnbench.analysis.compare import write_rows
from attnbench.analysis.compare.compare import Comparison
from attnbench.analysis.compare.write_answer import answer
from attnbench.report.markdown import row, safe


def render(c: Comparison, every: bool = False) -> str:
    parts = [f"**{safe(sentence)}**" for sentence in answer(c)]
    parts.append("\n".join(f"- **{safe(label)}**: {safe(what)}" for label, what in write_rows.descriptions(c)))
    for block in write_rows.blocks(c, every):
        parts.append(f"### {safe(block.title)}")
        parts += [safe(block.note)] if block.note else []
        rule = (":---" if i in block.text else "---:" for i in range(len(block.headings)))
        lines = [row(*map(safe, block.headings)), row(*rule), *(row(*map(safe, one)) for one in block.rows)]
        parts.append("\n".join(lines))
    if found := write_rows.warnings(c):
        parts.append("### To doubt")
        parts.append("\n".join(f"- {safe(warning)}" for warning in found))
    parts.append(safe(write_rows.MORE))
    return "\n\n".join(parts) + "\n"
