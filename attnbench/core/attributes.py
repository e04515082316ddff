"""Temporary replacement of attributes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def other_attributes(owner: Any, **others: Any) -> Iterator[None]:
    """Replace attributes of an object, a class or a module within the block, and restore the old ones after it."""
    usual = {name: getattr(owner, name) for name in others}
    try:
        for name, value in others.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in usual.items():
            setattr(owner, name, value)
