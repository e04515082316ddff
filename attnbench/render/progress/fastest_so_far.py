"""The fastest backends of each case while a run goes on, as many cases as a terminal has room for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.text import Text

from attnbench.core.case import Case
from attnbench.results import case_names, metrics
from attnbench.results.metrics import METRICS, Metric
from attnbench.results.rows import Row

SHOWN = 3  # most backends of a case


@dataclass
class FastestSoFar:
    """A line for each case: its fastest backends with their speeds, and how many of the planned ones were measured."""

    planned: dict[Case, int]  # case -> how many backends are to be measured
    several_dtypes: bool = False
    _found: dict[Case, dict[str, float]] = field(default_factory=dict)  # in the order in which they were last measured
    _metric: dict[Case, Metric] = field(default_factory=dict)
    _ended: dict[Case, set[str]] = field(default_factory=dict)  # the backends whose jobs have ended

    def add(self, row: Row) -> None:
        """Take the record of a job that has ended."""
        record = row.record
        self._ended.setdefault(record.case, set()).add(record.backend)
        if record.status == "ok" and record.approximation is None:
            metric = self._metric.setdefault(record.case, METRICS[metrics.usual(record.case, row.rates)[0]])
            if value := metrics.value(metric.name, row):
                self._found[record.case] = self._found.pop(record.case, {}) | {record.backend: value}

    def lines(self, width: int, most: int) -> list[Text]:
        """Return at most `most` lines of at most `width` characters, the case that was measured last at the end."""
        shown = [*self._found.items()][-most:] if most > 0 else []
        names = {case: case_names.case_name("", case, self.several_dtypes).strip() for case, _ in shown}
        longest = max(map(len, names.values()), default=0)
        return [self._line(case, names[case].ljust(longest), of, width) for case, of in shown]

    def _line(self, case: Case, name: str, found: Mapping[str, float], width: int) -> Text:
        metric = self._metric[case]
        order = sorted(found.items(), key=lambda item: item[1], reverse=metric.better == "higher")
        line = Text(f"{name}  ")
        for place, (backend, value) in enumerate(order[:SHOWN]):
            figure = metric.format(value) + (f" {metric.unit}" if metric.unit not in ("", "s") and not place else "")
            line.append(f"{backend} ", style="" if place else "bold").append(figure, style="dim" if place else "green")
            line.append("  ")
        line.append(f"{len(self._ended[case])} of {self.planned.get(case, len(self._ended[case]))}", style="dim")
        line.truncate(width, overflow="ellipsis")
        return line
