"""The longest sequence that fits: the largest that was measured, against the next that memory refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.analysis.compare.machines import Machine
from attnbench.core.case import DIRECTIONS, DTYPES
from attnbench.results import case_names
from attnbench.results.cells import Cell

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
    lines: dict[tuple[Any, ...], list[dict[int, list[Cell]]]] = {}
    for i, machine in enumerate(found):
        for (case, backend), cell in machine.cells.items():
            s = case.shape
            kind = (case.dtype, s.headdim, s.headdim_v, case.direction, backend)
            sides = lines.setdefault(kind, [{} for _ in found])
            sides[i].setdefault(s.seqlen_k, []).append(cell)
    told = []
    for dtype, d, dv, direction, backend in sorted(lines, key=_rank):
        fits = tuple(map(_fit, lines[dtype, d, dv, direction, backend]))
        if any(fits):
            name = f"d{d} {direction}" if d == dv else f"d{d}-{dv} {direction}"
            told.append(Line(f"{dtype} {name}" if several else name, backend, fits))
    return told


def _rank(kind: tuple[Any, ...]) -> tuple[Any, ...]:
    dtype, d, dv, direction, backend = kind
    return DTYPES.index(dtype), d, dv, DIRECTIONS.index(direction), case_names.backend_rank(backend)


def _fit(lengths: dict[int, list[Cell]]) -> Fit | None:
    fitting = [n for n, cells in lengths.items() if any(c.status == "ok" for c in cells)]
    most = max(fitting, default=0)
    refused = [n for n, cells in lengths.items() if n > most and any(map(_no_room, cells))]
    return Fit(most or None, min(refused, default=None)) if fitting or refused else None


def _no_room(cell: Cell) -> bool:
    if cell.status == "oom":
        return True
    return cell.status == "skipped" and bool(_NO_ROOM.fullmatch(cell.reason or ""))
