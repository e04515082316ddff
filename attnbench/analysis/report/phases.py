"""The time that a run spent in each phase of its jobs, by backend."""

from __future__ import annotations

from collections.abc import Sequence

from attnbench.core.sizes import format_duration
from attnbench.render.document import Column, Table
from attnbench.results.cells import Cell

NOTE = "Timing includes samples, warm-up, pauses in which the clock recovers, making L2 cold, and kernel spans."
REST = "other"  # the rest of a job: the request, the answer, freeing memory


def phases(cells: Sequence[Cell]) -> list[Table]:
    """Return a table of the seconds that each phase took, over all jobs of a backend; none without phases."""
    spent: dict[str, dict[str, float]] = {}
    for row in (row for cell in cells for row in cell.rows if row.record.phases):
        own = spent.setdefault(row.record.backend, {})
        known = dict(row.record.phases)
        if row.record.seconds:
            known[REST] = max(0.0, row.record.seconds - sum(known.values()))
        for phase, seconds in known.items():
            own[phase] = own.get(phase, 0.0) + seconds
    if not spent:
        return []
    total = {phase: sum(own.get(phase, 0.0) for own in spent.values()) for own in spent.values() for phase in own}
    everything = sum(total.values())
    columns = (Column("phase"), *(Column(name, "right") for name in spent), Column("all", "right"), Column("", "right"))
    rows = tuple(
        (
            phase,
            *(format_duration(own.get(phase, 0.0)) for own in spent.values()),
            format_duration(seconds),
            f"{seconds / everything:.0%}",
        )
        for phase, seconds in sorted(total.items(), key=lambda item: -item[1])
    )
    return [Table("phases", columns, rows, title=f"Where {format_duration(everything)} of jobs went", note=NOTE)]
