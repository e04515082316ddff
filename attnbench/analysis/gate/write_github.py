"""The verdict of a gate in a GitHub workflow: annotations on standard output, and the job's step summary.

Workflow commands and their escapes: docs.github.com, "Workflow commands for GitHub Actions". A step shows ten
annotations of each level, so the tenth says how many are left.
"""

from __future__ import annotations

from pathlib import Path

from attnbench.analysis.gate import write_markdown, write_rows
from attnbench.analysis.gate.gate import Judgement
from attnbench.core.errors import UserError
from attnbench.results.case_names import count

LIMIT = 10


def render(judgement: Judgement) -> str:
    """One line each; empty where there is nothing to say."""
    errors = [("not comparable", f"{d.what}; if that is meant: {d.remedy}") for d in judgement.refused]
    errors += [(f.name, write_rows.sentence(f)) for f in judgement.those(judgement.fails)]
    warnings = [
        (f.name, write_rows.sentence(f)) for f in judgement.those(lambda k: judgement.unsettles(k) and not k.unmeasured)
    ]
    if late := len(judgement.those(lambda k: judgement.unsettles(k) and k.unmeasured)):
        warnings.insert(0, ("not measured", f"{count(late, 'cell')} left out for want of time; see the step's summary"))
    lines = [*_level("error", errors), *_level("warning", warnings)]
    return "\n".join([*lines, f"::notice title=attnbench gate::{_escaped(write_rows.headline(judgement))}"]) + "\n"


def summarize(judgement: Judgement, file: Path) -> None:
    """Appends to the file that GitHub shows as the step's summary."""
    try:
        with file.open("a", encoding="utf-8") as out:
            out.write(write_markdown.render(judgement))
    except OSError as error:
        raise UserError(f"cannot write the step summary {file}: {error.strerror}") from None


def _level(level: str, found: list[tuple[str, str]]) -> list[str]:
    shown = found if len(found) <= LIMIT else found[: LIMIT - 1]
    lines = [f"::{level} title={_property(title)}::{_escaped(text)}" for title, text in shown]
    left = len(found) - len(shown)
    return lines + ([f"::{level} title=attnbench gate::and {left} more; see the step's summary"] if left else [])


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
