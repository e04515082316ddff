"""`attnbench site`: read run files, write static pages. Heavy imports stay inside."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attnbench import __version__
from attnbench.commands import options
from attnbench.commands.report import own_document
from attnbench.commands.shared import read_runs, tell
from attnbench.core.errors import EXIT_DONE, UserError
from attnbench.core.files import read_plain, write_file
from attnbench.core.formats import size
from attnbench.core.text import count
from attnbench.render.document import with_damage

if TYPE_CHECKING:
    from attnbench.analysis.site.findings import RunFile
    from attnbench.render.document import Document

LIST = "site.json"  # the file with the names of a site's files, which a later site may replace and remove
ASSETS = "assets"  # the folder of style sheets and scripts
_OURS = re.compile(rf"[a-z0-9.-]+\.html|{ASSETS}/[A-Za-z0-9.-]+")
_PAGE = b"<title>attnbench: "  # stands near the beginning of each page


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `attnbench site`."""

    results: list[Path] = options.argument("RUN|DIR", "Run files, or folders: all run files in them.")
    out: Path = options.files(
        "DIR", "The folder to write: a new one, an empty one, or one that this command wrote.", Path("site")
    )
    published: str | None = options.files(
        "ADDRESS",
        "Where the run files are published, for a link to each: https://github.com/OWNER/REPO/blob/main/results. "
        "Without it no page names an address outside of the site.",
    )


@options.command
def site(given: Options) -> None:
    """Make a web site of all that was measured: static pages that need no server and no network.

    The first page says what is fastest where, by GPU, and how two GPUs compare in each kind of work. Others are by GPU,
    backend, kind of work, model and pair of GPUs, over time, and one a run file. Rows link to the run files that they
    are from. Own code, named by its file, is in no ranking. Open site/index.html, or publish the folder.

    attnbench site results/ --out site/
    attnbench site nightly/ lab.jsonl --out /srv/www/attention

    Exit code 0: done; 2: bad input, or a folder that cannot be written or holds other files.
    """
    published = given.published or ""
    if published and not published.startswith(("https://", "http://")):
        raise UserError(
            f"--published: {published!r} is no address, such as https://github.com/OWNER/REPO/blob/main/results"
        )
    before = _written_before(given.out)
    read, damage = read_runs(given.results)

    from attnbench.analysis.site.findings import Findings, run_files
    from attnbench.analysis.site.pages import pages
    from attnbench.render.html import site as html

    found = Findings(run_files(read, [path for path in given.results if path.is_dir()], published))
    made = pages(found, [str(path) for path in given.results], _reports())
    shown = ((page.address, with_damage(page.make(), damage if page is made[0] else {})) for page in made)
    texts = [*html.render(shown, [(page.name, page.address) for page in made if page.name])]
    total = _write(given.out, texts, before)
    tell(f"site: {given.out / made[0].address} ({count(len(made), 'page')}, {size(total)})")
    raise typer.Exit(EXIT_DONE)


def _reports() -> Callable[[RunFile], Document]:
    """Return the function that makes the report of a run file, as `attnbench report --html` shows it."""
    from attnbench.analysis.claims.claim_file import load
    from attnbench.analysis.report.document import complete, document
    from attnbench.render.html.html_page import MOST_CELLS
    from attnbench.results.cells import cells as cells_of

    claims = load()

    def report_of(file: RunFile) -> Document:
        runs, paths = [file.run], [file.path]
        if own := own_document(runs, claims):
            return own
        cells = cells_of(runs)
        with_charts = len(cells) <= MOST_CELLS
        shown = document(cells, runs, files=paths, with_grids=not with_charts)
        return complete(shown, {"html"} if with_charts else {}, cells, runs, paths)

    return report_of


def _written_before(folder: Path) -> list[str]:
    """Return the names of the files of an earlier site in a folder.

    Raises UserError for a folder that holds anything else, before anything is read or written.
    """
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise UserError(f"--out: {folder} is a file; give the name of a folder")
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        names = json.loads(read_plain(folder / LIST))["files"]
        return [name for name in names if isinstance(name, str) and _OURS.fullmatch(name)]
    if any(folder.iterdir()):
        raise UserError(f"--out: {folder} has files that attnbench site did not write; give a new folder")
    return []


def _is_ours(path: Path) -> bool:
    """Return whether a file is one that a site has: an asset, or a page of attnbench."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return path.parent.name == ASSETS or _PAGE in file.read(4096)


def _write(folder: Path, texts: Sequence[tuple[str, str]], before: Iterable[str]) -> int:
    """Write the files of a site, the index last and each whole, then remove those of the earlier one; return its bytes.

    The list of files is written first, so that an interrupted site can be written again.
    """
    names = [name for name, _ in texts]
    for name in (ASSETS, LIST, *names):
        if (folder / name).is_symlink():  # a link in a checkout would make this overwrite a file elsewhere
            raise UserError(f"--out: {folder / name} is a link; remove it, or give a new folder")
    stale = [name for name in before if name not in names and _is_ours(folder / name)]
    listed = {"attnbench": __version__, "files": sorted({*names, *stale})}
    write_file(folder / LIST, json.dumps(listed, indent=1))
    for name, text in sorted(texts, key=lambda pair: pair[0] == "index.html"):
        write_file(folder / name, text)
    for name in stale:
        with contextlib.suppress(OSError):
            os.unlink(folder / name)
    write_file(folder / LIST, json.dumps({**listed, "files": sorted(names)}, indent=1))
    return sum(len(text.encode()) for _, text in texts)
