"""The verdict of a gate as GitHub-flavoured markdown: a comment on a pull request, a step summary."""

from __future__ import annotations

from attnbench.analysis.gate import write_rows
from attnbench.analysis.gate.gate import Judgement
from attnbench.report.markdown import row, safe
from attnbench.results.case_names import one_line

LISTED = 100  # rows; a comment on GitHub holds 65,536 characters
SIGNS = {0: "✅", 1: "❌", 3: "❔", 4: "⛔"}


def render(judgement: Judgement, every: bool = False) -> str:
    ours, theirs = judgement.baseline, judgement.current
    blocks = [f"### {SIGNS[judgement.exit_code]} attnbench gate: {safe(write_rows.headline(judgement))}"]
    if judgement.heading:
        blocks.append("\n".join(f"- {safe(line)}" for line in judgement.heading))
    if judgement.refused:
        blocks.append(
            "\n".join(f"- {safe(d.what)}; if that is what is under test: `{d.remedy}`" for d in judgement.refused)
        )
    if judgement.meant:
        blocks.append("\n".join(f"- as expected: {safe(d.what)}" for d in judgement.meant))
    found = write_rows.listed(judgement, every)
    if found:
        lines = [row(*write_rows.HEADINGS), row(*[":---"] * len(write_rows.HEADINGS))]
        lines += [row(*map(safe, one.entries)) for one in found[:LISTED]]
        blocks.append("\n".join(lines))
    if len(found) > LISTED:
        blocks.append(f"and {len(found) - LISTED} more")
    tail = [write_rows.rest(judgement)] if not every else []
    tail += [
        *judgement.notes,
        f"{theirs.environment.device.name}; baseline of {ours.started}, current of {theirs.started}",
    ]
    blocks.append("\n".join(f"- {safe(one_line(line))}" for line in tail if line))
    return "\n\n".join(blocks) + "\n"
