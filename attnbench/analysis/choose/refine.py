"""Chooses further lengths to measure: between neighbours of unlike choice, until each border is known well enough."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import replace

from attnbench.analysis.choose import module
from attnbench.analysis.choose.regions import Region, between, regions, unknown_borders
from attnbench.analysis.recommend.findings import DEFAULTS, TRAINING, Problem, answered_once, problems
from attnbench.core.case import Case
from attnbench.core.record import Run
from attnbench.results.cells import cells

NEAR = 1.3  # backends that take this many times as long as the fastest on both sides of a border are not tried within


def further_cases(run: Run, bits: tuple[str, ...], vary: bool) -> Mapping[Case, Sequence[str]]:
    """Return the cases that halve each border which is known to no better than BORDER, with the backends to measure.

    These are the borders of the fastest backends, and of the fastest that the module can call. Only lengths of dense
    batches are refined; `vary` is as for `regions`, and `bits` are the properties that the bits of a choice must have.
    """
    found = answered_once(problems(cells([run], by_machine=True), bits=bits))
    parts = (regions(found, vary=vary), regions(module.for_module(found), module.callable_by(run), vary=vary))
    wanted: dict[Case, Sequence[str]] = {}
    for left, right in (pair for of in parts for pair in unknown_borders(of)):
        low, high = left.problems[-1], right.problems[0]
        if not (left.use and right.use) or low.case.is_ragged:
            continue
        names = _near(low) | _near(high) | {*DEFAULTS, left.use, right.use}
        for case in _between(left, low, high):
            wanted[case] = sorted({*map(glob.escape, names), *wanted.get(case, ())})
    return wanted


def _near(problem: Problem) -> set[str]:
    best = problem.right[0].latency
    return {one.backend for one in problem.right if one.latency <= NEAR * best}


def _between(region: Region, low: Problem, high: Problem) -> Sequence[Case]:
    """Return the cases of a problem between two lengths: for a training step its forward and its backward."""
    length = between(low.case.shape.seqlen_k, high.case.shape.seqlen_k)
    queries = low.case.shape.seqlen_q if region.kind.is_decode else length
    case = replace(low.case, shape=replace(low.case.shape, seqlen_q=queries, seqlen_k=length))
    steps = ("fwd", "bwd") if region.kind.step == TRAINING else (region.kind.step,)
    return [replace(case, direction=step) for step in steps]  # type: ignore[arg-type]
