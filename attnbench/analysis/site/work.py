"""The kinds of work with their own pages on a site, as `compare` has them, and all of several GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attnbench.analysis.compare.common_cells import work
from attnbench.core.case import Case


@dataclass(frozen=True)
class Work:
    """A kind of work. `name` is used in addresses."""

    name: str
    title: str
    what: str


WORKS: Mapping[str, Work] = {
    kind.name: kind
    for kind in (
        Work("prefill", "Prefill", "a forward pass of many queries on one GPU"),
        Work("decode", "Decode", "a forward of few queries on a long cache, on one GPU"),
        Work("training", "Training", "a backward pass, or both passes, on one GPU"),
        Work("several-gpus", "Several GPUs", "one sequence split over several GPUs; rates are per GPU"),
    )
}


def work_of(case: Case) -> Work | None:
    """Return the kind of work of a case; None for a step of a whole model, which has its own pages."""
    if case.step:
        return None
    if case.ranks > 1:
        return WORKS["several-gpus"]
    return WORKS[work(case)]
