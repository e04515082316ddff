"""The public API: names and signatures, which change by intention only, and the examples of docstrings.

`python tests/api/test_public.py` writes the present API to public.txt.
"""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import attnbench
import forked_worker
from worker_here import quick_cpu

PUBLIC = Path(__file__).with_name("public.txt")
OF_OTHERS = ("Case", "Record", "Run")  # content of run files, numbered by their schema


def public() -> Iterator[str]:
    """Yield a line for each name: its signature, and the signatures of its methods and fields."""
    for name in attnbench.__all__:
        found = getattr(attnbench, name)
        if inspect.isfunction(found):
            yield f"{name}{inspect.signature(found)}"
        elif inspect.isclass(found):
            yield f"class {name}({', '.join(base.__name__ for base in found.__bases__)})"
            if name in OF_OTHERS:
                continue
            fields = {f.name: f.type for f in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else {}
            yield from (f"    {field}: {kind}" for field, kind in fields.items())
            for member, value in vars(found).items():
                if isinstance(value, property):
                    yield f"    {member} (property)"
                elif not member.startswith("_") and callable(getattr(found, member)) and member not in fields:
                    yield f"    {member}{inspect.signature(getattr(found, member))}"


def test_what_is_public_has_not_changed_unseen() -> None:
    """An intended change needs python tests/api/test_public.py, a version by semver.org, and a line in CHANGELOG.md."""
    assert "\n".join(public()) + "\n" == PUBLIC.read_text()


@pytest.mark.parametrize("name", [name for name in attnbench.__all__ if name != "__version__"])
def test_each_name_is_explained(name: str) -> None:
    found = getattr(attnbench, name)
    assert len(found.__doc__) > 40
    if inspect.isfunction(found) and name != "load":
        assert ">>>" in found.__doc__


@pytest.mark.parametrize("module", ["results", "measure", "timing", "shapes"])
def test_the_examples_of_docstrings(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with forked_worker.workers(), quick_cpu():
        done = doctest.testmod(importlib.import_module(f"attnbench.api.{module}"))
    assert done.attempted
    assert not done.failed


if __name__ == "__main__":
    PUBLIC.write_text("\n".join(public()) + "\n")
