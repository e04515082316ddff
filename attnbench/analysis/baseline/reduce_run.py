"""Reduces a run to a baseline: the values that a gate reads of each job, ordered and rounded to keep diffs small.

A gate takes one value per round of each metric, so one value of each measurement's samples is kept: the one from which
the metrics are derived (results/rows.py, ONE_VALUE). The spread within a round is lost; no gate reads it, and reports
say that it is not known (the header says `reduced`). Also left out: plan, forecasts, kernels and the machine's paths.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from attnbench.core.record import Accuracy, Measurement, Record, Run, TensorError
from attnbench.results import case_names
from attnbench.results.rows import Row, Source

# The measurements from which a gate's metrics are derived, and the clocks that show whether the clock was held down.
KEPT = frozenset(
    {"time", "span", "enqueue", "first_call", "sustained", "sustained_power"}
    | {"clock_held", "clock_before", "clock_after", "clock_best", "clock_idle"}
    | {"memory_peak", "memory_driver", "memory_saved"}
)


def reduced(run: Run) -> Run:
    """Return the run as a baseline."""
    ordered = sorted(
        run.records, key=lambda r: (case_names.backend_rank(r.backend), case_names.case_rank(r.case), r.round)
    )
    device = replace(run.environment.device, matmul={}, copy=None)  # measured for forecasts, different in every run
    source = Source(run)
    return replace(
        run,
        environment=replace(run.environment, device=device, packages=_sorted(run.environment.packages)),
        plan=(),
        records=tuple(_record(Row(record, source)) for record in ordered),
        versions=_sorted(run.versions),
        specs={},
        interpreters={},
        reduced=True,
    )


def _record(row: Row) -> Record:
    record = row.record
    return Record(
        record.case,
        record.backend,
        record.round,
        record.status,
        record.reason,
        {
            name: Measurement(taken.unit, (_digits(value),))
            for name, taken in record.measurements.items()
            if name in KEPT and (value := row.one_value(name)) is not None
        },
        _accuracy(record.accuracy) if record.accuracy else None,
        record.timer,
        record.l2,
        limits=record.limits,
        approximation=record.approximation,
    )


def _accuracy(accuracy: Accuracy) -> Accuracy:
    errors = {
        name: TensorError(
            _digits(e.max_error), _digits(e.eager_error), _digits(e.tolerance), _digits(e.relative), e.where
        )
        for name, e in accuracy.errors.items()
    }
    return replace(accuracy, errors=errors)


def _digits(value: float) -> float:
    """Return a value with seven digits, more than any instrument has; whole numbers, such as bytes, do not change."""
    whole = not math.isfinite(value) or value == int(value)
    return value if whole else float(f"{value:.7g}")


def _sorted(some: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(some.items()))
