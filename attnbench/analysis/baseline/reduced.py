"""A run as a baseline: of every job what a gate reads, in an order and with figures that make small diffs.

A gate takes one value a round of each metric, so of a measurement's samples one value is kept: the one that the metric
derives from them. What is lost is the spread within a round, which no gate reads and reports then do not know (the
header says `reduced`); nothing is made up. Also left out: the plan, forecasts, kernels and paths of this machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from attnbench.core import stats
from attnbench.core.record import Accuracy, Measurement, Record, Run, TensorError
from attnbench.results import case_names


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


# As derive.py makes a metric of the samples.
KEPT: Mapping[str, Callable[[Sequence[float]], float]] = MappingProxyType(
    {
        **dict.fromkeys(("time", "span", "enqueue", "first_call", "clock_held", "sustained_power"), stats.median),
        **dict.fromkeys(("memory_peak", "memory_driver", "memory_saved"), max),
        "sustained": _mean,
    }
)


def reduced(run: Run) -> Run:
    """The last record of each job counts, as everywhere."""
    latest = {r.id: r for r in run.records}.values()
    ordered = sorted(latest, key=lambda r: (case_names.backend_rank(r.backend), case_names.case_rank(r.case), r.round))
    device = replace(run.environment.device, matmul={}, copy=None)  # readings for forecasts, new in every run
    return replace(
        run,
        environment=replace(run.environment, device=device, packages=_sorted(run.environment.packages)),
        plan=(),
        records=tuple(map(_record, ordered)),
        versions=_sorted(run.versions),
        specs={},
        interpreters={},
        reduced=True,
    )


def _record(record: Record) -> Record:
    return Record(
        record.case,
        record.backend,
        record.round,
        record.status,
        record.reason,
        {name: _one(name, m) for name, m in record.measurements.items() if name in KEPT and m.values},
        _accuracy(record.accuracy) if record.accuracy else None,
        record.timer,
        record.l2,
        limits=record.limits,
    )


def _one(name: str, measurement: Measurement) -> Measurement:
    return Measurement(measurement.unit, (_digits(KEPT[name](measurement.values)),))


def _accuracy(accuracy: Accuracy) -> Accuracy:
    errors = {
        name: TensorError(*map(_digits, (e.max_error, e.eager_error, e.tolerance, e.relative)))
        for name, e in accuracy.errors.items()
    }
    return replace(accuracy, errors=errors)


def _digits(value: float) -> float:
    """Seven, more than any instrument has; sizes in bytes stay whole."""
    whole = not math.isfinite(value) or value == int(value)
    return value if whole else float(f"{value:.7g}")


def _sorted(some: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(some.items()))
