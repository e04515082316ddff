"""Hooks of MkDocs: which pages the site has, their navigation, and where their links lead.

The documents of the repository are pages as they are; links that stay right on GitHub are led to pages of the site, or
to the repository for what is no page.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import reference  # noqa: E402

TOP = {  # a document at the top of the repository -> its page
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
}
MADE_OF = {  # a file of the code -> the page that is made of it
    "attnbench/core/record.py": "reference/run-file.md",
    "attnbench/core/errors.py": "reference/exit-codes.md",
    "attnbench/core/models.json": "reference/models.md",
    "attnbench/results/metrics.py": "reference/metrics.md",
    "attnbench/results/where_tried.json": "backends/index.md",
    "attnbench/commands": "commands/index.md",
}
GUIDES = {  # the navigation, by the names of documents without .md; what is not named here is in the last but one
    "Start": "README install own-kernel recommend tune python terms",
    "Guides": "ci gate ab bisect history compare cluster capacity step profiling claims publish",
    "Cases": "models ragged paged masks approximate several-gpus",
    "Results and method": "results measuring run-files triton-kernel gluon-kernel",
    "Develop": "CONTRIBUTING ARCHITECTURE CHANGELOG",
}
BOOST = {"install.md": 4, "commands/": 2}  # the beginning of a page's address -> its weight in a search
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(<?)([^)\s>]+)")


class Sessions(Extension):
    """Extension of Markdown that shows what stands behind >>> in a docstring as code."""

    def extendMarkdown(self, md: Any) -> None:  # noqa: N802
        md.preprocessors.register(_Fences(md), "sessions", 100)  # before what reads fences


class _Fences(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        sessions = re.sub(r"^>>> .*(?:\n.+)*", r"```pycon\n\g<0>\n```", "\n".join(lines), flags=re.M)
        return sessions.split("\n")


def on_config(config: Any) -> Any:
    """Set the navigation, which names the pages of the reference too."""
    pages = {_name(path): _page(path) for path in _documents()}
    groups = {title: [pages.pop(name) for name in names.split() if name in pages] for title, names in GUIDES.items()}
    pages.pop("backends")  # above the pages of the backends
    groups["Develop"] += sorted(page for page in pages.values() if page.startswith("dev/"))
    groups["Results and method"] += sorted(page for page in pages.values() if not page.startswith("dev/"))
    config.nav = [{title: found} for title, found in groups.items()]
    config.nav[-1:-1] = reference.navigation()
    config.markdown_extensions.append(Sessions())
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the documents, their pictures, and the pages of the reference."""
    for path in _documents():
        files.append(File.generated(config, _page(path), content=_weighted(_page(path), _linked(path))))
    for picture in (*ROOT.glob("docs/*.svg"), *ROOT.glob("docs/*.png")):
        files.append(File.generated(config, picture.name, abs_src_path=str(picture)))
    for uri, text in reference.pages().items():
        files.append(File.generated(config, uri, content=_weighted(uri, text)))
    return files


def _weighted(page: str, text: str) -> str:
    """Return the text of a page with its weight in a search, where it has one of its own."""
    boost = next((weight for start, weight in BOOST.items() if page.startswith(start)), 0)
    return f"---\nsearch: {{boost: {boost}}}\n---\n\n{text}" if boost else text


def _documents() -> list[Path]:
    return [*(ROOT / name for name in TOP), *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/dev/*.md"))]


def _name(path: Path) -> str:
    """Return the name of a document in GUIDES: "compare" for docs/compare.md, "dev/compare" for docs/dev/compare.md."""
    return f"dev/{path.stem}" if path.parent.name == "dev" else path.stem


def _page(path: Path) -> str:
    """Return the page of a document."""
    name = path.relative_to(ROOT).as_posix()
    return TOP.get(name) or name.removeprefix("docs/").replace("backends.md", "backends/index.md")


def _linked(path: Path) -> str:
    """Return the text of a document, with links to pages of the site and to the repository."""
    folder = path.parent.relative_to(ROOT).as_posix()
    page = posixpath.dirname(_page(path))

    def link(match: re.Match[str]) -> str:
        target, mark, anchor = match[2].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        led = _led(posixpath.normpath(posixpath.join(folder, target)))
        return match[1] + (led if ":" in led else posixpath.relpath(led, page or ".")) + mark + anchor

    text = re.sub(r"^\[!\[.*\n", "", path.read_text(encoding="utf-8"), flags=re.M)  # badges are of other hosts
    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)  # not in code
    text = "".join(part if i % 2 else _LINK.sub(link, part) for i, part in enumerate(parts))
    return reference.with_links_to_backends(text) if path.name == "backends.md" else text


def _led(place: str) -> str:
    """Return the page of a place in the repository, or its address; what is not there is left, to be warned of."""
    if place in MADE_OF:
        return MADE_OF[place]
    if place in TOP or re.fullmatch(r"docs/(dev/)?[\w-]+\.md", place):
        return _page(ROOT / place)
    if re.fullmatch(r"docs/[\w-]+\.(svg|png)", place):
        return place.removeprefix("docs/")
    if (ROOT / place).exists():
        kind = "tree" if (ROOT / place).is_dir() else "blob"
        return f"{reference.REPOSITORY}/{kind}/main/{place}"
    return place


def on_post_build(config: Any) -> None:
    """Refuse a page that loads anything from another host."""
    for page in Path(config.site_dir).rglob("*.html"):
        loaded: Iterable[str] = re.findall(
            r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="(https?:[^"]+)', page.read_text(encoding="utf-8")
        )
        for address in loaded:
            raise SystemExit(f"{page}: loads {address}")
