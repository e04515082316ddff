"""The suites and claims that ship with attnbench, found without reading them, so that a shell completes names fast."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
SUITES = (PACKAGE / "suites", PACKAGE.parent / "suites")  # in a wheel, in a checkout


def shipped_suites() -> dict[str, Path]:
    """Return the suites that ship with attnbench: name -> file."""
    return _yaml_files("")


def shipped_claims() -> dict[str, Path]:
    """Return the files of published claims that ship with attnbench: name -> file."""
    return _yaml_files("claims")


def _yaml_files(below: str) -> dict[str, Path]:
    for folder in SUITES:
        if folder.is_dir():
            return {path.stem: path for path in sorted((folder / below).glob("*.yaml"))}
    return {}
