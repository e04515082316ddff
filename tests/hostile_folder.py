"""A hostile working directory, with packages named as the imports of attnbench and of its children."""

from __future__ import annotations

from pathlib import Path

NAMES = (
    *("attnbench", "json", "typing", "torch", "pip", "select", "typer", "rich", "pydantic", "numpy", "pandas", "yaml"),
    *("sitecustomize", "usercustomize", "encodings", "conftest"),
)
MARK = "hijacked"


def hostile(folder: Path) -> Path:
    """Write a package of each name into `folder` and return it. Its import writes a file and ends the process."""
    for name in NAMES:
        (folder / name).mkdir(parents=True)
        code = f"import os\nopen({str(folder / MARK)!r}, 'a').write({name + ' '!r})\nos._exit(99)\n"
        (folder / name / "__init__.py").write_text(code)
        (folder / name / "__main__.py").write_text(code)
    (folder / "hostile.pth").write_text(f"import os; open({str(folder / MARK)!r}, 'a').write('.pth ')\n")
    return folder


def hijacked(folder: Path) -> str:
    """Return the names of the packages of `folder` that were imported."""
    mark = folder / MARK
    return mark.read_text() if mark.exists() else ""
