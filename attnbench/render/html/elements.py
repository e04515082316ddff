"""HTML elements as text. Text is escaped here and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Any

from attnbench.core.text import printable

_NO_CONTENT = {"input", "link", "meta"}  # elements that have no closing tag
Attribute = str | int | bool | None


class Markup(str):
    """Text that is HTML already. All other text is escaped when it is put into an element."""

    __slots__ = ()


@dataclass(frozen=True)
class Part:
    """A part of a page. One with a heading has an entry in the page's table of contents."""

    content: Markup
    id: str
    heading: str


def element(tag: str, *inside: str, **attributes: Attribute) -> Markup:
    """Return an element, with its text and attributes escaped.

    The name of an attribute ends with "_" where Python reserves it, and has "_" for each "-": class_, aria_label. True
    writes an attribute without a value; False and None leave it out.
    """
    written = ""
    for name, value in attributes.items():
        if value is not None and value is not False:
            written += f" {name.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escaped(str(value))}"')
    return Markup(f"<{tag}{written}>" + ("" if tag in _NO_CONTENT else f"{joined(*inside)}</{tag}>"))


def escaped(text: str) -> str:
    """Return text as HTML shows it: nothing in it is markup, a control character or a change of direction."""
    return escape("\n".join(map(printable, text.split("\n"))))


def filled(tag: str, *inside: str, **attributes: Attribute) -> Markup:
    """Return an element, or nothing where it would be empty."""
    return element(tag, *inside, **attributes) if any(inside) else Markup()


def joined(*parts: str, by: str = "") -> Markup:
    """Return texts and elements one after the other, the texts escaped; empty ones are left out."""
    return Markup(by.join(part if isinstance(part, Markup) else escaped(part) for part in parts if part))


def lines(*parts: str) -> Markup:
    """Return texts and elements, each on a line of the file."""
    return joined(*parts, by="\n")


def section(id: str, heading: str, *inside: str, class_: str | None = None) -> Part:
    """Return a part of a page, below its heading if that has any text."""
    title = filled("h2", heading, id=f"{id}-title")
    named = f"{id}-title" if heading else None
    return Part(element("section", title, *inside, id=id, class_=class_, aria_labelledby=named), id, heading)


def items(found: Iterable[str], tag: str = "ul", class_: str | None = None) -> Markup:
    """Return a list of items, or nothing where there are none; `tag` "ol" numbers them."""
    return filled(tag, *(element("li", item) for item in found), class_=class_)


def scrolling(table: Markup, label: str, class_: str = "scroll") -> Markup:
    """Return a table that scrolls to the sides where the page is too narrow for it, by keyboard too."""
    return element("div", table, class_=class_, tabindex=0, role="region", aria_label=label)


def script_data(id: str, value: Any) -> Markup:
    """Return a script element that holds data as JSON; nothing in the data can end the element."""
    return element("script", Markup(as_json(value).replace("<", "\\u003c")), type="application/json", id=id)


def as_json(value: Any) -> str:
    """Return data as JSON in the least characters."""
    return json.dumps(shown(value), separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def shown(value: Any) -> Any:
    """Return data without control characters, which would crash vl-convert."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {shown(name): shown(item) for name, item in value.items()}
    return [shown(item) for item in value] if isinstance(value, list | tuple) else value


def asset(name: str) -> Markup:
    """Return the text of a file of assets/: a style sheet or a script."""
    return Markup((resources.files("attnbench.render.html") / "assets" / name).read_text(encoding="utf-8"))
