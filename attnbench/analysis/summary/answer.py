"""The first lines of a report: how many cells ended how, and which backend is fastest how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from attnbench.core.case import Case
from attnbench.core.formats import percent
from attnbench.core.record import Run
from attnbench.core.text import count
from attnbench.report.document import NOTHING_MEASURED
from attnbench.results import case_names
from attnbench.results.cells import Cell
from attnbench.results.uncertainty import NONE_KNOWN, best


def answer(cells: Sequence[Cell], runs: Sequence[Run]) -> tuple[str, ...]:
    """Return sentences that sum the report up: how many cells ended how, and which backend is fastest how often."""
    if not cells:
        return (NOTHING_MEASURED,)
    endings = Counter(cell.status if cell.status in case_names.ENDINGS else "measured" for cell in cells)
    ended = ", ".join(f"{number} {ending}" for ending, number in endings.most_common())
    rounds = max(len(cell.rows) for cell in cells)
    in_rounds = f" in {rounds} rounds" if rounds > 1 else ""
    from_runs = f" from {count(len(runs), 'run')}" if len(runs) > 1 else ""
    counted = f"{count(len(cells), 'cell')}{in_rounds}{from_runs}"
    if not endings["measured"]:
        return f"{counted}: {ended}.", "Nothing was measured; the reasons are in this report."
    by_dtype: dict[str, list[Cell]] = {}  # which do not compete with each other
    for cell in cells:
        by_dtype.setdefault(cell.case.dtype, []).append(cell)
    said = (_fastest(of_one, f" in {dtype}" if len(by_dtype) > 1 else "") for dtype, of_one in by_dtype.items())
    return (f"{counted}: {ended}.", *filter(None, said))


def _fastest(cells: Sequence[Cell], where: str) -> str:
    """Return how many cases each backend is fastest of, among the cases that several backends were measured on.

    Where others are alike within the uncertainty, none is.
    """
    rivals: dict[tuple[str, Case], list[Cell]] = {}
    for cell in cells:
        if cell.is_exact and cell.value("latency") is not None:
            rivals.setdefault((cell.device, cell.case), []).append(cell)
    contested = [_best(of_case) for of_case in rivals.values() if len(of_case) > 1]
    if not contested:
        return ""
    wins = Counter(found[0].backend_name for found in contested if len(found) == 1)
    ranked = sorted(wins, key=lambda backend: (-wins[backend], case_names.backend_rank(backend)))
    said = [f"{backend} in {wins[backend]}" for backend in ranked]
    if ties := [sorted(map(_latency, found)) for found in contested if len(found) > 1]:
        most = max(second / first - 1 for first, second, *_ in ties)
        said.append(f"none in {len(ties)}, alike within {percent(most)}")
    if unknown := sum(not found for found in contested):
        said.append(f"not known in {unknown}, where {NONE_KNOWN}")
    return f"Fastest of {count(len(contested), 'case')}{where}: {', '.join(said)}."


def _best(cells: Sequence[Cell]) -> list[Cell]:
    return best(cells, _latency, lambda cell: cell.half_interval("latency"))


def _latency(cell: Cell) -> float:
    return cell.value("latency") or 0.0
