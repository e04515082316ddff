"""What a backend says without its library: what it chose, by the kernels that ran, and the code that calls it."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from attnbench.backends import BACKENDS, load
from attnbench.core.backend import Backend
from attnbench.core.case import Case
from attnbench.core.record import Run


def chosen(run: Run, backend: str, kernels: Iterable[str]) -> str:
    """Return which of its choices a backend made, by the kernels that ran: "cudnn" of `sdpa`; "" where it has none."""
    ours = _shipped(run, backend)
    return ours.chosen(kernels) if ours else ""


def code(run: Run, backend: str, case: Case) -> str:
    """Return the code that calls a backend for a case, as a person pastes it; "" where none is known."""
    ours = _shipped(run, backend)
    return ours.paste.text(case) if ours and ours.paste else ""


def _shipped(run: Run, backend: str) -> Any:
    """Return a backend of a run; None for one that does not ship, such as a person's own code."""
    if backend not in BACKENDS or run.specs.get(backend, BACKENDS[backend]) != BACKENDS[backend]:
        return None
    return _loaded(backend)


@functools.cache
def _loaded(backend: str) -> Backend:
    return load(backend, BACKENDS[backend])
