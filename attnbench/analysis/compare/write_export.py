"""A comparison for other programs. CSV: one row a cell and machine. JSON: the same rows, and all that is derived.

Seconds, watts and fractions are not scaled; tflops is TFLOP/s. `ratio` is how many times as fast the machine is as the
reference in the same cell, with the ends of its 95 % interval and what that is from. What is not known is empty in CSV,
null in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from attnbench.analysis.compare import ratios, write_rows
from attnbench.analysis.compare.compare import Comparison, Group
from attnbench.analysis.compare.join import NOT_PLANNED
from attnbench.analysis.compare.machines import Machine
from attnbench.analysis.compare.write_answer import answer
from attnbench.report.files import as_csv, case_fields


def cells(c: Comparison) -> Iterator[dict[str, Any]]:
    """Every cell that any machine has, on every machine."""
    universe = dict.fromkeys(key for machine in c.machines for key in machine.cells)
    for case, backend in universe:
        key = case, backend
        for i, machine in enumerate(c.machines):
            cell, ok = machine.cells.get(key), key in machine.logs
            ratio = c.cell_ratio(key, i) if ok and key in c.reference.logs else None
            yield {
                "machine": machine.label,
                "backend": backend,
                **case_fields(case),
                "status": cell.status if cell else NOT_PLANNED,
                "reason": cell.reason if cell else None,
                "fastest": c.bests[i].get(case) == backend,
                "rounds": len(machine.logs[key]) if ok else 0,
                "latency": ratios.latency(machine, key) if ok else None,
                "tflops": c.speed(i, key) if ok else None,
                "utilization": cell.value("utilization") if ok and cell else None,
                "power": cell.value("power") if ok and cell else None,
                "sustained_tflops_per_watt": cell.value("tflops_per_watt") if ok and cell else None,
                "memory_peak": cell.value("memory_peak") if ok and cell else None,
                **_ratio(ratio),
            }


def csv_text(c: Comparison) -> str:
    return as_csv(list(cells(c)))


def json_text(c: Comparison) -> str:
    said = {
        "answer": answer(c),
        "reference": c.reference.label,
        "machines": [_machine(c, i, machine) for i, machine in enumerate(c.machines)],
        "groups": [_group(c, group) for group in (*c.groups, c.whole)],
        "workload": _workload(c),
        "missing": [
            {"machine": k.machine, "backend": k.backend, "why": k.why, "reason": k.reason, "cells": len(k.cells)}
            for k in c.lacks
        ],
        "longest": [
            {
                "cases": line.name,
                "backend": line.backend,
                "machines": [{"longest": f.longest, "refused": f.refused} if f else None for f in line.fits],
            }
            for line in c.longest
        ],
        "units": [
            {
                "model": u.name,
                "files": [f.path.name for f in u.files],
                "units": u.count,
                "tflops": u.tflops,
                "cells": u.cells,
            }
            for u in c.units
        ],
        "warnings": write_rows.warnings(c),
        "cells": list(cells(c)),
    }
    return json.dumps(said, indent=1, allow_nan=False) + "\n"


def _machine(c: Comparison, i: int, machine: Machine) -> dict[str, Any]:
    here, price = machine.run.environment, c.prices.get(machine.label)
    return {
        "name": machine.label,
        "device": here.device.name,
        "power_limit_w": here.power_limit_w,
        "torch": here.torch,
        "driver": here.driver,
        "files": [file.path.name for file in machine.files],
        "tflops": c.rate(i),
        "tflops_geomean": c.tflops[i],
        "utilization": c.utilization[i],
        "watts": c.power.watts[i] if c.power else None,
        "tflops_per_watt": c.power.tflops_per_watt[i] if c.power else None,
        "price": price.amount if price else None,
        "price_per": price.per if price else None,
        "bought": c.bought(i),
        "bought_unit": price.unit if price else None,
        **_ratio(c.overall[i]),
    }


def _group(c: Comparison, group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "cases": len(group.cases),
        "cells": len(group.cells),
        "fastest_backends": {m.label: _ratio(r) for m, r in zip(c.machines, group.best, strict=True)},
        "same_backend": {m.label: _ratio(r) for m, r in zip(c.machines, group.same, strict=True)},
    }


def _workload(c: Comparison) -> dict[str, Any] | None:
    w = c.workload
    if w is None:
        return None
    return {
        "name": w.workload.name,
        "weights": w.workload.weights,
        "machines": [
            {"name": m.label, "tflops": speed, **_ratio(ratio)}
            for m, speed, ratio in zip(c.machines, w.tflops, w.ratios, strict=True)
        ],
        "parts": [
            {
                "name": part.name,
                "share": part.share,
                "cases": [case.key for case in part.cases],
                "left_out": part.left_out,
                "machines": {m.label: _ratio(r) for m, r in zip(c.machines, part.ratios, strict=True)},
            }
            for part in w.parts
        ],
    }


def _ratio(ratio: ratios.Ratio | None) -> dict[str, Any]:
    return {
        "ratio": ratio.value if ratio else None,
        "ratio_low": ratio.low if ratio else None,
        "ratio_high": ratio.high if ratio else None,
        "interval_from": " and ".join(ratio.sources) if ratio else None,
    }
