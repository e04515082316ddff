"""Check the output of `attnbench compare` for machines, with the backends that all of them have (docs/compare.md)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .audit import Audit, printed
from .device import peak
from .machines import Machine, alike, machines, shared_cells
from .ratios import equal, speed_ratio
from .raw import Key, memory_peak, over_rounds

Chosen = Mapping[str, Key]  # case -> the cell that counts


def check(audit: Audit, paths: Sequence[Path]) -> None:
    """Check the figures over all shared cases, in bursts and without pauses, and the figures of each cell."""
    said = printed("compare", *paths)
    names = {frozenset(file.path.name for file in machine.files): machine for machine in machines(paths)}
    found = [names[frozenset(row["files"])] for row in said["machines"]]
    where = f"compare {' '.join(path.name.partition('-nvidia')[0] for path in paths)}"
    for what in ("latency", "sustained"):
        common = shared_cells(found, what)
        best = [machine.fastest(what, common) for machine in found]
        cases = [case for case in best[0] if all(case in of for of in best)]
        chosen = [{case: of[case] for case in cases} for of in best]
        shown = [of for of in said["figures"] if of["shared_backends"] and of["sustained"] == (what == "sustained")]
        expected = [len(cases)] if cases else []
        audit.same(f"{where}: {what}", "cases", str([of["cases"] for of in shown]), str(expected))
        for i, row in enumerate(shown[0]["machines"] if shown else ()):
            for name, value in _figures(found, chosen, i, what).items():
                audit.same(f"{where}: {what}, {row['name']}", name, row[name], value)
    _check_cells(audit, where, found, [row["name"] for row in said["machines"]], said["cells"])


def _figures(found: Sequence[Machine], chosen: Sequence[Chosen], i: int, what: str) -> dict[str, float | None]:
    """Return the figures of a machine by their names in the JSON. The first machine is the reference."""
    machine, keys = found[i], [*chosen[i].values()]
    limits = {case: found[0].limit(key) for case, key in chosen[0].items()}
    of_memory, computing = ([key for key in keys if limits[key[0]] == by] for by in ("memory", "compute"))
    ours, theirs = (equal([*chosen[j].values()]) for j in (0, i))
    speed = speed_ratio(found[0], ours, found[i], theirs, what)
    return {
        "tflops": _geomean([machine.tflops(key, what) for key in computing]),
        "gbps": _geomean([machine.gbps(key, what) for key in of_memory]),
        "utilization": _geomean([_share(machine, key, what) for key in computing]),
        **dict(zip(("ratio", "ratio_low", "ratio_high"), speed, strict=True)),
    }


def _geomean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value]
    return math.exp(statistics.fmean(map(math.log, known))) if known and len(known) == len(values) else None


def _share(machine: Machine, key: Key, what: str) -> float | None:
    most = peak(machine.files[0], machine.cells[key].case.dtype)
    return machine.tflops(key, what) * 1e12 / most if most else None


def _check_cells(
    audit: Audit, where: str, found: Sequence[Machine], names: Sequence[str], rows: Sequence[dict[str, Any]]
) -> None:
    """Check each cell on each machine, and its ratio with the same backend on both machines."""
    shown = {(row["machine"], row["case"], row["backend"]): row for row in rows}
    every = {(name, *key) for machine in found for key in machine.cells for name in names}
    audit.same(where, "rows of cells", shown.keys() == every, True)
    for machine, name in zip(found, names, strict=True):
        fastest = machine.fastest("latency", machine.figures["latency"])
        for case, backend in {key for each in found for key in each.cells}:
            row, key = shown[name, case, backend], (case, backend)
            audit.same(f"{where}: {name}, {backend} {case}", "fastest", row["fastest"], fastest.get(case) == key)
            for what, value in _cell(found, machine, key).items():
                audit.same(f"{where}: {name}, {backend} {case}", f"{what} of a cell", row[what], value)


def _cell(found: Sequence[Machine], machine: Machine, key: Key) -> dict[str, Any]:
    cell, one = machine.cells.get(key), machine.figures["latency"].get(key)
    names = ("latency", "tflops", "gbps", "utilization", "memory_peak", "ratio", "ratio_low", "ratio_high")
    told: dict[str, Any] = dict.fromkeys(names)
    told |= {"status": cell.status if cell else "not planned", "rounds": len(one.rounds) if one else 0}
    if not cell or not one:
        return told
    told |= {"latency": machine.seconds("latency", key), "memory_peak": over_rounds(cell, memory_peak)}
    if key[1] not in machine.approximate:  # approximations have no rate, because their work is not attention's
        told |= {"tflops": machine.tflops(key), "gbps": machine.gbps(key)}
        told["utilization"] = _share(machine, key, "latency")
    if key in found[0].figures["latency"] and alike(found[0], machine, key):
        speed = speed_ratio(found[0], {key: 1.0}, machine, {key: 1.0}, "latency")
        told |= dict(zip(("ratio", "ratio_low", "ratio_high"), speed, strict=True))
    return told
