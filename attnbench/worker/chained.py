"""A worker's side of a chain of launches: a call in memory that another process reads, without clock, seed or check."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnbench.core import chain
from attnbench.core.backend import Backend, Inputs, Unsupported
from attnbench.core.case import Case
from attnbench.core.layouts import lay_out
from attnbench.core.shared_tensors import Description, Mapped

if TYPE_CHECKING:
    import torch

TRIED = 8  # launches of the chain that is timed first


def make(
    backend: Backend, case: Case, device: torch.device, base: Description, places: Sequence[Description]
) -> tuple[chain.Chain, float]:
    """Return a case's chain on a backend, and the seconds of one of its launches by this process's clock."""
    mapped = Mapped(device)
    first = mapped.tensors(base)
    copies: Any = {name: t.clone() for name, t in first.items()}
    own = lay_out(case.layout, Inputs(**copies))
    prepared = backend.prepare(case, own)
    given = {name: prepared.whole_copy(name) if name in prepared.reads else t for name, t in own.values.items()}
    if missing := [name for name, t in given.items() if t is None]:
        raise Unsupported(f"it reads {', '.join(missing)} in parts, which a chain of launches does not change")
    memory = {name: t.data for name, t in given.items() if t is not None}  # past autograd's count of changes
    made = chain.Chain(prepared, first, memory, [mapped.tensors(place) for place in places])
    count = min(TRIED, len(places))
    made.launch(count)
    return made, timed(made, count)["seconds"] / count


def timed(made: chain.Chain, count: int) -> Mapping[str, Any]:
    """Run a chain, and return its seconds by this process's clock, and why it was not captured in a graph."""
    began = time.perf_counter()
    made.launch(count)
    return {"seconds": time.perf_counter() - began, "uncaptured": made.uncaptured}
