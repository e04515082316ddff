"""The first lines of a report: how many cells ended in which way, and in how many cases each backend is fastest."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from attnbench.core.case import Case
from attnbench.core.formats import percent, times
from attnbench.core.groups import grouped
from attnbench.core.record import Run
from attnbench.core.text import count, listed, some
from attnbench.render.document import NOTHING_MEASURED
from attnbench.results import case_names
from attnbench.results.cells import Cell, contest_of, why_no_winner

MOST_TIES = 3  # groups of backends that tie, by name
MOST_NAMED = 6  # approximations


def answer(cells: Sequence[Cell], runs: Sequence[Run]) -> tuple[str, ...]:
    """Return sentences: how many cells ended in which way, and in how many cases each backend is fastest."""
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
    by_dtype = grouped(cells, lambda cell: cell.case.dtype)
    names = case_names.by_version(map(_version, cells))
    said = (_fastest(of_one, f" in {dtype}" if len(by_dtype) > 1 else "", names) for dtype, of_one in by_dtype.items())
    return (f"{counted}: {ended}.", *filter(None, (*said, left_out(cells), _approximations(cells))))


def left_out(cells: Sequence[Cell]) -> str:
    """Return a sentence on cells that take no part in any contest, as they time something else; "" without any."""
    why = {cell.name: cell.not_computed for cell in cells if cell.is_exact and cell.not_computed}
    return f"Left out of every comparison: {some(f'{name} ({of})' for name, of in why.items())}." if why else ""


def _approximations(cells: Sequence[Cell]) -> str:
    """Return a sentence on approximations: their speed beside the fastest exact backend, and their errors."""
    known = [c for c in cells if c.value("latency") and not c.is_hardly_known()]
    fastest: dict[tuple[str, Case], float] = {}
    for cell in (c for c in known if c.is_ranked):
        fastest[cell.device, cell.case] = min(_latency(cell), fastest.get((cell.device, cell.case), math.inf))
    told, beside = [], False
    for name in dict.fromkeys(c.backend for c in cells if not c.is_exact):
        own = [c for c in known if c.backend == name]
        speeds = [best / _latency(c) for c in own if (best := fastest.get((c.device, c.case)))]
        errors = [error for c in own if (error := c.value("approximation_error")) is not None]
        with_errors = f"with errors of {_span(errors, percent)}" if errors else ""
        told.append(" ".join(filter(None, (name, _span(speeds, times), with_errors))))
        beside = beside or bool(speeds)
    if not told:
        return ""
    more = f"; and {len(told) - MOST_NAMED} more" if len(told) > MOST_NAMED else ""
    whose = " of its own machine or run" if len({device for device, _ in fastest}) > 1 else ""
    unit = f" 1x is the speed of the fastest exact backend{whose}." if beside else ""
    return f"Not ranked, as they approximate attention: {'; '.join(told[:MOST_NAMED])}{more}.{unit}"


def _span(values: Sequence[float], write: Callable[[float], str]) -> str:
    """Return the least and the most of some values, once where both read the same; "" without values."""
    return " to ".join(dict.fromkeys((write(min(values)), write(max(values))))) if values else ""


def _version(cell: Cell) -> tuple[str, str]:
    """Return a cell's backend and the version that it names."""
    return cell.backend, cell.run.versions.get(cell.backend, "")


def _fastest(cells: Sequence[Cell], where: str, named: Mapping[tuple[str, str], str]) -> str:
    """Return in how many cases each backend is fastest, among the cases that several backends measured.

    Backends that are alike within the uncertainty are named together, with how far apart they are at most.
    """
    ranked = [cell for cell in cells if cell.value("latency") is not None and cell.is_ranked]
    rivals = grouped(ranked, lambda cell: (cell.device, cell.case))
    judged = {device for (device, _), of_case in rivals.items() if len(of_case) > 1}
    contests = [contest_of(of_case) for of_case in rivals.values() if len(of_case) > 1]
    if not contests:
        return ""
    where += f", each of {len(judged)} machines or runs by itself" if len(judged) > 1 else ""
    ties: dict[tuple[str, ...], list[float]] = {}  # backends that are alike -> how far apart, in each case
    for found in (one.winners for one in contests):
        names = sorted({named[_version(cell)] for cell in found}, key=case_names.backend_rank)
        latencies = [*map(_latency, found)]
        if found:
            ties.setdefault(tuple(names), []).append(max(latencies) / min(latencies) - 1)
    in_order = sorted(
        ties, key=lambda names: (len(names) > 1, -len(ties[names]), [*map(case_names.backend_rank, names)])
    )
    alone, together = ([n for n in in_order if (len(n) > 1) == several] for several in (False, True))
    said = [f"{name} in {len(ties[name,])}" for (name,) in alone]
    said += [
        f"{listed(names)} alike in {len(ties[names])} (within {percent(max(ties[names]))})"
        for names in together[:MOST_TIES]
    ]
    if left := [apart for names in together[MOST_TIES:] for apart in ties[names]]:
        said.append(f"others alike in {len(left)} (within {percent(max(left))})")
    if unknown := sum(not one.winners for one in contests):
        said.append(f"not known in {unknown}, where {why_no_winner(contests, lambda cell: named[_version(cell)])}")
    return f"Fastest of {count(len(contests), 'case')}{where}: {'; '.join(said) if together else ', '.join(said)}."


def _latency(cell: Cell) -> float:
    return cell.value("latency") or 0.0
