"""A worker's side of a chain of launches: a call in memory that another process reads, without clock, seed or check."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnbench.core import chain
from attnbench.core.backend import Backend, Inputs, Prepared, Unsupported
from attnbench.core.case import Case
from attnbench.core.layouts import lay_out, with_random_strides
from attnbench.core.shared_tensors import Description, Mapped
from attnbench.judge import inputs

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def orders(backend: Backend, case: Case, device: torch.device) -> dict[str, dict[str, list[int] | None]]:
    """Return the order in memory of the dimensions of each input that a call reads, and of each of its results."""
    prepared, memory = _prepared(backend, case, inputs.make(case, str(device), 0))
    results = prepared.canonical(prepared.launch())
    read, written = ({name: chain.order_of(t) for name, t in of.items()} for of in (memory, results))
    return {"inputs": read, "results": written}


def make(
    backend: Backend,
    case: Case,
    device: torch.device,
    base: Description,
    places: Sequence[Description],
    *,
    any_strides: bool,
) -> chain.Chain:
    """Return a case's chain on a backend.

    With `any_strides` the inputs of a case with a layout have other strides than this layout's, drawn at random.
    """
    import torch

    mapped = Mapped(device)
    first = mapped.tensors(base)
    copy = with_random_strides if any_strides and case.layout != "native" else torch.clone
    copies: Any = {name: copy(t) for name, t in first.items()}
    given = Inputs(**copies)
    prepared, memory = _prepared(backend, case, given if any_strides else lay_out(case.layout, given))
    return chain.Chain(prepared, first, memory, [mapped.tensors(place) for place in places])


def _prepared(backend: Backend, case: Case, own: Inputs) -> tuple[Prepared, dict[str, Tensor]]:
    """Return a call, and the memory that it reads for each input, without autograd's count of changes.

    Raises Unsupported for a call that reads an input in several parts.
    """
    prepared = backend.prepare(case, own)
    memory = {name: prepared.whole_copy(name) if name in prepared.reads else t for name, t in own.values.items()}
    if parts := [name for name, t in memory.items() if t is None]:
        raise Unsupported(f"it reads {', '.join(parts)} in parts, which a chain of launches does not change")
    return prepared, {name: t.data for name, t in memory.items() if t is not None}


def timed(made: chain.Chain, count: int) -> Mapping[str, Any]:
    """Run a chain, and return its seconds by this process's clock, and why it was not captured in a graph."""
    began = time.perf_counter()
    made.launch(count)
    return {"seconds": time.perf_counter() - began, "uncaptured": made.uncaptured}
