"""The longest sequence that fits: the largest that was measured, against the next that memory refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.compare.machines import Machine
from attnbench.report import words
from attnbench.report.cells import Cell
from attnbench.types import DIRECTIONS, DTYPES

_NO_ROOM = re.compile(r"needs .+; .+ free")  # as plan.py words a skip for want of memory


@dataclass(frozen=True)
class Fit:
    """seqlen_k; None where none fits. `refused` is the shortest above it that memory refused."""

    longest: int | None
    refused: int | None


@dataclass(frozen=True)
class Line:
    """One backend, head dimension and pass over all machines; None where a machine has nothing of it."""

    name: str  # "d128 fwd"
    backend: str
    fits: tuple[Fit | None, ...]

    @property
    def limited(self) -> bool:
        return any(f and f.refused for f in self.fits)


def longest(found: Sequence[Machine]) -> list[Line]:
    """In the order of a report. Masks, heads and batches are taken together: what fits with any of them counts."""
    several = len({case.dtype for m in found for case, _ in m.cells}) > 1
    lines: dict[tuple[object, ...], tuple[str, str, list[dict[int, list[Cell]]]]] = {}
    for i, machine in enumerate(found):
        for (case, backend), cell in machine.cells.items():
            s = case.shape
            dims = (s.headdim, s.headdim_v)
            rank = (DTYPES.index(case.dtype), dims, DIRECTIONS.index(case.direction), words.backend_rank(backend))
            name = f"{case.dtype} " * several + f"d{words.headdim(case)} {case.direction}"
            sides = lines.setdefault(rank, (name, backend, [{} for _ in found]))[2]
            sides[i].setdefault(s.seqlen_k, []).append(cell)
    return [
        Line(name, backend, fits)
        for _, (name, backend, sides) in sorted(lines.items(), key=lambda line: line[0])
        if any(fits := tuple(map(_fit, sides)))
    ]


def _fit(lengths: dict[int, list[Cell]]) -> Fit | None:
    fitting = [n for n, cells in lengths.items() if any(c.status == "ok" for c in cells)]
    most = max(fitting, default=0)
    refused = [n for n, cells in lengths.items() if n > most and any(map(_no_room, cells))]
    return Fit(most or None, min(refused, default=None)) if fitting or refused else None


def _no_room(cell: Cell) -> bool:
    if cell.status == "oom":
        return True
    return cell.status == "skipped" and bool(_NO_ROOM.fullmatch(cell.reason or ""))
