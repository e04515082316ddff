"""Chooses further lengths to measure: between neighbours of unlike choice, or far apart, until no border is unknown."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import replace

from attnbench.analysis.choose import module
from attnbench.analysis.choose.regions import between, kind_of, length, regions, unknown_borders, wide_gaps
from attnbench.analysis.recommend.findings import DEFAULTS, TRAINING, Problem, answered_once, problems
from attnbench.core.case import Case
from attnbench.core.record import Run
from attnbench.results.cells import cells

NEAR = 1.3  # backends that take more than this many times as long as the fastest at both ends are not tried between


def further_cases(run: Run, bits: tuple[str, ...], vary: bool) -> Mapping[Case, Sequence[str]]:
    """Return the cases that halve unknown borders and wide gaps between lengths, with the backends to measure.

    Both are of the fastest backends, and of the fastest that the module can call. Only lengths of dense batches are
    refined; `vary` is as for `regions`, and `bits` are the properties that the bits of a choice must have.
    """
    found = answered_once(problems(cells([run], by_machine=True), bits=bits))
    parts = (regions(found, vary=vary), module.module_regions(found, run, vary=vary))
    wanted: dict[Case, Sequence[str]] = {}
    for low, high in (pair for of in parts for pair in (*unknown_borders(of), *wide_gaps(of))):
        if low.case.is_ragged:
            continue
        names = sorted({*_near(low), *_near(high), *DEFAULTS})
        for case in _between(low, high):
            wanted[case] = sorted({*map(glob.escape, names), *wanted.get(case, ())})
    return wanted


def _near(problem: Problem) -> set[str]:
    best = problem.right[0].latency
    return {one.backend for one in problem.right if one.latency <= NEAR * best}


def _between(low: Problem, high: Problem) -> Sequence[Case]:
    """Return the cases of a problem between two lengths: for training both passes, for bits also the variants."""
    middle = between(length(low), length(high))
    queries = low.case.shape.seqlen_q if kind_of(low).is_decode else middle
    case = replace(low.case, shape=replace(low.case.shape, seqlen_q=queries, seqlen_k=middle))
    steps = ("fwd", "bwd") if low.step == TRAINING else (low.step,)
    has_variants = any(one.is_variant for one in (*low.right, *high.right))
    variants = (False, True) if has_variants else (low.case.deterministic,)
    return [replace(case, direction=step, deterministic=of) for step in steps for of in variants]  # type: ignore[arg-type]
