"""How good the forecast of time was. Memory is left out: the forecast counts inputs, the measurement does not."""

from __future__ import annotations

from attnbench.core import sizes, stats
from attnbench.core.formats import digits
from attnbench.core.record import Record, Run
from attnbench.core.text import count
from attnbench.results.case_names import case_name


def forecast_line(run: Run) -> str | None:
    """Return one line that compares forecast and actual seconds of the planned jobs that ran; None where there is none.

    Jobs that the plan had left out for want of time do not count: the forecast at the start is without them.
    """
    if run.environment.device.kind == "fake":  # simulated seconds take no time
        return None
    planned = {(job.case, job.backend, job.round) for job in run.plan if not job.skip}
    jobs = [
        (r, r.forecast.seconds, r.seconds)
        for key, r in {(r.case, r.backend, r.round): r for r in run.records}.items()
        if key in planned and r.status != "skipped" and r.forecast and r.forecast.seconds > 0 and r.seconds
    ]
    if not jobs:
        return None
    expected, actual = sum(e for _, e, _ in jobs), sum(a for _, _, a in jobs)
    ratios: list[tuple[float, Record]] = [(a / e, r) for r, e, a in jobs]
    furthest, record = max(ratios, key=lambda pair: max(pair[0], 1 / pair[0]))
    several = len({r.case.dtype for r in run.records}) > 1
    return (
        f"Time of {count(len(jobs), 'job')}: forecast {sizes.format_duration(expected)}, took "
        f"{sizes.format_duration(actual)}; took over forecast by job: median "
        f"{digits(stats.median([ratio for ratio, _ in ratios]))}, furthest {digits(furthest)} "
        f"({case_name(record.backend, record.case, several)})."
    )
