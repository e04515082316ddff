"""The fastest measured cells of each backend, from the run files in results/, for the page of the backend."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attnbench
from attnbench.backends import BACKENDS
from attnbench.results import metrics
from attnbench.results.case_names import case_name
from attnbench.results.cells import Cell

RESULTS = Path(__file__).parents[2] / "results"
RATES = ("tflops", "gbps", "tokens_per_second")  # an approximation has none, as it does other work
Kind = tuple[str, str, str, str]  # device, rate, pass and dtype


@functools.cache
def _fastest() -> Mapping[str, Mapping[Kind, tuple[Path, Cell]]]:
    """Return backend -> kind -> the cell with the highest rate, and its run file."""
    found: dict[str, dict[Kind, tuple[Path, Cell]]] = {}
    for path in sorted(RESULTS.glob("*.jsonl*")):
        for cell in _right(attnbench.load(str(path)).cells):
            of, kind = found.setdefault(cell.backend, {}), _kind(cell)
            if kind not in of or _rate(cell) > _rate(of[kind][1]):
                of[kind] = path, cell
    return found


def _right(cells: Sequence[Cell]) -> Iterator[Cell]:
    """Yield the cells of shipped backends with a right result, a rate and a known uncertainty."""
    for cell in cells:
        ships = cell.backend in BACKENDS and cell.backend not in cell.run.own_code
        if ships and cell.status == "ok" and cell.is_ranked and cell.usual[0] in RATES and not cell.is_hardly_known():
            yield cell


def _kind(cell: Cell) -> Kind:
    model = re.sub(r" \d+GB.*", "", cell.run.environment.device.name)
    device = f"{cell.case.ranks} {model}" if cell.case.ranks > 1 else model
    return device, cell.usual[0], cell.case.direction, cell.case.dtype


def _rate(cell: Cell) -> float:
    return cell.value(cell.usual[0]) or 0.0


def rows(backend: str) -> Iterator[tuple[str, str, str, str, Path]]:
    """Yield the device, the name of the cell, its rate, its latency and its run file, in each kind."""
    for (device, name, *_), (path, cell) in sorted(_fastest().get(backend, {}).items(), key=lambda item: item[0]):
        rate, latency = (metrics.named(one).format(cell.value(one)) for one in (name, "latency"))
        unit = metrics.named(name).unit
        yield device, case_name(backend, cell.case, dtype=True, batch=True), f"{rate} {unit}".strip(), latency, path
