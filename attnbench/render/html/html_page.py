"""A document as one self-contained HTML file: every command's page.

The page asks for nothing from elsewhere, and its Content-Security-Policy forbids it, so it works offline and from a
mail. It prints, has a dark mode, and can be used by keyboard. Text and tables are in the page itself. Only a document
with charts (`Document.page`) has scripts: see interactive.py.
"""

from __future__ import annotations

from dataclasses import replace

from attnbench import __version__
from attnbench.core.errors import UserError
from attnbench.core.text import count
from attnbench.render.document import Caution, Document, Grids, Machine, Section
from attnbench.render.html import interactive, palette
from attnbench.render.html.blocks import block_part, content, spans
from attnbench.render.html.elements import Markup, Part, asset, element, filled, items, joined, lines, section

MOST_CELLS = 10_000  # with more a browser takes too long to open the page, and a filter to act
FEWEST_LINKS = 3  # of a table of contents; with fewer a page has none
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
    links = [element("a", part.heading, href=f"#{part.id}") for part in parts if part.heading]
    beside = bool(charts) or len(links) >= FEWEST_LINKS
    body = lines(
        element("a", "Skip to the results", class_="skip", href="#results"),
        element(
            "main",
            lines(
                _header(document),
                element(
                    "aside",
                    lines(
                        interactive.filters(charts) if charts else "",
                        element("nav", items(links, "ol"), aria_label="Contents"),
                    ),
                )
                if beside
                else "",
                element(
                    "div",
                    lines(
                        *(part.content for part in parts),
                        element("footer", f"Made by attnbench {__version__}.", class_="quiet"),
                    ),
                    id="results",
                    tabindex=-1,
                ),
            ),
            class_=None if beside else "alone",
        ),
        interactive.scripts(charts) if charts else "",
    )
    return "<!doctype html>\n" + element("html", lines(_head(document), element("body", body)), lang="en") + "\n"


def fragment(document: Document) -> str:
    """Return a document as a part of another page, such as a notebook: text and tables, without figures."""
    bare = replace(document, page=None, appendix=(), reproduce=())
    body = lines(_header(bare), *(part.content for part in _parts(bare)))
    return f"{element('style', asset('fragment.css'))}\n{element('div', body, class_='attnbench')}\n"


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


def _header(document: Document) -> Markup:
    verdict = document.verdict
    to_warnings = element("a", count(len(document.cautions), "warning"), href="#warnings")
    return element(
        "header",
        lines(
            element("p", f"attnbench {document.command}", class_="brand"),
            element("h1", document.title),
            element("p", verdict.text, class_=f"verdict {verdict.level}") if verdict else "",
            *(element("p", sentence, class_="answer") for sentence in document.answer),
            element("p", to_warnings, class_="to-warnings") if document.cautions else "",
            filled("dl", *map(_machine, document.machines), class_="machines"),
        ),
    )


def _machine(machine: Machine) -> Markup:
    return joined(
        element("dt", machine.label),
        filled("dd", machine.description),
        filled("dd", machine.method, class_="quiet"),
    )


def _parts(document: Document) -> list[Part]:
    """Return the parts of the page below its header, in their order."""
    charts = document.page
    # The figures of grids are in the interactive table.
    after = [block for block in document.blocks if not (charts and isinstance(block, Grids))]
    blocks = [block_part(block, number) for number, block in enumerate((*document.lead, *after))]
    found = blocks[: len(document.lead)]
    found += interactive.parts(charts) if charts else []
    found += blocks[len(document.lead) :]
    if document.cautions or charts:
        found.append(section("warnings", "Warnings", items(map(_caution, document.cautions)) or element("p", "None.")))
    if document.reasons or charts:
        told = (joined(element("strong", r.word), f"{r.who}: {r.reason}", by=" ") for r in document.reasons)
        found.append(section("missing", "Without a figure", items(told) or element("p", "Every cell has one.")))
    if document.facts:
        found.append(section("facts", "To know", items(map(_caution, document.facts))))
    if document.notes:
        found.append(section("notes", "", *(element("p", spans(line)) for line in document.notes)))
    if document.reproduce:
        commands = "\n".join(command.lines for command in document.reproduce)
        found.append(_section(Section("reproduce", "Reproduce", code=commands)))
    return found + [_section(one) for one in document.appendix]


def _caution(caution: Caution) -> Markup:
    return joined(element("strong", caution.what), caution.why, filled("em", caution.todo), by=" ")


def _section(found: Section) -> Part:
    blocks = (joined(filled("h3", block.title), content(block)) for block in found.blocks)
    code = element("pre", element("code", found.code), tabindex=0) if found.code else ""
    return section(found.name, found.title, *blocks, code)
