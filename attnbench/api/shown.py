"""The documents of commands as objects, to show in a terminal or a notebook, or to save in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.api.arguments import path_of
from attnbench.core.errors import EXIT_PASS, UserError
from attnbench.core.files import write_file

if TYPE_CHECKING:
    from attnbench.analysis.gate.findings import Judgement
    from attnbench.analysis.gate.verdicts import Finding
    from attnbench.render.document import Document
    from attnbench.render.html.figures import Spec

VEGA_LITE = "application/vnd.vegalite.v5+json"  # a type that JupyterLab and VS Code draw


@dataclass(frozen=True)
class Shown:
    """A document of a command: `print` it, let a notebook show it, or `save` it.

    exit_code: the command's; 0 where all is well.
    """

    document: Document

    @property
    def exit_code(self) -> int:
        """The exit code that the command would end with."""
        return self.document.exit_code

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The rows of the command's CSV: mappings with equal keys."""
        return self.document.rows

    @property
    def data(self) -> Any:
        """The data of the command's JSON, as Python values."""
        return self.document.data

    def __str__(self) -> str:
        from attnbench.render import terminal

        return terminal.text(self.document)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from attnbench.render.html import html_page

        return html_page.fragment(self.document)

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        return {"text/plain": str(self), "text/html": self._repr_html_(), "text/markdown": self.to_markdown()}

    def to_markdown(self) -> str:
        """Return the document as Markdown."""
        from attnbench.render import markdown

        return markdown.render(self.document)

    def to_html(self) -> str:
        """Return the document as a page that needs nothing from elsewhere. Raises UserError above 10,000 cells."""
        from attnbench.render.html import html_page

        return html_page.render(self.document)

    def to_json(self) -> str:
        """Return everything as JSON, for programs."""
        from attnbench.render import json_and_csv

        return "".join(json_and_csv.json_pieces(self.document))

    def to_csv(self) -> str:
        """Return the rows as CSV."""
        from attnbench.render import json_and_csv

        return "".join(json_and_csv.csv_pieces(self.document))

    def save(self, path: str | Path) -> Path:
        """Write the document in the format that the name ends with: .md, .html, .json, .csv or .txt; return the path.

        Raises UserError for another ending, and for a file that cannot be written.
        """
        forms = {".md": self.to_markdown, ".html": self.to_html, ".json": self.to_json, ".csv": self.to_csv}
        forms[".txt"] = self.__str__
        path = path_of(path)
        if path.suffix not in forms:
            raise UserError(f"{path}: a document's name ends with {', '.join(forms)}")
        return write_file(path, forms[path.suffix]())


@dataclass(frozen=True, repr=False)
class Verdict(Shown):
    """The judgement of a gate or an A/B. It is true where it passed.

    findings: one for each cell and metric, with `verdict`, `change` (a share: 0.05 is 5 % slower) and its interval.
    """

    judgement: Judgement

    def __bool__(self) -> bool:
        return self.passed

    @property
    def passed(self) -> bool:
        """Whether nothing regressed, nothing is wrong and nothing stays open."""
        return self.exit_code == EXIT_PASS

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings on each cell and metric, the gravest first."""
        return self.judgement.findings


@dataclass(frozen=True)
class Plot:
    """A figure of a report. A notebook draws it; `spec` is its Vega-Lite specification, with the data.

    `save` writes it as .png, .svg (both need vl-convert) or .json.
    """

    spec: Spec

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        bundle: dict[str, Any] = {VEGA_LITE: self.spec, "text/plain": repr(self)}
        try:
            from attnbench.render.html import image

            bundle["image/svg+xml"] = image.drawn("svg", self.spec).decode()
        except UserError:  # without vl-convert, a page that cannot draw Vega-Lite shows the text
            pass
        return bundle

    def __repr__(self) -> str:
        title = self.spec["title"]
        return f"<Plot: {title['text']}; {title['subtitle']}>"

    def save(self, path: str | Path) -> Path:
        """Write the figure as .png, .svg or .json, by the name's ending, and return the path. Raises UserError."""
        import json

        from attnbench.render.html import image

        path = path_of(path)
        kind = path.suffix.removeprefix(".")
        if kind not in ("png", "svg", "json"):
            raise UserError(f"{path}: a figure's name ends with .png, .svg or .json")
        return write_file(path, json.dumps(self.spec) if kind == "json" else image.drawn(kind, self.spec))
