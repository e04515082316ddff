"""The search of a bisection: its steps, the slowdown that counts, and the commit to measure next.

docs/bisect.md has the method and its probabilities: halving by A/Bs against GOOD, then one A/B between the two commits
that are left. At most one commit can cause more than half of a difference, unless others made the cell faster.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from attnbench.analysis.gate.hypothesis_tests import EQUIVALENCE, FDR
from attnbench.analysis.gate.verdicts import Decision, Finding
from attnbench.core.record import Run
from attnbench.run.commits import Commit

Verdict = Literal["slow", "not slow", "undecided", "skipped"]
VERDICTS: dict[str, Verdict] = {"regressed": "slow", "unchanged": "not slow", "improved": "not slow"}  # of gates
ERRORS = {"regressed": FDR, "unchanged": EQUIVALENCE, "improved": FDR}  # the probability that each is wrong


@dataclass(frozen=True)
class Step:
    """One A/B of a bisection, or why a commit was not measured."""

    against: Commit
    commit: Commit
    margin: float  # relative
    finding: Finding | None = None  # on the metric
    reason: str = ""  # why there is no finding
    attempts: int = 1  # A/Bs of these two commits, this one included; an earlier bisect may have left some undecided
    run: Run | None = None  # of the commit
    exit_code: int = 0  # of the A/B

    @property
    def verdict(self) -> Verdict:
        """The verdict on the commit: slow, not slow, undecided, or skipped where there is no finding."""
        return VERDICTS.get(self.finding.verdict, "undecided") if self.finding else "skipped"

    @property
    def decision(self) -> Decision | None:
        """The change with its interval."""
        return self.finding.decision if self.finding else None

    @property
    def error(self) -> float:
        """The largest probability with which the verdict is wrong; 0 where there is none."""
        return min(1.0, self.attempts * ERRORS.get(self.finding.verdict, 0.0)) if self.finding else 0.0


def threshold(decision: Decision) -> float:
    """Return the slowdown that parts slow commits from the others: half of the difference, or its least value."""
    half = math.sqrt(1 + decision.change) - 1
    return half if decision.low is None else min(half, decision.low)


def next_commit(low: int, high: int, skipped: Collection[int]) -> int | None:
    """Return the commit to measure next between `low`, not slow, and `high`, slow; None where none is left.

    It is the commit in the middle, or the nearest commit that was not skipped.
    """
    left = [i for i in range(low + 1, high) if i not in skipped]
    return min(left, key=lambda i: abs(2 * i - low - high), default=None)


def steps_ahead(low: int, high: int) -> int:
    """Return the number of A/Bs until the answer, if each of them decides."""
    return math.ceil(math.log2(high - low)) + 1
