"""First calls that are not judged, as caches of compiled kernels may have been empty on one side only (docs/gate.md).

A run does not say whether a first call found its kernel in a cache. Where caches were empty in all rounds, the first
calls of most cells of a backend are slower, in all rounds; a kernel that compiles longer looks the same.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from attnbench.analysis.gate.margins import RULES
from attnbench.analysis.gate.verdicts import Finding
from attnbench.core import stats
from attnbench.core.record import Run
from attnbench.core.text import count, listed

METRIC = "first_call"
TOGETHER = 2 / 3  # share of a backend's cells, at least two
FILLED = 2.0  # slowest over quickest round of the median cell: from here on, a cache was filled between rounds
OTHER_CACHES = "caches of compiled kernels were kept in one run and empty in the other"
MAYBE_EMPTY = "perhaps caches of compiled kernels were empty in one run"


def set_aside(findings: Sequence[Finding], baseline: Run, current: Run) -> tuple[list[Finding], list[str]]:
    """Return the findings and a note. First calls that caches may explain become inconclusive."""
    own = [f for f in findings if f.metric == METRIC and f.decision]
    states = {run.policy.caches for run in (baseline, current)}
    if len(states) > 1 and own:
        aside, reason = own, OTHER_CACHES
        note = f"First calls are not judged: {reason}. Measure both alike."
    elif states == {"kept"} and (aside := _slower_together(own)):
        reason = MAYBE_EMPTY
        slower = "current run" if aside[0].verdict == "regressed" else "baseline"
        ratios = (max(1 + f.decision.change, sys.float_info.min) for f in aside if f.decision)
        factor = stats.median([max(ratio, 1 / ratio) for ratio in ratios])
        note = (
            f"First calls of {listed(sorted({f.backend for f in aside}))} are slower in the {slower}, in "
            f"{count(len(aside), 'cell')} at once, typically {factor:.2g} times: {reason}, which run files do not "
            "record. These are not judged; measure both runs with --fresh-caches, so that each first call compiles."
        )
    else:
        return [*findings], []
    ids = {id(f) for f in aside}
    return [replace(f, verdict="inconclusive", reason=reason) if id(f) in ids else f for f in findings], [note]


def _slower_together(own: Sequence[Finding]) -> list[Finding]:
    """Return the findings of the backends of which most cells are slower on one side, in all of its rounds.

    If any backend is slower in the current run, a slower baseline is not looked for.
    """
    for verdict, side in (("regressed", 1), ("improved", 0)):
        found = []
        for backend in {f.backend: None for f in own}:
            cells = [f for f in own if f.backend == backend]
            moved = [f for f in cells if f.verdict == verdict]
            if len(moved) < max(2, TOGETHER * len(cells)):
                continue
            if stats.median([_filled(f.values[side]) for f in moved]) < FILLED:
                found += moved
        if found:
            return found
    return []


def _filled(seconds: Sequence[float]) -> float:
    """Return the ratio of the slowest round to the quickest."""
    return max(seconds) / max(min(seconds), RULES[METRIC].floor)
