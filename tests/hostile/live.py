"""Find active text in an output: text that a browser, GitHub, a CI's runner or an XML parser would execute or link.

GitHub links names and addresses by github.github.com/gfm, "Autolinks (extension)"; mentions and references to issues
follow, and are found after a backslash too. Workflow commands begin a line with "::"; older ones may be anywhere in a
line: actions/runner, src/Runner.Common/ActionCommand.cs.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

from markdown_it import MarkdownIt

OWN_FORM = [("id", "filters"), ("aria-label", "Filters")]  # the page's own form, which sends nothing
OWN_BLOCKS = re.compile(r"<details><summary>[\w ()]+</summary>\n|</details>\n")  # in markdown, around code
MARK = "hackme"  # part of all effects of hostile names
MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
LIVE_TOKENS = {"html_block", "html_inline", "link_open", "image", "s_open", "hr", "blockquote_open"}
LINKED = re.compile(r"@\w|#\d|\bGH-\d|https?://|\bwww\.", re.I)
DIRECTIONS = "[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
CONTROLS = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]|{DIRECTIONS}")
COMMAND = re.compile(r"^\s*::|##\[|##vso\[", re.M)
OURS = re.compile(r"^::(?:error|warning|notice) title=[^:,\n]*::[^\n]*$")


def in_markdown(text: str) -> list[str]:
    """Return the active parts of markdown, except a document's own headings, lists, tables, bold and code."""
    found = []
    for token in MARKDOWN.parse(text):
        if token.type == "fence":
            continue
        for part in (token, *(token.children or ())):
            if part.type in LIVE_TOKENS and not OWN_BLOCKS.fullmatch(part.content):
                found.append(f"{part.type}: {part.content or part.attrs}")
            elif part.type == "text" and (linked := LINKED.search(part.content)):
                found.append(f"a link or a mention: {part.content[max(0, linked.start() - 20) :][:80]!r}")
        if token.type == "heading_open" and token.tag != "h3":
            found.append(f"a heading of {token.tag}")
    return found + [f"a control character: {c!r}" for c in set(CONTROLS.findall(text))]


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.text = ""
        self._script = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._script = dict(attrs).get("type") or "code" if tag == "script" else ""
        own = tag == "form" and attrs == OWN_FORM
        if tag in ("img", "iframe", "link", "object", "embed", "base", "form", MARK) and not own:
            self.found.append(f"<{tag}>")
        for name, value in attrs:
            if name.startswith("on") or MARK in name:
                self.found.append(f"an attribute {name}")
            if name in ("href", "src", "action") and not (value or "").startswith(("#", "data:")):
                self.found.append(f"{name}={value!r}")
            if name == "style" and MARK in (value or ""):
                self.found.append(f"style={value!r}")

    def handle_endtag(self, tag: str) -> None:
        self._script = ""

    def handle_data(self, data: str) -> None:
        if self._script == "code" and MARK in data:
            self.found.append("a script with text of a name")
        self.text += "" if self._script else data


def in_html(page: str) -> list[str]:
    """Return the active parts of a page, except its own scripts."""
    parser = _Page()
    parser.feed(page)
    parser.close()
    return parser.found + [f"a control character: {c!r}" for c in set(CONTROLS.findall(parser.text))]


def in_xml(text: str) -> list[str]:
    """Return why a text is not XML."""
    try:
        ElementTree.fromstring(text.encode())
    except ElementTree.ParseError as error:
        return [f"no XML: {error}"]
    return []


def in_log(text: str, annotations: bool = False) -> list[str]:
    """Return the commands in a step's output; with `annotations` without the commands that a gate itself prints."""
    lines = [line for line in text.split("\n") if COMMAND.search(line)]
    return [f"a workflow command: {line[:120]!r}" for line in lines if not (annotations and OURS.match(line))]
