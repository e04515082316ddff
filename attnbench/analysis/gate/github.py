"""A judgement in a GitHub workflow: annotations on standard output, and a summary of the step.

Workflow commands and their escapes: docs.github.com, "Workflow commands for GitHub Actions". A step shows ten
annotations of each level, so the tenth annotation counts the rest.
"""

from __future__ import annotations

from pathlib import Path

from attnbench.analysis.gate.document import headline, sentence
from attnbench.analysis.gate.findings import Judgement
from attnbench.core.errors import EXIT_INCONCLUSIVE, EXIT_REGRESSION, EXIT_WRONG_RESULT, UserError
from attnbench.core.files import RUN_FILES
from attnbench.core.text import count, one_line

LIMIT = 10
FAILURES = (EXIT_REGRESSION, EXIT_WRONG_RESULT)


def workflow_commands(judgement: Judgement) -> str:
    """Return one line for each annotation: errors, warnings, and the verdict as a notice."""
    errors = [(f.name, sentence(f)) for f in judgement.findings if judgement.exit_code_of(f) in FAILURES]
    errors += [("not comparable", f"{d.what}; if that is meant: {d.remedy}") for d in judgement.refused]
    unsettled = [f for f in judgement.findings if judgement.exit_code_of(f) == EXIT_INCONCLUSIVE]
    warnings = [(f.name, sentence(f)) for f in unsettled if not f.unmeasured]
    if late := len(unsettled) - len(warnings):
        warnings.insert(0, ("not measured", f"{count(late, 'cell')} left out for want of time; see the step's summary"))
    lines = [*_level("error", errors), *_level("warning", warnings)]
    return "\n".join([*lines, f"::notice title=attnbench gate::{_escaped(headline(judgement))}"]) + "\n"


def append_summary(markdown: str, file: Path) -> None:
    """Append markdown to the file that GitHub shows as the step's summary.

    Raises UserError where the file cannot be written.
    """
    if file.name.endswith(RUN_FILES):
        raise UserError(f"GITHUB_STEP_SUMMARY: {file} is named as a run file, to which nothing else is written")
    try:
        with file.open("a", encoding="utf-8") as out:
            out.write(markdown)
    except OSError as error:
        raise UserError(f"cannot write the step summary {file}: {error.strerror}") from None


def _level(level: str, found: list[tuple[str, str]]) -> list[str]:
    shown = found if len(found) <= LIMIT else found[: LIMIT - 1]
    lines = [f"::{level} title={_property(title)}::{_escaped(text)}" for title, text in shown]
    left = len(found) - len(shown)
    return lines + ([f"::{level} title=attnbench gate::and {left} more; see the step's summary"] if left else [])


def _escaped(text: str) -> str:
    return one_line(text).replace("%", "%25")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
