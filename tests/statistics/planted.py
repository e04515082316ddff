"""A backend with a known slowdown, for h200_experiment.py: any other backend with a spin after each call.

The file in ATTNBENCH_PLANTED names the backend and the slowdown:

    {"base": "triton", "share": 0.02, "cycles": {case key: SM cycles}}

On a GPU the spin is a kernel of so many cycles: the share of the cell's cycles, latency times the clock held, in a run
without a slowdown. A case that is not listed gets a spin of one cycle, so that every run has the gap before one more
kernel and only the cycles differ. On a simulated device it is the share of each call's own time.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnbench import backends
from attnbench.core.backend import Prepared
from attnbench.core.case import Case

VARIABLE = "ATTNBENCH_PLANTED"


class Planted:
    """The backend that slows another; only its launch differs."""

    def __init__(self) -> None:
        said = json.loads(Path(os.environ[VARIABLE]).read_text())
        self.share: float = said["share"]
        self.cycles: dict[str, int] = said["cycles"]
        self.base: Any = backends.load(said["base"], backends.BACKENDS[said["base"]])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    def prepare(self, case: Case, inputs: Any) -> Prepared:
        prepared: Prepared = self.base.prepare(case, inputs)
        base, launch = self.base, prepared.launch
        if prepared.simulation:

            def slowed() -> Any:
                began = base.now
                result = launch()
                base.now += int(self.share * (base.now - began))
                return result

        else:
            import torch

            spin, cycles = torch.cuda._sleep, 1 + self.cycles.get(case.key, 0)

            def slowed() -> Any:
                result = launch()
                spin(cycles)
                return result

        return replace(prepared, launch=slowed)
