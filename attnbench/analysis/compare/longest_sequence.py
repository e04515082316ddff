"""The longest measured sequence, and the next length for which the memory was too small, in the call or its check.

Such a length is the limit only if no planned length below it was left out for another reason (time, a crash, a wrong
result); otherwise the machine may hold more than the longest length measured on it. A length that another machine
measured counts as planned.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.analysis.compare.machines import Machine
from attnbench.core.case import DIRECTIONS, DTYPES
from attnbench.results.case_names import backend_rank, headdim, heads, lengths_differ, pattern
from attnbench.results.cells import Cell, Key

_NO_ROOM = re.compile(r"needs .+; .+ free")  # the reason that run/plan.py gives for a skip for lack of memory


@dataclass(frozen=True)
class Fit:
    """The longest measured seqlen_k (None: none), and the next longer one, `refused` for lack of memory.

    If lengths between were left out for another reason, they are `not_measured`, and `refused` is None.
    """

    longest: int | None
    refused: int | None
    not_measured: tuple[int, ...] = ()


@dataclass(frozen=True)
class LongestSequence:
    """The fits of one backend, shape and pass, by the machine's label; None for a machine without such a cell."""

    cases: str  # "d128 fwd, batch 1, 32/8 heads"
    backend: str  # "" for any
    fits: Mapping[str, Fit | None]

    @property
    def limited(self) -> bool:
        """Whether the memory of any machine was too small for a length."""
        return any(fit and fit.refused for fit in self.fits.values())


def longest_sequences(machines: Sequence[Machine], by_backend: bool = True) -> list[LongestSequence]:
    """Return the longest sequences in the order of a report, for each backend or with any.

    A length fits if it fits with any mask. "Any backend" means one that computes attention, is ranked (no own code) and
    was tried on every machine; a library that a machine lacks is thus no limit of its memory.
    """
    several_dtypes = len({case.dtype for machine in machines for case, _ in machine.cells}) > 1
    kinds: dict[tuple[Any, ...], dict[str, dict[Key, Cell | None]]] = {}  # sort key of a row -> label -> cells
    rank: tuple[Any, ...]
    for machine in machines:
        for (case, backend), cell in {**dict.fromkeys(machine.planned), **machine.cells}.items():
            if not by_backend and (backend in machine.own_code or not (cell is None or cell.is_exact)):
                continue
            s = case.shape
            rank = (DTYPES.index(case.dtype), s.headdim, s.headdim_v, DIRECTIONS.index(case.direction), pattern(case))
            rank += (case.ranks, s.batch, s.nheads, s.nheads_k, s.seqlen_q if lengths_differ(case) else 0)
            rank += (backend_rank(backend),) if by_backend else ()
            kinds.setdefault(rank, {}).setdefault(machine.label, {})[case, backend] = cell
    found = []
    for _, cells in sorted(kinds.items()):
        case, backend = next(key for of in cells.values() for key in of)
        name = f"{case.dtype} " if several_dtypes else ""
        name += f"d{headdim(case)} {case.direction}, "
        name += f"{pattern(case)}, " if case.is_ragged else ""
        name += f"ranks {case.ranks}, " if case.ranks > 1 else ""
        name += f"seqlen_q {case.shape.seqlen_q}, " if lengths_differ(case) else ""
        name += f"batch {case.shape.batch}, heads {heads(case)}"
        if not by_backend:
            tried = set.intersection(
                *({name for (_, name), cell in cells.get(m.label, {}).items() if _says(cell)} for m in machines)
            )
            cells = {label: {key: of[key] for key in of if key[1] in tried} for label, of in cells.items()}
        measured = {_length(key) for of in cells.values() for key, cell in of.items() if cell and cell.status == "ok"}
        fits = {machine.label: _fit(cells.get(machine.label, {}), measured) for machine in machines}
        if any(fits.values()):
            found.append(LongestSequence(name, backend if by_backend else "", fits))
    return found


def _fit(cells: Mapping[Key, Cell | None], measured: Collection[int]) -> Fit | None:
    """Return the fit from cells, some of them only planned; None if no cell tells whether its length fits.

    `measured` are the lengths that any machine measured.
    """
    if not any(map(_says, cells.values())):
        return None
    longest = max((_length(key) for key, cell in cells.items() if cell and cell.status == "ok"), default=0)
    refused = {_length(key) for key, cell in cells.items() if _refused_by_memory(cell)}
    unknown = {_length(key) for key, cell in cells.items() if not _says(cell) and not _is_unsupported(cell)}
    unknown |= {*measured} - {_length(key) for key in cells}
    limit = min((n for n in refused - unknown if n > longest), default=None)
    between = sorted(n for n in unknown if n > longest and (limit is None or n < limit))
    if not longest and limit is None:
        return None
    return Fit(longest or None, None if between else limit, tuple(between))


def _length(key: Key) -> int:
    return key[0].shape.seqlen_k


def _says(cell: Cell | None) -> bool:
    """Whether a cell tells if its length fits: it was measured, or the memory was too small."""
    return cell is not None and (cell.status == "ok" or _refused_by_memory(cell))


def _refused_by_memory(cell: Cell | None) -> bool:
    if cell is None:
        return False
    no_room = cell.status == "skipped" and _NO_ROOM.fullmatch(cell.reason or "")
    return cell.status == "oom" or bool(no_room)


def _is_unsupported(cell: Cell | None) -> bool:
    """Whether a cell was skipped because its backend cannot run it, and thus tells nothing about a length."""
    return cell is not None and cell.status == "skipped" and not any(row.record.resumable for row in cell.rows)
