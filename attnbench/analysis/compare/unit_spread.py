"""How far apart runs of one model lie, with the same power limit and software: units differ, and so do runs of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.analysis.compare.common_cells import common_keys
from attnbench.analysis.compare.machines import File, Machine, files_by_setup
from attnbench.core import stats


@dataclass(frozen=True)
class UnitSpread:
    """Run files that nothing but the unit may set apart: the TFLOP/s of each, over the cells that all measured."""

    name: str  # the model and its power limit
    files: tuple[File, ...]
    tflops: tuple[float, ...]  # a geometric mean for each file
    cells: int
    units: int | None = None  # how many measured them; None where a file does not name its unit

    @property
    def range(self) -> tuple[float, float, float]:
        """The least, the median and the most TFLOP/s."""
        return min(self.tflops), stats.median(self.tflops), max(self.tflops)


def unit_spreads(machines: Sequence[Machine]) -> list[UnitSpread]:
    """Return the spread of every model that several files with common cells measured."""
    of_one_file = {machine.files[0].path: machine for machine in machines if len(machine.files) == 1}
    found = []
    for files in files_by_setup(file for machine in machines for file in machine.files):
        each = [of_one_file.get(file.path) or Machine(file.path.name, (file,), file.run) for file in files]
        keys = common_keys(each) if len(files) > 1 else []
        if not keys:
            continue
        environment = each[0].environment
        limit = f" {environment.power_limit_w:g} W" if environment.power_limit_w else ""
        uuids = {machine.environment.device.uuid for machine in each}
        found.append(
            UnitSpread(
                name=f"{environment.device.name}{limit}",
                files=tuple(files),
                tflops=tuple(stats.geomean([machine.tflops(key) for key in keys]) for machine in each),
                cells=len(keys),
                units=None if None in uuids else len(uuids),
            )
        )
    return found
