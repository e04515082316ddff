"""The first lines of a report: how many cells ended how, and which backend is fastest how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from attnbench.core.case import Case
from attnbench.core.record import Run
from attnbench.core.text import count
from attnbench.report.document import NOTHING_MEASURED
from attnbench.results import case_names
from attnbench.results.cells import Cell


def answer(cells: Sequence[Cell], runs: Sequence[Run]) -> tuple[str, ...]:
    """Return sentences that sum the report up: how many cells ended how, and which backend is fastest how often."""
    if not cells:
        return (NOTHING_MEASURED,)
    endings = Counter(cell.status if cell.status in case_names.ENDINGS else "measured" for cell in cells)
    ended = ", ".join(f"{number} {ending}" for ending, number in endings.most_common())
    rounds = max(len(cell.rows) for cell in cells)
    in_rounds = f" in {rounds} rounds" if rounds > 1 else ""
    from_runs = f" from {count(len(runs), 'run')}" if len(runs) > 1 else ""
    fastest = _fastest(cells)
    return (f"{count(len(cells), 'cell')}{in_rounds}{from_runs}: {ended}.", *([fastest] if fastest else []))


def _fastest(cells: Sequence[Cell]) -> str:
    """Return how many cases each backend is fastest of, among the cases that several backends were measured on."""
    latencies: dict[tuple[str, Case], dict[str, float]] = {}
    for cell in cells:
        if (latency := cell.value("latency")) is not None:
            latencies.setdefault((cell.device, cell.case), {})[cell.backend_name] = latency
    contested = [of_backend for of_backend in latencies.values() if len(of_backend) > 1]
    if not contested:
        return ""
    wins = Counter(min(of_backend, key=lambda backend: of_backend[backend]) for of_backend in contested)
    ranked = sorted(wins, key=lambda backend: (-wins[backend], case_names.backend_rank(backend)))
    each = ", ".join(f"{backend} in {wins[backend]}" for backend in ranked)
    return f"Fastest of {count(len(contested), 'case')}: {each}."
