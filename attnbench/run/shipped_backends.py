"""Facts of a backend that are known without its library: its choice, code that calls it, libraries that it may use."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from attnbench.backends import BACKENDS, load, present_spec
from attnbench.core.case import Case
from attnbench.core.record import Run

_OF_TORCH = {f"attnbench.backends.{module}" for module in ("pytorch.eager", "pytorch.sdpa", "pytorch.varlen")}


def chosen(run: Run, backend: str, kernels: Iterable[str]) -> str:
    """Return the choice of a backend, by the kernels that ran: "cudnn" for `sdpa`; "" for one without choices."""
    ours = _shipped(run, backend)
    return ours.chosen(kernels) if ours else ""


def code(run: Run, backend: str, case: Case, scale: str = "") -> str:
    """Return code to paste that calls a backend for a case, with `scale` as the softmax's; "" where none is known."""
    ours = _shipped(run, backend)
    return ours.paste.text(case, scale) if ours and ours.paste else ""


def modules_to_paste() -> set[str]:
    """Return the names of the modules that code to paste imports, of all backends that ship: "flash_attn"."""
    pastes = [paste for name in BACKENDS if (paste := _loaded(name).paste)]
    return {line.split()[1].partition(".")[0] for paste in pastes for line in paste.imports}


def libraries(backend: str) -> tuple[str, ...]:
    """Return the names in pip of the libraries, beside torch, that a backend uses; () for one that does not ship."""
    ours = _loaded(backend) if backend in BACKENDS else None
    return (*ours.distributions, *ours.uses) if ours else ()


def engine_name(run: Run, backend: str, engine: str, case: Case) -> str:
    """Return the name of a backend's kernels in an engine, for a case; "" where the engine does not run them.

    Engines are the keys of `BackendBase.engine_names`.
    """
    ours = _shipped(run, backend)
    name: str = ours.engine_name(engine, case) if ours else ""
    return name


def named_in(engine: str) -> dict[str, str]:
    """Return backend -> its name in an engine, for the backends that ship."""
    return {backend: name for backend in BACKENDS if (name := _names(backend).get(engine))}


def may_use(backend: str, spec: str | None, library: str, *, gpu: bool = True) -> bool:
    """Return whether another version of a library may change the times of a backend.

    A backend that does not ship with attnbench may use any library. Triton compiles kernels for GPUs, for any backend
    that uses torch's compiler, and a library that no backend names may do the same; without a GPU (`gpu`) they change
    nothing. `spec` is the backend's "module:object"; None where unknown, as in a saved baseline.
    """
    if not _ships(backend, spec):
        return True
    users = _users(library)
    return backend in users if users and library != "triton" else gpu


def _ships(backend: str, spec: str | None) -> bool:
    return backend in BACKENDS and (spec is None or present_spec(backend, spec) == BACKENDS[backend])


def is_of_torch(backend: str, spec: str | None) -> bool:
    """Return whether a backend's kernels are torch's own, and change only with torch."""
    return _ships(backend, spec) and BACKENDS[backend].partition(":")[0] in _OF_TORCH


def install_commands() -> dict[str, list[str]]:
    """Return command -> backends, for the commands that install the libraries of backends."""
    found: dict[str, list[str]] = {}
    for name in BACKENDS:
        if command := getattr(_loaded(name), "install", None):
            found.setdefault(command, []).append(name)
    return found


@functools.cache
def _users(library: str) -> frozenset[str]:
    """Return the backends that name a library."""
    own = {name: _loaded(name) for name in BACKENDS}
    return frozenset(name for name, of in own.items() if library in (*of.distributions, *of.uses))


def _names(backend: str) -> Mapping[str, str]:
    return getattr(_loaded(backend), "engine_names", {})


def _shipped(run: Run, backend: str) -> Any:
    """Return a backend of a run; None for a backend that does not ship, such as a person's own code."""
    return _loaded(backend) if _ships(backend, run.specs.get(backend)) else None


@functools.cache
def _loaded(backend: str) -> Any:
    return load(backend, BACKENDS[backend])
