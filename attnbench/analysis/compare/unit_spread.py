"""How far apart run files of one GPU model lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.analysis.compare.like_kernels import shared_cells
from attnbench.analysis.compare.machines import Machine, files_by_setup, machine_of
from attnbench.core import stats
from attnbench.results.run_setup import setup_texts
from attnbench.results.together import together


@dataclass(frozen=True)
class UnitSpread:
    """Run files of one model with the same power limit and software, over the cells that all measured."""

    model: str  # with its power limit
    files: tuple[str, ...]
    units: int | None  # how many measured them; None where a file does not name its unit
    tflops: tuple[float, ...]  # a geometric mean for each file
    cells: int


def unit_spreads(machines: Sequence[Machine]) -> list[UnitSpread]:
    """Return the spread of every model that several files with common cells measured: units differ, and so do runs."""
    found = []
    for files in files_by_setup(file for machine in machines for file in machine.files):
        beside = together(file.run for file in files)
        each = [machine_of(file.path.name, [file], beside) for file in files]
        shared = shared_cells(each) if len(files) > 1 else []
        rates = ([rate for machine in each if (rate := machine.tflops(key))] for key in shared)
        known = [of for of in rates if len(of) == len(each)]  # approximations have none
        if known:
            uuids = {card.uuid for machine in each for card in machine.cards}
            found.append(
                UnitSpread(
                    model=f"{each[0].environment.device.name} {setup_texts(each[0].run)['power_limit_w']}".strip(),
                    files=tuple(file.path.name for file in files),
                    units=None if None in uuids else len(uuids),
                    tflops=tuple(map(stats.geomean, zip(*known, strict=True))),
                    cells=len(known),
                )
            )
    return found
