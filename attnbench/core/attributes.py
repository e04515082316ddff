"""Attributes that are others for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def other_attributes(owner: Any, **others: Any) -> Iterator[None]:
    """Give an object, a class or a module other attributes within the block, and after it those that it had."""
    usual = {name: getattr(owner, name) for name in others}
    try:
        for name, value in others.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in usual.items():
            setattr(owner, name, value)
