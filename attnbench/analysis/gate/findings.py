"""What a gate finds: what became of each metric of each cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from attnbench.analysis.gate import decide
from attnbench.analysis.gate.margins import RULES
from attnbench.core import stats
from attnbench.core.case import Case
from attnbench.results import case_names
from attnbench.results.made import Made

if TYPE_CHECKING:
    from attnbench.analysis.gate.measured import Measured

Verdict = Literal["newly-failing", "missing", "regressed", "inconclusive", "improved", "newly-working", "unchanged"]
VERDICTS: tuple[Verdict, ...] = (  # the gravest first
    "newly-failing",
    "missing",
    "regressed",
    "inconclusive",
    "improved",
    "newly-working",
    "unchanged",
)
_METRICS = (None, *RULES)  # in the order of a report


class Kind(NamedTuple):
    """What a finding says, and of what: all that counts for the gate as a whole."""

    verdict: Verdict
    metric: str | None

    @property
    def unmeasured(self) -> bool:
        """Of an A/B: there was no time for the cell."""
        return self.verdict == "inconclusive" and self.metric is None


@dataclass(frozen=True)
class Finding:
    """What became of one metric of a cell, or with metric None of the cell as a whole."""

    case: Case
    backend: str
    metric: str | None
    verdict: Verdict
    rounds: tuple[int, int]  # with a value, in baseline and current
    values: tuple[Sequence[float], Sequence[float]] = ((), ())  # theirs, in the metric's unit
    margin: float | None = None
    decision: decide.Decision | None = None
    reason: str = ""
    held_down: bool = False  # a limit kept the clock below its best on either side

    @property
    def baseline(self) -> float | None:
        """Typical of the rounds, in the metric's unit: their ratio is the change."""
        return _typical(self.values[0])

    @property
    def current(self) -> float | None:
        return _typical(self.values[1])

    @property
    def name(self) -> str:
        return name(self.backend, self.case)

    @property
    def kind(self) -> Kind:
        return Kind(self.verdict, self.metric)


class Findings(Made[Finding]):
    """The gravest first, within a verdict by metric, the largest change first; else in the order of a report.

    Those of what was measured are made when they are asked for.
    """

    def __init__(self, others: Sequence[Finding], measured: Measured | None) -> None:
        self._others, self._measured = others, measured
        kinds = [f.kind for f in others] + (measured.kinds if measured else [])
        changes = [0.0] * len(others) + (measured.changes if measured else [])
        ranks = {kind: (VERDICTS.index(kind.verdict), _METRICS.index(kind.metric)) for kind in set(kinds)}
        order = {kind: i for i, kind in enumerate(sorted(ranks, key=ranks.__getitem__))}
        ahead = {kind: 1.0 if kind.verdict == "improved" else -1.0 for kind in ranks}
        sizes = [ahead[kind] * change for kind, change in zip(kinds, changes, strict=True)]
        self._order = sorted(range(len(kinds)), key=sizes.__getitem__)
        self._order.sort(key=[order[kind] for kind in kinds].__getitem__)
        self.kinds = [kinds[i] for i in self._order]

    def __len__(self) -> int:
        return len(self._order)

    def make(self, i: int) -> Finding:
        place = self._order[i] - len(self._others)
        if place < 0 or self._measured is None:
            return self._others[place]
        return self._measured[place]


def name(backend: str, case: Case) -> str:
    """All of a cell, so that it stays its name whatever it stands beside: triton 16k d128 causal fwd bf16 b1 h16."""
    return f"{case_names.case(backend, case, dtype=True)} b{case.shape.batch} h{case_names.heads(case)}"


def _typical(values: Sequence[float]) -> float | None:
    """The geometric mean, as logarithms are compared; a reading of 0 has none."""
    if not values:
        return None
    return stats.geomean(values) if min(values) > 0 else stats.median(values)
