"""A document as one self-contained HTML file: every command's page, and every page of a site.

The page asks for nothing from elsewhere, and its Content-Security-Policy forbids it, so it works offline and from a
mail. It prints, has a dark mode, and can be used by keyboard. Text and tables are in the page itself. Only a document
with charts (`Document.page`) has scripts: see interactive.py. A page of a site (site.py) is the same, except that all
pages of the site share the files of style sheet and scripts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from attnbench import __version__
from attnbench.core.errors import UserError
from attnbench.core.text import count
from attnbench.render.document import Block, Caution, Document, Grids, Machine, Section
from attnbench.render.html import interactive, line_charts, palette
from attnbench.render.html.blocks import block_part, content, spans
from attnbench.render.html.elements import Markup, Part, asset, element, filled, items, joined, lines, section

MOST_CELLS = 10_000  # cells; with more, a browser opens and filters the page too slowly
FEWEST_LINKS, FEWEST_OF_SITE = 3, 5  # least links of a table of contents, on a page and on a page of a site
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
POLICY_WITH_SCRIPTS = f"{POLICY}; script-src 'unsafe-inline' 'unsafe-eval'; img-src data:"  # Vega compiles expressions
POLICY_OF_SITE = "default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self' 'unsafe-eval'; img-src data:"
SHEET_CHART = (300, 150)  # pixels: width and height of a chart on a sheet of A4
SITE_SCRIPTS = ("shared.js", "tables.js")  # of every page of a site
PARTS = "parts.js"  # of a site: the parts of specifications that its pages share


@dataclass(frozen=True)
class Frame:
    """The parts of a page of a site: links to other pages as (text, address), its own address, and the assets.

    `assets` is the address of the folder of the style sheet and the scripts; the charts of all pages share `parts`.
    """

    links: tuple[tuple[str, str], ...]
    address: str
    parts: interactive.Parts
    assets: str = "assets"


def render(document: Document, frame: Frame | None = None) -> str:
    """Return the page of a document, in a frame as a page of a site.

    Raises UserError where it has too many cells for a browser.
    """
    charts = document.page
    if charts and len(charts.rows) > MOST_CELLS:
        raise UserError(
            f"--html: a page of {len(charts.rows)} cells would be too slow to use ({MOST_CELLS} at most); give fewer "
            "run files, or take the figures from -f csv"
        )
    parts = _parts(document)
    links = [element("a", part.heading, href=f"#{part.id}") for part in parts if part.heading]
    beside = bool(charts) or len(links) >= (FEWEST_OF_SITE if frame else FEWEST_LINKS)
    body = lines(
        element("a", "Skip to the results", class_="skip", href="#results"),
        _site_links(frame) if frame else "",
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
            class_=None if charts or (beside and not frame) else "above" if beside else "alone",
        ),
        _sheet(document.sheet) if document.sheet else "",
        interactive.scripts_data(charts, frame.parts if frame else None) if charts else "",
        line_charts.data(document.charts) if document.charts else "",
        *_scripts(document, frame),
    )
    head = _head(document, frame)
    return "<!doctype html>\n" + element("html", lines(head, element("body", body)), lang="en") + "\n"


def _scripts(document: Document, frame: Frame | None) -> list[Markup]:
    """Return the scripts of a page in their order: in the page, or in the folder of a site."""
    names = [
        *(interactive.SCRIPTS if document.page else ()),
        *(line_charts.SCRIPTS if document.charts else ()),
        *(SITE_SCRIPTS if frame else ()),
    ]
    if frame is None:
        return [element("script", interactive.script(name)) for name in dict.fromkeys(names)]
    if document.page:
        names.insert(1, PARTS)
    return [element("script", src=f"{frame.assets}/{name}") for name in dict.fromkeys(names)]


def _sheet(sheet: Document) -> Markup:
    """Return what paper shows in place of the page: one side of A4, without ids, because the page has the same ids."""
    first, *others = sheet.blocks
    doubts = joined(filled("h2", "To doubt" if sheet.cautions else ""), items(map(_caution, sheet.cautions)))
    machines = filled("dl", *map(_machine, sheet.machines), class_="machines")
    drawn = (element("div", element("h2", one.title), line_charts.drawing(one, SHEET_CHART)) for one in sheet.charts)
    return element(
        "article",
        element("p", f"attnbench {sheet.command}, version {__version__}", class_="brand"),
        element("h1", sheet.title),
        *(element("p", sentence, class_="answer") for sentence in sheet.answer),
        _block(first),
        element("div", *drawn, element("div", doubts, element("h2", "Machines"), machines), class_="beside"),
        *map(_block, others),
        *(element("p", spans(line), class_="quiet") for line in sheet.notes),
        class_="sheet",
    )


def _block(block: Block) -> Markup:
    heading = block.heading if isinstance(block, Grids) else block.title
    return joined(filled("h2", heading), content(block))


def fragment(document: Document) -> str:
    """Return a document as a part of another page, such as a notebook: text and tables, without charts."""
    bare = replace(document, page=None, charts=(), sheet=None, appendix=(), reproduce=())
    body = lines(_header(bare), *(part.content for part in _parts(bare)))
    return f"{element('style', asset('fragment.css'))}\n{element('div', body, class_='attnbench')}\n"


def style_sheet() -> Markup:
    """Return the style sheet of every page."""
    return lines(Markup(palette.style_sheet()), asset("page.css"))


def _site_links(frame: Frame) -> Markup:
    """Return the links to other pages of the site, with the page that is shown marked."""
    each = (
        element("a", text, href=address, aria_current="page" if address == frame.address else None)
        for text, address in frame.links
    )
    return element("nav", *each, class_="site", aria_label="Site")


def _head(document: Document, frame: Frame | None) -> Markup:
    policy = POLICY_WITH_SCRIPTS if document.page or document.charts else POLICY
    style = element("style", style_sheet())
    if frame:
        policy = POLICY_OF_SITE
        sheet = element("link", rel="stylesheet", href=f"{frame.assets}/page.css")
        style = lines(sheet, element("link", rel="icon", href="data:,"))  # otherwise the browser requests a favicon
    return element(
        "head",
        lines(
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="color-scheme", content="light dark"),
            element("meta", http_equiv="Content-Security-Policy", content=policy),
            element("title", f"attnbench: {document.title}"),
            style,
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
        element("dd", machine.description),  # also where it is empty: each label needs a <dd>
        filled("dd", machine.method, class_="quiet"),
    )


def _parts(document: Document) -> list[Part]:
    """Return the parts of the page below its header, in their order."""
    charts = document.page
    # Grids are left out, because the interactive table has their values.
    after = [block for block in document.blocks if not (charts and isinstance(block, Grids))]
    blocks = [block_part(block, number) for number, block in enumerate((*document.lead, *after))]
    found = blocks[: len(document.lead)]
    found += interactive.parts(charts) if charts else []
    found += line_charts.parts(document.charts)
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
