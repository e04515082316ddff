"""The published package: the files of the sdist, the README on an index, and the documents that messages name.

`.ci/package` builds and installs the package; these tests need no build.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import attnbench
from attnbench.commands.command_line import COMMANDS, command_line
from attnbench.core import documents
from attnbench.render import markdown

ROOT = Path(__file__).parents[1]
SOURCES = sorted(ROOT.glob("attnbench/**/*.py"))
TEXTS = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
NAMED = re.compile(r"(?<![\w/.-])((?:docs|examples)/[\w/.-]+\.\w+)")
LINK = re.compile(r"\]\(<?([^)\s>]+)")


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the clone, as where only the wheel is installed."""
    monkeypatch.setattr(documents, "_is_clone", lambda: False)


@cache
def strings() -> tuple[str, ...]:
    """Return the texts of the package, docstrings included."""
    nodes = (node for path in SOURCES for node in ast.walk(ast.parse(path.read_text())))
    return tuple(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def test_the_sdist_has_what_is_named() -> None:
    """Each file of docs/ and examples/ that messages and documents name exists and is in the sdist."""
    sdist = pytest.importorskip("hatchling.builders.sdist")
    files = sdist.SdistBuilder(str(ROOT)).recurse_included_files()
    given = {"pyproject.toml", *(Path(file.path).relative_to(ROOT).as_posix() for file in files)}
    linked = {
        (path.parent / target.partition("#")[0]).resolve()
        for path in TEXTS
        for target in LINK.findall(path.read_text())
        if not re.match(r"[a-z]+:|#", target)
    }
    assert all(path.exists() for path in linked), [path for path in linked if not path.exists()]
    files = {path.relative_to(ROOT).as_posix() for path in linked if path.is_file()}
    named = {name for text in strings() for name in NAMED.findall(text)}
    wanted = {name for name in files | named if not name.startswith(("results/", ".github/"))}
    assert {"docs/measuring.md", "examples/fastest_backends.py"} <= wanted
    assert wanted <= given, sorted(wanted - given)


def test_the_readme_of_an_index_has_addresses() -> None:
    """The substitutions of the README turn each link to a file into an address in the repository."""
    tomllib: Any = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    text = (ROOT / "README.md").read_text()
    for one in project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(one["pattern"], one["replacement"], text)
    urls = project["project"]["urls"]
    raw = urls["Source"].replace("github.com", "raw.githubusercontent.com")
    found = LINK.findall(text)
    assert len(found) > 20
    assert all(re.match(r"https?://|#", target) for target in found), found
    for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text):
        if picture.startswith(raw):
            assert (ROOT / picture.removeprefix(f"{raw}/main/")).is_file(), picture
    assert urls["Documentation"] == documents.SITE
    assert f"site_url: {documents.SITE}" in (ROOT / "docs" / "site" / "mkdocs.yml").read_text()


def test_what_is_said_of_installing_works_before_it_is_published() -> None:
    """Before attnbench is published, no text tells a person to install it from an index."""
    of_index = re.compile(r"pip install (?:-\S+ )*['\"]?attnbench\b")
    texts = {str(path): path.read_text() for path in (*TEXTS, *ROOT.glob("examples/**/*.*"))}
    texts |= {str(i): text for i, text in enumerate(strings())}
    assert not {where: text for where, text in texts.items() if of_index.search(text)}


@pytest.mark.usefixtures("wheel")
def test_without_a_clone_documents_are_addresses() -> None:
    assert documents.with_addresses("See docs/several-gpus.md.") == f"See {documents.SITE}several-gpus/."
    assert documents.with_addresses("my/docs/gate.md and docs/gate.txt") == "my/docs/gate.md and docs/gate.txt"
    address = f"{documents.SITE}gate/"
    assert markdown.safe(address) == address, "a link"
    assert markdown.safe(f"{documents.SITE}@all") != f"{documents.SITE}@all", "nobody is mentioned"


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize("words", [(name,) for name in COMMANDS] + [("cluster", "report")])
def test_help_without_a_clone_names_no_file(words: tuple[str, ...]) -> None:
    """Help without a clone names addresses instead of files, and no column of options cuts an address."""
    said = CliRunner(env={"COLUMNS": "80"}).invoke(command_line(words[0]), [*words, "--help"])
    assert said.exit_code == 0, said.output
    assert "docs/" not in said.output
    assert not re.search(rf"{documents.SITE}\S*…", said.output)


def test_one_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", attnbench.__version__)
    said = re.findall(r"^## \[?(\d[\d.]*)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert said[0] == attnbench.__version__
    assert f"version: {attnbench.__version__}\n" in (ROOT / "CITATION.cff").read_text()
