"""The kinds of work with their own pages on a site, each with the rate that describes it best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attnbench.analysis.compare.common_cells import work
from attnbench.core.case import Case


@dataclass(frozen=True)
class Work:
    """A kind of work. `name` is used in addresses; `metric` is the rate of its figures: "tflops" or "gbps"."""

    name: str
    title: str
    what: str
    metric: str

    @property
    def unit(self) -> str:
        return "GB/s" if self.metric == "gbps" else "TFLOP/s"


WORKS: Mapping[str, Work] = {
    kind.name: kind
    for kind in (
        Work("prefill", "Prefill", "a forward pass of many queries on one GPU", "tflops"),
        Work("decode", "Decode", "a forward of few queries on a long cache, on one GPU", "gbps"),
        Work("training", "Training", "a backward pass, or both passes, on one GPU", "tflops"),
        Work("several-gpus", "Several GPUs", "one sequence split over several GPUs; rates are of each", "tflops"),
    )
}


def work_of(case: Case) -> Work | None:
    """Return the kind of work of a case; None for a step of a whole model, which has its own pages."""
    if case.step:
        return None
    if case.ranks > 1:
        return WORKS["several-gpus"]
    return WORKS[work(case)]
