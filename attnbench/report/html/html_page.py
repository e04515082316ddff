"""A document as one self-contained HTML file: every command's page.

The page asks for nothing from elsewhere, and its Content-Security-Policy forbids it, so it works offline and from a
mail. It prints, has a dark mode, and can be used by keyboard. Text and tables are in the page itself. Only a document
with charts (`Document.page`) has scripts: see interactive.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from attnbench import __version__
from attnbench.core.errors import UserError
from attnbench.report.document import Block, Caution, Document, Grids, Machine, Reason, Section
from attnbench.report.html import blocks, interactive, palette
from attnbench.report.html.elements import Markup, Part, asset, element, items, joined, lines, section

MOST_CELLS = 10_000  # with more a browser takes too long to open the page, and a filter to act
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
POLICY_WITH_SCRIPTS = f"{POLICY}; script-src 'unsafe-inline' 'unsafe-eval'; img-src data:"  # Vega compiles expressions


def render(document: Document) -> str:
    """Return the page of a document. Raises UserError where it has too many cells for a browser."""
    charts = document.page
    if charts and len(charts.rows) > MOST_CELLS:
        raise UserError(
            f"--html: a page of {len(charts.rows)} cells would be too slow to use ({MOST_CELLS} at most); give fewer "
            "run files, or take the figures from -f csv"
        )
    parts = _parts(document)
    body = lines(
        element("a", "Skip to the results", class_="skip", href="#main"),
        element(
            "aside",
            lines(
                element("p", f"attnbench {document.command}", class_="brand"),
                interactive.filters(charts) if charts else "",
                _contents(parts),
            ),
        ),
        element("main", lines(_header(document), *(part.content for part in parts), _footer()), id="main", tabindex=-1),
        interactive.scripts(charts) if charts else "",
    )
    return "<!doctype html>\n" + element("html", lines(_head(document), element("body", body)), lang="en") + "\n"


def _head(document: Document) -> Markup:
    policy = POLICY_WITH_SCRIPTS if document.page else POLICY
    return element(
        "head",
        lines(
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="color-scheme", content="light dark"),
            element("meta", http_equiv="Content-Security-Policy", content=policy),
            element("title", f"attnbench: {document.title}"),
            element("style", lines(Markup(palette.style_sheet()), asset("page.css"))),
        ),
    )


def _contents(parts: Sequence[Part]) -> Markup:
    links = (element("li", element("a", part.heading, href=f"#{part.id}")) for part in parts if part.heading)
    return element("nav", element("ol", *links), aria_label="Contents")


def _header(document: Document) -> Markup:
    verdict = document.verdict
    return element(
        "header",
        lines(
            element("h1", document.title),
            element("p", verdict.text, class_=f"verdict {verdict.level}") if verdict else "",
            *(element("p", sentence, class_="answer") for sentence in document.answer),
            element("dl", *map(_machine, document.machines), class_="machines") if document.machines else "",
        ),
    )


def _machine(machine: Machine) -> Markup:
    return joined(
        element("dt", machine.label),
        element("dd", machine.description) if machine.description else "",
        element("dd", machine.method, class_="quiet") if machine.method else "",
    )


def _parts(document: Document) -> list[Part]:
    """Return the parts of the page below its header, in their order."""
    charts = document.page
    cautions = items(map(_caution, document.cautions)) if document.cautions else element("p", "None.")
    found = [section("warnings", "Warnings", cautions), *_blocks(document.lead)]
    if charts:
        found += interactive.parts(charts)
    # The figures of grids are in the interactive table.
    found += _blocks([b for b in document.blocks if not (charts and isinstance(b, Grids))], len(document.lead))
    if document.reasons:
        found.append(section("missing", "Without a figure", items(map(_reason, document.reasons))))
    elif charts:
        found.append(section("missing", "Without a figure", element("p", "Every cell has one.")))
    if document.facts:
        found.append(section("facts", "To know", items(map(_caution, document.facts))))
    if document.notes:
        notes = (element("p", blocks.spans(line)) for line in document.notes)
        found.append(Part(element("section", *notes, id="notes")))
    return found + [_section(one) for one in document.appendix]


def _blocks(found: Sequence[Block], first: int = 0) -> list[Part]:
    return [blocks.block(one, number) for number, one in enumerate(found, first)]


def _caution(caution: Caution) -> Markup:
    todo = element("em", caution.todo) if caution.todo else ""
    return joined(element("strong", caution.what), caution.why, todo, by=" ")


def _reason(reason: Reason) -> Markup:
    return joined(element("strong", reason.word), f"{reason.who}: {reason.reason}", by=" ")


def _section(found: Section) -> Part:
    titled = (joined(element("h3", b.title) if b.title else "", blocks.content(b)) for b in found.blocks)
    code = element("pre", element("code", found.code), tabindex=0) if found.code else ""
    return section(found.name, found.title, *titled, code)


def _footer() -> Markup:
    return element("footer", f"Made by attnbench {__version__}.", class_="quiet")
