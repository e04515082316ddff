"""A site: pages that share their style sheet and scripts, and link to each other. It needs no server and no network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attnbench.render.document import Document
from attnbench.render.html import html_page, interactive, line_charts
from attnbench.render.html.elements import as_json, asset

ASSETS = "assets"


def render(pages: Iterable[tuple[str, Document]], links: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the files of a site as (address, text): its assets, its pages, and the parts that the pages share.

    `pages` maps addresses to documents; `links` are (text, address) of the links at the top of each page.
    """
    yield f"{ASSETS}/page.css", html_page.style_sheet()
    for name in dict.fromkeys((*interactive.SCRIPTS, *line_charts.SCRIPTS, *html_page.SITE_SCRIPTS)):
        yield f"{ASSETS}/{name}", interactive.script(name)
    yield f"{ASSETS}/LICENSE-vega", asset("LICENSE-vega")
    named, parts = tuple(links), interactive.Parts()
    for address, document in pages:
        yield address, html_page.render(document, html_page.Frame(named, address, parts, ASSETS))
    yield f"{ASSETS}/{html_page.PARTS}", f"attnbench.parts={as_json(parts.found)};\n"
