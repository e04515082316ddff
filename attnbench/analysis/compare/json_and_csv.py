"""A comparison for other programs. CSV: a row for each cell and machine. JSON: the same rows and all that is derived.

Seconds, watts and fractions are not scaled; tflops is TFLOP/s. `ratio` is how many times as fast the machine is as the
reference in the same cell, with the ends of its 95 % interval and what that is from. What is not known is None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnbench.analysis.compare.answer import answer
from attnbench.analysis.compare.compare import Comparison
from attnbench.analysis.compare.machines import Machine
from attnbench.analysis.compare.missing_cells import NOT_PLANNED
from attnbench.analysis.compare.speed_ratio import Ratio
from attnbench.results.table import case_columns


def cell_rows(c: Comparison) -> Iterator[dict[str, Any]]:
    """Yield a mapping for every cell that any machine has, and for every machine, all with the same keys."""
    for key in dict.fromkeys(key for machine in c.machines for key in machine.cells):
        case, backend = key
        for machine in c.machines:
            cell, measured = machine.cells.get(key), key in machine.log_latencies
            figures = cell if measured else None
            yield {
                "machine": machine.label,
                "backend": backend,
                **case_columns(case),
                "status": cell.status if cell else NOT_PLANNED,
                "reason": cell.reason if cell else None,
                "fastest": machine.fastest.get(case) == backend,
                "rounds": len(machine.log_latencies[key]) if measured else 0,
                "latency": machine.latency(key) if measured else None,
                "tflops": machine.tflops(key) if measured else None,
                "utilization": figures.value("utilization") if figures else None,
                "power": figures.value("power") if figures else None,
                "sustained_tflops_per_watt": figures.value("tflops_per_watt") if figures else None,
                "memory_peak": figures.value("memory_peak") if figures else None,
                **_ratio(c.cell_ratio(key, machine) if measured and key in c.reference.log_latencies else None),
            }


def data(c: Comparison, warnings: Sequence[str], cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the whole comparison as plain values; `cells` are those of `cell_rows`."""
    return {
        "answer": answer(c),
        "reference": c.reference.label,
        "machines": [_machine(c, machine) for machine in c.machines],
        "groups": [
            {
                "name": group.name,
                "cases": len(group.cases),
                "cells": len(group.cells),
                "fastest_backends": _ratios(group.fastest),
                "same_backend": _ratios(group.same),
            }
            for group in (*c.groups, c.whole)
        ],
        "workload": _workload(c),
        "missing": [
            {"machine": m.machine, "backend": m.backend, "why": m.why, "reason": m.reason, "cells": len(m.cells)}
            for m in c.missing
        ],
        "longest": [
            {
                "cases": longest.name,
                "backend": longest.backend,
                "machines": [
                    {"longest": f.longest, "refused": f.refused} if f else None for f in longest.fits.values()
                ],
            }
            for longest in c.longest
        ],
        "units": [
            {
                "model": spread.name,
                "files": [file.path.name for file in spread.files],
                "units": spread.units,
                "tflops": spread.tflops,
                "cells": spread.cells,
            }
            for spread in c.spreads
        ],
        "warnings": warnings,
        "cells": cells,
    }


def _machine(c: Comparison, machine: Machine) -> dict[str, Any]:
    label, environment, price = machine.label, machine.environment, c.prices.get(machine.label)
    return {
        "name": label,
        "device": environment.device.name,
        "power_limit_w": environment.power_limit_w,
        "torch": environment.torch,
        "driver": environment.driver,
        "files": [file.path.name for file in machine.files],
        "tflops": c.tflops[label],
        "tflops_geomean": c.mean_tflops[label],
        "utilization": c.utilization[label],
        "watts": c.power.watts[label] if c.power else None,
        "tflops_per_watt": c.power.tflops_per_watt[label] if c.power else None,
        "price": price.amount if price else None,
        "price_per": price.per if price else None,
        "bought": c.bought(label),
        "bought_unit": price.unit if price else None,
        **_ratio(c.overall[label]),
    }


def _workload(c: Comparison) -> dict[str, Any] | None:
    result = c.workload
    if result is None:
        return None
    return {
        "name": result.name,
        "weights": result.workload.weights,
        "machines": [
            {"name": label, "tflops": result.tflops[label], **_ratio(ratio)} for label, ratio in result.ratios.items()
        ],
        "parts": [
            {
                "name": part.name,
                "share": part.share,
                "cases": [case.key for case in part.cases],
                "left_out": part.left_out,
                "machines": _ratios(part.ratios),
            }
            for part in result.parts
        ],
    }


def _ratios(ratios: Mapping[str, Ratio | None]) -> dict[str, dict[str, Any]]:
    return {label: _ratio(ratio) for label, ratio in ratios.items()}


def _ratio(ratio: Ratio | None) -> dict[str, Any]:
    return {
        "ratio": ratio.value if ratio else None,
        "ratio_low": ratio.low if ratio else None,
        "ratio_high": ratio.high if ratio else None,
        "interval_from": " and ".join(ratio.sources) if ratio else None,
    }
