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
def _files(folder: Path) -> Mapping[Path, Sequence[Cell]]:
    """Return the cells of shipped backends in each run file of a folder."""
    files = {path: attnbench.load(str(path)).cells for path in sorted(folder.glob("*.jsonl*"))}
    return {path: [cell for cell in cells if _ships(cell)] for path, cells in files.items()}


def _ships(cell: Cell) -> bool:
    return cell.backend in BACKENDS and cell.backend not in cell.run.own_code


@functools.cache
def _fastest(folder: Path) -> Mapping[str, Mapping[Kind, tuple[Path, Cell]]]:
    """Return backend -> kind -> the cell with the highest rate, and its run file."""
    found: dict[str, dict[Kind, tuple[Path, Cell]]] = {}
    for path, cells in _files(folder).items():
        for cell in filter(_counts, cells):
            of, kind = found.setdefault(cell.backend, {}), _kind(cell)
            if kind not in of or _rate(cell) > _rate(of[kind][1]):
                of[kind] = path, cell
    return found


def _counts(cell: Cell) -> bool:
    """Return whether a cell has a right result, a rate and a known uncertainty."""
    return cell.status == "ok" and cell.is_ranked and cell.usual[0] in RATES and not cell.is_hardly_known()


def _device(cell: Cell) -> str:
    model = re.sub(r" \d+GB.*", "", cell.run.environment.device.name)
    return f"{cell.case.ranks} {model}" if cell.case.ranks > 1 else model


def _kind(cell: Cell) -> Kind:
    return _device(cell), cell.usual[0], cell.case.direction, cell.case.dtype


def _rate(cell: Cell) -> float:
    return cell.value(cell.usual[0]) or 0.0


def wrong(backend: str = "") -> Iterator[tuple[str, str, str, str, str]]:
    """Yield backend, version, device, cell and reason of the first wrong cell of each kind, of one backend or of all.

    A kind is a backend, a version of its library, a pass and a tensor that is wrong. Verdicts of an earlier check are
    left out.
    """
    seen = set()
    for cells in _files(RESULTS).values():
        for cell in cells:
            if cell.status == "wrong" and not cell.of_earlier_check and backend in ("", cell.backend):
                version = cell.run.versions.get(cell.backend, "").partition(", without")[0]
                reason = re.split(r", in |, up to |; ", cell.reason or "")[0]
                kind = (cell.backend, version, reason[:12])
                if kind not in seen:
                    seen.add(kind)
                    name = case_name(cell.backend, cell.case, dtype=True, batch=True)
                    yield cell.backend, version, _device(cell), name, reason


def rows(backend: str) -> Iterator[tuple[str, str, str, str, Path]]:
    """Yield the device, the name of the cell, its rate, its latency and its run file, in each kind."""
    for (device, name, *_), (path, cell) in sorted(_fastest(RESULTS).get(backend, {}).items(), key=lambda item: item[0]):
        rate, latency = (metrics.named(one).format(cell.value(one)) for one in (name, "latency"))
        unit = metrics.named(name).unit
        yield device, case_name(backend, cell.case, dtype=True, batch=True), f"{rate} {unit}".strip(), latency, path
