"""The longest sequence that fits in memory: the longest that was measured, and the next that memory refused."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.analysis.compare.machines import Machine
from attnbench.core.case import DIRECTIONS, DTYPES
from attnbench.results import case_names
from attnbench.results.cells import Cell

_NO_ROOM = re.compile(r"needs .+; .+ free")  # the reason that run/plan.py gives for a skip for want of memory


@dataclass(frozen=True)
class Fit:
    """What fits, as seqlen_k: the longest measured (None: none), and the shortest above it that memory refused."""

    longest: int | None
    refused: int | None


@dataclass(frozen=True)
class LongestSequence:
    """What fits of one backend, head dimension and pass, by the machine's label; None where it has no such cell."""

    name: str  # "d128 fwd"
    backend: str
    fits: Mapping[str, Fit | None]

    @property
    def limited(self) -> bool:
        """Whether memory refused a length on any machine."""
        return any(fit and fit.refused for fit in self.fits.values())


def longest_sequences(machines: Sequence[Machine]) -> list[LongestSequence]:
    """Return them in the order of a report. A length fits if it fits with any mask, number of heads or batch."""
    several_dtypes = len({case.dtype for machine in machines for case, _ in machine.cells}) > 1
    kinds: dict[tuple[Any, ...], dict[str, dict[int, list[Cell]]]] = {}  # kind -> label -> seqlen_k -> cells
    for machine in machines:
        for (case, backend), cell in machine.cells.items():
            s = case.shape
            kind = (case.dtype, s.headdim, s.headdim_v, case.direction, backend)
            kinds.setdefault(kind, {}).setdefault(machine.label, {}).setdefault(s.seqlen_k, []).append(cell)
    found = []
    for kind in sorted(kinds, key=_rank):
        dtype, headdim, headdim_v, direction, backend = kind
        fits = {machine.label: _fit(kinds[kind].get(machine.label, {})) for machine in machines}
        if any(fits.values()):
            name = f"d{headdim} {direction}" if headdim == headdim_v else f"d{headdim}-{headdim_v} {direction}"
            found.append(LongestSequence(f"{dtype} {name}" if several_dtypes else name, backend, fits))
    return found


def _rank(kind: tuple[Any, ...]) -> tuple[Any, ...]:
    dtype, headdim, headdim_v, direction, backend = kind
    return DTYPES.index(dtype), headdim, headdim_v, DIRECTIONS.index(direction), case_names.backend_rank(backend)


def _fit(cells: Mapping[int, Sequence[Cell]]) -> Fit | None:
    """Return what fits of the cells by seqlen_k; None where no cell was measured and memory refused none."""
    measured = [n for n, of_length in cells.items() if any(cell.status == "ok" for cell in of_length)]
    longest = max(measured, default=0)
    refused = [n for n, of_length in cells.items() if n > longest and any(map(_refused_by_memory, of_length))]
    return Fit(longest or None, min(refused, default=None)) if measured or refused else None


def _refused_by_memory(cell: Cell) -> bool:
    if cell.status == "oom":
        return True
    return cell.status == "skipped" and bool(_NO_ROOM.fullmatch(cell.reason or ""))
