"""The longest sequence that fits in memory: the longest that was measured, and the next that memory refused."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.analysis.compare.machines import Machine
from attnbench.core.case import DIRECTIONS, DTYPES
from attnbench.results.case_names import backend_rank, headdim, heads, lengths_differ, pattern
from attnbench.results.cells import Cell

_NO_ROOM = re.compile(r"needs .+; .+ free")  # the reason that run/plan.py gives for a skip for want of memory


@dataclass(frozen=True)
class Fit:
    """What fits, as seqlen_k: the longest measured (None: none), and the shortest above it that memory refused."""

    longest: int | None
    refused: int | None


@dataclass(frozen=True)
class LongestSequence:
    """What fits of one backend, shape and pass, by the machine's label; None where it has no such cell."""

    cases: str  # "d128 fwd, batch 1, 32/8 heads"
    backend: str  # "" for any
    fits: Mapping[str, Fit | None]

    @property
    def limited(self) -> bool:
        """Whether memory refused a length on any machine."""
        return any(fit and fit.refused for fit in self.fits.values())


def longest_sequences(machines: Sequence[Machine], by_backend: bool = True) -> list[LongestSequence]:
    """Return the longest sequences in the order of a report, of each backend or with any.

    A length fits if it fits with any mask; with any backend means with one that computes attention and was tried on
    every machine, so that a library that one lacks is no limit of the other's memory.
    """
    several_dtypes = len({case.dtype for machine in machines for case, _ in machine.cells}) > 1
    kinds: dict[tuple[Any, ...], dict[str, list[Cell]]] = {}  # rank of a row -> label -> cells
    rank: tuple[Any, ...]
    for machine in machines:
        for (case, backend), cell in machine.cells.items():
            if not (by_backend or cell.is_exact):
                continue
            s = case.shape
            rank = (DTYPES.index(case.dtype), s.headdim, s.headdim_v, DIRECTIONS.index(case.direction), pattern(case))
            rank += (case.ranks, s.batch, s.nheads, s.nheads_k, s.seqlen_q if lengths_differ(case) else 0)
            rank += (backend_rank(backend),) if by_backend else ()
            kinds.setdefault(rank, {}).setdefault(machine.label, []).append(cell)
    found = []
    for _, cells in sorted(kinds.items()):
        case, backend = next(iter(cells.values()))[0].key
        name = f"{case.dtype} " if several_dtypes else ""
        name += f"d{headdim(case)} {case.direction}, "
        name += f"{pattern(case)}, " if case.is_ragged else ""
        name += f"ranks {case.ranks}, " if case.ranks > 1 else ""
        name += f"seqlen_q {case.shape.seqlen_q}, " if lengths_differ(case) else ""
        name += f"batch {case.shape.batch}, heads {heads(case)}"
        if not by_backend:
            tried = set.intersection(
                *({cell.backend for cell in cells.get(m.label, ()) if _says(cell)} for m in machines)
            )
            cells = {label: [cell for cell in of if cell.backend in tried] for label, of in cells.items()}
        fits = {machine.label: _fit(cells.get(machine.label, [])) for machine in machines}
        if any(fits.values()):
            found.append(LongestSequence(name, backend if by_backend else "", fits))
    return found


def _fit(cells: Sequence[Cell]) -> Fit | None:
    """Return what fits of the cells; None where no cell was measured and memory refused none."""
    longest = max((cell.case.shape.seqlen_k for cell in cells if cell.status == "ok"), default=0)
    lengths = [cell.case.shape.seqlen_k for cell in cells if _refused_by_memory(cell)]
    refused = min((length for length in lengths if length > longest), default=None)
    return Fit(longest or None, refused) if longest or refused else None


def _says(cell: Cell) -> bool:
    """Whether a cell says what fits: it was measured, or memory refused it."""
    return cell.status == "ok" or _refused_by_memory(cell)


def _refused_by_memory(cell: Cell) -> bool:
    no_room = cell.status == "skipped" and _NO_ROOM.fullmatch(cell.reason or "")
    return cell.status == "oom" or bool(no_room)
